// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-sink-reductions | filecheck %s

!s = !torch.vtensor<[2,4],f32>
!f = !torch.vtensor<[4,4],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // The function returns the gradient as it is before the reduction, behind its other results.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.name = "b0.0", hp.role = "outgoing"},
  // CHECK-SAME: !torch.vtensor<[4,4],f32> {hp.fqn = ["w"], hp.role = "partial"})
  // CHECK-NEXT: %[[G:.*]] = torch.aten.mm %arg0, %arg0
  // CHECK-NEXT: return %arg0, %[[G]]
  // expected-remark@+1 {{@stage0_backward returns unreduced gradients: 1, of 64 bytes}}
  func.func @stage0_backward(%x: !f {hp.name = "f0.0", hp.role = "saved"})
      -> (!s {hp.fqn = ["w"], hp.role = "grad"}, !f {hp.name = "b0.0", hp.role = "outgoing"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mm %x, %x : !f, !f -> !f
    %1 = "hp.reduce_scatter"(%0) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "layer", mesh = @mesh, reduce = "avg"} : (!f) -> !hp.future<[!s]>
    %2 = "hp.wait"(%1) : (!hp.future<[!s]>) -> !s
    return %2, %x : !s, !f
  }

  // The sum is reduced: the reduction starts behind the last addition, and is waited for before the division.
  // CHECK-LABEL: func.func @rank0(
  // CHECK: %[[G0:.*]]:2 = call @stage0_backward(%arg0) {hp.microbatch = 0 : i64}
  // CHECK-NEXT: %[[G1:.*]]:2 = call @stage0_backward(%arg0) {hp.microbatch = 1 : i64}
  // CHECK-NEXT: %[[A:.*]]:2 = "hp.accumulate"(%arg1, %[[G0]]#1, %arg1, %[[G1]]#1)
  // CHECK-NEXT: %[[G2:.*]]:2 = call @stage0_backward(%[[G1]]#0) {hp.microbatch = 2 : i64}
  // CHECK-NEXT: %[[B:.*]]:2 = "hp.accumulate"(%[[A]]#0, %[[A]]#1, %arg1, %[[G2]]#1)
  // CHECK-NEXT: %[[START:.*]] = "hp.reduce_scatter"(%[[B]]#1) {axes = ["dp"], dims = array<i64: 0>, hp.unit = "layer", mesh = @mesh, reduce = "avg"}
  // CHECK-NEXT: %[[LOSS:.*]] = torch.aten.div.Scalar %[[B]]#0
  // CHECK-NEXT: %[[SUM:.*]] = "hp.wait"(%[[START]])
  // CHECK-NEXT: %[[MEAN:.*]] = torch.aten.div.Scalar %[[SUM]]
  // CHECK-NEXT: return %[[LOSS]], %[[MEAN]]
  func.func @rank0(%x: !f {hp.name = "x", hp.role = "input"}, %l: !l {hp.name = "l", hp.role = "input"})
      -> (!l {hp.role = "loss"}, !s {hp.fqn = ["w"], hp.role = "grad"}) attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %int3 = torch.constant.int 3
    %g0:2 = call @stage0_backward(%x) {hp.microbatch = 0 : i64} : (!f) -> (!s, !f)
    %g1:2 = call @stage0_backward(%x) {hp.microbatch = 1 : i64} : (!f) -> (!s, !f)
    %a:2 = "hp.accumulate"(%g0#0, %l, %g1#0, %l) : (!s, !l, !s, !l) -> (!s, !l)
    %g2:2 = call @stage0_backward(%g1#1) {hp.microbatch = 2 : i64} : (!f) -> (!s, !f)
    %b:2 = "hp.accumulate"(%a#0, %a#1, %g2#0, %l) : (!s, !l, !s, !l) -> (!s, !l)
    %loss = torch.aten.div.Scalar %b#1, %int3 : !l, !torch.int -> !l
    %mean = torch.aten.div.Scalar %b#0, %int3 : !s, !torch.int -> !s
    return %loss, %mean : !l, !s
  }
}

// -----

!h = !torch.vtensor<[3,4],f32>
!p = !torch.vtensor<[6,4],f32>
!g = !torch.vtensor<[5,4],f32>
!n = !torch.vtensor<[5,4],bf16>
!m = !torch.vtensor<[3,4],bf16>
!q = !torch.vtensor<[6,4],bf16>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["rp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()

  // Padding, both reductions and the cast behind them move; gradients in 16 bits are added up in 32. What views and
  // casts the backward makes before stays.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: -> (!torch.vtensor<[5,4],bf16> {hp.fqn = ["w"], hp.role = "partial"})
  // CHECK: %[[N:.*]] = torch.aten._to_copy %arg0
  // CHECK-NEXT: return %[[N]]
  // expected-remark@+1 {{returns unreduced gradients: 1, of 40 bytes}}
  func.func @stage0_backward(%x: !g {hp.name = "f0.0", hp.role = "saved"})
      -> (!h {hp.fqn = ["w"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int6 = torch.constant.int 6
    %int15 = torch.constant.int 15
    %zero = torch.constant.float 0.0
    %pads = torch.prim.ListConstruct %int0, %int0, %int0, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %0 = torch.aten._to_copy %x, %int15, %none, %none, %none, %false, %none : !g, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !n
    %1 = torch.aten.constant_pad_nd %0, %pads, %zero : !n, !torch.list<int>, !torch.float -> !q
    %2 = "hp.reduce_scatter"(%1) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg"} : (!q) -> !hp.future<[!m]>
    %3 = "hp.wait"(%2) : (!hp.future<[!m]>) -> !m
    %4 = "hp.all_reduce"(%3) {axes = ["rp"], mesh = @mesh, reduce = "avg"} : (!m) -> !hp.future<[!m]>
    %5 = "hp.wait"(%4) : (!hp.future<[!m]>) -> !m
    %6 = torch.aten._to_copy %5, %int6, %none, %none, %none, %false, %none : !m, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    return %6 : !h
  }

  // CHECK-LABEL: func.func @rank0(
  // CHECK: %[[G0:.*]] = call @stage0_backward
  // CHECK-NEXT: %[[W0:.*]] = torch.aten._to_copy %[[G0]]{{.*}} -> !torch.vtensor<[5,4],f32>
  // CHECK-NEXT: %[[G1:.*]] = call @stage0_backward
  // CHECK-NEXT: %[[A:.*]] = "hp.accumulate"(%[[W0]], %[[G1]]) : (!torch.vtensor<[5,4],f32>, !torch.vtensor<[5,4],bf16>)
  // CHECK-NEXT: %[[N:.*]] = torch.aten._to_copy %[[A]]{{.*}} -> !torch.vtensor<[5,4],bf16>
  // CHECK: %[[P:.*]] = torch.aten.constant_pad_nd %[[N]]
  // CHECK: %[[S1:.*]] = "hp.reduce_scatter"(%[[P]])
  // CHECK: %[[R1:.*]] = "hp.wait"(%[[S1]])
  // CHECK-NEXT: %[[S2:.*]] = "hp.all_reduce"(%[[R1]])
  // CHECK-NEXT: %[[R2:.*]] = "hp.wait"(%[[S2]])
  // CHECK-NEXT: %[[SUM:.*]] = torch.aten._to_copy %[[R2]]{{.*}} -> !torch.vtensor<[3,4],f32>
  // CHECK-NEXT: return %[[SUM]]
  func.func @rank0(%x: !g {hp.name = "x", hp.role = "input"}) -> (!h {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %g0 = call @stage0_backward(%x) {hp.microbatch = 0 : i64} : (!g) -> !h
    %g1 = call @stage0_backward(%x) {hp.microbatch = 1 : i64} : (!g) -> !h
    %a = "hp.accumulate"(%g0, %g1) : (!h, !h) -> !h
    return %a : !h
  }
}

// -----

!a = !torch.vtensor<[4],f32>
!b = !torch.vtensor<[8],f32>
!sa = !torch.vtensor<[2],f32>
!sb = !torch.vtensor<[4],f32>
!p = !torch.vtensor<[12],f32>
!q = !torch.vtensor<[6],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // A bucket moves as a whole: its members are added up one by one, and packed once. With one microbatch there is
  // nothing to add up.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.fqn = ["a"], hp.role = "partial"}, !torch.vtensor<[8],f32> {hp.fqn = ["b"], hp.role = "partial"})
  // CHECK-NEXT: return %arg0, %arg1
  // expected-remark@+1 {{returns unreduced gradients: 2, of 48 bytes}}
  func.func @stage0_backward(%a: !a {hp.name = "f0.0", hp.role = "saved"}, %b: !b {hp.name = "f0.1", hp.role = "saved"})
      -> (!sb {hp.fqn = ["b"], hp.role = "grad"}, !sa {hp.fqn = ["a"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = "hp.pack"(%a, %b) {alignment = 2 : i64, dims = array<i64: 0, 0>, ranks = 2 : i64} : (!a, !b) -> !p
    %1 = "hp.reduce_scatter"(%0) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg"} : (!p) -> !hp.future<[!q]>
    %2 = "hp.wait"(%1) : (!hp.future<[!q]>) -> !q
    %3:2 = "hp.unpack"(%2) {alignment = 2 : i64, layout = "flat", ranks = 1 : i64} : (!q) -> (!sa, !sb)
    return %3#1, %3#0 : !sb, !sa
  }

  // CHECK-LABEL: func.func @rank0(
  // CHECK-NEXT: %[[G:.*]]:2 = call @stage0_backward(%arg0, %arg1)
  // CHECK-NEXT: %[[P:.*]] = "hp.pack"(%[[G]]#0, %[[G]]#1)
  // CHECK-NEXT: %[[S:.*]] = "hp.reduce_scatter"(%[[P]])
  // CHECK-NEXT: %[[Q:.*]] = "hp.wait"(%[[S]])
  // CHECK-NEXT: %[[U:.*]]:2 = "hp.unpack"(%[[Q]])
  // CHECK-NEXT: return %[[U]]#1, %[[U]]#0
  func.func @rank0(%a: !a {hp.name = "a", hp.role = "input"}, %b: !b {hp.name = "b", hp.role = "input"})
      -> (!sb {hp.fqn = ["b"], hp.role = "grad"}, !sa {hp.fqn = ["a"], hp.role = "grad"}) attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %g:2 = call @stage0_backward(%a, %b) {hp.microbatch = 0 : i64} : (!a, !b) -> (!sb, !sa)
    return %g#0, %g#1 : !sb, !sa
  }
}

// -----

!f = !torch.vtensor<[4],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-NOT: "partial"
  func.func @stage0_backward(%x: !f {hp.name = "f0.0", hp.role = "saved"})
      -> (!f {hp.name = "b0.0", hp.role = "outgoing"}, !f {hp.fqn = ["a"], hp.role = "grad"}, !f {hp.fqn = ["b"], hp.role = "grad"},
          !f {hp.fqn = ["c"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    // Another op reads what is reduced.
    // expected-remark@+1 {{stays in the calls of each microbatch: 'torch.aten.mul.Tensor' reads what it gives}}
    %0 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!f) -> !hp.future<[!f]>
    %1 = "hp.wait"(%0) : (!hp.future<[!f]>) -> !f
    %2 = torch.aten.mul.Tensor %1, %x : !f, !f -> !f
    // Another stage does.
    // expected-remark@+1 {{stays in the calls of each microbatch: outgoing 'b0.0' is made of what it gives}}
    %3 = "hp.all_reduce"(%2) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!f) -> !hp.future<[!f]>
    %4 = "hp.wait"(%3) : (!hp.future<[!f]>) -> !f
    // The rank does before all is added up.
    // expected-remark@+1 {{stays in the calls of each microbatch: what it gives is read before it is added up}}
    %5 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "sum"} : (!f) -> !hp.future<[!f]>
    %6 = "hp.wait"(%5) : (!hp.future<[!f]>) -> !f
    return %4, %1, %4, %6 : !f, !f, !f, !f
  }

  // CHECK-LABEL: func.func @rank0(
  // CHECK-NOT: hp.all_reduce
  func.func @rank0(%x: !f {hp.name = "x", hp.role = "input"})
      -> (!f {hp.fqn = ["a"], hp.role = "grad"}, !f {hp.fqn = ["b"], hp.role = "grad"}, !f {hp.fqn = ["c"], hp.role = "grad"})
      attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %g0:4 = call @stage0_backward(%x) {hp.microbatch = 0 : i64} : (!f) -> (!f, !f, !f, !f)
    %g1:4 = call @stage0_backward(%x) {hp.microbatch = 1 : i64} : (!f) -> (!f, !f, !f, !f)
    %a:3 = "hp.accumulate"(%g0#1, %g0#2, %g0#3, %g1#1, %g1#2, %g1#3) : (!f, !f, !f, !f, !f, !f) -> (!f, !f, !f)
    %n = torch.aten.mul.Tensor %g0#3, %g1#3 : !f, !f -> !f
    return %a#0, %a#1, %n : !f, !f, !f
  }
}

// -----

!f = !torch.vtensor<[4],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // Of two gradients, the sum of one goes into an addition that changes for the other.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.fqn = ["a"], hp.role = "grad"}, !torch.vtensor<[4],f32> {hp.fqn = ["b"], hp.role = "partial"})
  // expected-remark@+1 {{returns unreduced gradients: 1, of 16 bytes}}
  func.func @stage0_backward(%x: !f {hp.name = "f0.0", hp.role = "saved"})
      -> (!f {hp.fqn = ["a"], hp.role = "grad"}, !f {hp.fqn = ["b"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    // expected-remark@+1 {{stays in the calls of each microbatch: what it adds up to is added to other gradients on the way}}
    %0 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!f) -> !hp.future<[!f]>
    %1 = "hp.wait"(%0) : (!hp.future<[!f]>) -> !f
    %2 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!f) -> !hp.future<[!f]>
    %3 = "hp.wait"(%2) : (!hp.future<[!f]>) -> !f
    return %1, %3 : !f, !f
  }

  // CHECK-LABEL: func.func @rank0(
  // CHECK-NEXT: %[[G0:.*]]:2 = call @stage0_backward
  // CHECK-NEXT: %[[G1:.*]]:2 = call @stage0_backward
  // CHECK-NEXT: %[[A:.*]] = "hp.accumulate"(%[[G0]]#0, %[[G1]]#0)
  // CHECK-NEXT: %[[B:.*]]:2 = "hp.accumulate"(%[[A]], %[[G0]]#1, %arg0, %[[G1]]#1)
  // CHECK-NEXT: %[[S:.*]] = "hp.all_reduce"(%[[B]]#1)
  // CHECK-NEXT: %[[R:.*]] = "hp.wait"(%[[S]])
  // CHECK-NEXT: return %[[B]]#0, %[[R]]
  func.func @rank0(%x: !f {hp.name = "x", hp.role = "input"})
      -> (!f {hp.fqn = ["a"], hp.role = "grad"}, !f {hp.fqn = ["b"], hp.role = "grad"}) attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %g0:2 = call @stage0_backward(%x) {hp.microbatch = 0 : i64} : (!f) -> (!f, !f)
    %g1:2 = call @stage0_backward(%x) {hp.microbatch = 1 : i64} : (!f) -> (!f, !f)
    %a = "hp.accumulate"(%g0#0, %g1#0) : (!f, !f) -> !f
    %b:2 = "hp.accumulate"(%g0#1, %a, %g1#1, %x) : (!f, !f, !f, !f) -> (!f, !f)
    return %b#1, %b#0 : !f, !f
  }
}

// -----

!h = !torch.vtensor<[4],bf16>
!f = !torch.vtensor<[4],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // The rank adds up in 32 bits what is reduced in 16: so it does with what is not reduced.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: -> (!torch.vtensor<[4],bf16> {hp.fqn = ["a"], hp.role = "partial"})
  // expected-remark@+1 {{returns unreduced gradients: 1, of 8 bytes}}
  func.func @stage0_backward(%x: !h {hp.name = "f0.0", hp.role = "saved"})
      -> (!h {hp.fqn = ["a"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!h) -> !hp.future<[!h]>
    %1 = "hp.wait"(%0) : (!hp.future<[!h]>) -> !h
    return %1 : !h
  }

  // CHECK-LABEL: func.func @rank0(
  // CHECK: %[[G0:.*]] = call @stage0_backward
  // CHECK-NEXT: %[[W0:.*]] = torch.aten._to_copy %[[G0]]{{.*}} -> !torch.vtensor<[4],f32>
  // CHECK-NEXT: %[[G1:.*]] = call @stage0_backward
  // CHECK-NEXT: %[[A:.*]] = "hp.accumulate"(%[[W0]], %[[G1]]) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],bf16>)
  // CHECK-NEXT: %[[H:.*]] = torch.aten._to_copy %[[A]]{{.*}} -> !torch.vtensor<[4],bf16>
  // CHECK-NEXT: %[[S:.*]] = "hp.all_reduce"(%[[H]])
  // CHECK-NEXT: %[[R:.*]] = "hp.wait"(%[[S]])
  // CHECK-NEXT: %[[SUM:.*]] = torch.aten._to_copy %[[R]]{{.*}} -> !torch.vtensor<[4],f32>
  // CHECK-NEXT: return %[[SUM]]
  func.func @rank0(%x: !h {hp.name = "x", hp.role = "input"}) -> (!f {hp.fqn = ["a"], hp.role = "grad"})
      attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int6 = torch.constant.int 6
    %g0 = call @stage0_backward(%x) {hp.microbatch = 0 : i64} : (!h) -> !h
    %w0 = torch.aten._to_copy %g0, %int6, %none, %none, %none, %false, %none : !h, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !f
    %g1 = call @stage0_backward(%x) {hp.microbatch = 1 : i64} : (!h) -> !h
    %a = "hp.accumulate"(%w0, %g1) : (!f, !h) -> !f
    return %a : !f
  }
}
