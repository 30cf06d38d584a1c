// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-bucket-collectives | filecheck %s

!shard = !torch.vtensor<[2,4],f32>
!full = !torch.vtensor<[4,4],f32>
!half = !torch.vtensor<[2,4],bf16>
!halffull = !torch.vtensor<[4,4],bf16>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // What a unit gathers in a phase is one bucket: one start where the first was, one wait where the first was. Dtypes may
  // differ. The name of a member is its parameter's first one.
  // CHECK-LABEL: func.func @unit
  // CHECK-SAME: (%[[A:.*]]: !torch{{.*}}, %[[B:.*]]: !torch{{.*}}, %[[C:.*]]: !torch
  // expected-remark@+1 {{launches: 3 before, 2 after; buckets: 1, of 96 bytes and 0 bytes of padding}}
  func.func @unit(%a: !shard {hp.fqn = ["l.0.a", "tied"], hp.role = "param"}, %b: !half {hp.fqn = ["l.0.b"], hp.role = "param"},
                  %c: !shard {hp.fqn = ["l.1.c"], hp.role = "param"}) -> (!full, !halffull, !full) {
    // CHECK: %[[F:.*]] = "hp.all_gather"(%[[A]], %[[B]]) {axes = ["dp"], dims = array<i64: 0, 0>,
    // CHECK-SAME: hp.bucket = "l.0", hp.fqn = ["l.0.a", "l.0.b"], hp.module = "l.0.sub", hp.phase = "forward", hp.unit = "l.0",
    // CHECK-SAME: -> !hp.future<[!torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],bf16>]>
    // CHECK-NEXT: %[[OTHER:.*]] = "hp.all_gather"(%[[C]]) {{.*}}hp.fqn = ["l.1.c"]
    // CHECK-NEXT: %[[FULL:.*]]:2 = "hp.wait"(%[[F]]) {hp.bucket = "l.0", hp.fqn = ["l.0.a", "l.0.b"], hp.module = "l.0.sub", hp.phase = "forward", hp.unit = "l.0"}
    // CHECK-NEXT: %[[USED:.*]] = torch.aten.sin %[[FULL]]#0
    // CHECK-NEXT: "hp.wait"(%[[OTHER]])
    // CHECK-NOT: hp.wait
    // CHECK: return %[[USED]], %[[FULL]]#1
    // expected-remark@+1 {{is bucket 'l.0' of 2 in the forward: 96 bytes and 0 bytes of padding}}
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["l.0.a", "tied"], hp.module = "l.0.sub.x", hp.phase = "forward", hp.unit = "l.0"} : (!shard) -> !hp.future<[!full]>
    %1 = "hp.all_gather"(%c) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["l.1.c"], hp.phase = "forward", hp.unit = "l.1"} : (!shard) -> !hp.future<[!full]>
    %2 = "hp.wait"(%0) {hp.module = "l.0.sub.x", hp.phase = "forward", hp.unit = "l.0"} : (!hp.future<[!full]>) -> !full
    %3 = torch.aten.sin %2 {hp.phase = "forward"} : !full -> !full
    %4 = "hp.wait"(%1) : (!hp.future<[!full]>) -> !full
    %5 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["l.0.b"], hp.module = "l.0.sub.y", hp.phase = "forward", hp.unit = "l.0"} : (!half) -> !hp.future<[!halffull]>
    %6 = "hp.wait"(%5) : (!hp.future<[!halffull]>) -> !halffull
    return %3, %6, %4 : !full, !halffull, !full
  }
}

// -----

!t = !torch.vtensor<[4],f32>
!d = !torch.vtensor<[4],f64>
!s = !torch.vtensor<[2],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["ep", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // Kind, axes, reduction, coordinates, and for reductions the dtype, tell buckets apart; the bucket over other axes has a
  // name of its own. What no parameter is named for stays, and so does a bucket.
  // CHECK-LABEL: func.func @alike
  // expected-remark@+1 {{launches: 13 before, 10 after; buckets: 3, of}}
  func.func @alike(%x: !t, %y: !d, %s: !s) -> (!s, !s, !t, !t, !t, !t, !d, !t, !t, !s, !s, !t) {
    // expected-remark@+1 {{is bucket 'u' of 2 in the backward}}
    %0 = "hp.reduce_scatter"(%x) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.reduce_scatter"(%x) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!s]>
    // expected-remark@+1 {{is bucket 'u' of 2 in the backward}}
    %2 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.fqn = ["c"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!t]>
    %3 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "sum", hp.fqn = ["d"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!t]>
    %4 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.fqn = ["e"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!t]>
    %5 = "hp.all_reduce"(%y) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.fqn = ["f"], hp.phase = "backward", hp.unit = "u"} : (!d) -> !hp.future<[!d]>
    // expected-remark@+1 {{is bucket 'u (2)' of 2 in the backward}}
    %6 = "hp.all_reduce"(%x) {axes = ["ep"], mesh = @mesh, reduce = "avg", hp.fqn = ["g"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!t]>
    %7 = "hp.all_reduce"(%x) {axes = ["ep"], mesh = @mesh, reduce = "avg", hp.fqn = ["h"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!t]>
    %8 = "hp.all_reduce"(%x) {axes = ["dp"], coordinates = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["i"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!t]>
    %9 = "hp.reduce_scatter"(%x) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!s]>
    %10 = "hp.reduce_scatter"(%x) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.bucket = "mine", hp.fqn = ["k"], hp.phase = "backward", hp.unit = "u"} : (!t) -> !hp.future<[!s]>
    %11 = "hp.all_gather"(%s) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"], hp.phase = "backward", hp.unit = "u"} : (!s) -> !hp.future<[!t]>
    %12 = "hp.all_gather"(%s) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"], hp.phase = "forward", hp.unit = "u"} : (!s) -> !hp.future<[!t]>
    // CHECK: "hp.reduce_scatter"({{.*}}hp.bucket = "u", hp.fqn = ["a", "b"]
    // CHECK-NEXT: "hp.all_reduce"({{.*}}hp.bucket = "u", hp.fqn = ["c", "e"]
    // CHECK-NEXT: "hp.all_reduce"({{.*}}hp.fqn = ["d"]
    // CHECK-NEXT: "hp.all_reduce"({{.*}}hp.fqn = ["f"]
    // CHECK-NEXT: "hp.all_reduce"({{.*}}axes = ["ep"], {{.*}}hp.bucket = "u (2)", hp.fqn = ["g", "h"]
    // CHECK-NEXT: "hp.all_reduce"({{.*}}hp.fqn = ["i"]
    // CHECK-NEXT: "hp.reduce_scatter"
    // CHECK-NEXT: "hp.reduce_scatter"({{.*}}hp.bucket = "mine", hp.fqn = ["k"]
    // CHECK-NEXT: "hp.all_gather"({{.*}}hp.phase = "backward"
    // CHECK-NEXT: "hp.all_gather"({{.*}}hp.phase = "forward"
    %a = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %b = "hp.wait"(%1) : (!hp.future<[!s]>) -> !s
    %c = "hp.wait"(%2) : (!hp.future<[!t]>) -> !t
    %d = "hp.wait"(%3) : (!hp.future<[!t]>) -> !t
    %e = "hp.wait"(%4) : (!hp.future<[!t]>) -> !t
    %f = "hp.wait"(%5) : (!hp.future<[!d]>) -> !d
    %g = "hp.wait"(%6) : (!hp.future<[!t]>) -> !t
    %h = "hp.wait"(%7) : (!hp.future<[!t]>) -> !t
    %i = "hp.wait"(%8) : (!hp.future<[!t]>) -> !t
    %j = "hp.wait"(%9) : (!hp.future<[!s]>) -> !s
    %k = "hp.wait"(%10) : (!hp.future<[!s]>) -> !s
    %l = "hp.wait"(%11) : (!hp.future<[!t]>) -> !t
    %m = "hp.wait"(%12) : (!hp.future<[!t]>) -> !t
    return %a, %b, %c, %d, %e, %l, %f, %g, %h, %j, %k, %m : !s, !s, !t, !t, !t, !t, !d, !t, !t, !s, !s, !t
  }
}

// -----

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>

module attributes {hp.level = "staged"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // Functions of stages have their own buckets. Parameters outside units are those of the root.
  // CHECK-LABEL: func.func @stage0_forward
  // expected-remark@+1 {{launches: 2 before, 1 after; buckets: 1, of}}
  func.func @stage0_forward(%a: !s, %b: !s) -> (!t, !t) {
    // CHECK: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "root", hp.fqn = ["a", "b"], hp.phase = "forward", hp.unit = ""
    // expected-remark@+1 {{is bucket 'root' of 2 in the forward: 32 bytes}}
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"], hp.unit = ""} : (!s) -> !hp.future<[!t]>
    %1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b"]} : (!s) -> !hp.future<[!t]>
    %2 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %3 = "hp.wait"(%1) : (!hp.future<[!t]>) -> !t
    return %2, %3 : !t, !t
  }
  // CHECK-LABEL: func.func @stage0_backward
  // expected-remark@+1 {{launches: 2 before, 1 after; buckets: 1, of}}
  func.func @stage0_backward(%a: !t, %b: !t) -> (!s, !s) {
    // CHECK: "hp.reduce_scatter"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "root"
    // expected-remark@+1 {{is bucket 'root' of 2 in the backward: 32 bytes}}
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "sum", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.reduce_scatter"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "sum", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %2 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %3 = "hp.wait"(%1) : (!hp.future<[!s]>) -> !s
    return %2, %3 : !s, !s
  }
}

// -----

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // What moves across an op that changes an operand may read something else there.
  // CHECK-LABEL: func.func @changes
  // expected-remark@+2 {{has an op that changes an operand: nothing is fused}}
  // expected-remark@+1 {{launches: 2 before, 2 after; buckets: 0, of}}
  func.func @changes(%a: !s, %m: !torch.tensor<[2],f32>) -> (!t, !t) {
    // CHECK-COUNT-2: "hp.all_gather"
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"]} : (!s) -> !hp.future<[!t]>
    %2 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %b = torch.aten.sin %a : !s -> !s
    torch.overwrite.tensor.contents %a overwrites %m : !s, !torch.tensor<[2],f32>
    %1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b"]} : (!s) -> !hp.future<[!t]>
    %3 = "hp.wait"(%1) : (!hp.future<[!t]>) -> !t
    return %2, %3 : !t, !t
  }
}
