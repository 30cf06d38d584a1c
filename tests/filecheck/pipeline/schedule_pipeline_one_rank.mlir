// RUN: hp-opt %s --hp-schedule-pipeline='microbatches=2 schedule=interleaved' | filecheck %s

// Two stages on one rank, their backwards in two parts: a whole backward runs both. What one stage makes and the other
// takes is passed as it is, and the parts of the gradient of their common parameter are added up here.

!w = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !w {hp.fqn = ["w"], hp.role = "param", hp.trainable}) -> (!w {hp.name = "f0.0", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !w
  }
  func.func @stage1_forward(%w: !w {hp.fqn = ["w"], hp.role = "param", hp.trainable}, %0: !w {hp.name = "f0.0", hp.role = "incoming"})
      -> (!s {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %loss = torch.vtensor.literal(dense<1.0> : tensor<f32>) : !s
    return %loss : !s
  }
  func.func @stage1_backward_input(%w: !w {hp.fqn = ["w"], hp.role = "param", hp.trainable})
      -> (!w {hp.name = "i1.0", hp.role = "outgoing"}) attributes {hp.stage = 1 : i64, hp.task = "backward_input"} {
    return %w : !w
  }
  func.func @stage1_backward_weight(%0: !w {hp.name = "f0.0", hp.role = "incoming"}) -> (!w {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 1 : i64, hp.task = "backward_weight"} {
    return %0 : !w
  }
  func.func @stage0_backward_weight(%0: !w {hp.name = "i1.0", hp.role = "incoming"}) -> (!w {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward_weight"} {
    return %0 : !w
  }
}

// CHECK-LABEL: func.func @rank0(
// CHECK-SAME:    %[[W:.*]]: !torch.vtensor<[4],f32> {hp.fqn = ["w"], hp.role = "param", hp.trainable}) ->
// CHECK-NEXT:    %[[TWO:.*]] = torch.constant.int 2
// CHECK-NEXT:    %[[H0:.*]] = call @stage0_forward(%[[W]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[L0:.*]] = call @stage1_forward(%[[W]], %[[H0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[D0:.*]] = call @stage1_backward_input(%[[W]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[TOP0:.*]] = call @stage1_backward_weight(%[[H0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[H1:.*]] = call @stage0_forward(%[[W]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[END0:.*]] = call @stage0_backward_weight(%[[D0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[L1:.*]] = call @stage1_forward(%[[W]], %[[H1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[L:.*]] = "hp.accumulate"(%[[L0]], %[[L1]])
// CHECK-NEXT:    %[[D1:.*]] = call @stage1_backward_input(%[[W]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[TOP1:.*]] = call @stage1_backward_weight(%[[H1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[TOP:.*]] = "hp.accumulate"(%[[TOP0]], %[[TOP1]])
// CHECK-NEXT:    %[[END1:.*]] = call @stage0_backward_weight(%[[D1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[END:.*]] = "hp.accumulate"(%[[END0]], %[[END1]])
// CHECK-NEXT:    %[[LOSS:.*]] = torch.aten.div.Scalar %[[L]], %[[TWO]]
// CHECK-NEXT:    %[[SUM:.*]] = "hp.accumulate"(%[[TOP]], %[[END]])
// CHECK-NEXT:    %[[GRAD:.*]] = torch.aten.div.Scalar %[[SUM]], %[[TWO]]
// CHECK-NEXT:    return %[[LOSS]], %[[GRAD]]
