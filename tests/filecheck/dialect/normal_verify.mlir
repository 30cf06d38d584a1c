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
