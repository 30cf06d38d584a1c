// RUN: hp-opt %s --split-input-file --hp-split-stages | filecheck %s

// A parameter that two stages hold: each returns its own terms of the gradient, seen through views and the sum.

!w = !torch.vtensor<[4,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage2_backward(
// CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.fqn = ["embed", "head"], hp.role = "grad"})
// CHECK: %[[A:.*]] = torch.aten.sin
// CHECK: %[[B:.*]] = torch.aten.cos
// CHECK: %[[SUM:.*]] = torch.aten.add.Tensor %[[A]], %[[B]], %int1 {hp.phase = "backward", hp.stage = 2 : i64}
// CHECK: %[[T:.*]] = torch.aten.t %[[SUM]] {hp.phase = "backward", hp.stage = 2 : i64}
// CHECK-NEXT: return %[[T]]
// CHECK-NOT: func.func @stage1_backward
// CHECK: func.func @stage0_backward(
// CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.fqn = ["embed", "head"], hp.role = "grad"})
// CHECK-NOT: torch.aten.add.Tensor
// CHECK: %[[C:.*]] = torch.aten.tanh
// CHECK: %[[CT:.*]] = torch.aten.t %[[C]]
// CHECK-NEXT: return %[[CT]]
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %w: !w {hp.fqn = ["embed", "head"], hp.role = "param", hp.stages = array<i64: 0, 1, 2>, hp.trainable},
      %x: !w {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !w {hp.fqn = ["embed", "head"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %h = torch.aten.mm %x, %w {hp.phase = "forward", hp.stage = 0 : i64} : !w, !w -> !w
    %y = torch.aten.mm %h, %w {hp.phase = "forward", hp.stage = 2 : i64} : !w, !w -> !w
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 2 : i64} : !w, !torch.none -> !s
    %a = torch.aten.sin %y {hp.phase = "backward", hp.stage = 2 : i64} : !w -> !w
    %b = torch.aten.cos %y {hp.phase = "backward", hp.stage = 2 : i64} : !w -> !w
    %c = torch.aten.tanh %x {hp.phase = "backward", hp.stage = 0 : i64} : !w -> !w
    %ac = torch.aten.add.Tensor %a, %c, %int1 {hp.phase = "backward", hp.stage = 0 : i64} : !w, !w, !torch.int -> !w
    %abc = torch.aten.add.Tensor %ac, %b, %int1 {hp.phase = "backward", hp.stage = 0 : i64} : !w, !w, !torch.int -> !w
    %grad = torch.aten.t %abc {hp.phase = "backward", hp.stage = 0 : i64} : !w -> !w
    return %loss, %grad : !s, !w
  }
}

// -----

// Gathers without a stage are made on every stage that holds the parameter, in their own phase; the reduction of the
// gradient, too. The forward's gather is saved where the backward uses it, and never made twice.

!shard = !torch.vtensor<[2,4],f32>
!w = !torch.vtensor<[4,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward(
// CHECK: %[[F0:.*]] = "hp.all_gather"(%arg0) {axes = ["dp"], {{.*}}hp.fqn = ["w"], hp.phase = "forward", hp.stage = 0 : i64, hp.unit = "u"
// CHECK-NEXT: "hp.wait"(%[[F0]]) {hp.stage = 0 : i64}
// CHECK: func.func @stage1_forward(
// CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.name = "f1.0", hp.role = "saved"}
// CHECK: %[[F1:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.phase = "forward", hp.stage = 1 : i64
// CHECK: %[[FULL:.*]] = "hp.wait"(%[[F1]])
// CHECK: return %[[FULL]]
// CHECK: func.func @stage1_backward(
// CHECK-SAME: !torch.vtensor<[4,4],f32> {hp.name = "f1.0", hp.role = "saved"}
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.fqn = ["w"], hp.role = "grad"
// CHECK-NOT: all_gather
// CHECK: %[[A:.*]] = torch.aten.mm
// CHECK: %[[R1:.*]] = "hp.reduce_scatter"(%[[A]]) {{.*}}hp.stage = 1 : i64
// CHECK: %[[G1:.*]] = "hp.wait"(%[[R1]])
// CHECK: return %{{.*}}, %[[G1]]
// CHECK: func.func @stage0_backward(
// CHECK: %[[B0:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.phase = "backward", hp.stage = 0 : i64
// CHECK: "hp.wait"(%[[B0]])
// CHECK: %[[C:.*]] = torch.aten.mm
// CHECK: %[[R0:.*]] = "hp.reduce_scatter"(%[[C]]) {{.*}}hp.stage = 0 : i64
// CHECK: %[[G0:.*]] = "hp.wait"(%[[R0]])
// CHECK-NEXT: return %[[G0]]
module attributes {hp.level = "spmd", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %shard: !shard {hp.fqn = ["w"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, [["dp"], []]>,
                      hp.stages = array<i64: 0, 1>, hp.trainable},
      %x: !w {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!s {hp.role = "loss"},
          !shard {hp.fqn = ["w"], hp.role = "grad", hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}) {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %0 = "hp.all_gather"(%shard) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["w"],
        hp.phase = "forward", hp.unit = "u"} : (!shard) -> !hp.future<[!w]>
    %w = "hp.wait"(%0) : (!hp.future<[!w]>) -> !w
    %h = torch.aten.mm %x, %w {hp.phase = "forward", hp.stage = 0 : i64} : !w, !w -> !w
    %y = torch.aten.mm %h, %w {hp.phase = "forward", hp.stage = 1 : i64} : !w, !w -> !w
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !w, !torch.none -> !s
    %a = torch.aten.mm %y, %w {hp.phase = "backward", hp.stage = 1 : i64} : !w, !w -> !w
    %dh = torch.aten.cos %a {hp.phase = "backward", hp.stage = 1 : i64} : !w -> !w
    %1 = "hp.all_gather"(%shard) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["w"],
        hp.phase = "backward", hp.unit = "u"} : (!shard) -> !hp.future<[!w]>
    %again = "hp.wait"(%1) {hp.phase = "backward"} : (!hp.future<[!w]>) -> !w
    %c = torch.aten.mm %dh, %again {hp.phase = "backward", hp.stage = 0 : i64} : !w, !w -> !w
    %ac = torch.aten.add.Tensor %a, %c, %int1 {hp.phase = "backward"} : !w, !w, !torch.int -> !w
    %2 = "hp.reduce_scatter"(%ac) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg",
        hp.phase = "backward"} : (!w) -> !hp.future<[!shard]>
    %grad = "hp.wait"(%2) {hp.phase = "backward"} : (!hp.future<[!shard]>) -> !shard
    return %loss, %grad : !s, !shard
  }
}

// -----

// A gradient that is no sum, and one whose sum others use too, are returned whole by one stage that holds the parameter.

!w = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage1_backward(
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.name = "b1.0", hp.role = "outgoing"}, !torch.vtensor<[4],f32> {hp.fqn = ["product"], hp.role = "grad"})
// CHECK: func.func @stage0_backward(%arg0: !torch.vtensor<[4],f32> {hp.name = "b1.0", hp.role = "incoming"})
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.fqn = ["sum"], hp.role = "grad"}, !torch.vtensor<[4],f32> {hp.fqn = ["other"], hp.role = "grad"})
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %product: !w {hp.fqn = ["product"], hp.role = "param", hp.stages = array<i64: 0, 1>, hp.trainable},
      %sum: !w {hp.fqn = ["sum"], hp.role = "param", hp.stages = array<i64: 0, 1>, hp.trainable},
      %other: !w {hp.fqn = ["other"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !w {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !w {hp.fqn = ["product"], hp.role = "grad"}, !w {hp.fqn = ["sum"], hp.role = "grad"},
          !w {hp.fqn = ["other"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %h = torch.aten.mul.Tensor %x, %product {hp.phase = "forward", hp.stage = 0 : i64} : !w, !w -> !w
    %i = torch.aten.mul.Tensor %h, %sum {hp.phase = "forward", hp.stage = 0 : i64} : !w, !w -> !w
    %y = torch.aten.mul.Tensor %i, %product {hp.phase = "forward", hp.stage = 1 : i64} : !w, !w -> !w
    %z = torch.aten.mul.Tensor %y, %sum {hp.phase = "forward", hp.stage = 1 : i64} : !w, !w -> !w
    %loss = torch.aten.sum %z, %none {hp.phase = "forward", hp.stage = 1 : i64} : !w, !torch.none -> !s
    %a = torch.aten.mul.Tensor %z, %z {hp.phase = "backward", hp.stage = 1 : i64} : !w, !w -> !w
    %b = torch.aten.cos %a {hp.phase = "backward", hp.stage = 1 : i64} : !w -> !w
    %both = torch.aten.add.Tensor %b, %b, %int1 {hp.phase = "backward", hp.stage = 0 : i64} : !w, !w, !torch.int -> !w
    %d = torch.aten.sin %both {hp.phase = "backward", hp.stage = 0 : i64} : !w -> !w
    return %loss, %a, %both, %d : !s, !w, !w, !w
  }
}
