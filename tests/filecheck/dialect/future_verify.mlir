// RUN: hp-opt %s --split-input-file --verify-diagnostics

// expected-error@below {{expected base attribute 'builtin.array' but got 'builtin.type'}}
func.func @no_list(%f: !hp.future<!torch.vtensor<[8],f32>>) {
  return
}

// -----

// expected-error@below {{expected 1 type arguments, but had 2}}
func.func @two_lists(%f: !hp.future<[!torch.vtensor<[8],f32>], []>) {
  return
}

// -----

// expected-error@below {{unbalanced '[' character in pretty dialect name}}
func.func @unclosed(%f: !hp.future<[!torch.vtensor<[8],f32>>) {
  return
}

// -----

// What is in the list is looked at where the future is used.
func.func @not_types(%f: !hp.future<[8]>) {
  // expected-error@below {{'hp.wait' op expected a future of types, got: !hp.future<[8]>}}
  "hp.wait"(%f) : (!hp.future<[8]>) -> ()
  return
}

// -----

// expected-error@below {{expected dynamic type}}
func.func @unknown_type(%f: !hp.futures<[]>) {
  return
}
