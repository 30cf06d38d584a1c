// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK-LABEL: func.func @one(
func.func @one(%f: !hp.future<[!torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32> {
  // CHECK: %0 = "hp.wait"(%arg0) : (!hp.future<[!torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32>
  %x = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32>
  return %x : !torch.vtensor<[8],f32>
}

// CHECK-LABEL: func.func @bucket(
func.func @bucket(%f: !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[2,?],bf16>]>) -> !torch.vtensor<[2,?],bf16> {
  // CHECK: %0:2 = "hp.wait"(%arg0) : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[2,?],bf16>]>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[2,?],bf16>)
  // CHECK: return %0#1
  %x:2 = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[2,?],bf16>]>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[2,?],bf16>)
  return %x#1 : !torch.vtensor<[2,?],bf16>
}
