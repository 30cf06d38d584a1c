// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @one(
func.func @one(%x: !torch.vtensor<[4,8],f32>) {
  // CHECK: "hp.all_gather"(%arg0) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// Several tensors of several dtypes and dims are a bucket.
// CHECK-LABEL: func.func @bucket(
func.func @bucket(%x: !torch.vtensor<[4,8],f32>, %y: !torch.vtensor<[3],bf16>) {
  // CHECK: "hp.all_gather"(%arg0, %arg1) {axes = ["pp", "dp"], dims = array<i64: 1, 0>, hp.phase = "backward", mesh = @mesh}
  // CHECK-SAME: -> !hp.future<[!torch.vtensor<[4,64],f32>, !torch.vtensor<[24],bf16>]>
  %f = "hp.all_gather"(%x, %y) {mesh = @mesh, axes = ["pp", "dp"], dims = array<i64: 1, 0>, hp.phase = "backward"}
      : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[3],bf16>) -> !hp.future<[!torch.vtensor<[4,64],f32>, !torch.vtensor<[24],bf16>]>
  return
}

// CHECK-LABEL: func.func @dynamic(
func.func @dynamic(%x: !torch.vtensor<[?,8],f32>) {
  // CHECK: -> !hp.future<[!torch.vtensor<[?,8],f32>]>
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[?,8],f32>) -> !hp.future<[!torch.vtensor<[?,8],f32>]>
  return
}
