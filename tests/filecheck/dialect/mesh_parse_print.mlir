// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// CHECK: "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>, sym_name = "mesh"} : () -> ()
"hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()

// A mesh may stand anywhere in the module's body; an axis may have one rank.
module {
  func.func @before() {
    return
  }
  // CHECK: "hp.mesh"() {axis_names = ["tp"], axis_sizes = array<i64: 1>, sym_name = "one"} : () -> ()
  "hp.mesh"() {sym_name = "one", axis_names = ["tp"], axis_sizes = array<i64: 1>} : () -> ()
}
