// RUN: hp-opt %s --hp-schedule-pipeline=microbatches=4 | filecheck %s

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  func.func @stage0_forward(
      %up: !torch.vtensor<[8,4],f32> {hp.fqn = ["up.weight"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !torch.vtensor<[6,4],f32> {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %t = torch.aten.t %up : !torch.vtensor<[8,4],f32> -> !torch.vtensor<[4,8],f32>
    %h = torch.aten.mm %x, %t : !torch.vtensor<[6,4],f32>, !torch.vtensor<[4,8],f32> -> !torch.vtensor<[6,8],f32>
    return %h : !torch.vtensor<[6,8],f32>
  }

  func.func @stage0_backward(
      %x: !torch.vtensor<[6,4],f32> {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"},
      %dh: !torch.vtensor<[6,8],f32> {hp.name = "b1.0", hp.role = "incoming"})
      -> (!torch.vtensor<[8,4],f32> {hp.fqn = ["up.weight"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %t = torch.aten.t %dh : !torch.vtensor<[6,8],f32> -> !torch.vtensor<[8,6],f32>
    %g = torch.aten.mm %t, %x : !torch.vtensor<[8,6],f32>, !torch.vtensor<[6,4],f32> -> !torch.vtensor<[8,4],f32>
    return %g : !torch.vtensor<[8,4],f32>
  }

  func.func @stage1_forward(
      %down: !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %h: !torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "incoming"})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %t = torch.aten.t %down : !torch.vtensor<[2,8],f32> -> !torch.vtensor<[8,2],f32>
    %y = torch.aten.mm %h, %t : !torch.vtensor<[6,8],f32>, !torch.vtensor<[8,2],f32> -> !torch.vtensor<[6,2],f32>
    %loss = torch.aten.sum %y, %none : !torch.vtensor<[6,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    return %loss : !torch.vtensor<[],f32>
  }

  func.func @stage1_backward(
      %down: !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %h: !torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "incoming"})
      -> (!torch.vtensor<[6,8],f32> {hp.name = "b1.0", hp.role = "outgoing"},
          !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"], hp.role = "grad"})
      attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %ones = torch.vtensor.literal(dense<1.0> : tensor<6x2xf32>) : !torch.vtensor<[6,2],f32>
    %dh = torch.aten.mm %ones, %down : !torch.vtensor<[6,2],f32>, !torch.vtensor<[2,8],f32> -> !torch.vtensor<[6,8],f32>
    %t = torch.aten.t %ones : !torch.vtensor<[6,2],f32> -> !torch.vtensor<[2,6],f32>
    %g = torch.aten.mm %t, %h : !torch.vtensor<[2,6],f32>, !torch.vtensor<[6,8],f32> -> !torch.vtensor<[2,8],f32>
    return %dh, %g : !torch.vtensor<[6,8],f32>, !torch.vtensor<[2,8],f32>
  }
}
