// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: one result per type.
func.func @too_few_results(%f: !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>]>) {
  // expected-error@below {{'hp.wait' op expected 2 results, got: 1}}
  %x = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C1: in order.
func.func @other_order(%f: !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[4,8],f32>]>) {
  // expected-error@below {{'hp.wait' op expected result 0 to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[4,8],f32>}}
  %x:2 = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[4,8],f32>]>) -> (!torch.vtensor<[4,8],f32>, !torch.vtensor<[8],f32>)
  return
}

// -----

// The declaration: one future.
func.func @two_futures(%f: !hp.future<[!torch.vtensor<[8],f32>]>) {
  // expected-error@below {{'hp.wait' op expects exactly 1 operands, but got 2}}
  %x = "hp.wait"(%f, %f) : (!hp.future<[!torch.vtensor<[8],f32>]>, !hp.future<[!torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32>
  return
}

// -----

// The declaration: a future.
func.func @not_a_future(%f: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.wait' op expected base type 'hp.future' but got}}
  "hp.wait"(%f) : (!torch.vtensor<[8],f32>) -> ()
  return
}
