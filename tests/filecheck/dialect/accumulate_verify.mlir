// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: an even number of operands.
func.func @odd(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.accumulate' op expected N accumulators, N values and N results, got: 3 operands, 1 results}}
  %0 = "hp.accumulate"(%x, %x, %x) : (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C1: at least two.
func.func @nothing() {
  // expected-error@below {{'hp.accumulate' op expected N accumulators, N values and N results, got: 0 operands, 0 results}}
  "hp.accumulate"() : () -> ()
  return
}

// -----

// C1: half as many results.
func.func @results(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.accumulate' op expected N accumulators, N values and N results, got: 2 operands, 2 results}}
  %0:2 = "hp.accumulate"(%x, %x) : (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>) -> (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>)
  return
}

// -----

// C1: tensors.
func.func @not_a_tensor(%x: !torch.vtensor<[8],f32>, %n: !torch.int) {
  // expected-error@below {{'hp.accumulate' op expected operand 1 to be a tensor of known rank and dtype, got: !torch.int}}
  %0 = "hp.accumulate"(%x, %n) : (!torch.vtensor<[8],f32>, !torch.int) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C2: the result has the accumulator's type.
func.func @result_type(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.accumulate' op expected result 0 to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[8],f64>}}
  %0 = "hp.accumulate"(%x, %x) : (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>) -> !torch.vtensor<[8],f64>
  return
}

// -----

// C2: the value has its shape.
func.func @value_shape(%x: !torch.vtensor<[8],f32>, %y: !torch.vtensor<[4],f32>) {
  // expected-error@below {{'hp.accumulate' op expected value 0 to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[4],f32>}}
  %0 = "hp.accumulate"(%x, %y) : (!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[8],f32>
  return
}
