// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_operands() {
  // expected-error@below {{'hp.all_to_all' op expected at least one operand}}
  %f = "hp.all_to_all"() {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : () -> !hp.future<[]>
  return
}

// -----

// C1: operands are tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%n: !torch.int) {
  // expected-error@below {{'hp.all_to_all' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %f = "hp.all_to_all"(%n) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.int) -> !hp.future<[!torch.int]>
  return
}

// -----

// C1: the future has one type per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @short_future(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected a future of 1 tensors, got: 0}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[]>
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %f = "hp.all_to_all"(%x) {mesh = @grid, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C2: there is a mesh.
func.func @no_mesh(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected a mesh named '@mesh' in the module}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C2: `axes` are axes of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op mesh has no axis 'dq', did you mean 'dp'?}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dq"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C2: each axis once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_axis(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected each mesh axis once, 'dp' is named twice}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp", "dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C2: at least one axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_axes(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected at least one mesh axis}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = [], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C2: axes are strings.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @axes_not_strings(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected axes to be an array of strings, got: [0]}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = [0], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C3: one split dim per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @two_split_dims(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected one of split_dims per operand (1), got: 2}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0, 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C3: one concat dim per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_concat_dims(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected one of concat_dims per operand (1), got: 0}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C3: within the operand's rank.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dim_outside(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected dim < 2, got: 2}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 2>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C4: the size divides.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @uneven(%x: !torch.vtensor<[6,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected dim 0 to divide by the group's 4 ranks, got: 6}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[6,3],f32>) -> !hp.future<[!torch.vtensor<[2,12],f32>]>
  return
}

// -----

// C4: one size divided, one multiplied.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @size(%x: !torch.vtensor<[8,3],f32>) {
  // expected-error@below {{'hp.all_to_all' op expected the exchanged tensor to be !torch.vtensor<[2,12],f32>, got: !torch.vtensor<[2,3],f32>}}
  %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>} : (!torch.vtensor<[8,3],f32>) -> !hp.future<[!torch.vtensor<[2,3],f32>]>
  return
}
