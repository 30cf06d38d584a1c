// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_operands() {
  // expected-error@below {{'hp.send' op expected at least one operand}}
  "hp.send"() {mesh = @mesh, axis = "pp", peer = 1 : i64} : () -> ()
  return
}

// -----

// C1: operands are tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%x: !torch.int) {
  // expected-error@below {{'hp.send' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!torch.int) -> ()
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.send' op expected a mesh named '@grid' in the module, found '@mesh'}}
  "hp.send"(%x) {mesh = @grid, axis = "pp", peer = 1 : i64} : (!torch.vtensor<[8],f32>) -> ()
  return
}

// -----

// C2: `axis` is an axis of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.send' op mesh has no axis 'tp', did you mean 'pp' or 'dp'?}}
  "hp.send"(%x) {mesh = @mesh, axis = "tp", peer = 1 : i64} : (!torch.vtensor<[8],f32>) -> ()
  return
}

// -----

// C3: `peer` is a position on the axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @peer_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.send' op expected peer < 2, got: 2}}
  "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 2 : i64} : (!torch.vtensor<[8],f32>) -> ()
  return
}

// -----

// C3: `peer` is an integer.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @peer_not_an_integer(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.send' op expected peer to be an integer, got: true}}
  "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = true} : (!torch.vtensor<[8],f32>) -> ()
  return
}

// -----

// C4: a size that is not static needs a header.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dynamic(%x: !torch.vtensor<[?,8],f32>) {
  // expected-error@below {{'hp.send' op expected a header, as operand 0 has no static shape: !torch.vtensor<[?,8],f32>}}
  "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!torch.vtensor<[?,8],f32>) -> ()
  return
}
