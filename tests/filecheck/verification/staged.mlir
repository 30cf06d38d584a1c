// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// All is right: two stages, a value that crosses and one that is saved, and a gradient's way back.
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
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V15: a function that is of no stage.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{'func.func' op @joint is of no stage: expected @stage<k>_<task> alone at level 'staged'}}
  func.func @joint(%x: !s {hp.role = "input", hp.name = "x"}) -> (!s {hp.role = "output", hp.name = "out"}) {
    return %x : !s
  }
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

// V15: another name than stage and task.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{'func.func' op @first has hp.stage or hp.task, expected its name to be @stage<k>_<task>}}
  func.func @first(
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

// V15: attributes that do not say what the name says.
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
  // expected-error@+1 {{@stage1_backward: expected hp.stage = 1 and hp.task = 'backward', got: 0, 'backward_input'}}
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 0 : i64, hp.task = "backward_input"} {
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

// V15: no attributes.
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
  // expected-error@+1 {{expected hp.stage to be a number, got: nothing}}
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) {
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

// V15: more stages than the module has.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  // expected-error@+1 {{@stage1_forward: expected a stage < 1 (hp.stage_count), got: 1}}
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  // expected-error@+1 {{@stage1_backward: expected a stage < 1 (hp.stage_count), got: 1}}
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

// V15: a stage without a forward.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

// expected-error@below {{stage 2 has no function @stage2_forward}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
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

// V15: an axis that the mesh does not have.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

// expected-error@below {{hp.pipeline_axis: mesh has no axis 'pq', did you mean 'pp'?}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pq", hp.stage_count = 2 : i64} {
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

// V15: no axis.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

// expected-error@below {{expected hp.pipeline_axis to be a string, got: nothing}}
module attributes {hp.level = "staged", hp.stage_count = 2 : i64} {
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

// V15: no mesh.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

// expected-error@below {{has stages, expected a mesh}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
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

// V15: a backward in one and in two.
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
  // expected-note@below {{@stage0_backward is all of it}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
  // expected-error@below {{@stage0_backward_weight: the backward of stage 0 is one function, or two, not both}}
  func.func @stage0_backward_weight() attributes {hp.stage = 0 : i64, hp.task = "backward_weight"} {
    return
  }
}

// -----

// V16: a backward that returns the loss.
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
      -> (!s {hp.role = "saved", hp.name = "f1.0"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0 : !s
  }
  // expected-error@+1 {{result 1 of @stage1_backward ('loss'): a backward has no result of role 'loss'}}
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %none = torch.constant.none
    %0 = torch.aten.neg %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
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

// V16: what only a program has.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@+1 {{argument 0 of @stage0_forward ('w'): a forward has no argument of role 'gathered'}}
  func.func @stage0_forward(
      %w: !s {hp.role = "gathered", hp.fqn = ["w"]},
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
  // expected-error@+1 {{result 0 of @stage0_backward ('w'): a gradient of no parameter}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V19: what stage functions do not do.
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
    // expected-error@below {{'hp.recv' op is not allowed in a stage function, @stage1_forward}}
    %r = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!s]>
    %i = "hp.wait"(%r) : (!hp.future<[!s]>) -> !s
    // expected-error@below {{'hp.all_reduce' op communicates over the pipeline axis 'pp' within a stage function, @stage1_forward}}
    %f = "hp.all_reduce"(%i) {mesh = @mesh, axes = ["pp"], reduce = "sum"} : (!s) -> !hp.future<[!s]>
    %t = "hp.wait"(%f) : (!hp.future<[!s]>) -> !s
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
