// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK-LABEL: func.func @matrix(
func.func @matrix(%n: !torch.int, %m: !torch.int) {
  // CHECK: %0 = "hp.uniform"(%arg0, %arg1) {stream = 3 : i64} : (!torch.int, !torch.int) -> !torch.vtensor<[2,?],bf16>
  %0 = "hp.uniform"(%n, %m) {stream = 3 : i64} : (!torch.int, !torch.int) -> !torch.vtensor<[2,?],bf16>
  return
}

// CHECK-LABEL: func.func @scalar(
func.func @scalar() {
  // CHECK: %0 = "hp.uniform"() {stream = 0 : i64} : () -> !torch.vtensor<[],f64>
  %0 = "hp.uniform"() {stream = 0 : i64} : () -> !torch.vtensor<[],f64>
  return
}

// CHECK-LABEL: func.func @rows(
func.func @rows(%n: !torch.int, %m: !torch.int) {
  // CHECK: %0 = "hp.uniform"(%arg0, %arg1) {rows = 2 : i64, stream = 1 : i64} : (!torch.int, !torch.int) -> !torch.vtensor<[4,?],f32>
  %0 = "hp.uniform"(%n, %m) {rows = 2 : i64, stream = 1 : i64} : (!torch.int, !torch.int) -> !torch.vtensor<[4,?],f32>
  return
}
