// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_operands() {
  // expected-error@below {{'hp.reduce_scatter' op expected at least one operand}}
  %f = "hp.reduce_scatter"() {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : () -> !hp.future<[]>
  return
}

// -----

// C1: operands are tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%n: !torch.int) {
  // expected-error@below {{'hp.reduce_scatter' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %f = "hp.reduce_scatter"(%n) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.int) -> !hp.future<[!torch.int]>
  return
}

// -----

// C1: the future has one type per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @short_future(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected a future of 1 tensors, got: 0}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[]>
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %f = "hp.reduce_scatter"(%x) {mesh = @grid, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C2: there is a mesh.
func.func @no_mesh(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected a mesh named '@mesh' in the module}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C2: `axes` are axes of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op mesh has no axis 'dq', did you mean 'dp'?}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dq"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C2: each axis once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_axis(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected each mesh axis once, 'dp' is named twice}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp", "dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C2: at least one axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_axes(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected at least one mesh axis}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = [], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C2: axes are strings.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @axes_not_strings(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected axes to be an array of strings, got: [0]}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = [0], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C3: one dim per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @two_dims(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected one of dims per operand (1), got: 2}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 1>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C3: within the operand's rank.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @dim_outside(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected dim < 2, got: -1}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: -1>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C4: the size divides.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @uneven(%x: !torch.vtensor<[10,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected dim 0 to divide by the group's 4 ranks, got: 10}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[10,8],f32>) -> !hp.future<[!torch.vtensor<[3,8],f32>]>
  return
}

// -----

// C4: the size is divided.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @size(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected the scattered tensor to be !torch.vtensor<[4,8],f32>, got: !torch.vtensor<[16,8],f32>}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[16,8],f32>]>
  return
}

// -----

// C5: a known reduction.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_reduction(%x: !torch.vtensor<[16,8],f32>) {
  // expected-error@below {{'hp.reduce_scatter' op expected reduce to be 'sum' or 'avg', got: 'average', did you mean 'avg'?}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "average"} : (!torch.vtensor<[16,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
  return
}

// -----

// C5: the average of integers is refused.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @integer_average(%x: !torch.vtensor<[16],si64>) {
  // expected-error@below {{'hp.reduce_scatter' op expected floating tensors for reduce = 'avg', got: !torch.vtensor<[16],si64>}}
  %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16],si64>) -> !hp.future<[!torch.vtensor<[4],si64>]>
  return
}
