// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK-LABEL: func.func @several(
// CHECK-SAME: %arg0: !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[2,?],bf16>]>
func.func @several(%f: !hp.future<[!torch.vtensor<[8],f32>,!torch.vtensor<[2,?],bf16>]>) {
  return
}

// CHECK-LABEL: func.func @none(
// CHECK-SAME: %arg0: !hp.future<[]>
func.func @none(%f: !hp.future<[]>) {
  return
}
