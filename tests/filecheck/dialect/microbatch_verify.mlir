// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: the operand is a tensor.
func.func @not_a_tensor(%x: !torch.int) {
  // expected-error@below {{'hp.microbatch' op expected the operand to be a tensor of known rank and dtype, got: !torch.int}}
  %0 = "hp.microbatch"(%x) {index = 0 : i64, count = 4 : i64, dim = 0 : i64} : (!torch.int) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C2: `count` is at least 1.
func.func @no_parts(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.microbatch' op expected count >= 1, got: 0}}
  %0 = "hp.microbatch"(%x) {index = 0 : i64, count = 0 : i64, dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C2: `index` is below it.
func.func @index_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.microbatch' op expected index < 4, got: 4}}
  %0 = "hp.microbatch"(%x) {index = 4 : i64, count = 4 : i64, dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C3: within the operand's rank.
func.func @dim_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.microbatch' op expected dim < 1, got: 1}}
  %0 = "hp.microbatch"(%x) {index = 0 : i64, count = 4 : i64, dim = 1 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C4: larger parts come first.
func.func @size(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.microbatch' op expected the part to be !torch.vtensor<[3],f32>, got: !torch.vtensor<[2],f32>}}
  %0 = "hp.microbatch"(%x) {index = 0 : i64, count = 3 : i64, dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}
