// RUN: hp-opt %s --split-input-file --verify-diagnostics

// C1: as many names as sizes.
// expected-error@below {{'hp.mesh' op mesh has 2 axis names but 1 axis sizes}}
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2>} : () -> ()

// -----

// C1: at least one axis.
// expected-error@below {{'hp.mesh' op mesh has no axes}}
"hp.mesh"() {sym_name = "mesh", axis_names = [], axis_sizes = array<i64>} : () -> ()

// -----

// C1: names are strings.
// expected-error@below {{'hp.mesh' op expected axis_names to be an array of strings, got: [2]}}
"hp.mesh"() {sym_name = "mesh", axis_names = [2], axis_sizes = array<i64: 2>} : () -> ()

// -----

// C1: sizes are a dense array.
// expected-error@below {{'hp.mesh' op expected axis_sizes to be array<i64: ...>, got: [2]}}
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = [2]} : () -> ()

// -----

// C2: names are unique.
// expected-error@below {{'hp.mesh' op mesh axis 'dp' is named twice}}
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()

// -----

// C2: names are not empty.
// expected-error@below {{'hp.mesh' op mesh has an axis without a name}}
"hp.mesh"() {sym_name = "mesh", axis_names = [""], axis_sizes = array<i64: 2>} : () -> ()

// -----

// C3: sizes are at least 1.
// expected-error@below {{'hp.mesh' op mesh axis 'dp' has size 0, expected at least 1}}
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 0>} : () -> ()

// -----

// C4: at most one.
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
// expected-error@below {{'hp.mesh' op expected at most one mesh in a module}}
"hp.mesh"() {sym_name = "other", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()

// -----

// C4: directly in the module's body.
func.func @inside() {
  // expected-error@below {{'hp.mesh' op expected to stand directly in a module}}
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  return
}

// -----

// Two symbols of one name.
// expected-note@below {{see existing symbol definition here}}
func.func @mesh() {
  return
}
// expected-error@below {{redefinition of symbol named 'mesh'}}
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()

// -----

// The declaration: attributes are there.
// expected-error@below {{'hp.mesh' op attribute "sym_name" is expected but not provided}}
"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
