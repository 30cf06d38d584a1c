// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @one(
func.func @one(%x: !torch.vtensor<[],f32>) {
  // CHECK: "hp.broadcast"(%arg0) {axes = ["dp"], mesh = @mesh, root = 1 : i64} : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 1 : i64} : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
  return
}

// The root is a position in the group of 8.
// CHECK-LABEL: func.func @two_axes(
func.func @two_axes(%x: !torch.vtensor<[8],f32>) {
  // CHECK: "hp.broadcast"(%arg0) {axes = ["pp", "dp"], mesh = @mesh, root = 7 : i64}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["pp", "dp"], root = 7 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// CHECK-LABEL: func.func @some_coordinates(
func.func @some_coordinates(%x: !torch.vtensor<[8],f32>) {
  // CHECK: "hp.broadcast"(%arg0) {axes = ["dp"], coordinates = array<i64: 1, 3>, mesh = @mesh, root = 3 : i64}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 3 : i64, coordinates = array<i64: 1, 3>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}
