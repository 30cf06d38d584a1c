// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK-LABEL: func.func @even(
func.func @even(%x: !torch.vtensor<[8,16],si64>) {
  // CHECK: %0 = "hp.microbatch"(%arg0) {count = 4 : i64, dim = 0 : i64, index = 0 : i64} : (!torch.vtensor<[8,16],si64>) -> !torch.vtensor<[2,16],si64>
  %0 = "hp.microbatch"(%x) {index = 0 : i64, count = 4 : i64, dim = 0 : i64} : (!torch.vtensor<[8,16],si64>) -> !torch.vtensor<[2,16],si64>
  return
}

// 8 in 3 parts: 3, 3, 2.
// CHECK-LABEL: func.func @uneven(
func.func @uneven(%x: !torch.vtensor<[8],f32>) {
  // CHECK: -> !torch.vtensor<[3],f32>
  %0 = "hp.microbatch"(%x) {index = 1 : i64, count = 3 : i64, dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[3],f32>
  // CHECK: -> !torch.vtensor<[2],f32>
  %1 = "hp.microbatch"(%x) {index = 2 : i64, count = 3 : i64, dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}
