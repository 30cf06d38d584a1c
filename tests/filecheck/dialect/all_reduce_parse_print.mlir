// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @one(
func.func @one(%x: !torch.vtensor<[8],f32>) {
  // CHECK: "hp.all_reduce"(%arg0) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// CHECK-LABEL: func.func @bucket(
func.func @bucket(%x: !torch.vtensor<[8],f32>, %y: !torch.vtensor<[],si64>) {
  // CHECK: "hp.all_reduce"(%arg0, %arg1) {axes = ["dp", "pp"], mesh = @mesh, reduce = "sum"}
  // CHECK-SAME: -> !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[],si64>]>
  %f = "hp.all_reduce"(%x, %y) {mesh = @mesh, axes = ["dp", "pp"], reduce = "sum"}
      : (!torch.vtensor<[8],f32>, !torch.vtensor<[],si64>) -> !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[],si64>]>
  return
}

// Only the ranks at two positions of the axis take part.
// CHECK-LABEL: func.func @some_coordinates(
func.func @some_coordinates(%x: !torch.vtensor<[8],f32>) {
  // CHECK: "hp.all_reduce"(%arg0) {axes = ["dp"], coordinates = array<i64: 0, 3>, mesh = @mesh, reduce = "sum"}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum", coordinates = array<i64: 0, 3>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}
