// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: the operand is a tensor.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%x: !torch.int) {
  // expected-error@below {{'hp.shard_slice' op expected the operand to be a tensor of known rank and dtype, got: !torch.int}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.int) -> !torch.vtensor<[8],f32>
  return
}

// -----

// C1: the result is a tensor.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @result_not_a_tensor(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected the result to be a tensor of known rank and dtype, got: !torch.int}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.int
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %0 = "hp.shard_slice"(%x) {mesh = @grid, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C2: there is a mesh.
func.func @no_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected a mesh named '@mesh' in the module}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C2: `axes` are axes of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op mesh has no axis 'dq', did you mean 'dp'?}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dq"], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C2: each axis once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected each mesh axis once, 'dp' is named twice}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp", "dp"], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C2: at least one axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_axes(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected at least one mesh axis}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = [], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C2: axes are strings.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @axes_not_strings(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected axes to be an array of strings, got: [0]}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = [0], dim = 0 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C3: within the operand's rank.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dim_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected dim < 1, got: 1}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 1 : i64} : (!torch.vtensor<[8],f32>) -> !torch.vtensor<[2],f32>
  return
}

// -----

// C4: the largest piece.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @size(%x: !torch.vtensor<[7],f32>) {
  // expected-error@below {{'hp.shard_slice' op expected the piece to be !torch.vtensor<[2],f32>, got: !torch.vtensor<[1],f32>}}
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[7],f32>) -> !torch.vtensor<[1],f32>
  return
}
