// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V17: a name that says another maker.
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
  // expected-error@below {{result 0 of @stage1_forward ('f2.0'): expected hp.name 'f1.<n>' of what @stage1_forward makes}}
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f2.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f2.0"})
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

// V17: two values of one name.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-note@+1 {{result 0 of @stage0_forward ('f0.0') has this name too}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "outgoing", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  // expected-error@+2 {{result 0 of @stage1_forward ('f0.0'): expected hp.name 'f1.<n>'}}
  // expected-error@+1 {{result 0 of @stage1_forward ('f0.0'): 'f0.0' is made twice}}
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f0.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  // expected-error@below {{argument 0 of @stage1_backward ('f1.0'): no stage function makes 'f1.0'}}
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

// V17: nobody makes it.
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
  // expected-warning@below {{result 0 of @stage1_backward ('b1.0') crosses, but no stage function takes it}}
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    return %0 : !s
  }
  // expected-error@below {{argument 1 of @stage0_backward ('b1.1'): no stage function makes 'b1.1', did you mean 'b1.0' or 'f1.0'?}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !s {hp.role = "incoming", hp.name = "b1.1"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !s -> !s
    return %0 : !s
  }
}

// -----

// V17: another type than it was made with.
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
  // expected-note@below {{made by @stage1_backward}}
  func.func @stage1_backward(%h: !s {hp.role = "saved", hp.name = "f1.0"})
      -> (!s {hp.role = "outgoing", hp.name = "b1.0"}) attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    %0 = torch.aten.neg %h : !s -> !s
    return %0 : !s
  }
  // expected-error@below {{argument 1 of @stage0_backward ('b1.0'): expected !torch.vtensor<[2],f32>, got: !torch.vtensor<[],f32>}}
  func.func @stage0_backward(
      %x: !s {hp.role = "input", hp.name = "x"},
      %b: !l {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    %0 = torch.aten.mul.Tensor %x, %b : !s, !l -> !s
    return %0 : !s
  }
}

// -----

// V17: made by what runs later.
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
  // expected-error@+2 {{argument 1 of @stage1_forward ('b1.0') comes from @stage1_backward: expected role 'saved', got: 'incoming'}}
  // expected-error@+1 {{argument 1 of @stage1_forward ('b1.0') is made by @stage1_backward, which runs after @stage1_forward}}
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"}, %b: !s {hp.role = "incoming", hp.name = "b1.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  // expected-note@+2 {{made by @stage1_backward}}
  // expected-note@+1 {{made by @stage1_backward}}
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

// V17: roles that do not fit who makes and who takes it.
!s = !torch.vtensor<[2],f32>
!l = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{result 0 of @stage0_forward ('f0.0'): expected role 'outgoing', got: 'saved'}}
  func.func @stage0_forward(
      %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable},
      %x: !s {hp.role = "input", hp.name = "x"})
      -> (!s {hp.role = "saved", hp.name = "f0.0"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = torch.aten.mul.Tensor %x, %w : !s, !s -> !s
    return %0 : !s
  }
  // expected-note@+2 {{taken by @stage1_forward}}
  // expected-error@+1 {{result 0 of @stage1_forward ('f1.0'): expected role 'saved', got: 'outgoing'}}
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "outgoing", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  // expected-note@+1 {{taken by @stage1_backward}}
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

// V17: a saved value is no incoming one.
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
  // expected-note@below {{made by @stage1_forward}}
  func.func @stage1_forward(%h: !s {hp.role = "incoming", hp.name = "f0.0"})
      -> (!s {hp.role = "saved", hp.name = "f1.0"}, !l {hp.role = "loss"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %0 = torch.aten.tanh %h : !s -> !s
    %1 = torch.aten.sum %0, %none : !s, !torch.none -> !l
    return %0, %1 : !s, !l
  }
  // expected-error@below {{argument 0 of @stage1_backward ('f1.0') comes from @stage1_forward: expected role 'saved', got: 'incoming'}}
  func.func @stage1_backward(%h: !s {hp.role = "incoming", hp.name = "f1.0"})
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
