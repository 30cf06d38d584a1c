// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_operands() {
  // expected-error@below {{'hp.all_reduce' op expected at least one operand}}
  %f = "hp.all_reduce"() {mesh = @mesh, axes = ["dp"], reduce = "avg"} : () -> !hp.future<[]>
  return
}

// -----

// C1: operands are tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%n: !torch.int) {
  // expected-error@below {{'hp.all_reduce' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %f = "hp.all_reduce"(%n) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.int) -> !hp.future<[!torch.int]>
  return
}

// -----

// C1: the future has one type per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @short_future(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected a future of 1 tensors, got: 0}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[]>
  return
}

// -----

// C1: the future has the operands' types.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_type(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected the reduced tensor to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[4],f32>}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %f = "hp.all_reduce"(%x) {mesh = @grid, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: there is a mesh.
func.func @no_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected a mesh named '@mesh' in the module}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: `axes` are axes of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op mesh has no axis 'dq', did you mean 'dp'?}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dq"], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: each axis once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected each mesh axis once, 'dp' is named twice}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp", "dp"], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: at least one axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_axes(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected at least one mesh axis}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = [], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: axes are strings.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @axes_not_strings(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected axes to be an array of strings, got: [0]}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = [0], reduce = "avg"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C3: a known reduction.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_reduction(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected reduce to be 'sum' or 'avg', got: 'max'}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "max"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C3: the average of integers is refused.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @integer_average(%x: !torch.vtensor<[8],si64>) {
  // expected-error@below {{'hp.all_reduce' op expected floating tensors for reduce = 'avg', got: !torch.vtensor<[8],si64>}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[8],si64>) -> !hp.future<[!torch.vtensor<[8],si64>]>
  return
}

// -----

// C4: one axis with `coordinates`.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @coordinates_of_two_axes(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected exactly one axis with coordinates, got: 2}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["pp", "dp"], reduce = "sum", coordinates = array<i64: 0>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C4: ascending.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @descending_coordinates(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected coordinates to be ascending positions, each once, got: [1, 0]}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum", coordinates = array<i64: 1, 0>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C4: each once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_coordinates(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected coordinates to be ascending positions, each once, got: [1, 1]}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum", coordinates = array<i64: 1, 1>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C4: positions on the axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @coordinate_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.all_reduce' op expected coordinates < 4 on axis 'dp', got: [0, 4]}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum", coordinates = array<i64: 0, 4>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}
