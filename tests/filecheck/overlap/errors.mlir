// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-overlap-collectives -o /dev/null
// RUN: not hp-opt %s --hp-overlap-collectives='prefetch=-1' 2>&1 | filecheck %s --check-prefix=PREFETCH
// RUN: not hp-opt %s --hp-overlap-collectives='memory-limit-mb=-1' 2>&1 | filecheck %s --check-prefix=LIMIT
// RUN: not hp-opt %s --hp-overlap-collectives='memory-limit-mb=inf' 2>&1 | filecheck %s --check-prefix=INFINITE
// RUN: not hp-opt %s --hp-overlap-collectives='memory-limit-mb=1e308' 2>&1 | filecheck %s --check-prefix=LARGE
// RUN: not hp-opt %s --hp-overlap-collectives='costs=""' 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not hp-opt %s --hp-overlap-collectives='ahead=1' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: echo 'module { "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> () }' > %t.mlir
// RUN: sed 's/module/module attributes {hp.level = "spmd"}/' %t.mlir > %t.spmd.mlir
// RUN: not hp-opt %t.spmd.mlir --hp-overlap-collectives='costs=none.toml' 2>&1 | filecheck %s --check-prefix=COSTS

// PREFETCH: error: hp-overlap-collectives: option 'prefetch' expects at least 0, got: -1
// LIMIT: error: hp-overlap-collectives: option 'memory-limit-mb' expects a number of MiB, at most 1e9, or 0 for no limit, got: -1
// INFINITE: error: hp-overlap-collectives: option 'memory-limit-mb' expects a number of MiB, at most 1e9, or 0 for no limit, got: inf
// LARGE: error: hp-overlap-collectives: option 'memory-limit-mb' expects a number of MiB, at most 1e9, or 0 for no limit, got: 1e+308
// EMPTY: error: option 'costs' of hp-overlap-collectives expects text, got: ''
// OPTION: error: unknown option 'ahead' of hp-overlap-collectives
// COSTS: error: hp-overlap-collectives: none.toml: cannot read costs: no such file or directory

// expected-error@below {{hp-overlap-collectives requires level 'spmd' or 'staged', got: 'joint'}}
module {
}

// -----

// expected-error@below {{hp-overlap-collectives: the module has no mesh; run hp-set-mesh first}}
module attributes {hp.level = "spmd"} {
}

// -----

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @branches(%x: !torch.vtensor<[4],f32>, %b: !torch.bool) -> !torch.vtensor<[4],f32> {
    // expected-error@below {{'torch.prim.If' op is control flow; a step function is expected to be a straight line of ops}}
    %y = torch.prim.If %b -> (!torch.vtensor<[4],f32>) {
      torch.prim.If.yield %x : !torch.vtensor<[4],f32>
    } else {
      torch.prim.If.yield %x : !torch.vtensor<[4],f32>
    }
    return %y : !torch.vtensor<[4],f32>
  }
}
