// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-recompute | filecheck %s
// RUN: hp-opt %s --split-input-file --hp-recompute -o /dev/null 2>&1 | filecheck %s --check-prefix=SAID

// Bytes are those of the forward's values that the backward uses: two of 16, and then the one of 16 that is saved.
// expected-remark@+2 {{'func.func' op checkpointed regions: 1; ops computed again: 1; bytes kept for the backward: 32 before, 16 after}}
// SAID: remark: 'func.func' op checkpointed regions: 1
func.func @bytes(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64, hp.saved = array<i64: 0>} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %0 {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.mul.Tensor %0, %1 {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %2 : !torch.vtensor<[4],f32>
}

// -----

// Nothing is known of a custom operator: its result stays, what makes its operand is not needed.
// CHECK-LABEL: func.func @custom
// CHECK-NOT:     hp.recomputed
// expected-remark@+1 {{checkpointed regions: 1; ops computed again: 0; bytes kept for the backward: 16 before, 16 after}}
func.func @custom(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  // expected-remark@+1 {{'torch.operator' op is in checkpointed region 0: nothing is known of this operator, so it is not computed again and its results are kept}}
  %1 = torch.operator "torch.mylib.attend"(%0) {hp.phase = "forward", hp.recompute = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  %2 = torch.aten.cos %1 {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %2 : !torch.vtensor<[4],f32>
}

// -----

// Without regions nothing is said and nothing changes.
// CHECK-LABEL: func.func @no_regions
// CHECK-NEXT:    torch.aten.tanh
// CHECK-NEXT:    torch.aten.cos
// CHECK-NEXT:    return
func.func @no_regions(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.tanh %x {hp.phase = "forward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %0 {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %1 : !torch.vtensor<[4],f32>
}
