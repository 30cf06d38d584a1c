// RUN: hp-opt %s --hp-schedule-pipeline=microbatches=4 | filecheck %s

// Two stages of one matrix each on two ranks, 1f1b with four microbatches: the whole of what the ranks run. Rank 0 has
// one forward more before its first backward; from then on both alternate.

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  func.func @stage0_forward(
      %up: !torch.vtensor<[8,4],f32>
          {hp.fqn = ["up.weight"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
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
      %down: !torch.vtensor<[2,8],f32>
          {hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
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
      %down: !torch.vtensor<[2,8],f32>
          {hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
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

// CHECK-LABEL: func.func @rank0(
// CHECK-SAME:    %[[UP:.*]]: !torch.vtensor<[8,4],f32>
// CHECK-SAME:    %[[X:.*]]: !torch.vtensor<[24,4],f32>
// CHECK-SAME:    {hp.role = "loss"}, !torch.vtensor<[8,4],f32> {hp.fqn = ["up.weight"], hp.role = "grad"})
// CHECK-SAME:    {hp.coordinate = 0 : i64, hp.kind = "train"}
// CHECK-NEXT:    %[[COUNT:.*]] = torch.constant.int 4
// CHECK-NEXT:    %[[X0:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 0 : i64}
// CHECK-NEXT:    %[[H0:.*]] = call @stage0_forward(%[[UP]], %[[X0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    "hp.send"(%[[H0]]) {axis = "pp", label = "f0.0 mb 0", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[FD0:.*]] = "hp.recv"() {axis = "pp", label = "b1.0 mb 0", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[X1:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 1 : i64}
// CHECK-NEXT:    %[[H1:.*]] = call @stage0_forward(%[[UP]], %[[X1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    "hp.send"(%[[H1]]) {axis = "pp", label = "f0.0 mb 1", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[D0:.*]] = "hp.wait"(%[[FD0]]) {label = "b1.0 mb 0"}
// CHECK-NEXT:    %[[G0:.*]] = call @stage0_backward(%[[X0]], %[[D0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[FD1:.*]] = "hp.recv"() {axis = "pp", label = "b1.0 mb 1", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[X2:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 2 : i64}
// CHECK-NEXT:    %[[H2:.*]] = call @stage0_forward(%[[UP]], %[[X2]]) {hp.microbatch = 2 : i64}
// CHECK-NEXT:    "hp.send"(%[[H2]]) {axis = "pp", label = "f0.0 mb 2", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[D1:.*]] = "hp.wait"(%[[FD1]]) {label = "b1.0 mb 1"}
// CHECK-NEXT:    %[[G1:.*]] = call @stage0_backward(%[[X1]], %[[D1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[GSUM1:.*]] = "hp.accumulate"(%[[G0]], %[[G1]])
// CHECK-NEXT:    %[[FD2:.*]] = "hp.recv"() {axis = "pp", label = "b1.0 mb 2", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[X3:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 3 : i64}
// CHECK-NEXT:    %[[H3:.*]] = call @stage0_forward(%[[UP]], %[[X3]]) {hp.microbatch = 3 : i64}
// CHECK-NEXT:    "hp.send"(%[[H3]]) {axis = "pp", label = "f0.0 mb 3", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[FD3:.*]] = "hp.recv"() {axis = "pp", label = "b1.0 mb 3", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[D2:.*]] = "hp.wait"(%[[FD2]]) {label = "b1.0 mb 2"}
// CHECK-NEXT:    %[[G2:.*]] = call @stage0_backward(%[[X2]], %[[D2]]) {hp.microbatch = 2 : i64}
// CHECK-NEXT:    %[[GSUM2:.*]] = "hp.accumulate"(%[[GSUM1]], %[[G2]])
// CHECK-NEXT:    %[[D3:.*]] = "hp.wait"(%[[FD3]]) {label = "b1.0 mb 3"}
// CHECK-NEXT:    %[[G3:.*]] = call @stage0_backward(%[[X3]], %[[D3]]) {hp.microbatch = 3 : i64}
// CHECK-NEXT:    %[[GSUM3:.*]] = "hp.accumulate"(%[[GSUM2]], %[[G3]])
// CHECK-NEXT:    %[[NONE:.*]] = torch.vtensor.literal(dense<0.000000e+00> : tensor<f32>)
// CHECK-NEXT:    %[[TOLD:.*]] = "hp.broadcast"(%[[NONE]]) {axes = ["pp"], {{.*}}root = 1 : i64}
// CHECK-NEXT:    %[[LOSS:.*]] = "hp.wait"(%[[TOLD]])
// CHECK-NEXT:    %[[GRAD:.*]] = torch.aten.div.Scalar %[[GSUM3]], %[[COUNT]]
// CHECK-NEXT:    return %[[LOSS]], %[[GRAD]]

// CHECK-LABEL: func.func @rank1(
// CHECK-SAME:    %[[DOWN:.*]]: !torch.vtensor<[2,8],f32>
// CHECK-SAME:    {hp.role = "loss"}, !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"], hp.role = "grad"})
// CHECK-SAME:    {hp.coordinate = 1 : i64, hp.kind = "train"}
// CHECK-NEXT:    %[[COUNT:.*]] = torch.constant.int 4
// CHECK-NEXT:    %[[FH0:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 0", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[H0:.*]] = "hp.wait"(%[[FH0]]) {label = "f0.0 mb 0"}
// CHECK-NEXT:    %[[L0:.*]] = call @stage1_forward(%[[DOWN]], %[[H0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[FH1:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 1", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[B0:.*]]:2 = call @stage1_backward(%[[DOWN]], %[[H0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    "hp.send"(%[[B0]]#0) {axis = "pp", label = "b1.0 mb 0", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[H1:.*]] = "hp.wait"(%[[FH1]]) {label = "f0.0 mb 1"}
// CHECK-NEXT:    %[[L1:.*]] = call @stage1_forward(%[[DOWN]], %[[H1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[LSUM1:.*]] = "hp.accumulate"(%[[L0]], %[[L1]])
// CHECK-NEXT:    %[[FH2:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 2", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[B1:.*]]:2 = call @stage1_backward(%[[DOWN]], %[[H1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    "hp.send"(%[[B1]]#0) {axis = "pp", label = "b1.0 mb 1", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[GSUM1:.*]] = "hp.accumulate"(%[[B0]]#1, %[[B1]]#1)
// CHECK-NEXT:    %[[H2:.*]] = "hp.wait"(%[[FH2]]) {label = "f0.0 mb 2"}
// CHECK-NEXT:    %[[L2:.*]] = call @stage1_forward(%[[DOWN]], %[[H2]]) {hp.microbatch = 2 : i64}
// CHECK-NEXT:    %[[LSUM2:.*]] = "hp.accumulate"(%[[LSUM1]], %[[L2]])
// CHECK-NEXT:    %[[FH3:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 3", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[B2:.*]]:2 = call @stage1_backward(%[[DOWN]], %[[H2]]) {hp.microbatch = 2 : i64}
// CHECK-NEXT:    "hp.send"(%[[B2]]#0) {axis = "pp", label = "b1.0 mb 2", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[GSUM2:.*]] = "hp.accumulate"(%[[GSUM1]], %[[B2]]#1)
// CHECK-NEXT:    %[[H3:.*]] = "hp.wait"(%[[FH3]]) {label = "f0.0 mb 3"}
// CHECK-NEXT:    %[[L3:.*]] = call @stage1_forward(%[[DOWN]], %[[H3]]) {hp.microbatch = 3 : i64}
// CHECK-NEXT:    %[[LSUM3:.*]] = "hp.accumulate"(%[[LSUM2]], %[[L3]])
// CHECK-NEXT:    %[[B3:.*]]:2 = call @stage1_backward(%[[DOWN]], %[[H3]]) {hp.microbatch = 3 : i64}
// CHECK-NEXT:    "hp.send"(%[[B3]]#0) {axis = "pp", label = "b1.0 mb 3", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[GSUM3:.*]] = "hp.accumulate"(%[[GSUM2]], %[[B3]]#1)
// CHECK-NEXT:    %[[MEAN:.*]] = torch.aten.div.Scalar %[[LSUM3]], %[[COUNT]]
// CHECK-NEXT:    %[[TOLD:.*]] = "hp.broadcast"(%[[MEAN]]) {axes = ["pp"], {{.*}}root = 1 : i64}
// CHECK-NEXT:    %[[LOSS:.*]] = "hp.wait"(%[[TOLD]])
// CHECK-NEXT:    %[[GRAD:.*]] = torch.aten.div.Scalar %[[GSUM3]], %[[COUNT]]
// CHECK-NEXT:    return %[[LOSS]], %[[GRAD]]

// CHECK-LABEL: func.func @evaluate0(
// CHECK-SAME:    %[[UP:.*]]: !torch.vtensor<[8,4],f32>
// CHECK-SAME:    %[[X:.*]]: !torch.vtensor<[24,4],f32>
// CHECK-SAME:    {hp.coordinate = 0 : i64, hp.kind = "evaluate"}
// CHECK-NEXT:    %[[X0:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 0 : i64}
// CHECK-NEXT:    %[[H0:.*]] = call @stage0_forward(%[[UP]], %[[X0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    "hp.send"(%[[H0]]) {axis = "pp", label = "f0.0 mb 0", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[X1:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 1 : i64}
// CHECK-NEXT:    %[[H1:.*]] = call @stage0_forward(%[[UP]], %[[X1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    "hp.send"(%[[H1]]) {axis = "pp", label = "f0.0 mb 1", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[X2:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 2 : i64}
// CHECK-NEXT:    %[[H2:.*]] = call @stage0_forward(%[[UP]], %[[X2]]) {hp.microbatch = 2 : i64}
// CHECK-NEXT:    "hp.send"(%[[H2]]) {axis = "pp", label = "f0.0 mb 2", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[X3:.*]] = "hp.microbatch"(%[[X]]) {count = 4 : i64, dim = 0 : i64, index = 3 : i64}
// CHECK-NEXT:    %[[H3:.*]] = call @stage0_forward(%[[UP]], %[[X3]]) {hp.microbatch = 3 : i64}
// CHECK-NEXT:    "hp.send"(%[[H3]]) {axis = "pp", label = "f0.0 mb 3", {{.*}}peer = 1 : i64}
// CHECK-NEXT:    %[[NONE:.*]] = torch.vtensor.literal(dense<0.000000e+00> : tensor<f32>)
// CHECK-NEXT:    %[[TOLD:.*]] = "hp.broadcast"(%[[NONE]]) {axes = ["pp"], {{.*}}root = 1 : i64}
// CHECK-NEXT:    %[[LOSS:.*]] = "hp.wait"(%[[TOLD]])
// CHECK-NEXT:    return %[[LOSS]]

// CHECK-LABEL: func.func @evaluate1(
// CHECK-SAME:    %[[DOWN:.*]]: !torch.vtensor<[2,8],f32>
// CHECK-SAME:    {hp.coordinate = 1 : i64, hp.kind = "evaluate"}
// CHECK-NEXT:    %[[COUNT:.*]] = torch.constant.int 4
// CHECK-NEXT:    %[[FH0:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 0", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[FH1:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 1", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[H0:.*]] = "hp.wait"(%[[FH0]]) {label = "f0.0 mb 0"}
// CHECK-NEXT:    %[[L0:.*]] = call @stage1_forward(%[[DOWN]], %[[H0]]) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    %[[FH2:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 2", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[H1:.*]] = "hp.wait"(%[[FH1]]) {label = "f0.0 mb 1"}
// CHECK-NEXT:    %[[L1:.*]] = call @stage1_forward(%[[DOWN]], %[[H1]]) {hp.microbatch = 1 : i64}
// CHECK-NEXT:    %[[LSUM1:.*]] = "hp.accumulate"(%[[L0]], %[[L1]])
// CHECK-NEXT:    %[[FH3:.*]] = "hp.recv"() {axis = "pp", label = "f0.0 mb 3", {{.*}}peer = 0 : i64}
// CHECK-NEXT:    %[[H2:.*]] = "hp.wait"(%[[FH2]]) {label = "f0.0 mb 2"}
// CHECK-NEXT:    %[[L2:.*]] = call @stage1_forward(%[[DOWN]], %[[H2]]) {hp.microbatch = 2 : i64}
// CHECK-NEXT:    %[[LSUM2:.*]] = "hp.accumulate"(%[[LSUM1]], %[[L2]])
// CHECK-NEXT:    %[[H3:.*]] = "hp.wait"(%[[FH3]]) {label = "f0.0 mb 3"}
// CHECK-NEXT:    %[[L3:.*]] = call @stage1_forward(%[[DOWN]], %[[H3]]) {hp.microbatch = 3 : i64}
// CHECK-NEXT:    %[[LSUM3:.*]] = "hp.accumulate"(%[[LSUM2]], %[[L3]])
// CHECK-NEXT:    %[[MEAN:.*]] = torch.aten.div.Scalar %[[LSUM3]], %[[COUNT]]
// CHECK-NEXT:    %[[TOLD:.*]] = "hp.broadcast"(%[[MEAN]]) {axes = ["pp"], {{.*}}root = 1 : i64}
// CHECK-NEXT:    %[[LOSS:.*]] = "hp.wait"(%[[TOLD]])
// CHECK-NEXT:    return %[[LOSS]]
