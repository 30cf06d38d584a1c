// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @one(
func.func @one(%x: !torch.vtensor<[16,8],f32>) {
  // CHECK: "hp.reduce_scatter"(%arg0) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// CHECK-LABEL: func.func @bucket(
func.func @bucket(%x: !torch.vtensor<[4,8],f32>, %y: !torch.vtensor<[8],si64>) {
  // CHECK: "hp.reduce_scatter"(%arg0, %arg1) {axes = ["dp"], dims = array<i64: 1, 0>, mesh = @mesh, reduce = "sum"}
  // CHECK-SAME: -> !hp.future<[!torch.vtensor<[4,2],f32>, !torch.vtensor<[2],si64>]>
  %f = "hp.reduce_scatter"(%x, %y) {mesh = @mesh, axes = ["dp"], dims = array<i64: 1, 0>, reduce = "sum"}
      : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[8],si64>) -> !hp.future<[!torch.vtensor<[4,2],f32>, !torch.vtensor<[2],si64>]>
  return
}
