// What is reported and what is expected must match, both ways.
// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-set-mesh=axes=dp:2 > %t.out
// RUN: not hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 > %t.out
// RUN: sed -e 's/expected-err[o]r/nothing/' %s > %t.unexpected.mlir
// RUN: not hp-opt %t.unexpected.mlir --split-input-file --verify-diagnostics --hp-set-mesh=axes=dp:2 2>&1 | filecheck %s --check-prefix=UNEXPECTED
// RUN: not hp-opt %s --split-input-file --verify-diagnostics --hp-set-mesh=axes=dp:4 2>&1 | filecheck %s --check-prefix=UNMET

// UNEXPECTED: verify_diagnostics{{.*}}: error: unexpected error: custom op 'below' is unknown
// UNMET: verify_diagnostics.mlir:{{.*}}: error: expected error was not reported: the module has mesh @mesh of dp:4

// expected-error@below {{custom op 'below' is unknown}}
below

// -----

// expected-error@+2 {{custom op 'plus' is unknown}}

plus

// -----

same // expected-error {{custom op 'same' is unknown}}

// -----

// The mark may follow.
above
// expected-error@above {{custom op 'above' is unknown}}

// -----

minus

// expected-error@-2 {{custom op 'minus' is unknown}}

// -----

// A regular expression, and a note.
// expected-note@below {{existing symbol}}
func.func @twice() {
  return
}
// expected-error-re@below {{redefinition of symbol named '{{t.*e}}'}}
func.func @twice() {
  return
}

// -----

// expected-error@below {{the module has mesh @mesh of dp:4, hp-set-mesh got: dp:2}}
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 4>} : () -> ()
