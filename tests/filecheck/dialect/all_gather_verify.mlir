// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_operands() {
  // expected-error@below {{'hp.all_gather' op expected at least one operand}}
  %f = "hp.all_gather"() {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : () -> !hp.future<[]>
  return
}

// -----

// C1: operands are tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%n: !torch.int) {
  // expected-error@below {{'hp.all_gather' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %f = "hp.all_gather"(%n) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.int) -> !hp.future<[!torch.int]>
  return
}

// -----

// C1: the future has one type per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @short_future(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected a future of 1 tensors, got: 0}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[]>
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %f = "hp.all_gather"(%x) {mesh = @grid, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C2: there is a mesh.
func.func @no_mesh(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected a mesh named '@mesh' in the module}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C2: `axes` are axes of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op mesh has no axis 'dq', did you mean 'dp'?}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dq"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C2: each axis once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_axis(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected each mesh axis once, 'dp' is named twice}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp", "dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C2: at least one axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_axes(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected at least one mesh axis}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = [], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C2: axes are strings.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @axes_not_strings(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected axes to be an array of strings, got: [0]}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = [0], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C3: one dim per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @two_dims(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected one of dims per operand (1), got: 2}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 1>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C3: within the operand's rank.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dim_outside(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected dim < 2, got: 3}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 3>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C3: dims are a dense array.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dims_not_dense(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected dims to be array<i64: ...>, got: [0]}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = [0]} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C4: the size grows by the group's size.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @size(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected the gathered tensor to be !torch.vtensor<[16,8],f32>, got: !torch.vtensor<[8,8],f32>}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[8,8],f32>]>
  return
}

// -----

// C4: the dtype stays.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dtype(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_gather' op expected the gathered tensor to be !torch.vtensor<[16,8],f32>, got: !torch.vtensor<[16,8],bf16>}}
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],bf16>]>
  return
}
