// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics | filecheck %s

// Modules that keep their promise pass as they are.

// A joint step: a trainable parameter under two names, a frozen one, an unused one, one that only an output depends on,
// a buffer with a new value, a constant, an extra output.
// CHECK-LABEL: @joint_step
// CHECK:         torch.aten.mm %arg5, %arg0 {hp.phase = "forward"}
module @joint_step attributes {hp.level = "joint"} {
  func.func @joint(
      %w: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["w", "tied"], hp.trainable},
      %frozen: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["frozen"]},
      %unused: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["unused"], hp.trainable},
      %probe: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["probe"], hp.trainable},
      %b: !torch.vtensor<[2],f32> {hp.role = "buffer", hp.fqn = ["b"]},
      %x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2,2],f32> {hp.role = "output", hp.name = "y"},
          !torch.vtensor<[2,2],f32> {hp.role = "grad", hp.fqn = ["w", "tied"]},
          !torch.vtensor<[2],f32> {hp.role = "buffer", hp.fqn = ["b"]}) {
    %none = torch.constant.none
    %0 = torch.aten.mm %x, %w {hp.phase = "forward"} : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    %1 = torch.aten.mul.Tensor %0, %frozen {hp.phase = "forward"} : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    %2 = torch.aten.sum %1, %none {hp.phase = "forward"} : !torch.vtensor<[2,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    %3 = torch.aten.mul.Tensor %0, %probe {hp.phase = "forward"} : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    %4 = torch.aten.tanh %b {hp.phase = "forward"} : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    %5 = torch.aten.t %x {hp.phase = "backward"} : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    %6 = torch.aten.mm %5, %frozen {hp.phase = "backward"} : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    return %2, %3, %6, %4 : !torch.vtensor<[],f32>, !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// The loss depends on an integer choice made with `w`, which carries no gradient.
// CHECK-LABEL: @no_gradient_through_integers
module @no_gradient_through_integers {
  func.func @joint(
      %w: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x"})
      -> (!torch.vtensor<[1],f32> {hp.role = "loss"}, !torch.vtensor<[],si64> {hp.role = "weight"}) {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int0 = torch.constant.int 0
    %0 = torch.aten.argmax %w, %none, %false : !torch.vtensor<[2,2],f32>, !torch.none, !torch.bool -> !torch.vtensor<[],si64>
    %1 = torch.aten.unsqueeze %0, %int0 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[1],si64>
    %2 = torch.aten.index_select %x, %int0, %1 : !torch.vtensor<[2],f32>, !torch.int, !torch.vtensor<[1],si64> -> !torch.vtensor<[1],f32>
    return %2, %0 : !torch.vtensor<[1],f32>, !torch.vtensor<[],si64>
  }
}

// -----

// CHECK-LABEL: @annotated_step
module @annotated_step attributes {hp.level = "annotated"} {
  "hp.mesh"() {sym_name = "grid", axis_names = ["dp", "tp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @joint(
      %w: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@grid, [["tp"], []]>},
      %x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x"})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2,2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    %none = torch.constant.none
    %0 = torch.aten.mm %x, %w {hp.sharding = #hp.sharding<@grid, [["dp"], ["tp"]]>} : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    %1 = torch.aten.sum %0, %none : !torch.vtensor<[2,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    return %1, %0 : !torch.vtensor<[],f32>, !torch.vtensor<[2,2],f32>
  }
}

// -----

// Uneven shards, HSDP, an ignored parameter, an axis of size 1 that is reduced over twice or not, a gradient scaled.
// CHECK-LABEL: @spmd_step
module @spmd_step attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["one", "rep", "dp"], axis_sizes = array<i64: 1, 2, 2>} : () -> ()
  func.func @joint(
      %w: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>, hp.full_shape = array<i64: 3, 2>},
      %v: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable},
      %x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["one", "rep", "dp"], []]>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"},
          !torch.vtensor<[2,2],f32> {hp.role = "grad", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"], []]>, hp.full_shape = array<i64: 3, 2>},
          !torch.vtensor<[2,2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    %none = torch.constant.none
    %half = torch.constant.float 5.000000e-01
    %f = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[2,2],f32>) -> !hp.future<[!torch.vtensor<[4,2],f32>]>
    %full = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[4,2],f32>]>) -> !torch.vtensor<[4,2],f32>
    %0 = torch.aten.mm %full, %x : !torch.vtensor<[4,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[4,2],f32>
    %loss = torch.aten.sum %0, %none : !torch.vtensor<[4,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    %gf = "hp.reduce_scatter"(%0) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[4,2],f32>) -> !hp.future<[!torch.vtensor<[2,2],f32>]>
    %gs = "hp.wait"(%gf) : (!hp.future<[!torch.vtensor<[2,2],f32>]>) -> !torch.vtensor<[2,2],f32>
    %scaled = torch.aten.mul.Scalar %gs, %half : !torch.vtensor<[2,2],f32>, !torch.float -> !torch.vtensor<[2,2],f32>
    %gr = "hp.all_reduce"(%scaled, %x) {mesh = @mesh, axes = ["rep"], reduce = "avg"} : (!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>) -> !hp.future<[!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>]>
    %g:2 = "hp.wait"(%gr) : (!hp.future<[!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>]>) -> (!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>)
    %hf = "hp.all_reduce"(%g#1) {mesh = @mesh, axes = ["one", "dp"], reduce = "avg"} : (!torch.vtensor<[2,2],f32>) -> !hp.future<[!torch.vtensor<[2,2],f32>]>
    %h0 = "hp.wait"(%hf) : (!hp.future<[!torch.vtensor<[2,2],f32>]>) -> !torch.vtensor<[2,2],f32>
    %hf1 = "hp.all_reduce"(%h0) {mesh = @mesh, axes = ["one"], reduce = "sum"} : (!torch.vtensor<[2,2],f32>) -> !hp.future<[!torch.vtensor<[2,2],f32>]>
    %h = "hp.wait"(%hf1) : (!hp.future<[!torch.vtensor<[2,2],f32>]>) -> !torch.vtensor<[2,2],f32>
    return %loss, %g#0, %h : !torch.vtensor<[],f32>, !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>
  }
}

// -----

// With a weight the reductions are sums, of the loss and the weight too. A gradient scaled by the reduced weight before
// it is reduced itself is reduced once.
// CHECK-LABEL: @weighted
module @weighted attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["one", "dp"], axis_sizes = array<i64: 1, 2>} : () -> ()
  func.func @joint(
      %w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["one", "dp"]]>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "weight"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    %none = torch.constant.none
    %0 = torch.aten.sum %x, %none : !torch.vtensor<[2],f32>, !torch.none -> !torch.vtensor<[],f32>
    %lf = "hp.all_reduce"(%0, %0) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>, !torch.vtensor<[],f32>]>
    %l:2 = "hp.wait"(%lf) : (!hp.future<[!torch.vtensor<[],f32>, !torch.vtensor<[],f32>]>) -> (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>)
    %1 = torch.aten.div.Tensor %x, %l#1 : !torch.vtensor<[2],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2],f32>
    %gf = "hp.all_reduce"(%1) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%gf) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %l#0, %l#1, %g : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// Statistics reduced in the forward and norms reduced over shards are new values: a gradient computed from them is
// reduced for the first time, and scaling a gradient by such a norm is no second reduction. So is adding a decay of the
// parameter's shard, which varies over nothing.
// CHECK-LABEL: @statistics
module @statistics attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(
      %w: !torch.vtensor<[1,2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>},
      %x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[1,2],f32> {hp.role = "grad", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}) {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %loss = torch.aten.mean %x, %none : !torch.vtensor<[2,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    %mf = "hp.all_reduce"(%loss) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
    %m = "hp.wait"(%mf) : (!hp.future<[!torch.vtensor<[],f32>]>) -> !torch.vtensor<[],f32>
    %centred = torch.aten.sub.Tensor %x, %m, %int1 : !torch.vtensor<[2,2],f32>, !torch.vtensor<[],f32>, !torch.int -> !torch.vtensor<[2,2],f32>
    %product = torch.aten.mm %x, %centred : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    %bounded = torch.aten.tanh %m : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
    %0 = torch.aten.sub.Tensor %product, %bounded, %int1 : !torch.vtensor<[2,2],f32>, !torch.vtensor<[],f32>, !torch.int -> !torch.vtensor<[2,2],f32>
    %gf = "hp.reduce_scatter"(%0) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[2,2],f32>) -> !hp.future<[!torch.vtensor<[1,2],f32>]>
    %g = "hp.wait"(%gf) : (!hp.future<[!torch.vtensor<[1,2],f32>]>) -> !torch.vtensor<[1,2],f32>
    %square = torch.aten.sum %g, %none : !torch.vtensor<[1,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    %nf = "hp.all_reduce"(%square) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
    %n = "hp.wait"(%nf) : (!hp.future<[!torch.vtensor<[],f32>]>) -> !torch.vtensor<[],f32>
    %scaled = torch.aten.div.Tensor %g, %n : !torch.vtensor<[1,2],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[1,2],f32>
    %decayed = torch.aten.add.Tensor %scaled, %w, %int1 : !torch.vtensor<[1,2],f32>, !torch.vtensor<[1,2],f32>, !torch.int -> !torch.vtensor<[1,2],f32>
    return %loss, %decayed : !torch.vtensor<[],f32>, !torch.vtensor<[1,2],f32>
  }
}

// -----

// A gradient that no rank's data enters needs no mean. One over a tensor axis is another matter: `w` is split over it.
// CHECK-LABEL: @other_gradients
module @other_gradients attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp", "tp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @joint(
      %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable},
      %w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["tp"]]>},
      %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["tp"]]>}) {
    %none = torch.constant.none
    %0 = torch.aten.mul.Tensor %x, %w : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    %loss = torch.aten.sum %0, %none : !torch.vtensor<[2],f32>, !torch.none -> !torch.vtensor<[],f32>
    %g = torch.aten.tanh %v : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    %1 = torch.aten.tanh %x : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    %pf = "hp.all_reduce"(%1) {mesh = @mesh, axes = ["tp"], reduce = "sum"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %p = "hp.wait"(%pf) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    %hf = "hp.all_reduce"(%p) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %h = "hp.wait"(%hf) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %loss, %g, %h : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}
