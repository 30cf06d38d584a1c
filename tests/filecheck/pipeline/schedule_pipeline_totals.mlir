// RUN: hp-opt %s --split-input-file --hp-schedule-pipeline='microbatches=2 schedule=gpipe' | filecheck %s

// A parameter of three stages on three ranks. Stages 0 and 2 make a part of its gradient; stage 1 only uses it and
// gives zeros to the sum of the owners. The loss is weighted: loss and weight are summed over the data ranks where they
// are made, told to the others, and everything is divided once, in float32 at least. Stage 1 has no backward: its actions
// are passed over.

!w = !torch.vtensor<[4,4],f32>
!h = !torch.vtensor<[4,4],bf16>
!x = !torch.vtensor<[6,4],f32>
!s = !torch.vtensor<[],bf16>
!c = !torch.vtensor<[1],si64>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["dp", "pp"], axis_sizes = array<i64: 2, 3>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(
      %w: !w {hp.fqn = ["embed", "head"], hp.role = "param", hp.stages = array<i64: 0, 1, 2>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!x {hp.name = "f0.0", hp.role = "outgoing"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mm %x, %w : !x, !w -> !x
    return %0 : !x
  }
  func.func @stage1_forward(
      %w: !w {hp.fqn = ["embed", "head"], hp.role = "param", hp.stages = array<i64: 0, 1, 2>, hp.trainable},
      %0: !x {hp.name = "f0.0", hp.role = "incoming"}) -> (!x {hp.name = "f1.0", hp.role = "outgoing"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %1 = torch.aten.mm %0, %w : !x, !w -> !x
    return %1 : !x
  }
  func.func @stage2_forward(
      %w: !w {hp.fqn = ["embed", "head"], hp.role = "param", hp.stages = array<i64: 0, 1, 2>, hp.trainable},
      %v: !h {hp.fqn = ["half"], hp.role = "param", hp.stages = array<i64: 2>, hp.trainable},
      %0: !x {hp.name = "f1.0", hp.role = "incoming"}) -> (!s {hp.role = "loss"}, !c {hp.role = "weight"})
      attributes {hp.stage = 2 : i64, hp.task = "forward"} {
    %loss = torch.vtensor.literal(dense<1.0> : tensor<bf16>) : !s
    %count = torch.vtensor.literal(dense<6> : tensor<1xsi64>) : !c
    return %loss, %count : !s, !c
  }
  func.func @stage2_backward(%0: !x {hp.name = "f1.0", hp.role = "incoming"})
      -> (!x {hp.name = "b2.0", hp.role = "outgoing"}, !w {hp.fqn = ["embed", "head"], hp.role = "grad"},
          !h {hp.fqn = ["half"], hp.role = "grad"})
      attributes {hp.stage = 2 : i64, hp.task = "backward"} {
    %g = torch.vtensor.literal(dense<1.0> : tensor<4x4xf32>) : !w
    %h = torch.vtensor.literal(dense<1.0> : tensor<4x4xbf16>) : !h
    return %0, %g, %h : !x, !w, !h
  }
  func.func @stage0_backward(%0: !x {hp.name = "b2.0", hp.role = "incoming"})
      -> (!w {hp.fqn = ["embed", "head"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %g = torch.vtensor.literal(dense<1.0> : tensor<4x4xf32>) : !w
    return %g : !w
  }
}

// CHECK-LABEL: func.func @rank0(
// CHECK:         %[[SUM:.*]] = "hp.accumulate"
// CHECK:         %[[NOTHING:.*]] = torch.vtensor.literal(dense<0.000000e+00> : tensor<f32>) : !torch.vtensor<[],f32>
// CHECK-NEXT:    %[[NONE:.*]] = torch.vtensor.literal(dense<0> : tensor<1xsi64>) : !torch.vtensor<[1],si64>
// CHECK-NEXT:    %[[F:.*]] = "hp.broadcast"(%[[NOTHING]], %[[NONE]]) {axes = ["pp"], mesh = @mesh, root = 2 : i64}
// CHECK-NEXT:    %[[TOLD:.*]]:2 = "hp.wait"(%[[F]])
// CHECK-NEXT:    %[[G:.*]] = "hp.all_reduce"(%[[SUM]])
// CHECK-SAME:        {axes = ["pp"], coordinates = array<i64: 0, 1, 2>, hp.fqn = ["embed", "head"], mesh = @mesh, reduce = "sum"}
// CHECK-NEXT:    %[[OWNED:.*]] = "hp.wait"(%[[G]])
// CHECK-NEXT:    %[[COUNT:.*]] = torch.aten.reshape %[[TOLD]]#1
// CHECK-NEXT:    %[[DIVISOR:.*]] = torch.aten._to_copy %[[COUNT]]{{.*}} -> !torch.vtensor<[],f32>
// CHECK-NEXT:    %[[LOSS32:.*]] = torch.aten.div.Tensor %[[TOLD]]#0, %[[DIVISOR]]
// CHECK-NEXT:    %[[LOSS:.*]] = torch.aten._to_copy %[[LOSS32]]{{.*}} -> !torch.vtensor<[],bf16>
// CHECK-NEXT:    %[[GRAD:.*]] = torch.aten.div.Tensor %[[OWNED]], %[[DIVISOR]]
// CHECK-NEXT:    return %[[LOSS]], %[[TOLD]]#1, %[[GRAD]]

// CHECK-LABEL: func.func @rank1(
// CHECK-SAME:    %[[W:.*]]: !torch.vtensor<[4,4],f32> {hp.fqn = ["embed", "head"]
// CHECK-SAME:    -> ({{.*}}, !torch.vtensor<[4,4],f32> {hp.fqn = ["embed", "head"], hp.role = "grad"})
// CHECK:         %[[ZEROS:.*]] = torch.aten.zeros_like %[[W]]
// CHECK-NEXT:    "hp.all_reduce"(%[[ZEROS]]) {axes = ["pp"], coordinates = array<i64: 0, 1, 2>

// A gradient that only this rank has is not reduced; 16 bits are divided in 32.
// CHECK-LABEL: func.func @rank2(
// CHECK:         %[[L0:.*]]:2 = call @stage2_forward({{.*}}) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[WIDE:.*]] = torch.aten._to_copy %[[L0]]#0{{.*}} -> !torch.vtensor<[],f32>
// CHECK:         %[[L1:.*]]:2 = call @stage2_forward({{.*}}) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[SUMS:.*]]:2 = "hp.accumulate"(%[[WIDE]], %[[L0]]#1, %[[L1]]#0, %[[L1]]#1)
// CHECK:         %[[GRADS:.*]]:2 = "hp.accumulate"
// CHECK-NEXT:    %[[FL:.*]] = "hp.all_reduce"(%[[SUMS]]#0) {axes = ["dp"], mesh = @mesh, reduce = "sum"}
// CHECK-NEXT:    %[[FW:.*]] = "hp.all_reduce"(%[[SUMS]]#1) {axes = ["dp"], mesh = @mesh, reduce = "sum"}
// CHECK-NEXT:    %[[RL:.*]] = "hp.wait"(%[[FL]])
// CHECK-NEXT:    %[[RW:.*]] = "hp.wait"(%[[FW]])
// CHECK-NEXT:    "hp.broadcast"(%[[RL]], %[[RW]]) {axes = ["pp"], mesh = @mesh, root = 2 : i64}
// CHECK:         "hp.all_reduce"(%[[GRADS]]#0) {axes = ["pp"]
// CHECK-NOT:     "hp.all_reduce"
// CHECK:         %[[HALF:.*]] = torch.aten._to_copy %[[GRADS]]#1{{.*}} -> !torch.vtensor<[4,4],f32>
// CHECK-NEXT:    %[[Q:.*]] = torch.aten.div.Tensor %[[HALF]]
// CHECK-NEXT:    torch.aten._to_copy %[[Q]]{{.*}} -> !torch.vtensor<[4,4],bf16>

// -----

// One rank on the pipeline axis with one stage: a plain loop, nothing is told. The new buffer of one microbatch is the
// buffer of the next; the backward is given what its forward was given.

!x = !torch.vtensor<[6,4],f32>
!v = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 1, 2>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !v {hp.fqn = ["w"], hp.role = "param", hp.trainable}, %r: !v {hp.fqn = ["running"], hp.role = "buffer"},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!v {hp.fqn = ["running"], hp.role = "buffer"}, !s {hp.role = "loss"},
          !x {hp.batch_dim = 0 : i64, hp.name = "out", hp.role = "output"}, !s {hp.name = "norm", hp.role = "output"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %one = torch.constant.int 1
    %0 = torch.aten.sum %x, %none : !x, !torch.none -> !s
    %1 = torch.aten.add.Tensor %r, %w, %one : !v, !v, !torch.int -> !v
    return %1, %0, %x, %0 : !v, !s, !x, !s
  }
  func.func @stage0_backward(%r: !v {hp.fqn = ["running"], hp.role = "buffer"})
      -> (!v {hp.fqn = ["w"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %r : !v
  }
}

// CHECK-LABEL: func.func @rank0(
// CHECK-SAME:    %[[W:.*]]: !torch.vtensor<[4],f32> {hp.fqn = ["w"], {{.*}}, %[[R:.*]]: !torch.vtensor<[4],f32> {hp.fqn = ["running"]
// CHECK:         %[[A:.*]]:4 = call @stage0_forward(%[[W]], %[[R]], {{.*}}) {hp.microbatch = 0 : i64}
// CHECK:         %[[B:.*]]:4 = call @stage0_forward(%[[W]], %[[A]]#0, {{.*}}) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[LOSS:.*]] = "hp.accumulate"(%[[A]]#1, %[[B]]#1)
// CHECK-NEXT:    %[[G0:.*]] = call @stage0_backward(%[[R]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[G1:.*]] = call @stage0_backward(%[[A]]#0) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[SUM:.*]] = "hp.accumulate"(%[[G0]], %[[G1]])
// CHECK-NEXT:    %[[L:.*]] = torch.aten.div.Scalar %[[LOSS]], %[[TWO:.*]] :
// CHECK-NEXT:    %[[F:.*]] = "hp.all_reduce"(%[[L]]) {axes = ["dp"], mesh = @mesh, reduce = "avg"}
// CHECK-NEXT:    %[[MEAN:.*]] = "hp.wait"(%[[F]])
// CHECK-NEXT:    %[[GRAD:.*]] = torch.aten.div.Scalar %[[SUM]], %[[TWO]]
// CHECK-NEXT:    return %[[MEAN]], %[[GRAD]], %[[B]]#0

// An evaluation leaves buffers alone. Rows are concatenated, what has none is stacked, both over data ranks too.
// CHECK-LABEL: func.func @evaluate0(
// CHECK-SAME:    %{{.*}}, %[[R:.*]]: !torch.vtensor<[4],f32> {hp.fqn = ["running"]
// CHECK-SAME:    !torch.vtensor<[24,4],f32> {hp.batch_dim = 0 : i64, hp.name = "out", hp.role = "output"}
// CHECK-SAME:    !torch.vtensor<[4],f32> {hp.batch_dim = 0 : i64, hp.name = "norm", hp.role = "output"}
// CHECK:         %[[A:.*]]:4 = call @stage0_forward(%{{.*}}, %[[R]], {{.*}}) {hp.microbatch = 0 : i64}
// CHECK:         %[[B:.*]]:4 = call @stage0_forward(%{{.*}}, %[[R]], {{.*}}) {hp.microbatch = 1 : i64}
// CHECK:         %[[OUTS:.*]] = torch.prim.ListConstruct %[[A]]#2, %[[B]]#2
// CHECK-NEXT:    %[[OUT:.*]] = torch.aten.cat %[[OUTS]]
// CHECK-NEXT:    "hp.all_gather"(%[[OUT]]) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh}
// CHECK:         %[[NORMS:.*]] = torch.prim.ListConstruct %[[A]]#3, %[[B]]#3
// CHECK-NEXT:    %[[NORM:.*]] = torch.aten.stack %[[NORMS]]
// CHECK-NEXT:    "hp.all_gather"(%[[NORM]]) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh}
