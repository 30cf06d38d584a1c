// RUN: hp-opt %s --split-input-file --hp-overlap-collectives 2> /dev/null | filecheck %s
// RUN: hp-opt %s --split-input-file --hp-overlap-collectives='prefetch=2' 2> /dev/null | filecheck %s --check-prefix=TWO
// RUN: hp-opt %s --split-input-file --hp-overlap-collectives='prefetch=0' 2> /dev/null | filecheck %s --check-prefix=NONE
// RUN: hp-opt %s --split-input-file --hp-overlap-collectives --hp-overlap-collectives 2> /dev/null | filecheck %s

!shard = !torch.vtensor<[2,4],f32>
!full = !torch.vtensor<[4,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // Rule 1: the gathers of a unit start where the unit before it is used first, those of the first one at the entry. A
  // root parameter is a step by itself. Rule 4: each wait stands before the first use.
  // CHECK-LABEL: func.func @one_step_ahead
  // CHECK-SAME: (%[[E:arg0]]: {{.*}}, %[[A:arg1]]: {{.*}}, %[[B:arg2]]: {{.*}}, %[[C:arg3]]: {{.*}}, %[[X:arg4]]: {{.*}}
  // CHECK-NEXT: %[[FE:.*]] = "hp.all_gather"(%[[E]])
  // CHECK-NEXT: %[[FA:.*]] = "hp.all_gather"(%[[A]])
  // CHECK-NEXT: %[[FB:.*]] = "hp.all_gather"(%[[B]])
  // CHECK-NEXT: %[[WE:.*]] = "hp.wait"(%[[FE]])
  // CHECK-NEXT: %[[H0:.*]] = torch.aten.mm %[[X]], %[[WE]]
  // CHECK-NEXT: %[[FC:.*]] = "hp.all_gather"(%[[C]])
  // CHECK-NEXT: %[[WA:.*]] = "hp.wait"(%[[FA]])
  // CHECK-NEXT: %[[H1:.*]] = torch.aten.mm %[[H0]], %[[WA]]
  // CHECK-NEXT: %[[WB:.*]] = "hp.wait"(%[[FB]])
  // CHECK-NEXT: %[[H2:.*]] = torch.aten.mm %[[H1]], %[[WB]]
  // CHECK-NEXT: %[[WC:.*]] = "hp.wait"(%[[FC]])
  // CHECK-NEXT: torch.aten.mm %[[H2]], %[[WC]]
  // Two steps ahead, everything but the last starts at the entry.
  // TWO-LABEL: func.func @one_step_ahead
  // TWO-COUNT-3: "hp.all_gather"(%arg{{[0-2]}})
  // TWO-NEXT: "hp.all_gather"(%arg3)
  // TWO-NEXT: "hp.wait"
  // Without prefetch a unit's gathers still start together.
  // NONE-LABEL: func.func @one_step_ahead
  // NONE-NEXT: "hp.all_gather"(%arg0)
  // NONE-NEXT: "hp.wait"
  // NONE-NEXT: torch.aten.mm
  // NONE-NEXT: "hp.all_gather"(%arg1)
  // NONE-NEXT: "hp.all_gather"(%arg2)
  // NONE-NEXT: "hp.wait"
  // NONE-NEXT: torch.aten.mm
  // NONE-NEXT: "hp.wait"
  // NONE-NEXT: torch.aten.mm
  // NONE-NEXT: "hp.all_gather"(%arg3)
  func.func @one_step_ahead(
      %e: !shard {hp.fqn = ["e"], hp.role = "param"}, %a: !shard {hp.fqn = ["l0.a"], hp.role = "param"},
      %b: !shard {hp.fqn = ["l0.b"], hp.role = "param"}, %c: !shard {hp.fqn = ["l1.c"], hp.role = "param"},
      %x: !full {hp.name = "x", hp.role = "input"}) -> (!full {hp.name = "y", hp.role = "output"}) {
    %fe = "hp.all_gather"(%e) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["e"], hp.phase = "forward", hp.unit = "", mesh = @mesh} : (!shard) -> !future
    %we = "hp.wait"(%fe) : (!future) -> !full
    %h0 = torch.aten.mm %x, %we : !full, !full -> !full
    %fa = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["l0.a"], hp.phase = "forward", hp.unit = "l0", mesh = @mesh} : (!shard) -> !future
    %wa = "hp.wait"(%fa) : (!future) -> !full
    %h1 = torch.aten.mm %h0, %wa : !full, !full -> !full
    %fb = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["l0.b"], hp.phase = "forward", hp.unit = "l0", mesh = @mesh} : (!shard) -> !future
    %wb = "hp.wait"(%fb) : (!future) -> !full
    %h2 = torch.aten.mm %h1, %wb : !full, !full -> !full
    %fc = "hp.all_gather"(%c) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["l1.c"], hp.phase = "forward", hp.unit = "l1", mesh = @mesh} : (!shard) -> !future
    %wc = "hp.wait"(%fc) : (!future) -> !full
    %y = torch.aten.mm %h2, %wc : !full, !full -> !full
    return %y : !full
  }

  // Rule 1 in the backward: the gather of layer 0 starts while layer 1 runs backward, that of layer 1 while it still runs
  // forward. Units whose names are equal are others in another phase.
  // CHECK-LABEL: func.func @backward
  // CHECK: "hp.all_gather"(%arg0) {{.*}}hp.phase = "forward"
  // CHECK-NEXT: "hp.all_gather"(%arg1) {{.*}}hp.phase = "forward"
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.all_gather"(%arg1) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.all_gather"(%arg0) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  func.func @backward(
      %a: !shard {hp.fqn = ["l0.a"], hp.role = "param"}, %b: !shard {hp.fqn = ["l1.b"], hp.role = "param"},
      %x: !full {hp.name = "x", hp.role = "input"}) -> (!full {hp.name = "y", hp.role = "output"}) {
    %f0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", hp.unit = "l0", mesh = @mesh} : (!shard) -> !future
    %w0 = "hp.wait"(%f0) : (!future) -> !full
    %h0 = torch.aten.mm %x, %w0 {hp.phase = "forward"} : !full, !full -> !full
    %f1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", hp.unit = "l1", mesh = @mesh} : (!shard) -> !future
    %w1 = "hp.wait"(%f1) : (!future) -> !full
    %h1 = torch.aten.mm %h0, %w1 {hp.phase = "forward"} : !full, !full -> !full
    %f2 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "backward", hp.unit = "l1", mesh = @mesh} : (!shard) -> !future
    %w2 = "hp.wait"(%f2) : (!future) -> !full
    %g1 = torch.aten.mm %h1, %w2 {hp.phase = "backward"} : !full, !full -> !full
    %f3 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "backward", hp.unit = "l0", mesh = @mesh} : (!shard) -> !future
    %w3 = "hp.wait"(%f3) : (!future) -> !full
    %g0 = torch.aten.mm %g1, %w3 {hp.phase = "backward"} : !full, !full -> !full
    return %g0 : !full
  }

  // Rule 1: a bucket is one unit, whatever its parameters' units are; its views move behind the wait (rule 4).
  // CHECK-LABEL: func.func @buckets
  // CHECK-SAME: (%[[A:arg0]]: {{.*}}, %[[B:arg1]]: {{.*}}, %[[C:arg2]]: {{.*}}, %[[X:arg3]]: {{.*}}
  // CHECK-NEXT: %[[F0:.*]] = "hp.all_gather"(%[[A]], %[[B]]) {{.*}}hp.bucket = "size 1"
  // CHECK-NEXT: %[[H:.*]] = torch.aten.mm %[[X]], %[[X]]
  // CHECK-NEXT: %[[F1:.*]] = "hp.all_gather"(%[[C]]) {{.*}}hp.bucket = "size 2"
  // CHECK-NEXT: %[[W:.*]]:2 = "hp.wait"(%[[F0]])
  // CHECK-NEXT: %[[T:.*]] = torch.aten.t %[[W]]#1
  // CHECK-NEXT: torch.aten.mm %[[H]], %[[T]]
  // CHECK-NEXT: torch.aten.mm %{{.*}}, %[[W]]#0
  // CHECK-NEXT: "hp.wait"(%[[F1]])
  func.func @buckets(
      %a: !shard {hp.fqn = ["l0.a"], hp.role = "param"}, %b: !shard {hp.fqn = ["l1.b"], hp.role = "param"},
      %c: !shard {hp.fqn = ["l1.c"], hp.role = "param"},
      %x: !full {hp.name = "x", hp.role = "input"}) -> (!full {hp.name = "y", hp.role = "output"}) {
    %f0 = "hp.all_gather"(%a, %b) {axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "size 1", hp.phase = "forward", mesh = @mesh} : (!shard, !shard) -> !hp.future<[!full, !full]>
    %w:2 = "hp.wait"(%f0) : (!hp.future<[!full, !full]>) -> (!full, !full)
    %t = torch.aten.t %w#1 : !full -> !full
    %h = torch.aten.mm %x, %x : !full, !full -> !full
    %h0 = torch.aten.mm %h, %t : !full, !full -> !full
    %h1 = torch.aten.mm %h0, %w#0 : !full, !full -> !full
    %f1 = "hp.all_gather"(%c) {axes = ["dp"], dims = array<i64: 0>, hp.bucket = "size 2", hp.phase = "forward", mesh = @mesh} : (!shard) -> !future
    %w1 = "hp.wait"(%f1) : (!future) -> !full
    %y = torch.aten.mm %h1, %w1 : !full, !full -> !full
    return %y : !full
  }

  // Rule 2: a cast of the shard at the entry stays, and the gather stands behind it; a pad that stands in the way moves up
  // with its gather, its constants too.
  // CHECK-LABEL: func.func @preparations
  // CHECK-NEXT: torch.constant.none
  // CHECK-NEXT: torch.constant.bool false
  // CHECK-NEXT: torch.constant.int 15
  // CHECK-NEXT: %[[CAST:.*]] = torch.aten._to_copy
  // CHECK-NEXT: %[[F0:.*]] = "hp.all_gather"(%[[CAST]])
  // CHECK-NEXT: %[[ZERO:.*]] = torch.constant.int 0
  // CHECK-NEXT: %[[ONE:.*]] = torch.constant.int 1
  // CHECK-NEXT: %[[PADS:.*]] = torch.prim.ListConstruct %[[ZERO]], %[[ZERO]], %[[ZERO]], %[[ONE]]
  // CHECK-NEXT: %[[REAL:.*]] = torch.constant.float 0.0
  // CHECK-NEXT: %[[PAD:.*]] = torch.aten.constant_pad_nd %arg1, %[[PADS]], %[[REAL]]
  // CHECK-NEXT: "hp.all_gather"(%[[PAD]])
  // CHECK-NEXT: "hp.wait"(%[[F0]])
  func.func @preparations(
      %a: !shard {hp.fqn = ["l0.a"], hp.role = "param"}, %b: !torch.vtensor<[1,4],f32> {hp.fqn = ["l1.b"], hp.role = "param"},
      %x: !torch.vtensor<[4,4],bf16> {hp.name = "x", hp.role = "input"}) -> (!full {hp.name = "y", hp.role = "output"}) {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %bf16 = torch.constant.int 15
    %cast = torch.aten._to_copy %a, %bf16, %none, %none, %none, %false, %none : !shard, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2,4],bf16>
    %f0 = "hp.all_gather"(%cast) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", hp.unit = "l0", mesh = @mesh} : (!torch.vtensor<[2,4],bf16>) -> !hp.future<[!torch.vtensor<[4,4],bf16>]>
    %w0 = "hp.wait"(%f0) : (!hp.future<[!torch.vtensor<[4,4],bf16>]>) -> !torch.vtensor<[4,4],bf16>
    %h = torch.aten.mm %x, %w0 : !torch.vtensor<[4,4],bf16>, !torch.vtensor<[4,4],bf16> -> !torch.vtensor<[4,4],bf16>
    %f32 = torch.constant.int 6
    %wide = torch.aten._to_copy %h, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[4,4],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !full
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %pads = torch.prim.ListConstruct %zero, %zero, %zero, %one : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %real = torch.constant.float 0.0
    %pad = torch.aten.constant_pad_nd %b, %pads, %real : !torch.vtensor<[1,4],f32>, !torch.list<int>, !torch.float -> !shard
    %f1 = "hp.all_gather"(%pad) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", hp.unit = "l1", mesh = @mesh} : (!shard) -> !future
    %w1 = "hp.wait"(%f1) : (!future) -> !full
    %y = torch.aten.mm %wide, %w1 : !full, !full -> !full
    return %y : !full
  }
}
