// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: at least one operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_operands() {
  // expected-error@below {{'hp.broadcast' op expected at least one operand}}
  %f = "hp.broadcast"() {mesh = @mesh, axes = ["dp"], root = 0 : i64} : () -> !hp.future<[]>
  return
}

// -----

// C1: operands are tensors.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @not_a_tensor(%n: !torch.int) {
  // expected-error@below {{'hp.broadcast' op expected operand 0 to be a tensor of known rank and dtype, got: !torch.int}}
  %f = "hp.broadcast"(%n) {mesh = @mesh, axes = ["dp"], root = 0 : i64} : (!torch.int) -> !hp.future<[!torch.int]>
  return
}

// -----

// C1: the future has one type per operand.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @short_future(%x: !torch.vtensor<[4,8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected a future of 1 tensors, got: 0}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 0 : i64} : (!torch.vtensor<[4,8],f32>) -> !hp.future<[]>
  return
}

// -----

// C1: the future has the operands' types.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_type(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected the broadcast tensor to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[8],f64>}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 1 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f64>]>
  return
}

// -----

// C2: `mesh` names the module's mesh.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @other_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected a mesh named '@grid' in the module, found '@mesh'}}
  %f = "hp.broadcast"(%x) {mesh = @grid, axes = ["dp"], root = 0 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: there is a mesh.
func.func @no_mesh(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected a mesh named '@mesh' in the module}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 0 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: `axes` are axes of it.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @unknown_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op mesh has no axis 'dq', did you mean 'dp'?}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dq"], root = 0 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: each axis once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_axis(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected each mesh axis once, 'dp' is named twice}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp", "dp"], root = 0 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: at least one axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @no_axes(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected at least one mesh axis}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = [], root = 0 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C2: axes are strings.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @axes_not_strings(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected axes to be an array of strings, got: [0]}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = [0], root = 0 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C3: one axis with `coordinates`.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @coordinates_of_two_axes(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected exactly one axis with coordinates, got: 2}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["pp", "dp"], root = 0 : i64, coordinates = array<i64: 0>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C3: ascending.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @descending_coordinates(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected coordinates to be ascending positions, each once, got: [1, 0]}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 0 : i64, coordinates = array<i64: 1, 0>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C3: each once.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @repeated_coordinates(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected coordinates to be ascending positions, each once, got: [1, 1]}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 0 : i64, coordinates = array<i64: 1, 1>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C3: positions on the axis.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @coordinate_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected coordinates < 4 on axis 'dp', got: [0, 4]}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 0 : i64, coordinates = array<i64: 0, 4>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C4: a position in the group.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @root_outside(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected root to be one of [0, 1, 2, 3], got: 4}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 4 : i64} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C4: with `coordinates`, one of them.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @root_apart(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected root to be one of [1, 2], got: 0}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = 0 : i64, coordinates = array<i64: 1, 2>} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}

// -----

// C4: an integer.
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
func.func @root_not_an_integer(%x: !torch.vtensor<[8],f32>) {
  // expected-error@below {{'hp.broadcast' op expected root to be an integer, got: "dp"}}
  %f = "hp.broadcast"(%x) {mesh = @mesh, axes = ["dp"], root = "dp"} : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}
