// A plan is printed as JSON, and applied as it is or changed by hand.
// RUN: hp-opt %s --hp-bucket-collectives=print-plan 2> %t.json | filecheck %s
// RUN: filecheck %s --check-prefix=PLAN < %t.json
// RUN: hp-opt %s --hp-bucket-collectives=plan=%t.json 2>/dev/null | filecheck %s
// RUN: sed -e 's/"name": "root"/"name": "mine"/' %t.json > %t.renamed.json
// RUN: hp-opt %s --hp-bucket-collectives=plan=%t.renamed.json 2>/dev/null | filecheck %s --check-prefix=RENAMED

// What the plan was not made for is refused, and nothing is written.
// RUN: not hp-opt %s --canonicalize --hp-bucket-collectives=plan=%t.json 2>&1 | filecheck %s --check-prefix=STALE
// RUN: not hp-opt %s --hp-bucket-collectives --hp-bucket-collectives=plan=%t.json 2>&1 | filecheck %s --check-prefix=STALE
// STALE: stored_plan.mlir:[[#]]:3: error: hp-bucket-collectives: the bucket plan for @joint was made for another function, or this one has changed since
// RUN: sed -e 's/"function": "joint"/"function": "jint"/' %t.json > %t.foreign.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.foreign.json 2>&1 | filecheck %s --check-prefix=FOREIGN
// FOREIGN: stored_plan.mlir:[[#]]:1: error: hp-bucket-collectives: the bucket plan is for @jint, which the module does not have, did you mean 'joint'?

// So is what cannot be.
// RUN: sed -e 's/"collective": 2/"collective": 20/' %t.json > %t.number.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.number.json 2>&1 | filecheck %s --check-prefix=NUMBER
// NUMBER: error: hp-bucket-collectives: bucket 'root': @joint has no collective 20, only 5
// RUN: sed -e 's/"collective": 2/"collective": 3/' %t.json > %t.other.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.other.json 2>&1 | filecheck %s --check-prefix=OTHER
// OTHER: error: 'hp.reduce_scatter' op bucket 'root': collective 3 is of 'b', the plan says 'a'
// RUN: sed -e 's/"collective": 1, "parameters": \["b"\]/"collective": 0, "parameters": ["a"]/' %t.json > %t.twice.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.twice.json 2>&1 | filecheck %s --check-prefix=TWICE
// TWICE: error: 'hp.all_gather' op collective 0, of 'a', is claimed by bucket 'root' and by bucket 'root'
// RUN: sed -e 's/"kind": "reduce_scatter"/"kind": "all_gather"/' -e 's/"backward"/"forward"/' %t.json > %t.names.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.names.json 2>&1 | filecheck %s --check-prefix=NAMES
// NAMES: error: hp-bucket-collectives: two buckets of kind 'all_gather' in the forward are named 'root'
// RUN: sed -e 's/"kind": "reduce_scatter"/"kind": "all_reduce"/' %t.json > %t.kind.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.kind.json 2>&1 | filecheck %s --check-prefix=KIND
// KIND: error: 'hp.reduce_scatter' op bucket 'root' has kind 'all_reduce', its member 'a' 'reduce_scatter'
// RUN: sed -e 's/"collective": 3, "parameters": \["b"\]/"collective": 4, "parameters": ["c"]/' %t.json > %t.unlike.json
// RUN: not hp-opt %s --hp-bucket-collectives=plan=%t.unlike.json 2>&1 | filecheck %s --check-prefix=UNLIKE

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>

// CHECK-LABEL: func.func @joint
// RENAMED-LABEL: func.func @joint
// PLAN: "schema_version": 1,
// PLAN: "function": "joint",
// PLAN-NEXT: "fingerprint": "{{[0-9a-f]+}}",
// PLAN-NEXT: "launches": 5,
// PLAN-NEXT: "buckets": [
// PLAN-NEXT: {"name": "root", "kind": "all_gather", "phase": "forward", "axes": ["dp"], "members": [
// PLAN-NEXT: {"collective": 0, "parameters": ["a"], "bytes": 16, "padding": 0},
// PLAN-NEXT: {"collective": 1, "parameters": ["b"], "bytes": 16, "padding": 0}
// PLAN-NEXT: ]},
// PLAN-NEXT: {"name": "root", "kind": "reduce_scatter", "phase": "backward", "axes": ["dp"], "members": [
// PLAN-NEXT: {"collective": 2, "parameters": ["a"], "bytes": 16, "padding": 0},
// PLAN-NEXT: {"collective": 3, "parameters": ["b"], "bytes": 16, "padding": 0}
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !s, %b: !s) -> (!s, !s, !s) {
    // Canonicalized away, which makes the function another one.
    %unused = torch.constant.int 1
    // CHECK: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "root"
    // RENAMED: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "mine"
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"]} : (!s) -> !hp.future<[!t]>
    %1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b"]} : (!s) -> !hp.future<[!t]>
    %2 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %3 = "hp.wait"(%1) : (!hp.future<[!t]>) -> !t
    // CHECK: "hp.reduce_scatter"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "root"
    // UNLIKE: stored_plan.mlir:{{[0-9]+}}:10: error: 'hp.reduce_scatter' op cannot share bucket 'root' with 'a': they reduce in different ways or dtypes
    // UNLIKE-NEXT: stored_plan.mlir:{{[0-9]+}}:10: note: 'a' here
    %4 = "hp.reduce_scatter"(%2) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "sum", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %5 = "hp.reduce_scatter"(%3) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "sum", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %6 = "hp.reduce_scatter"(%3) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["c"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %7 = "hp.wait"(%4) : (!hp.future<[!s]>) -> !s
    %8 = "hp.wait"(%5) : (!hp.future<[!s]>) -> !s
    %9 = "hp.wait"(%6) : (!hp.future<[!s]>) -> !s
    return %7, %8, %9 : !s, !s, !s
  }
}
