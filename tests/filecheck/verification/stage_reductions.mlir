// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V10: reduced once, from values that vary with the data because other stages' do.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    return %0 : !s
  }
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    %f = "hp.all_reduce"(%0) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!s) -> !hp.future<[!s]>
    %g = "hp.wait"(%f) : (!hp.future<[!s]>) -> !s
    return %g : !s
  }
}

// -----

// V10: not reduced.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    return %0 : !s
  }
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    // expected-error@below {{'torch.aten.mul.Tensor' op gradient of 'w' is not reduced over axis 'dp'}}
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    // expected-note@below {{returned here as result 0}}
    return %0 : !s
  }
}

// -----

// V10: reduced by two stages: the second scales what the first has reduced.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    // expected-note@below {{first reduced here}}
    %f = "hp.all_reduce"(%0) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!s) -> !hp.future<[!s]>
    %g = "hp.wait"(%f) : (!hp.future<[!s]>) -> !s
    return %g : !s
  }
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %b : !s -> !s
    // expected-error@below {{'hp.all_reduce' op gradient of 'w' is reduced twice over axis 'dp'}}
    %f = "hp.all_reduce"(%0) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!s) -> !hp.future<[!s]>
    %g = "hp.wait"(%f) : (!hp.future<[!s]>) -> !s
    return %g : !s
  }
}

// -----

// V12: summed where the loss is a mean.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    return %0 : !s
  }
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    // expected-error@below {{gradient of 'w' is reduced over axis 'dp' by 'sum', expected 'avg': the function returns a mean loss}}
    %f = "hp.all_reduce"(%0) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!s) -> !hp.future<[!s]>
    %g = "hp.wait"(%f) : (!hp.future<[!s]>) -> !s
    return %g : !s
  }
}
