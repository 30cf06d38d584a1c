// Every spelling of a pass and its options; passes run in the order given.
// RUN: hp-opt %s --hp-set-mesh=axes=pp:2,dp:2 --cse --dump-pass-pipeline 2>&1 >%t | filecheck %s --check-prefix=ORDER
// RUN: hp-opt %s --cse --hp-set-mesh='axes=pp:2,dp:2' --dump-pass-pipeline 2>&1 >%t | filecheck %s --check-prefix=REVERSE
// RUN: hp-opt %s --hp-set-mesh{axes=pp:2,dp:2} | filecheck %s
// RUN: hp-opt %s -hp-set-mesh="{axes=pp:2,dp:2}" | filecheck %s
// RUN: hp-opt %s --hp-set-mesh='axes={pp:2, dp:2}' | filecheck %s
// RUN: hp-opt %s --hp-set-mesh='axes="pp:2,dp:2"' | filecheck %s
// RUN: hp-opt %s --pass-pipeline='builtin.module(hp-set-mesh{axes=pp:2,dp:2},func.func(cse,canonicalize))' | filecheck %s
// RUN: hp-opt --pass-pipeline 'hp-set-mesh{ axes=pp:2,dp:2 }' %s | filecheck %s

// ORDER: builtin.module(hp-set-mesh{axes=pp:2,dp:2},cse)
// REVERSE: builtin.module(cse,hp-set-mesh{axes=pp:2,dp:2})

// CHECK: "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"}
func.func @f() {
  return
}
