// One located error that names the nearest valid spelling, and nothing on stdout.
// RUN: not hp-opt %s --hp-set-mehs=axes=dp:2 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not hp-opt %s --pass-pipeline='cse,canonicalise' 2>&1 | filecheck %s --check-prefix=MLIR
// RUN: not hp-opt %s --hp-set-mesh=axis=dp:2 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not hp-opt %s --hp-set-mesh=axes=dp 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not hp-opt %s --hp-set-mesh=axes=dp:0 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not hp-opt %s --hp-set-mesh 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not hp-opt %s --cse=fast 2>&1 | filecheck %s --check-prefix=MLIR-OPTION
// RUN: not hp-opt %s --pass-pipeline='func.func(cse,hp-set-mesh{axes=dp:2})' 2>&1 | filecheck %s --check-prefix=NEST
// RUN: not hp-opt %s --pass-pipeline='cse)' 2>&1 | filecheck %s --check-prefix=PARENTHESIS
// RUN: not hp-opt %s --pass-pipeline='hp-set-mesh{axes=dp:2' 2>&1 | filecheck %s --check-prefix=BRACE
// RUN: not hp-opt %s --pass-pipeline='cse,,cse' 2>&1 | filecheck %s --check-prefix=COMMA
// RUN: not hp-opt %s --pass-pipeline=cse --canonicalize 2>&1 | filecheck %s --check-prefix=BOTH

// PASS:        {{^}}--hp-set-mehs:1:3: error: unknown pass 'hp-set-mehs', did you mean 'hp-set-mesh'{{.*}}?{{$}}
// MLIR:        {{^}}--pass-pipeline:1:5: error: unknown pass 'canonicalise', did you mean 'canonicalize'?{{$}}
// OPTION:      {{^}}--hp-set-mesh:1:15: error: unknown option 'axis' of hp-set-mesh, did you mean 'axes'?{{$}}
// VALUE:       error: hp-set-mesh: option 'axes' expects name:size pairs such as pp:2,dp:2, got: 'dp'{{$}}
// SIZE:        error: hp-set-mesh: mesh axis 'dp' has size 0, expected at least 1{{$}}
// MISSING:     {{^}}--hp-set-mesh:1:3: error: hp-set-mesh needs option 'axes', a comma-separated list{{$}}
// MLIR-OPTION: {{^}}--cse:1:7: error: unknown option 'fast' of cse{{$}}
// NEST:        {{^}}--pass-pipeline:1:15: error: hp-set-mesh runs on builtin.module, it cannot stand inside 'func.func'{{$}}
// PARENTHESIS: {{^}}--pass-pipeline:1:4: error: expected ',' or the end of the pipeline, got: ')'{{$}}
// BRACE:       {{^}}--pass-pipeline:1:12: error: '{' is never closed{{$}}
// COMMA:       {{^}}--pass-pipeline:1:5: error: expected a pass name, got: ','{{$}}
// BOTH:        error: passes as flags and --pass-pipeline exclude each other{{$}}
func.func @f() {
  return
}
