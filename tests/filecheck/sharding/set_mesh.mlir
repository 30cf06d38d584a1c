// RUN: hp-opt %s --hp-set-mesh=axes=pp:2,dp:4 --split-input-file --verify-diagnostics | filecheck %s

// A module without a mesh gets one at its top; axes keep their order, outermost first.
// CHECK:      module {
// CHECK-NEXT:   "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>, sym_name = "mesh"} : () -> ()
// CHECK-NEXT:   func.func @no_mesh()
func.func @no_mesh() {
  return
}

// -----

// The mesh asked for is there: nothing changes, at any level.
// CHECK:      module attributes {hp.level = "spmd"} {
// CHECK-NEXT:   func.func @equal_mesh()
// CHECK:        "hp.mesh"() {{.*}} sym_name = "grid"}
// CHECK-NOT:    "hp.mesh"
module attributes {hp.level = "spmd"} {
  func.func @equal_mesh() {
    return
  }
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>, sym_name = "grid"} : () -> ()
}

// -----

// The name is taken twice over.
// CHECK:      module {
// CHECK-NEXT:   "hp.mesh"() {{.*}} sym_name = "mesh_1"}
// CHECK-NEXT:   func.func @mesh()
// CHECK:        func.func @mesh_0()
func.func @mesh() {
  return
}
func.func @mesh_0() {
  return
}

// -----

// expected-error@below {{'hp.mesh' op the module has mesh @mesh of dp:8, hp-set-mesh got: pp:2,dp:4}}
"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 8>, sym_name = "mesh"} : () -> ()

// -----

// expected-error@below {{hp-set-mesh requires level 'joint' or 'annotated', got: 'spmd'}}
module attributes {hp.level = "spmd"} {
}

// -----

// expected-error@below {{'builtin.module' op unknown level 'spdm', did you mean 'spmd'?}}
module attributes {hp.level = "spdm"} {
}
