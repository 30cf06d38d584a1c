// RUN: hp-opt %s --hp-expand-buckets | filecheck %s

// A parameter has one place, in every function that takes it; what the backward gathers too stands first.

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 1, 2>} : () -> ()

  // CHECK-LABEL: func.func @stage0_forward(
  // CHECK-SAME: %[[A:[a-z0-9]+]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.fqn = ["a"], hp.offset = 32 : i64
  // CHECK-SAME: %[[B:[a-z0-9]+]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.fqn = ["b"], hp.offset = 0 : i64
  // CHECK-SAME: %[[C:[a-z0-9]+]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.fqn = ["c"], hp.offset = 16 : i64
  func.func @stage0_forward(
      %a: !torch.vtensor<[4],f32> {hp.role = "param", hp.fqn = ["a"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %b: !torch.vtensor<[4],f32> {hp.role = "param", hp.fqn = ["b"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %c: !torch.vtensor<[4],f32> {hp.role = "param", hp.fqn = ["c"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!torch.vtensor<[8],f32> {hp.role = "saved", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    // CHECK: "hp.pack"(%[[B]], %[[C]], %[[A]])
    %0 = "hp.all_gather"(%a, %b, %c) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0, 0>, hp.bucket = "l", hp.phase = "forward", hp.fqn = ["a", "b", "c"]} : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>]>
    %1:3 = "hp.wait"(%0) {hp.bucket = "l", hp.phase = "forward"} : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>]>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>)
    return %1#0 : !torch.vtensor<[8],f32>
  }

  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: %[[B:[a-z0-9]+]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.fqn = ["b"], hp.offset = 0 : i64
  // CHECK-SAME: %[[C:[a-z0-9]+]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.fqn = ["c"], hp.offset = 16 : i64
  func.func @stage0_backward(
      %b: !torch.vtensor<[4],f32> {hp.role = "param", hp.fqn = ["b"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %c: !torch.vtensor<[4],f32> {hp.role = "param", hp.fqn = ["c"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!torch.vtensor<[8],f32> {hp.role = "saved", hp.name = "b0.0"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    // CHECK: "hp.pack"(%[[B]], %[[C]])
    %0 = "hp.all_gather"(%b, %c) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.phase = "backward", hp.fqn = ["b", "c"]} : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>]>
    %1:2 = "hp.wait"(%0) {hp.bucket = "l", hp.phase = "backward"} : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>]>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>)
    return %1#0 : !torch.vtensor<[8],f32>
  }
}
