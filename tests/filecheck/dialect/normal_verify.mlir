// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: sizes are integers.
func.func @size_not_an_integer(%n: !torch.float) {
  // expected-error@below {{'hp.normal' op expected operand 0 to be !torch.int, got: !torch.float}}
  %0 = "hp.normal"(%n) {stream = 0 : i64} : (!torch.float) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C1: a floating result.
func.func @integer_result(%n: !torch.int) {
  // expected-error@below {{'hp.normal' op expected a floating result, got: !torch.vtensor<[2],si64>}}
  %0 = "hp.normal"(%n) {stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[2],si64>
  return
}

// -----

// C1: one size per dim.
func.func @too_few_sizes(%n: !torch.int) {
  // expected-error@below {{'hp.normal' op expected one size per dim (2), got: 1}}
  %0 = "hp.normal"(%n) {stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[2,2],f32>
  return
}

// -----

// C2: a stream is not negative.
func.func @negative_stream(%n: !torch.int) {
  // expected-error@below {{'hp.normal' op expected stream >= 0, got: -1}}
  %0 = "hp.normal"(%n) {stream = -1 : i64} : (!torch.int) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C3: at least one row.
func.func @no_rows(%n: !torch.int) {
  // expected-error@below {{'hp.normal' op expected rows >= 1, got: 0}}
  %0 = "hp.normal"(%n) {rows = 0 : i64, stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C3: the first dim is a multiple of the rows.
func.func @uneven_rows(%n: !torch.int) {
  // expected-error@below {{'hp.normal' op expected a first dim that divides into 2 rows, got: !torch.vtensor<[3],f32>}}
  %0 = "hp.normal"(%n) {rows = 2 : i64, stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[3],f32>
  return
}

// -----

// C3: the first dim is static.
func.func @dynamic_rows(%n: !torch.int) {
  // expected-error@below {{'hp.normal' op expected a first dim that divides into 2 rows, got: !torch.vtensor<[?],f32>}}
  %0 = "hp.normal"(%n) {rows = 2 : i64, stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[?],f32>
  return
}

// -----

// C3: there is a first dim.
func.func @rows_of_a_scalar() {
  // expected-error@below {{'hp.normal' op expected a first dim that divides into 1 rows, got: !torch.vtensor<[],f32>}}
  %0 = "hp.normal"() {rows = 1 : i64, stream = 0 : i64} : () -> !torch.vtensor<[],f32>
  return
}
