// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V5: no loss.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

// expected-error@below {{expected one result with role 'loss' in all stage functions, got: none}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0 : !s
  }
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    return %0 : !s
  }
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V5: two losses.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-note@below {{@stage0_forward returns one}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    %none = torch.constant.none
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  // expected-error@below {{@stage1_forward returns a loss, expected one in all stage functions}}
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
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V6: the loss of another stage depends on a parameter that has no gradient.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{parameter 'w' is trainable and the loss depends on it, but no stage function returns a gradient of it}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    // expected-note@+1 {{'w' is used here}}
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %1 : !l
  }
}

// -----

// V6: a gradient of a frozen parameter.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"]},
      %x: !s {hp.role = "input", hp.name = "x"})
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
  // expected-error@below {{result 0 of @stage0_backward ('w'): parameter 'w' is frozen, expected no gradient}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V6: two gradients in one stage.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
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
  // expected-note@+2 {{returned by @stage0_backward}}
  // expected-error@+1 {{result 1 of @stage0_backward ('w'): stage 0 has another gradient of 'w'}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}, !s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0, %b : !s, !s
  }
}

// -----

// V6: a gradient of another type.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
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
  // expected-error@below {{result 0 of @stage0_backward ('w'): expected the parameter's type !torch.vtensor<[2],f32>, got: !torch.vtensor<[],f32>}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!l {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    %none = torch.constant.none
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %1 : !l
  }
}

// -----

// V7, V18: a buffer that one stage updates and another has a copy of.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-note@below {{updated by @stage0_forward}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %m: !s {hp.role = "buffer", hp.fqn = ["m"]},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}, !s {hp.role = "buffer", hp.fqn = ["m"]}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0, %0 : !s, !s
  }
  // expected-error@below {{argument 0 of @stage1_forward ('m') is updated by stage 0, stage 1 would have an old copy of it}}
  func.func @stage1_forward(%m: !s {hp.role = "buffer", hp.fqn = ["m"]}, %h: !s {hp.role = "incoming", hp.name = "f0.0"})
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
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V7: two new values of a buffer.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-note@below {{returned by @stage0_forward}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %m: !s {hp.role = "buffer", hp.fqn = ["m"]},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}, !s {hp.role = "buffer", hp.fqn = ["m"]}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0, %0 : !s, !s
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
  // expected-error@below {{result 0 of @stage0_backward ('m'): buffer 'm' has another new value}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "buffer", hp.fqn = ["m"]}, !s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0, %0 : !s, !s
  }
}

// -----

// V14: a guard on no size.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

// expected-error@below {{guard 'seq != 1': no argument is the size 'seq'}}
module attributes {hp.guards = ["seq != 1"], hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
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
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V18: taken and returned by stages that do not have it.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{argument 0 of @stage0_forward ('w') is of stages [1], taken by stage 0}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.stages = array<i64: 1>},
      %x: !s {hp.role = "input", hp.name = "x"})
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
  // expected-error@below {{result 0 of @stage0_backward ('w'): parameter 'w' is of stages [1], stage 0 has a gradient of it}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V18: two types of one parameter.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-note@below {{argument 0 here}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  // expected-error@below {{argument 0 of @stage1_forward ('w') is not the same as in @stage0_forward: expected role, names, type and sharding to agree}}
  func.func @stage1_forward(%w: !l {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %h: !s {hp.role = "incoming", hp.name = "f0.0"})
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
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}
