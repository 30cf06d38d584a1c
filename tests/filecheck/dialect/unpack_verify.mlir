// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one result.
func.func @none(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected at least one tensor to pack}}
  "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[4],f32>) -> ()
  return
}

// -----

// C1: results are tensors.
func.func @not_a_tensor(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected result 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.int
  return
}

// -----

// C1: results are of static shape.
func.func @dynamic(%p: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.unpack' op expected tensor 1 to have a static shape}}
  %x:2 = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[8],f32>) -> (!torch.vtensor<[2],f32>, !torch.vtensor<[?],f32>)
  return
}

// -----

// C2: `ranks` is at least 1.
func.func @no_ranks(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected ranks and alignment >= 1, got: 0 and 4}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 0 : i64, layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: `alignment` is at least 1.
func.func @no_alignment(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected ranks and alignment >= 1, got: 1 and 0}}
  %x = "hp.unpack"(%p) {alignment = 0 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: `ranks` is an integer.
func.func @odd_ranks(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected ranks to be an integer, got: "all"}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = "all", layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: `alignment` is there.
func.func @unaligned(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op attribute "alignment" is expected but not provided}}
  %x = "hp.unpack"(%p) {ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C2: with several dtypes the size of each element divides `alignment`.
func.func @narrow(%p: !torch.vtensor<[32],ui8>) {
  // expected-error@below {{'hp.unpack' op expected alignment to be a multiple of 8 bytes for float64, got: 4}}
  %x:2 = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[32],ui8>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[2],f64>)
  return
}

// -----

// C3: one dim per result.
func.func @short_dims(%p: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.unpack' op expected 2 dims with ranks = 2, got: 1}}
  %x:2 = "hp.unpack"(%p) {alignment = 2 : i64, ranks = 2 : i64, dims = array<i64: 0>, layout = "flat"} : (!torch.vtensor<[8],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>)
  return
}

// -----

// C3: no `dims` with one rank.
func.func @needless_dims(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected 0 dims with ranks = 1, got: 1}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, dims = array<i64: 0>, layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C3: `dims` is there with several ranks.
func.func @no_dims(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected 1 dims with ranks = 2, got: 0}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 2 : i64, layout = "flat"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C3: a dim is within the rank.
func.func @outer_dim(%p: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.unpack' op expected dim < 2, got: 2}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 2 : i64, dims = array<i64: 2>, layout = "flat"} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[4,2],f32>
  return
}

// -----

// C3: scalars have no dim.
func.func @scalar(%p: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.unpack' op expected dim < 0, got: 0}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 2 : i64, dims = array<i64: 0>, layout = "flat"} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[],f32>
  return
}

// -----

// C3: `ranks` divides the size.
func.func @uneven(%p: !torch.vtensor<[12],f32>) {
  // expected-error@below {{'hp.unpack' op expected dim 0 to divide into 2 pieces, got: 3}}
  %x = "hp.unpack"(%p) {alignment = 2 : i64, ranks = 2 : i64, dims = array<i64: 0>, layout = "flat"} : (!torch.vtensor<[12],f32>) -> !torch.vtensor<[3,4],f32>
  return
}

// -----

// C4: the packed tensor has the padding too.
func.func @short(%p: !torch.vtensor<[5],f32>) {
  // expected-error@below {{'hp.unpack' op expected the packed tensor to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[5],f32>}}
  %x:2 = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[5],f32>) -> (!torch.vtensor<[3],f32>, !torch.vtensor<[2],f32>)
  return
}

// -----

// C4: each rank has its padding.
func.func @short_ranks(%p: !torch.vtensor<[6],f32>) {
  // expected-error@below {{'hp.unpack' op expected the packed tensor to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[6],f32>}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 2 : i64, dims = array<i64: 0>, layout = "flat"} : (!torch.vtensor<[6],f32>) -> !torch.vtensor<[6],f32>
  return
}

// -----

// C4: the packed tensor has one dim.
func.func @two_dims(%p: !torch.vtensor<[2,2],f32>) {
  // expected-error@below {{'hp.unpack' op expected the packed tensor to be !torch.vtensor<[4],f32>, got: !torch.vtensor<[2,2],f32>}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[2,2],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C4: it has the results' dtype.
func.func @other_dtype(%p: !torch.vtensor<[4],bf16>) {
  // expected-error@below {{'hp.unpack' op expected the packed tensor to be !torch.vtensor<[4],f32>, got: !torch.vtensor<[4],bf16>}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[4],bf16>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C4: several dtypes are packed as bytes.
func.func @not_bytes(%p: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.unpack' op expected the packed tensor to be !torch.vtensor<[24],ui8>, got: !torch.vtensor<[8],f32>}}
  %x:2 = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "flat"} : (!torch.vtensor<[8],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],bf16>)
  return
}

// -----

// C5: `layout` is one of two.
func.func @loose(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected layout to be 'packed' or 'flat', got: 'loose'}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = "loose"} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C5: `layout` is there.
func.func @no_layout(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op attribute "layout" is expected but not provided}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}

// -----

// C5: `layout` is a string.
func.func @odd_layout(%p: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.unpack' op expected layout to be a string, got: 1 : i64}}
  %x = "hp.unpack"(%p) {alignment = 4 : i64, ranks = 1 : i64, layout = 1 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return
}
