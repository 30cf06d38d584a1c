// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @several(
func.func @several(%x: !torch.vtensor<[4,8],f32>, %y: !torch.vtensor<[],si64>) {
  // CHECK: "hp.send"(%arg0, %arg1) {axis = "pp", mesh = @mesh, peer = 1 : i64} : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[],si64>) -> ()
  "hp.send"(%x, %y) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[],si64>) -> ()
  return
}
