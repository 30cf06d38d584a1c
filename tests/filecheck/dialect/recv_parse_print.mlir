// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// CHECK-LABEL: func.func @labelled(
func.func @labelled() {
  // CHECK: "hp.recv"() {axis = "pp", label = "stage0 to stage1", mesh = @mesh, peer = 0 : i64} : () -> !hp.future<[!torch.vtensor<[4,8],f32>, !torch.vtensor<[],si64>]>
  %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64, label = "stage0 to stage1"} : () -> !hp.future<[!torch.vtensor<[4,8],f32>, !torch.vtensor<[],si64>]>
  return
}
