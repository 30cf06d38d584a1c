// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @even(
func.func @even(%x: !torch.vtensor<[16,8],f32>) {
  // CHECK: %0 = "hp.shard_slice"(%arg0) {axes = ["dp"], dim = 0 : i64, mesh = @mesh} : (!torch.vtensor<[16,8],f32>) -> !torch.vtensor<[4,8],f32>
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[16,8],f32>) -> !torch.vtensor<[4,8],f32>
  return
}

// 10 rows over 2x4: 5 per position of pp, then 2 (of 8) per position of dp.
// CHECK-LABEL: func.func @uneven(
func.func @uneven(%x: !torch.vtensor<[3,10],f32>) {
  // CHECK: (!torch.vtensor<[3,10],f32>) -> !torch.vtensor<[3,2],f32>
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["pp", "dp"], dim = 1 : i64} : (!torch.vtensor<[3,10],f32>) -> !torch.vtensor<[3,2],f32>
  return
}
