// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-hoist-gathers | filecheck %s

!s = !torch.vtensor<[2,4],f32>
!f = !torch.vtensor<[4,4],f32>
!x = !torch.vtensor<[6,4],f32>
!xx = !torch.vtensor<[12,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // The function takes the gathered parameter; the view of it stays, the shard is no argument any more.
  // CHECK-LABEL: func.func @stage0_forward(
  // CHECK-SAME: %[[X:[a-z0-9]+]]: !torch.vtensor<[6,4],f32> {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"}
  // CHECK-SAME: %[[W:[a-z0-9]+]]: !torch.vtensor<[4,4],f32> {hp.fqn = ["w"], hp.role = "gathered"})
  // expected-remark@+1 {{@stage0_forward is given gathered parameters: 1, of 64 bytes}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!x {hp.name = "f0.0", hp.role = "saved"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    // CHECK-NEXT: %[[T:.*]] = torch.aten.t %[[W]]
    // CHECK-NEXT: torch.aten.mm %[[X]], %[[T]]
    %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!s) -> !future
    %1 = "hp.wait"(%0) : (!future) -> !f
    %2 = torch.aten.t %1 : !f -> !f
    %3 = torch.aten.mm %x, %2 : !x, !f -> !x
    return %3 : !x
  }

  // Something else reads the shard here: it stays an argument.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: %[[S:[a-z0-9]+]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["w"], hp.role = "param"}
  // CHECK-SAME: %[[W:[a-z0-9]+]]: !torch.vtensor<[4,4],f32> {hp.fqn = ["w"], hp.role = "gathered"})
  // expected-remark@+1 {{@stage0_backward is given gathered parameters: 1, of 64 bytes}}
  func.func @stage0_backward(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %x: !x {hp.name = "f0.0", hp.role = "saved"})
      -> (!f {hp.fqn = ["w"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    // CHECK-NEXT: torch.aten.mm %[[S]], %[[W]]
    // CHECK-NEXT: torch.aten.t %[[W]]
    %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.phase = "backward"} : (!s) -> !future
    %1 = "hp.wait"(%0) : (!future) -> !f
    %2 = torch.aten.mm %w, %1 : !s, !f -> !s
    %3 = torch.aten.t %1 : !f -> !f
    return %3 : !f
  }

  // One gather for all calls of both functions: it starts first and is waited for before the first call.
  // CHECK-LABEL: func.func @rank0(
  // CHECK-SAME: %[[S:[a-z0-9]+]]: !torch.vtensor<[2,4],f32>
  // CHECK-NEXT: %[[GATHER:.*]] = "hp.all_gather"(%[[S]]) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh}
  // CHECK-NEXT: %[[X0:.*]] = "hp.microbatch"
  // CHECK-NEXT: %[[W:.*]] = "hp.wait"(%[[GATHER]])
  // CHECK-NEXT: %[[H0:.*]] = call @stage0_forward(%[[X0]], %[[W]]) {hp.microbatch = 0 : i64}
  // CHECK-NEXT: call @stage0_backward(%[[S]], %[[H0]], %[[W]]) {hp.microbatch = 0 : i64}
  // CHECK-NEXT: %[[X1:.*]] = "hp.microbatch"
  // CHECK-NEXT: %[[H1:.*]] = call @stage0_forward(%[[X1]], %[[W]]) {hp.microbatch = 1 : i64}
  // CHECK-NEXT: call @stage0_backward(%[[S]], %[[H1]], %[[W]]) {hp.microbatch = 1 : i64}
  // CHECK-NEXT: "hp.accumulate"
  func.func @rank0(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %x: !xx {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!f {hp.fqn = ["w"], hp.role = "grad"}) attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %x0 = "hp.microbatch"(%x) {count = 2 : i64, dim = 0 : i64, index = 0 : i64} : (!xx) -> !x
    %h0 = call @stage0_forward(%w, %x0) {hp.microbatch = 0 : i64} : (!s, !x) -> !x
    %g0 = call @stage0_backward(%w, %h0) {hp.microbatch = 0 : i64} : (!s, !x) -> !f
    %x1 = "hp.microbatch"(%x) {count = 2 : i64, dim = 0 : i64, index = 1 : i64} : (!xx) -> !x
    %h1 = call @stage0_forward(%w, %x1) {hp.microbatch = 1 : i64} : (!s, !x) -> !x
    %g1 = call @stage0_backward(%w, %h1) {hp.microbatch = 1 : i64} : (!s, !x) -> !f
    %sum = "hp.accumulate"(%g0, %g1) : (!f, !f) -> !f
    return %sum : !f
  }

  // Forward only, one microbatch, and the call comes first of all.
  // CHECK-LABEL: func.func @evaluate0(
  // CHECK-SAME: %[[S:[a-z0-9]+]]: !torch.vtensor<[2,4],f32> {{.*}}, %[[X:[a-z0-9]+]]: !torch.vtensor<[6,4],f32>
  // CHECK-NEXT: %[[GATHER:.*]] = "hp.all_gather"(%[[S]])
  // CHECK-NEXT: %[[W:.*]] = "hp.wait"(%[[GATHER]])
  // CHECK-NEXT: %[[H:.*]] = call @stage0_forward(%[[X]], %[[W]]) {hp.microbatch = 0 : i64}
  // CHECK-NEXT: return %[[H]]
  func.func @evaluate0(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!x {hp.name = "y", hp.role = "output"}) attributes {hp.coordinate = 0 : i64, hp.kind = "evaluate"} {
    %h = call @stage0_forward(%w, %x) {hp.microbatch = 0 : i64} : (!s, !x) -> !x
    return %h : !x
  }
}

// -----

!s = !torch.vtensor<[2,4],f32>
!h = !torch.vtensor<[2,4],bf16>
!p = !torch.vtensor<[3,4],bf16>
!g = !torch.vtensor<[6,4],bf16>
!f = !torch.vtensor<[5,4],bf16>
!w = !torch.vtensor<[5,4],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // Casts and pads of the shard go with the gather, and the slice of its padding; the cast of the full parameter stays.
  // CHECK-LABEL: func.func @stage0_forward(
  // CHECK-SAME: %[[W:[a-z0-9]+]]: !torch.vtensor<[5,4],bf16> {hp.fqn = ["w"], hp.role = "gathered"}) ->
  // CHECK: torch.aten._to_copy %[[W]]
  // CHECK-NEXT: return
  // expected-remark@+1 {{is given gathered parameters: 1, of 40 bytes}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!w {hp.name = "y", hp.role = "output"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int5 = torch.constant.int 5
    %int6 = torch.constant.int 6
    %int15 = torch.constant.int 15
    %zero = torch.constant.float 0.0
    %pads = torch.prim.ListConstruct %int0, %int0, %int0, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %0 = torch.aten._to_copy %w, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    %1 = torch.aten.constant_pad_nd %0, %pads, %zero : !h, !torch.list<int>, !torch.float -> !p
    %2 = "hp.all_gather"(%1) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!p) -> !hp.future<[!g]>
    %3 = "hp.wait"(%2) : (!hp.future<[!g]>) -> !g
    %4 = torch.aten.slice.Tensor %3, %int0, %int0, %int5, %int1 : !g, !torch.int, !torch.int, !torch.int, !torch.int -> !f
    %5 = torch.aten._to_copy %4, %int6, %none, %none, %none, %false, %none : !f, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !w
    return %5 : !w
  }

  // CHECK-LABEL: func.func @evaluate0(
  // CHECK-SAME: %[[S:[a-z0-9]+]]: !torch.vtensor<[2,4],f32>
  // CHECK: %[[CAST:.*]] = torch.aten._to_copy %[[S]]
  // CHECK: %[[PAD:.*]] = torch.aten.constant_pad_nd %[[CAST]]
  // CHECK: %[[GATHER:.*]] = "hp.all_gather"(%[[PAD]])
  // CHECK: %[[WAIT:.*]] = "hp.wait"(%[[GATHER]])
  // CHECK-NEXT: %[[TRIM:.*]] = torch.aten.slice.Tensor %[[WAIT]]
  // CHECK-NEXT: call @stage0_forward(%[[TRIM]])
  func.func @evaluate0(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!w {hp.name = "y", hp.role = "output"})
      attributes {hp.coordinate = 0 : i64, hp.kind = "evaluate"} {
    %y = call @stage0_forward(%w) {hp.microbatch = 0 : i64} : (!s) -> !w
    return %y : !w
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!h = !torch.vtensor<[4],bf16>
!f = !torch.vtensor<[8],bf16>
!b = !torch.vtensor<[16],f32>
!c = !torch.vtensor<[16],bf16>
!d = !torch.vtensor<[32],bf16>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // A bucket of two parameters, cast when packed.
  // CHECK-LABEL: func.func @stage0_forward(
  // CHECK-SAME: {hp.fqn = ["a"], hp.role = "gathered"}
  // CHECK-SAME: {hp.fqn = ["b"], hp.role = "gathered"}) -> {{.*}} {
  // CHECK-NOT: "hp.
  // CHECK: return
  // expected-remark@+1 {{is given gathered parameters: 2, of 32 bytes}}
  func.func @stage0_forward(%a: !s {hp.fqn = ["a"], hp.role = "param"}, %b: !s {hp.fqn = ["b"], hp.role = "param"})
      -> (!f {hp.name = "f0.0", hp.role = "saved"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int15 = torch.constant.int 15
    %0 = "hp.pack"(%a, %b) {alignment = 8 : i64, ranks = 1 : i64} : (!s, !s) -> !b
    %1 = torch.aten._to_copy %0, %int15, %none, %none, %none, %false, %none : !b, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !c
    %2 = "hp.all_gather"(%1) {axes = ["dp"], dims = array<i64: 0>, hp.bucket = "l", mesh = @mesh} : (!c) -> !hp.future<[!d]>
    %3 = "hp.wait"(%2) : (!hp.future<[!d]>) -> !d
    %4:2 = "hp.unpack"(%3) {alignment = 8 : i64, dims = array<i64: 0, 0>, layout = "flat", ranks = 2 : i64} : (!d) -> (!f, !f)
    %5 = torch.aten.mul.Tensor %4#0, %4#1 : !f, !f -> !f
    return %5 : !f
  }

  // The backward gathers one of them alone, by another cast of the same kind: it is given what the bucket has brought.
  // CHECK-LABEL: func.func @stage0_backward(
  // CHECK-SAME: %[[X:[a-z0-9]+]]: !torch.vtensor<[8],bf16> {hp.name = "f0.0"
  // CHECK-SAME: %[[B:[a-z0-9]+]]: !torch.vtensor<[8],bf16> {hp.fqn = ["b"], hp.role = "gathered"}) -> {{.*}} {
  // CHECK: torch.aten.mul.Tensor %[[X]], %[[B]]
  // expected-remark@+1 {{is given gathered parameters: 1, of 16 bytes}}
  func.func @stage0_backward(%b: !s {hp.fqn = ["b"], hp.role = "param"}, %x: !f {hp.name = "f0.0", hp.role = "saved"})
      -> (!f {hp.fqn = ["b"], hp.role = "grad"}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int15 = torch.constant.int 15
    %0 = torch.aten._to_copy %b, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    %1 = "hp.all_gather"(%0) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!h) -> !hp.future<[!f]>
    %2 = "hp.wait"(%1) : (!hp.future<[!f]>) -> !f
    %3 = torch.aten.mul.Tensor %x, %2 : !f, !f -> !f
    return %3 : !f
  }

  // CHECK-LABEL: func.func @rank0(
  // CHECK: %[[P:.*]] = "hp.pack"(%arg0, %arg1)
  // CHECK: %[[C:.*]] = torch.aten._to_copy %[[P]]
  // CHECK: %[[G:.*]] = "hp.all_gather"(%[[C]]) {{.*}}hp.bucket = "l"
  // CHECK-NEXT: %[[D:.*]] = "hp.wait"(%[[G]])
  // CHECK-NEXT: %[[AB:.*]]:2 = "hp.unpack"(%[[D]])
  // CHECK-NEXT: %[[X:.*]] = call @stage0_forward(%[[AB]]#0, %[[AB]]#1)
  // CHECK-NEXT: call @stage0_backward(%[[X]], %[[AB]]#1)
  func.func @rank0(%a: !s {hp.fqn = ["a"], hp.role = "param"}, %b: !s {hp.fqn = ["b"], hp.role = "param"})
      -> (!f {hp.fqn = ["b"], hp.role = "grad"}) attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %x = call @stage0_forward(%a, %b) {hp.microbatch = 0 : i64} : (!s, !s) -> !f
    %g = call @stage0_backward(%b, %x) {hp.microbatch = 0 : i64} : (!s, !f) -> !f
    return %g : !f
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // What is computed in each microbatch is gathered in each, and so are buffers.
  // CHECK-LABEL: func.func @stage0_forward(
  // CHECK-NOT: "gathered"
  // CHECK: "hp.all_gather"(%arg1)
  // CHECK: "hp.all_gather"(%{{.*}}) {{.*}}mesh = @mesh
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %m: !s {hp.fqn = ["m"], hp.role = "buffer"})
      -> (!f {hp.name = "y", hp.role = "output"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = "hp.all_gather"(%m) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!s) -> !hp.future<[!f]>
    %1 = "hp.wait"(%0) : (!hp.future<[!f]>) -> !f
    %2 = torch.aten.mul.Tensor %w, %w : !s, !s -> !s
    %3 = "hp.all_gather"(%2) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!s) -> !hp.future<[!f]>
    %4 = "hp.wait"(%3) : (!hp.future<[!f]>) -> !f
    %5 = torch.aten.mul.Tensor %1, %4 : !f, !f -> !f
    return %5 : !f
  }

  // CHECK-LABEL: func.func @evaluate0(
  // CHECK-NEXT: call @stage0_forward(%arg0, %arg1)
  func.func @evaluate0(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %m: !s {hp.fqn = ["m"], hp.role = "buffer"})
      -> (!f {hp.name = "y", hp.role = "output"}) attributes {hp.coordinate = 0 : i64, hp.kind = "evaluate"} {
    %y = call @stage0_forward(%w, %m) {hp.microbatch = 0 : i64} : (!s, !s) -> !f
    return %y : !f
  }
}

// -----

!s = !torch.vtensor<[3],f32>
!g = !torch.vtensor<[12],f32>
!f = !torch.vtensor<[10],f32>
!half = !torch.vtensor<[5],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["rp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()

  // Padding between the rows of shards over two axes is dropped before the call; a bucket that is not packed.
  // CHECK-LABEL: func.func @stage0_forward(
  // CHECK-SAME: %[[B:[a-z0-9]+]]: !torch.vtensor<[12],f32> {hp.fqn = ["b"], hp.role = "gathered"}
  // CHECK-SAME: %[[A:[a-z0-9]+]]: !torch.vtensor<[10],f32> {hp.fqn = ["a"], hp.role = "gathered"}) ->
  // CHECK-NEXT: return %[[A]], %[[B]]
  // expected-remark@+1 {{is given gathered parameters: 2, of 88 bytes}}
  func.func @stage0_forward(%a: !s {hp.fqn = ["a"], hp.role = "param"}, %b: !s {hp.fqn = ["b"], hp.role = "param"})
      -> (!f {hp.name = "y", hp.role = "output"}, !g {hp.name = "z", hp.role = "output"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int5 = torch.constant.int 5
    %int6 = torch.constant.int 6
    %int11 = torch.constant.int 11
    %0 = "hp.all_gather"(%a, %b) {axes = ["rp", "dp"], dims = array<i64: 0, 0>, mesh = @mesh} : (!s, !s) -> !hp.future<[!g, !g]>
    %1:2 = "hp.wait"(%0) : (!hp.future<[!g, !g]>) -> (!g, !g)
    %2 = torch.aten.slice.Tensor %1#0, %int0, %int0, %int5, %int1 : !g, !torch.int, !torch.int, !torch.int, !torch.int -> !half
    %3 = torch.aten.slice.Tensor %1#0, %int0, %int6, %int11, %int1 : !g, !torch.int, !torch.int, !torch.int, !torch.int -> !half
    %4 = torch.prim.ListConstruct %2, %3 : (!half, !half) -> !torch.list<vtensor>
    %5 = torch.aten.cat %4, %int0 : !torch.list<vtensor>, !torch.int -> !f
    return %5, %1#1 : !f, !g
  }

  // CHECK-LABEL: func.func @evaluate0(
  // CHECK: "hp.all_gather"(%arg0, %arg1)
  // CHECK: %[[W:.*]]:2 = "hp.wait"
  // CHECK: torch.aten.slice.Tensor %[[W]]#0
  // CHECK: torch.aten.slice.Tensor %[[W]]#0
  // CHECK: %[[A:.*]] = torch.aten.cat
  // CHECK-NEXT: call @stage0_forward(%[[W]]#1, %[[A]])
  func.func @evaluate0(%a: !s {hp.fqn = ["a"], hp.role = "param"}, %b: !s {hp.fqn = ["b"], hp.role = "param"})
      -> (!f {hp.name = "y", hp.role = "output"}, !g {hp.name = "z", hp.role = "output"}) attributes {hp.coordinate = 0 : i64, hp.kind = "evaluate"} {
    %y:2 = call @stage0_forward(%a, %b) {hp.microbatch = 0 : i64} : (!s, !s) -> (!f, !g)
    return %y#0, %y#1 : !f, !g
  }
}
