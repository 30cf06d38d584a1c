// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK-LABEL: func.func @owned(
func.func @owned(%p: !torch.vtensor<[20],f32>) {
  // CHECK: %0:2 = "hp.unpack"(%arg0) {alignment = 1 : i64, dims = array<i64: 0, 1>, layout = "packed", ranks = 2 : i64} : (!torch.vtensor<[20],f32>) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[2,4],f32>)
  %0:2 = "hp.unpack"(%p) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 1>, layout = "packed"} : (!torch.vtensor<[20],f32>) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[2,4],f32>)
  return
}

// CHECK-LABEL: func.func @views(
func.func @views(%p: !torch.vtensor<[32],ui8>) {
  // CHECK: "hp.unpack"(%arg0) {alignment = 8 : i64, layout = "flat", ranks = 1 : i64} : (!torch.vtensor<[32],ui8>) -> (!torch.vtensor<[],f64>, !torch.vtensor<[3],i1>, !torch.vtensor<[0,2],bf16>, !torch.vtensor<[2],complex<f32>>)
  %0:4 = "hp.unpack"(%p) {alignment = 8 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[32],ui8>) -> (!torch.vtensor<[],f64>, !torch.vtensor<[3],i1>, !torch.vtensor<[0,2],bf16>, !torch.vtensor<[2],complex<f32>>)
  return
}
