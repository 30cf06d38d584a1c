// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// Three elements, one of padding; two elements, two of padding.
// CHECK-LABEL: func.func @padded(
func.func @padded(%a: !torch.vtensor<[3],f32>, %b: !torch.vtensor<[1,2],f32>) {
  // CHECK: %0 = "hp.pack"(%arg0, %arg1) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[3],f32>, !torch.vtensor<[1,2],f32>) -> !torch.vtensor<[8],f32>
  %0 = "hp.pack"(%a, %b) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[3],f32>, !torch.vtensor<[1,2],f32>) -> !torch.vtensor<[8],f32>
  return
}

// CHECK-LABEL: func.func @rank_major(
func.func @rank_major(%a: !torch.vtensor<[4,3],f32>, %b: !torch.vtensor<[2,4],f32>) {
  // CHECK: "hp.pack"(%arg0, %arg1) {alignment = 1 : i64, dims = array<i64: 0, 1>, ranks = 2 : i64} : {{.*}} -> !torch.vtensor<[20],f32>
  %0 = "hp.pack"(%a, %b) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 1>} : (!torch.vtensor<[4,3],f32>, !torch.vtensor<[2,4],f32>) -> !torch.vtensor<[20],f32>
  return
}

// Several dtypes travel as bytes; scalars and what is empty are packed too.
// CHECK-LABEL: func.func @bytes(
func.func @bytes(%a: !torch.vtensor<[],f64>, %b: !torch.vtensor<[3],i1>, %c: !torch.vtensor<[0,2],bf16>, %d: !torch.vtensor<[2],complex<f32>>) {
  // CHECK: "hp.pack"(%arg0, %arg1, %arg2, %arg3) {alignment = 8 : i64, ranks = 1 : i64} : {{.*}} -> !torch.vtensor<[32],ui8>
  %0 = "hp.pack"(%a, %b, %c, %d) {alignment = 8 : i64, ranks = 1 : i64} : (!torch.vtensor<[],f64>, !torch.vtensor<[3],i1>, !torch.vtensor<[0,2],bf16>, !torch.vtensor<[2],complex<f32>>) -> !torch.vtensor<[32],ui8>
  return
}
