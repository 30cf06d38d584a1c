// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-bucket-collectives='by=[l.0,l.1],[head]'
// RUN: not hp-opt %s --split-input-file --hp-bucket-collectives='by=[l.0],[nothing.*]' 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not hp-opt %s --split-input-file --hp-bucket-collectives='by=modul' 2>&1 | filecheck %s --check-prefix=NEAREST
// RUN: not hp-opt %s --hp-bucket-collectives='by=[ ]' 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not hp-opt %s --hp-bucket-collectives='by=' 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not hp-opt %s --hp-bucket-collectives='cap-mb=0' 2>&1 | filecheck %s --check-prefix=CAP
// RUN: not hp-opt %s --hp-bucket-collectives='cap-mb=inf' 2>&1 | filecheck %s --check-prefix=INFINITE
// RUN: not hp-opt %s --hp-bucket-collectives='by=size plan=x.json' 2>&1 | filecheck %s --check-prefix=BOTH

// NOTHING: errors.mlir:[[#]]:1: error: hp-bucket-collectives: by: pattern 'nothing.*' of group 2 matches no module and no parameter
// NEAREST: error: hp-bucket-collectives: by: pattern 'modul' of group 1 matches no module and no parameter, did you mean 'module'?
// EMPTY: --hp-bucket-collectives:1:{{[0-9]+}}: error: hp-bucket-collectives: option 'by' has a group without a pattern: '[ ]'
// MISSING: error: hp-bucket-collectives: option 'by' expects 'module', 'size' or groups of module patterns, got nothing
// CAP: error: hp-bucket-collectives: option 'cap-mb' expects a number of MiB above 0, at most 1e9, got: 0
// INFINITE: error: hp-bucket-collectives: option 'cap-mb' expects a number of MiB above 0, at most 1e9, got: inf
// BOTH: error: hp-bucket-collectives: options 'by' and 'plan' exclude each other: a stored plan says what is fused

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>

// expected-error@+1 {{hp-bucket-collectives: by: parameter 'head.w' is claimed by group 1 ('l.1') and by group 2 ('head')}}
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @tied(%a: !s {hp.fqn = ["head.w", "l.1.w"], hp.role = "param"}, %b: !s {hp.fqn = ["l.0.w"], hp.role = "param"}) -> (!t, !t) {
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["head.w", "l.1.w"]} : (!s) -> !hp.future<[!t]>
    %1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["l.0.w"]} : (!s) -> !hp.future<[!t]>
    %2 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %3 = "hp.wait"(%1) : (!hp.future<[!t]>) -> !t
    return %2, %3 : !t, !t
  }
}

// -----

!s = !torch.vtensor<[2],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @parameters(%a: !s {hp.fqn = ["l.0.w"], hp.role = "param"}, %b: !s {hp.fqn = ["l.1.w"], hp.role = "param"},
                        %c: !s {hp.fqn = ["head.w"], hp.role = "param"}, %d: !torch.bool) {
    // expected-error@+1 {{'torch.prim.If' op is control flow; a step function is expected to be a straight line of ops}}
    torch.prim.If %d -> () {
      torch.prim.If.yield
    } else {
      torch.prim.If.yield
    }
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["l.0.w"]} : (!s) -> !hp.future<[!torch.vtensor<[4],f32>]>
    return
  }
}

// -----

// expected-error@+1 {{hp-bucket-collectives requires level 'spmd' or 'staged', got: 'joint'}}
module {
}
