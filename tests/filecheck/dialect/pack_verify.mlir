// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
func.func @none() {
  // expected-error@below {{'hp.pack' op expected at least one operand}}
  %p = "hp.pack"() {alignment = 4 : i64, ranks = 1 : i64} : () -> !torch.vtensor<[4],f32>
  return
}

// -----

// C1: operands are tensors.
func.func @not_a_tensor(%x0: !torch.int) {
  // expected-error@below {{'hp.pack' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C1: operands are of static shape.
func.func @dynamic(%x0: !torch.vtensor<[2],f32>, %x1: !torch.vtensor<[?],f32>) {
  // expected-error@below {{'hp.pack' op expected tensor 1 to have a static shape}}
  %p = "hp.pack"(%x0, %x1) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[2],f32>, !torch.vtensor<[?],f32>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C2: `ranks` is at least 1.
func.func @no_ranks(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected ranks and alignment >= 1, got: 0 and 4}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: `alignment` is at least 1.
func.func @no_alignment(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected ranks and alignment >= 1, got: 1 and 0}}
  %p = "hp.pack"(%x0) {alignment = 0 : i64, ranks = 1 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: `ranks` is an integer.
func.func @odd_ranks(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected ranks to be an integer, got: "all"}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = "all"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: `alignment` is there.
func.func @unaligned(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op attribute "alignment" is expected but not provided}}
  %p = "hp.pack"(%x0) {ranks = 1 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: with several dtypes the size of each element divides `alignment`.
func.func @narrow(%x0: !torch.vtensor<[4],f32>, %x1: !torch.vtensor<[2],f64>) {
  // expected-error@below {{'hp.pack' op expected alignment to be a multiple of 8 bytes for float64, got: 4}}
  %p = "hp.pack"(%x0, %x1) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[4],f32>, !torch.vtensor<[2],f64>) -> !torch.vtensor<[32],ui8>
  return
}

// -----

// C3: one dim per operand.
func.func @short_dims(%x0: !torch.vtensor<[4],f32>, %x1: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected 2 dims with ranks = 2, got: 1}}
  %p = "hp.pack"(%x0, %x1) {alignment = 2 : i64, ranks = 2 : i64, dims = array<i64: 0>} : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C3: no `dims` with one rank.
func.func @needless_dims(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected 0 dims with ranks = 1, got: 1}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 1 : i64, dims = array<i64: 0>} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C3: `dims` is there with several ranks.
func.func @no_dims(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected 1 dims with ranks = 2, got: 0}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 2 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C3: a dim is within the rank.
func.func @outer_dim(%x0: !torch.vtensor<[4,2],f32>) {
  // expected-error@below {{'hp.pack' op expected dim < 2, got: 2}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 2 : i64, dims = array<i64: 2>} : (!torch.vtensor<[4,2],f32>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C3: scalars have no dim.
func.func @scalar(%x0: !torch.vtensor<[],f32>) {
  // expected-error@below {{'hp.pack' op expected dim < 0, got: 0}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 2 : i64, dims = array<i64: 0>} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C3: `ranks` divides the size.
func.func @uneven(%x0: !torch.vtensor<[3,4],f32>) {
  // expected-error@below {{'hp.pack' op expected dim 0 to divide into 2 pieces, got: 3}}
  %p = "hp.pack"(%x0) {alignment = 2 : i64, ranks = 2 : i64, dims = array<i64: 0>} : (!torch.vtensor<[3,4],f32>) -> !torch.vtensor<[12],f32>
  return
}

// -----

// C4: the packed tensor has the padding too.
func.func @short(%x0: !torch.vtensor<[3],f32>, %x1: !torch.vtensor<[2],f32>) {
  // expected-error@below {{'hp.pack' op expected the packed tensor to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[5],f32>}}
  %p = "hp.pack"(%x0, %x1) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[3],f32>, !torch.vtensor<[2],f32>) -> !torch.vtensor<[5],f32>
  return
}

// -----

// C4: each rank has its padding.
func.func @short_ranks(%x0: !torch.vtensor<[6],f32>) {
  // expected-error@below {{'hp.pack' op expected the packed tensor to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[6],f32>}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 2 : i64, dims = array<i64: 0>} : (!torch.vtensor<[6],f32>) -> !torch.vtensor<[6],f32>
  return
}

// -----

// C4: the packed tensor has one dim.
func.func @two_dims(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected the packed tensor to be !torch.vtensor<[4],f32>, got: !torch.vtensor<[2,2],f32>}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[2,2],f32>
  return
}

// -----

// C4: it has the operands' dtype.
func.func @other_dtype(%x0: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.pack' op expected the packed tensor to be !torch.vtensor<[4],f32>, got: !torch.vtensor<[4],bf16>}}
  %p = "hp.pack"(%x0) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],bf16>
  return
}

// -----

// C4: several dtypes are packed as bytes.
func.func @not_bytes(%x0: !torch.vtensor<[4],f32>, %x1: !torch.vtensor<[4],bf16>) {
  // expected-error@below {{'hp.pack' op expected the packed tensor to be !torch.vtensor<[24],ui8>, got: !torch.vtensor<[8],f32>}}
  %p = "hp.pack"(%x0, %x1) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],bf16>) -> !torch.vtensor<[8],f32>
  return
}
