// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one type.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @nothing() {
  // expected-error@below {{'hp.recv' op expected a future of at least one tensor}}
  %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[]>
  return
}

// -----

// C1: tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor() {
  // expected-error@below {{'hp.recv' op expected future element 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!torch.int]>
  return
}

// -----

// C4: a size that is not static needs a header.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dynamic() {
  // expected-error@below {{'hp.recv' op expected a header, as future element 0 has no static shape: !torch.vtensor<[?,8],f32>}}
  %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!torch.vtensor<[?,8],f32>]>
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh() {
  // expected-error@below {{'hp.recv' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %f = "hp.recv"() {mesh = @grid, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C2: `axis` is an axis of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis() {
  // expected-error@below {{'hp.recv' op mesh has no axis 'tp', did you mean 'pp' or 'dp'?}}
  %f = "hp.recv"() {mesh = @mesh, axis = "tp", peer = 0 : i64} : () -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C3: `peer` is a position on the axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @peer_outside() {
  // expected-error@below {{'hp.recv' op expected peer < 2, got: 2}}
  %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 2 : i64} : () -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C3: `peer` is an integer.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @peer_not_an_integer() {
  // expected-error@below {{'hp.recv' op expected peer to be an integer, got: true}}
  %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = true} : () -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}
