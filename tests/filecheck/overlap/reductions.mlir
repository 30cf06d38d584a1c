// RUN: hp-opt %s --split-input-file --hp-overlap-collectives 2> /dev/null | filecheck %s
// RUN: hp-opt %s --split-input-file --hp-overlap-collectives --hp-overlap-collectives 2> /dev/null | filecheck %s

!shard = !torch.vtensor<[2,4],f32>
!full = !torch.vtensor<[4,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>
!scattered = !hp.future<[!torch.vtensor<[2,4],f32>]>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["rep", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()

  // Rule 3: a reduction starts as soon as its operand exists, behind what puts it into shape. Rule 5: it is waited for
  // behind the next place where reductions start, the last one before the return.
  // CHECK-LABEL: func.func @early
  // CHECK-NEXT: %[[G1:.*]] = torch.aten.mm
  // CHECK-NEXT: %[[T1:.*]] = torch.aten.t %[[G1]]
  // CHECK-NEXT: %[[R1:.*]] = "hp.reduce_scatter"(%[[T1]])
  // CHECK-NEXT: %[[G0:.*]] = torch.aten.mm
  // CHECK-NEXT: %[[R0:.*]] = "hp.reduce_scatter"(%[[G0]])
  // CHECK-NEXT: %[[S1:.*]] = "hp.wait"(%[[R1]])
  // CHECK-NEXT: torch.aten.mm %[[G0]], %[[G0]]
  // CHECK-NEXT: %[[S0:.*]] = "hp.wait"(%[[R0]])
  // CHECK-NEXT: return %{{.*}}, %[[S1]], %[[S0]]
  func.func @early(%x: !full {hp.name = "x", hp.role = "input"})
      -> (!full {hp.name = "y", hp.role = "output"}, !shard {hp.fqn = ["l1.w"], hp.role = "grad"}, !shard {hp.fqn = ["l0.w"], hp.role = "grad"}) {
    %g1 = torch.aten.mm %x, %x {hp.phase = "backward"} : !full, !full -> !full
    %g0 = torch.aten.mm %g1, %x {hp.phase = "backward"} : !full, !full -> !full
    %y = torch.aten.mm %g0, %g0 {hp.phase = "backward"} : !full, !full -> !full
    %t1 = torch.aten.t %g1 {hp.phase = "backward"} : !full -> !full
    %r1 = "hp.reduce_scatter"(%t1) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "backward", hp.unit = "l1", mesh = @mesh, reduce = "avg"} : (!full) -> !scattered
    %s1 = "hp.wait"(%r1) : (!scattered) -> !shard
    %r0 = "hp.reduce_scatter"(%g0) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "backward", hp.unit = "l0", mesh = @mesh, reduce = "avg"} : (!full) -> !scattered
    %s0 = "hp.wait"(%r0) : (!scattered) -> !shard
    return %y, %s1, %s0 : !full, !shard, !shard
  }

  // Rule 3: reductions of one unit that stand together stay together; one apart from them starts by itself.
  // CHECK-LABEL: func.func @together
  // CHECK-NEXT: %[[G0:.*]] = torch.aten.mm
  // CHECK-NEXT: "hp.all_reduce"(%[[G0]]) {{.*}}hp.fqn = ["c"]
  // CHECK-NEXT: %[[G1:.*]] = torch.aten.mm
  // CHECK-NEXT: "hp.all_reduce"(%[[G0]]) {{.*}}hp.fqn = ["a"]
  // CHECK-NEXT: "hp.all_reduce"(%[[G1]]) {{.*}}hp.fqn = ["b"]
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: torch.aten.relu
  func.func @together(%x: !full {hp.name = "x", hp.role = "input"})
      -> (!full {hp.fqn = ["a"], hp.role = "grad"}, !full {hp.fqn = ["b"], hp.role = "grad"}, !full {hp.fqn = ["c"], hp.role = "grad"}, !full {hp.name = "y", hp.role = "output"}) {
    %g0 = torch.aten.mm %x, %x : !full, !full -> !full
    %g1 = torch.aten.mm %g0, %x : !full, !full -> !full
    %y = torch.aten.relu %g1 : !full -> !full
    %ra = "hp.all_reduce"(%g0) {axes = ["dp"], hp.fqn = ["a"], hp.unit = "l0", mesh = @mesh, reduce = "avg"} : (!full) -> !future
    %rb = "hp.all_reduce"(%g1) {axes = ["dp"], hp.fqn = ["b"], hp.unit = "l0", mesh = @mesh, reduce = "avg"} : (!full) -> !future
    %z = torch.aten.relu %y : !full -> !full
    %rc = "hp.all_reduce"(%g0) {axes = ["dp"], hp.fqn = ["c"], hp.unit = "l0", mesh = @mesh, reduce = "avg"} : (!full) -> !future
    %a = "hp.wait"(%ra) : (!future) -> !full
    %b = "hp.wait"(%rb) : (!future) -> !full
    %c = "hp.wait"(%rc) : (!future) -> !full
    return %a, %b, %c, %z : !full, !full, !full, !full
  }

  // Rule 5: what is reduced on starts behind the wait for its parts, one place behind their start, and is waited for
  // another place on; the cast of the result goes with its wait.
  // CHECK-LABEL: func.func @hybrid
  // CHECK: %[[G2:.*]] = torch.aten.mm
  // CHECK-NEXT: %[[R2:.*]] = "hp.reduce_scatter"(%[[G2]])
  // CHECK-NEXT: %[[G1:.*]] = torch.aten.mm
  // CHECK-NEXT: %[[R1:.*]] = "hp.reduce_scatter"(%[[G1]])
  // CHECK-NEXT: %[[S2:.*]] = "hp.wait"(%[[R2]])
  // CHECK-NEXT: %[[A2:.*]] = "hp.all_reduce"(%[[S2]]) {axes = ["rep"]
  // CHECK-NEXT: %[[G0:.*]] = torch.aten.mm
  // CHECK-NEXT: "hp.reduce_scatter"(%[[G0]])
  // CHECK-NEXT: %[[S1:.*]] = "hp.wait"(%[[R1]])
  // CHECK-NEXT: %[[D2:.*]] = "hp.wait"(%[[A2]])
  // CHECK-NEXT: torch.constant.none
  // CHECK-NEXT: torch.constant.bool
  // CHECK-NEXT: torch.constant.int
  // CHECK-NEXT: torch.aten._to_copy %[[D2]]
  // CHECK-NEXT: torch.aten.relu
  func.func @hybrid(%x: !full {hp.name = "x", hp.role = "input"})
      -> (!torch.vtensor<[2,4],f64> {hp.fqn = ["l2.w"], hp.role = "grad"}, !shard {hp.fqn = ["l1.w"], hp.role = "grad"}, !shard {hp.fqn = ["l0.w"], hp.role = "grad"}, !full {hp.name = "y", hp.role = "output"}) {
    %g2 = torch.aten.mm %x, %x : !full, !full -> !full
    %r2 = "hp.reduce_scatter"(%g2) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "l2", mesh = @mesh, reduce = "avg"} : (!full) -> !scattered
    %g1 = torch.aten.mm %g2, %x : !full, !full -> !full
    %r1 = "hp.reduce_scatter"(%g1) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "l1", mesh = @mesh, reduce = "avg"} : (!full) -> !scattered
    %g0 = torch.aten.mm %g1, %x : !full, !full -> !full
    %r0 = "hp.reduce_scatter"(%g0) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "l0", mesh = @mesh, reduce = "avg"} : (!full) -> !scattered
    %s0 = "hp.wait"(%r0) : (!scattered) -> !shard
    %s1 = "hp.wait"(%r1) : (!scattered) -> !shard
    %y = torch.aten.relu %g0 : !full -> !full
    %s2 = "hp.wait"(%r2) : (!scattered) -> !shard
    %a2 = "hp.all_reduce"(%s2) {axes = ["rep"], hp.unit = "l2", mesh = @mesh, reduce = "avg"} : (!shard) -> !scattered
    %d2 = "hp.wait"(%a2) : (!scattered) -> !shard
    %none = torch.constant.none
    %false = torch.constant.bool false
    %f64 = torch.constant.int 7
    %c2 = torch.aten._to_copy %d2, %f64, %none, %none, %none, %false, %none : !shard, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2,4],f64>
    return %c2, %s1, %s0, %y : !torch.vtensor<[2,4],f64>, !shard, !shard, !full
  }

  // Rule 6: of a reduction and a gather that start at one place, the gather goes first: it is needed sooner.
  // CHECK-LABEL: func.func @needed_first
  // CHECK: %[[G1:.*]] = torch.aten.mm
  // CHECK-NEXT: "hp.all_gather"(%arg0)
  // CHECK-NEXT: "hp.reduce_scatter"(%[[G1]])
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  func.func @needed_first(%w: !shard {hp.fqn = ["l0.w"], hp.role = "param"}, %v: !shard {hp.fqn = ["l1.v"], hp.role = "param"}, %x: !full {hp.name = "x", hp.role = "input"})
      -> (!full {hp.name = "y", hp.role = "output"}, !shard {hp.fqn = ["l1.v"], hp.role = "grad"}) {
    %f1 = "hp.all_gather"(%v) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "l1", mesh = @mesh} : (!shard) -> !future
    %w1 = "hp.wait"(%f1) : (!future) -> !full
    %g1 = torch.aten.mm %x, %x : !full, !full -> !full
    %z = torch.aten.mm %g1, %w1 : !full, !full -> !full
    %r1 = "hp.reduce_scatter"(%g1) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "l1", mesh = @mesh, reduce = "avg"} : (!full) -> !scattered
    %s1 = "hp.wait"(%r1) : (!scattered) -> !shard
    %f0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "l0", mesh = @mesh} : (!shard) -> !future
    %w0 = "hp.wait"(%f0) : (!future) -> !full
    %r = torch.aten.relu %z : !full -> !full
    %y = torch.aten.mm %r, %w0 : !full, !full -> !full
    return %y, %s1 : !full, !shard
  }
}
