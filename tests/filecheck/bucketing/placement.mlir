// RUN: hp-opt %s --split-input-file --hp-bucket-collectives 2> %t.remarks | filecheck %s
// RUN: filecheck %s --check-prefix=REMARK < %t.remarks

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>
!h = !torch.vtensor<[2],bf16>
!hfull = !torch.vtensor<[4],bf16>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // What makes an input by casts and views moves up with it, constants too; what stands elsewhere stays.
  // CHECK-LABEL: func.func @chain_moves_up
  // CHECK-SAME: (%[[A:.*]]: !torch.vtensor<[2],f32>, %[[B:.*]]: !torch.vtensor<[2],f32>)
  func.func @chain_moves_up(%a: !s, %b: !s) -> (!t, !hfull, !s) {
    // CHECK-NEXT: %[[INT15:.*]] = torch.constant.int 15
    // CHECK-NEXT: %[[FALSE:.*]] = torch.constant.bool false
    // CHECK-NEXT: %[[NONE:.*]] = torch.constant.none
    // CHECK-NEXT: %[[CAST:.*]] = torch.aten._to_copy %[[B]], %[[INT15]], %[[NONE]], %[[NONE]], %[[NONE]], %[[FALSE]], %[[NONE]]
    // CHECK-NEXT: %[[ALIAS:.*]] = torch.aten.alias %[[CAST]]
    // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"(%[[A]], %[[ALIAS]])
    // CHECK-NEXT: %[[SIN:.*]] = torch.aten.sin
    // CHECK-NEXT: %[[W:.*]]:2 = "hp.wait"(%[[F]])
    // CHECK-NEXT: return %[[W]]#0, %[[W]]#1, %[[SIN]]
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"]} : (!s) -> !hp.future<[!t]>
    %1 = torch.aten.sin %b : !s -> !s
    %2 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %int15 = torch.constant.int 15
    %false = torch.constant.bool false
    %none = torch.constant.none
    %3 = torch.aten._to_copy %b, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    %4 = torch.aten.alias %3 : !h -> !h
    %5 = "hp.all_gather"(%4) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b"]} : (!h) -> !hp.future<[!hfull]>
    %6 = "hp.wait"(%5) : (!hp.future<[!hfull]>) -> !hfull
    return %2, %6, %1 : !t, !hfull, !s
  }

  // An input that is not there at the first start: the bucket starts right behind what makes it, though the member
  // itself started later. The first member's padding moves down with it, but not the view that something else needs.
  // CHECK-LABEL: func.func @ready_after_the_last_input
  func.func @ready_after_the_last_input(%a: !torch.vtensor<[3],f32>, %b: !t, %c: !t) -> (!s, !s, !s) {
    // CHECK: %[[ALIAS:.*]] = torch.aten.alias
    // CHECK-NEXT: torch.aten.sin %[[ALIAS]]
    // CHECK-NEXT: %[[COS:.*]] = torch.aten.cos
    // CHECK-NEXT: %[[PAD:.*]] = torch.aten.constant_pad_nd %[[ALIAS]]
    // CHECK-NEXT: %[[VIEW:.*]] = torch.aten.alias %[[COS]]
    // CHECK-NEXT: %[[F:.*]] = "hp.reduce_scatter"(%[[PAD]], %[[VIEW]], %{{.*}})
    // CHECK-NEXT: torch.aten.exp
    // CHECK-NEXT: %[[W:.*]]:3 = "hp.wait"(%[[F]])
    // CHECK-NEXT: torch.aten.tan
    // CHECK-NEXT: return %[[W]]#0, %[[W]]#1, %[[W]]#2
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %zero = torch.constant.float 0.0
    %pads = torch.prim.ListConstruct %int0, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %0 = torch.aten.alias %a : !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
    %1 = torch.aten.constant_pad_nd %0, %pads, %zero : !torch.vtensor<[3],f32>, !torch.list<int>, !torch.float -> !t
    %2 = "hp.reduce_scatter"(%1) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %3 = torch.aten.sin %0 : !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
    %4 = torch.aten.cos %b : !t -> !t
    %5 = torch.aten.exp %b : !t -> !t
    %6 = torch.aten.alias %4 : !t -> !t
    %7 = "hp.reduce_scatter"(%6) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %8 = "hp.wait"(%2) : (!hp.future<[!s]>) -> !s
    %9 = torch.aten.tan %b : !t -> !t
    %10 = "hp.wait"(%7) : (!hp.future<[!s]>) -> !s
    %11 = "hp.reduce_scatter"(%c) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["c"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %12 = "hp.wait"(%11) : (!hp.future<[!s]>) -> !s
    return %8, %10, %12 : !s, !s, !s
  }

  // The last input comes when a result was waited for already: the wait moves right before the first use, and the views
  // and casts of results that stood before move behind it, in their order. What is not made of results stays.
  // CHECK-LABEL: func.func @views_are_delayed
  func.func @views_are_delayed(%a: !t, %b: !t) -> (!s, !s, !t) {
    // CHECK-NEXT: %[[INT0:.*]] = torch.constant.int 0
    // CHECK-NEXT: torch.aten.alias
    // CHECK-NEXT: %[[COS:.*]] = torch.aten.cos
    // CHECK-NEXT: %[[F:.*]] = "hp.reduce_scatter"(%{{.*}}, %[[COS]])
    // CHECK-NEXT: torch.aten.exp
    // CHECK-NEXT: %[[W:.*]]:2 = "hp.wait"(%[[F]])
    // CHECK-NEXT: %[[ONE:.*]] = torch.aten.alias %[[W]]#0
    // CHECK-NEXT: %[[TWO:.*]] = torch.aten.unsqueeze %[[ONE]], %[[INT0]]
    // CHECK-NEXT: %[[USE:.*]] = torch.aten.tan %[[ONE]]
    // CHECK-NEXT: torch.aten.squeeze %[[TWO]]
    // CHECK-NEXT: return %[[USE]], %[[W]]#1
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %int0 = torch.constant.int 0
    %2 = torch.aten.alias %1 : !s -> !s
    %3 = torch.aten.alias %b : !t -> !t
    %4 = torch.aten.unsqueeze %2, %int0 : !s, !torch.int -> !torch.vtensor<[1,2],f32>
    %5 = torch.aten.cos %3 : !t -> !t
    %6 = torch.aten.exp %b : !t -> !t
    %7 = torch.aten.tan %2 : !s -> !s
    %8 = torch.aten.squeeze %4 : !torch.vtensor<[1,2],f32> -> !s
    %9 = "hp.reduce_scatter"(%5) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %10 = "hp.wait"(%9) : (!hp.future<[!s]>) -> !s
    return %7, %10, %6 : !s, !s, !t
  }

  // No result is used at all: the wait follows the start.
  // CHECK-LABEL: func.func @unused
  func.func @unused(%a: !t, %b: !t) -> (!t) {
    // CHECK: %[[COS:.*]] = torch.aten.cos
    // CHECK-NEXT: %[[F:.*]] = "hp.reduce_scatter"(%{{.*}}, %[[COS]])
    // CHECK-NEXT: "hp.wait"(%[[F]])
    // CHECK-NEXT: return %[[COS]]
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %2 = torch.aten.cos %b : !t -> !t
    %3 = "hp.reduce_scatter"(%2) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %4 = "hp.wait"(%3) : (!hp.future<[!s]>) -> !s
    return %2 : !t
  }
}

// -----

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // A result is used before the last input is there: the bucket is split, not forced. Who comes later may join the new one.
  // CHECK-LABEL: func.func @split
  func.func @split(%a: !t, %b: !t, %c: !t, %d: !t) -> (!s, !s, !s, !s) {
    // CHECK: "hp.reduce_scatter"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "root", hp.fqn = ["a", "b"]
    // CHECK: torch.aten.sin
    // CHECK-NEXT: torch.aten.cos
    // CHECK-NEXT: "hp.reduce_scatter"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "root (2)", hp.fqn = ["c", "d"]
    // REMARK: placement.mlir:[[#]]:10: remark: 'hp.reduce_scatter' op 'c' does not join bucket 'root': a result is used before the last input is there
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.reduce_scatter"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %2 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %3 = torch.aten.sin %2 : !s -> !s
    %4 = torch.aten.cos %c : !t -> !t
    %5 = "hp.reduce_scatter"(%4) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["c"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %6 = "hp.reduce_scatter"(%d) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["d"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %7 = "hp.wait"(%1) : (!hp.future<[!s]>) -> !s
    %8 = "hp.wait"(%5) : (!hp.future<[!s]>) -> !s
    %9 = "hp.wait"(%6) : (!hp.future<[!s]>) -> !s
    return %3, %7, %8, %9 : !s, !s, !s, !s
  }

  // One's result, through a view, is the other's input; in the second case, what is computed from it.
  // CHECK-LABEL: func.func @chained
  func.func @chained(%a: !t) -> (!torch.vtensor<[1],f32>) {
    // CHECK-COUNT-2: "hp.reduce_scatter"(%{{[a-z0-9]+}}) {
    // REMARK: 'hp.reduce_scatter' op 'b' does not join bucket 'root': its input is made of what 'a' gives
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %2 = torch.aten.alias %1 : !s -> !s
    %3 = "hp.reduce_scatter"(%2) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!s) -> !hp.future<[!torch.vtensor<[1],f32>]>
    %4 = "hp.wait"(%3) : (!hp.future<[!torch.vtensor<[1],f32>]>) -> !torch.vtensor<[1],f32>
    return %4 : !torch.vtensor<[1],f32>
  }

  // CHECK-LABEL: func.func @chained_by_compute
  func.func @chained_by_compute(%a: !t) -> (!torch.vtensor<[1],f32>) {
    // CHECK-COUNT-2: "hp.reduce_scatter"(%{{[a-z0-9]+}}) {
    // REMARK: 'hp.reduce_scatter' op 'b' does not join bucket 'root': a result is used before the last input is there
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %2 = torch.aten.sin %1 : !s -> !s
    %3 = "hp.reduce_scatter"(%2) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!s) -> !hp.future<[!torch.vtensor<[1],f32>]>
    %4 = "hp.wait"(%3) : (!hp.future<[!torch.vtensor<[1],f32>]>) -> !torch.vtensor<[1],f32>
    return %4 : !torch.vtensor<[1],f32>
  }

  // Shards reduced over one axis and then over another: each of the two is a bucket, though the first one's first result
  // was used before its last input is there: that use has moved with the second bucket.
  // CHECK-LABEL: func.func @two_levels
  func.func @two_levels(%a: !t, %b: !t) -> (!s, !s) {
    // CHECK: torch.aten.sin
    // CHECK-NEXT: %[[F:.*]] = "hp.reduce_scatter"({{.*}}hp.fqn = ["a", "b"]
    // CHECK-NEXT: %[[W:.*]]:2 = "hp.wait"(%[[F]])
    // CHECK-NEXT: %[[G:.*]] = "hp.all_reduce"(%[[W]]#0, %[[W]]#1) {{.*}}hp.fqn = ["a", "b"]
    // CHECK-NEXT: %[[R:.*]]:2 = "hp.wait"(%[[G]])
    // CHECK-NEXT: return %[[R]]#0, %[[R]]#1
    %0 = "hp.reduce_scatter"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %1 = "hp.wait"(%0) : (!hp.future<[!s]>) -> !s
    %2 = "hp.all_reduce"(%1) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!s) -> !hp.future<[!s]>
    %3 = torch.aten.sin %b : !t -> !t
    %4 = "hp.reduce_scatter"(%3) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %5 = "hp.wait"(%4) : (!hp.future<[!s]>) -> !s
    %6 = "hp.all_reduce"(%5) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!s) -> !hp.future<[!s]>
    %7 = "hp.wait"(%2) : (!hp.future<[!s]>) -> !s
    %8 = "hp.wait"(%6) : (!hp.future<[!s]>) -> !s
    return %7, %8 : !s, !s
  }
}
