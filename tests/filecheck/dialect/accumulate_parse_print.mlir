// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK-LABEL: func.func @one(
func.func @one(%sum: !torch.vtensor<[8],f32>, %x: !torch.vtensor<[8],f32>) {
  // CHECK: %0 = "hp.accumulate"(%arg0, %arg1) : (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>) -> !torch.vtensor<[8],f32>
  %0 = "hp.accumulate"(%sum, %x) : (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>) -> !torch.vtensor<[8],f32>
  return
}

// Accumulators first, then values; a value may have another dtype than its accumulator.
// CHECK-LABEL: func.func @two(
func.func @two(%sum: !torch.vtensor<[8],f32>, %sum1: !torch.vtensor<[4],f32>, %x: !torch.vtensor<[8],bf16>, %y: !torch.vtensor<[4],f32>) {
  // CHECK: %0:2 = "hp.accumulate"(%arg0, %arg1, %arg2, %arg3)
  // CHECK-SAME: (!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>, !torch.vtensor<[4],f32>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>)
  %0:2 = "hp.accumulate"(%sum, %sum1, %x, %y) : (!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>, !torch.vtensor<[4],f32>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>)
  return
}
