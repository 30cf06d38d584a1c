// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @one(
func.func @one(%x: !torch.vtensor<[8,3],f32>) {
  // CHECK: "hp.all_to_all"(%arg0) {axes = ["dp"], concat_dims = array<i64: 1>, mesh = @mesh, split_dims = array<i64: 0>}
  // CHECK-SAME: (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// Split and concatenated along one dim, the shape stays.
// CHECK-LABEL: func.func @same_dim(
func.func @same_dim(%x: !torch.vtensor<[8,3],f32>) {
  // CHECK: (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[8,3],f32>]>
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 0>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[8,3],f32>]>
  return
}
