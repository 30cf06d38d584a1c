// RUN: hp-opt %s --hp-verify-level | FileCheck %s
// RUN: hp-opt %s --hp-verify-level=level=program | hp-opt - --hp-verify-level | FileCheck %s
// RUN: hp-opt %s --hp-verify-level -o %t 2>&1 | FileCheck %s --check-prefix=REMARK

// Two stages on two positions, two data ranks, two microbatches: forwards of 1f1b, a parameter that both stages own, a
// buffer. tests/test_verify_program.py breaks this program line by line.
// CHECK-LABEL: @two_stages
!x = !torch.vtensor<[2,4],f32>
!batch = !torch.vtensor<[4,4],f32>
!w = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module @two_stages attributes {hp.level = "program", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64, hp.schedule = "1f1b", hp.microbatches = 2 : i64, hp.placement = array<i64: 0, 1>} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()

  func.func @stage0_forward(
      %up: !w {hp.role = "param", hp.fqn = ["up"], hp.trainable, hp.stages = array<i64: 0>},
      %tied: !w {hp.role = "param", hp.fqn = ["tied", "again"], hp.trainable, hp.stages = array<i64: 0, 1>},
      %mean: !w {hp.role = "buffer", hp.fqn = ["mean"]},
      %x: !x {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!x {hp.role = "outgoing", hp.name = "f0.0"}, !w {hp.role = "buffer", hp.fqn = ["mean"]})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %up : !x, !w -> !x
    %1 = torch.aten.mul.Tensor %0, %tied : !x, !w -> !x
    %new = torch.aten.mul.Tensor %mean, %up : !w, !w -> !w
    return %1, %new : !x, !w
  }

  func.func @stage1_forward(
      %down: !w {hp.role = "param", hp.fqn = ["down"], hp.trainable},
      %tied: !w {hp.role = "param", hp.fqn = ["tied", "again"], hp.trainable, hp.stages = array<i64: 0, 1>},
      %y: !x {hp.role = "input", hp.name = "y", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>},
      %h: !x {hp.role = "incoming", hp.name = "f0.0"})
      -> (!x {hp.role = "saved", hp.name = "f1.0"}, !s {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %mean = torch.constant.int 1
    %0 = torch.aten.mul.Tensor %h, %down : !x, !w -> !x
    %1 = torch.aten.mul.Tensor %0, %tied : !x, !w -> !x
    %loss = torch.aten.mse_loss %1, %y, %mean : !x, !x, !torch.int -> !s
    return %1, %loss : !x, !s
  }

  func.func @stage1_backward(
      %down: !w {hp.role = "param", hp.fqn = ["down"], hp.trainable},
      %y: !x {hp.role = "input", hp.name = "y", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>},
      %h: !x {hp.role = "incoming", hp.name = "f0.0"},
      %z: !x {hp.role = "saved", hp.name = "f1.0"})
      -> (!x {hp.role = "outgoing", hp.name = "b1.0"}, !w {hp.role = "grad", hp.fqn = ["down"]}, !w {hp.role = "grad", hp.fqn = ["tied", "again"]})
      attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %false = torch.constant.bool false
    %none = torch.constant.none
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %rows = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
    %d = torch.aten.sub.Tensor %z, %y, %int1 : !x, !x, !torch.int -> !x
    %b = torch.aten.mul.Tensor %d, %down : !x, !w -> !x
    %0 = torch.aten.mul.Tensor %d, %h : !x, !x -> !x
    %1 = torch.aten.sum.dim_IntList %0, %rows, %false, %none : !x, !torch.list<int>, !torch.bool, !torch.none -> !w
    %2 = torch.aten.sum.dim_IntList %b, %rows, %false, %none : !x, !torch.list<int>, !torch.bool, !torch.none -> !w
    %f = "hp.all_reduce"(%1, %2) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!w, !w) -> !hp.future<[!w, !w]>
    %g:2 = "hp.wait"(%f) : (!hp.future<[!w, !w]>) -> (!w, !w)
    return %b, %g#0, %g#1 : !x, !w, !w
  }

  func.func @stage0_backward(
      %x: !x {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>},
      %b: !x {hp.role = "incoming", hp.name = "b1.0"})
      -> (!w {hp.role = "grad", hp.fqn = ["up"]}, !w {hp.role = "grad", hp.fqn = ["tied", "again"]})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %false = torch.constant.bool false
    %none = torch.constant.none
    %int0 = torch.constant.int 0
    %rows = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
    %0 = torch.aten.mul.Tensor %b, %x : !x, !x -> !x
    %1 = torch.aten.sum.dim_IntList %0, %rows, %false, %none : !x, !torch.list<int>, !torch.bool, !torch.none -> !w
    %2 = torch.aten.sum.dim_IntList %b, %rows, %false, %none : !x, !torch.list<int>, !torch.bool, !torch.none -> !w
    %f1 = "hp.all_reduce"(%1) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!w) -> !hp.future<[!w]>
    %g1 = "hp.wait"(%f1) : (!hp.future<[!w]>) -> !w
    %f2 = "hp.all_reduce"(%2) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!w) -> !hp.future<[!w]>
    %g2 = "hp.wait"(%f2) : (!hp.future<[!w]>) -> !w
    return %g1, %g2 : !w, !w
  }

  // CHECK: func.func @rank0
  // REMARK: remark: 'func.func' op @rank0: peak 128 bytes, 2 microbatches alive
  func.func @rank0(
      %up: !w {hp.role = "param", hp.fqn = ["up"], hp.trainable, hp.stages = array<i64: 0>},
      %tied: !w {hp.role = "param", hp.fqn = ["tied", "again"], hp.trainable, hp.stages = array<i64: 0, 1>},
      %mean: !w {hp.role = "buffer", hp.fqn = ["mean"]},
      %x: !batch {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!s {hp.role = "loss"}, !w {hp.role = "grad", hp.fqn = ["up"]}, !w {hp.role = "grad", hp.fqn = ["tied", "again"]}, !w {hp.role = "buffer", hp.fqn = ["mean"]})
      attributes {hp.coordinate = 0 : i64, hp.kind = "train"} {
    %int2 = torch.constant.int 2
    %x0 = "hp.microbatch"(%x) {index = 0 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %x1 = "hp.microbatch"(%x) {index = 1 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %h0, %mean1 = func.call @stage0_forward(%up, %tied, %mean, %x0) {hp.microbatch = 0 : i64} : (!w, !w, !w, !x) -> (!x, !w)
    "hp.send"(%h0) {mesh = @mesh, axis = "pp", peer = 1 : i64, label = "f0.0 mb 0"} : (!x) -> ()
    %b0f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 1 : i64, label = "b1.0 mb 0"} : () -> !hp.future<[!x]>
    %h1, %mean2 = func.call @stage0_forward(%up, %tied, %mean1, %x1) {hp.microbatch = 1 : i64} : (!w, !w, !w, !x) -> (!x, !w)
    "hp.send"(%h1) {mesh = @mesh, axis = "pp", peer = 1 : i64, label = "f0.0 mb 1"} : (!x) -> ()
    %b0 = "hp.wait"(%b0f) : (!hp.future<[!x]>) -> !x
    %b1f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 1 : i64, label = "b1.0 mb 1"} : () -> !hp.future<[!x]>
    %u0, %t0 = func.call @stage0_backward(%x0, %b0) {hp.microbatch = 0 : i64} : (!x, !x) -> (!w, !w)
    %b1 = "hp.wait"(%b1f) : (!hp.future<[!x]>) -> !x
    %u1, %t1 = func.call @stage0_backward(%x1, %b1) {hp.microbatch = 1 : i64} : (!x, !x) -> (!w, !w)
    %u, %t = "hp.accumulate"(%u0, %t0, %u1, %t1) : (!w, !w, !w, !w) -> (!w, !w)
    %of = "hp.all_reduce"(%t) {mesh = @mesh, axes = ["pp"], coordinates = array<i64: 0, 1>, reduce = "sum"} : (!w) -> !hp.future<[!w]>
    %o = "hp.wait"(%of) : (!hp.future<[!w]>) -> !w
    %um = torch.aten.div.Scalar %u, %int2 : !w, !torch.int -> !w
    %tm = torch.aten.div.Scalar %o, %int2 : !w, !torch.int -> !w
    %zero = torch.vtensor.literal(dense<0.0> : tensor<f32>) : !s
    %lf = "hp.broadcast"(%zero) {mesh = @mesh, axes = ["pp"], root = 1 : i64} : (!s) -> !hp.future<[!s]>
    %loss = "hp.wait"(%lf) : (!hp.future<[!s]>) -> !s
    return %loss, %um, %tm, %mean2 : !s, !w, !w, !w
  }

  // CHECK: func.func @rank1
  // REMARK: remark: 'func.func' op @rank1: peak 200 bytes, 1 microbatch alive
  func.func @rank1(
      %down: !w {hp.role = "param", hp.fqn = ["down"], hp.trainable},
      %tied: !w {hp.role = "param", hp.fqn = ["tied", "again"], hp.trainable, hp.stages = array<i64: 0, 1>},
      %y: !batch {hp.role = "input", hp.name = "y", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!s {hp.role = "loss"}, !w {hp.role = "grad", hp.fqn = ["down"]}, !w {hp.role = "grad", hp.fqn = ["tied", "again"]})
      attributes {hp.coordinate = 1 : i64, hp.kind = "train"} {
    %int2 = torch.constant.int 2
    %y0 = "hp.microbatch"(%y) {index = 0 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %y1 = "hp.microbatch"(%y) {index = 1 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %h0f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64, label = "f0.0 mb 0"} : () -> !hp.future<[!x]>
    %h0 = "hp.wait"(%h0f) : (!hp.future<[!x]>) -> !x
    %z0, %l0 = func.call @stage1_forward(%down, %tied, %y0, %h0) {hp.microbatch = 0 : i64} : (!w, !w, !x, !x) -> (!x, !s)
    %h1f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64, label = "f0.0 mb 1"} : () -> !hp.future<[!x]>
    %b0, %d0, %t0 = func.call @stage1_backward(%down, %y0, %h0, %z0) {hp.microbatch = 0 : i64} : (!w, !x, !x, !x) -> (!x, !w, !w)
    "hp.send"(%b0) {mesh = @mesh, axis = "pp", peer = 0 : i64, label = "b1.0 mb 0"} : (!x) -> ()
    %h1 = "hp.wait"(%h1f) : (!hp.future<[!x]>) -> !x
    %z1, %l1 = func.call @stage1_forward(%down, %tied, %y1, %h1) {hp.microbatch = 1 : i64} : (!w, !w, !x, !x) -> (!x, !s)
    %b1, %d1, %t1 = func.call @stage1_backward(%down, %y1, %h1, %z1) {hp.microbatch = 1 : i64} : (!w, !x, !x, !x) -> (!x, !w, !w)
    "hp.send"(%b1) {mesh = @mesh, axis = "pp", peer = 0 : i64, label = "b1.0 mb 1"} : (!x) -> ()
    %d, %t, %l = "hp.accumulate"(%d0, %t0, %l0, %d1, %t1, %l1) : (!w, !w, !s, !w, !w, !s) -> (!w, !w, !s)
    %of = "hp.all_reduce"(%t) {mesh = @mesh, axes = ["pp"], coordinates = array<i64: 0, 1>, reduce = "sum"} : (!w) -> !hp.future<[!w]>
    %o = "hp.wait"(%of) : (!hp.future<[!w]>) -> !w
    %dm = torch.aten.div.Scalar %d, %int2 : !w, !torch.int -> !w
    %tm = torch.aten.div.Scalar %o, %int2 : !w, !torch.int -> !w
    %lm = torch.aten.div.Scalar %l, %int2 : !s, !torch.int -> !s
    %rf = "hp.all_reduce"(%lm) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!s) -> !hp.future<[!s]>
    %r = "hp.wait"(%rf) : (!hp.future<[!s]>) -> !s
    %lf = "hp.broadcast"(%r) {mesh = @mesh, axes = ["pp"], root = 1 : i64} : (!s) -> !hp.future<[!s]>
    %loss = "hp.wait"(%lf) : (!hp.future<[!s]>) -> !s
    return %loss, %dm, %tm : !s, !w, !w
  }

  func.func @evaluate0(
      %up: !w {hp.role = "param", hp.fqn = ["up"], hp.trainable, hp.stages = array<i64: 0>},
      %tied: !w {hp.role = "param", hp.fqn = ["tied", "again"], hp.trainable, hp.stages = array<i64: 0, 1>},
      %mean: !w {hp.role = "buffer", hp.fqn = ["mean"]},
      %x: !batch {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!s {hp.role = "loss"}) attributes {hp.coordinate = 0 : i64, hp.kind = "evaluate"} {
    %x0 = "hp.microbatch"(%x) {index = 0 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %h0, %mean1 = func.call @stage0_forward(%up, %tied, %mean, %x0) {hp.microbatch = 0 : i64} : (!w, !w, !w, !x) -> (!x, !w)
    "hp.send"(%h0) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!x) -> ()
    %x1 = "hp.microbatch"(%x) {index = 1 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %h1, %mean2 = func.call @stage0_forward(%up, %tied, %mean, %x1) {hp.microbatch = 1 : i64} : (!w, !w, !w, !x) -> (!x, !w)
    "hp.send"(%h1) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!x) -> ()
    %zero = torch.vtensor.literal(dense<0.0> : tensor<f32>) : !s
    %lf = "hp.broadcast"(%zero) {mesh = @mesh, axes = ["pp"], root = 1 : i64} : (!s) -> !hp.future<[!s]>
    %loss = "hp.wait"(%lf) : (!hp.future<[!s]>) -> !s
    return %loss : !s
  }

  func.func @evaluate1(
      %down: !w {hp.role = "param", hp.fqn = ["down"], hp.trainable},
      %tied: !w {hp.role = "param", hp.fqn = ["tied", "again"], hp.trainable, hp.stages = array<i64: 0, 1>},
      %y: !batch {hp.role = "input", hp.name = "y", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!s {hp.role = "loss"}) attributes {hp.coordinate = 1 : i64, hp.kind = "evaluate"} {
    %int2 = torch.constant.int 2
    %y0 = "hp.microbatch"(%y) {index = 0 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %h0f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!x]>
    %h0 = "hp.wait"(%h0f) : (!hp.future<[!x]>) -> !x
    %z0, %l0 = func.call @stage1_forward(%down, %tied, %y0, %h0) {hp.microbatch = 0 : i64} : (!w, !w, !x, !x) -> (!x, !s)
    %y1 = "hp.microbatch"(%y) {index = 1 : i64, count = 2 : i64, dim = 0 : i64} : (!batch) -> !x
    %h1f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!x]>
    %h1 = "hp.wait"(%h1f) : (!hp.future<[!x]>) -> !x
    %z1, %l1 = func.call @stage1_forward(%down, %tied, %y1, %h1) {hp.microbatch = 1 : i64} : (!w, !w, !x, !x) -> (!x, !s)
    %l = "hp.accumulate"(%l0, %l1) : (!s, !s) -> !s
    %lm = torch.aten.div.Scalar %l, %int2 : !s, !torch.int -> !s
    %rf = "hp.all_reduce"(%lm) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!s) -> !hp.future<[!s]>
    %r = "hp.wait"(%rf) : (!hp.future<[!s]>) -> !s
    %lf = "hp.broadcast"(%r) {mesh = @mesh, axes = ["pp"], root = 1 : i64} : (!s) -> !hp.future<[!s]>
    %loss = "hp.wait"(%lf) : (!hp.future<[!s]>) -> !s
    return %loss : !s
  }
}
