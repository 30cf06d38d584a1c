// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V4: names of state, aliases included.
// expected-error@below {{'func.func' op argument 1 of @joint ('b'): name 'tied' is also that of argument 0}}
func.func @joint(%a: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["a", "tied"]}, %b: !torch.vtensor<[],f32> {hp.role = "buffer", hp.fqn = ["b", "tied"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
  return %a : !torch.vtensor<[],f32>
}

// -----

// V4: a name given twice to one argument.
// expected-error@below {{'func.func' op argument 0 of @joint ('a'): name 'a' is also that of argument 0}}
func.func @joint(%a: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["a", "a"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
  return %a : !torch.vtensor<[],f32>
}

// -----

// V4: names of inputs and of outputs; an input may be called as a parameter is.
// expected-error@below {{'func.func' op argument 2 of @joint ('x'): name 'x' is also that of argument 1}}
// expected-error@+1 {{'func.func' op result 2 of @joint ('y'): name 'y' is also that of result 1}}
func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["x"]}, %a: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}, %b: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "output", hp.name = "y"}, !torch.vtensor<[],f32> {hp.role = "output", hp.name = "y"}) {
  return %a, %a, %b : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
}

// -----

// V4: only parameters are trainable.
// expected-error@below {{'func.func' op argument 0 of @joint ('b') is a buffer and hp.trainable}}
func.func @joint(%b: !torch.vtensor<[],f32> {hp.role = "buffer", hp.fqn = ["b"], hp.trainable}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
  return %b : !torch.vtensor<[],f32>
}

// -----

// V5: there is a loss.
// expected-error@below {{'func.func' op expected one result with role 'loss', got: 0}}
func.func @joint() {
  return
}

// -----

// V5: there is one loss and one weight.
// expected-error@below {{'func.func' op expected one result with role 'loss', got: 2}}
// expected-error@+1 {{'func.func' op expected at most one result with role 'weight', got: 2}}
func.func @joint(%a: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "a"})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "weight"}, !torch.vtensor<[],f32> {hp.role = "weight"}) {
  return %a, %a, %a, %a : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
}

// -----

// V5: their shape and dtype.
// expected-error@below {{'func.func' op result 0 of @joint ('loss'): expected a floating tensor, got: !torch.vtensor<[1],si64>}}
// expected-error@+1 {{'func.func' op result 1 of @joint ('weight'): expected shape [] or [1], got: !torch.vtensor<[1,1],f32>}}
func.func @joint(%a: !torch.vtensor<[1],si64> {hp.role = "input", hp.name = "a"}, %b: !torch.vtensor<[1,1],f32> {hp.role = "input", hp.name = "b"})
    -> (!torch.vtensor<[1],si64> {hp.role = "loss"}, !torch.vtensor<[1,1],f32> {hp.role = "weight"}) {
  return %a, %b : !torch.vtensor<[1],si64>, !torch.vtensor<[1,1],f32>
}

// -----

// V6: a gradient belongs to a parameter.
// expected-error@below {{'func.func' op result 1 of @joint ('layer.weigth'): a gradient of no parameter, did you mean 'layer.weight'?}}
func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}, %w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["layer.weight"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "grad", hp.fqn = ["layer.weigth"]}) {
  return %x, %x : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
}

// -----

// V6: a parameter has one gradient, whichever of its names that goes by.
// expected-error@below {{'func.func' op result 2 of @joint ('tied'): expected names [w, tied], got: [tied]}}
// expected-error@+1 {{'func.func' op result 2 of @joint ('tied'): parameter 'w' has another gradient}}
func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w", "tied"], hp.trainable})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "grad", hp.fqn = ["w", "tied"]}, !torch.vtensor<[],f32> {hp.role = "grad", hp.fqn = ["tied"]}) {
  return %w, %w, %w : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
}

// -----

// V6: it has the parameter's type.
// expected-error@below {{'func.func' op result 1 of @joint ('w'): expected the parameter's type !torch.vtensor<[2],bf16>, got: !torch.vtensor<[2],f32>}}
func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}, %w: !torch.vtensor<[2],bf16> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %y: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "y"})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
  return %x, %y : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
}

// -----

// V6: and its sharding, here not even the same global shape.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{'func.func' op result 1 of @joint ('w'): expected the parameter's sharding [['dp']] of [3], got: none of [2]}}
  // expected-error@+1 {{'func.func' op result 2 of @joint ('v'): expected the parameter's sharding [['dp']] of [4], got: [['dp']] of [3]}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}, %w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"]]>, hp.full_shape = array<i64: 3>}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"]]>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>, hp.full_shape = array<i64: 3>}) {
    return %x, %w, %v : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V6: a frozen parameter has no gradient.
// expected-error@below {{'func.func' op result 1 of @joint ('w'): parameter 'w' is frozen, expected no gradient}}
func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
  return %w, %w : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
}

// -----

// V6: a trainable one that the loss depends on has one.
// expected-error@below {{'func.func' op parameter 'w' is trainable and the loss depends on it, but it has no gradient}}
func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
  // expected-note@below {{'w' is used here (module 'layers.0')}}
  %0 = torch.aten.tanh %w {hp.module = "layers.0"} : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  %1 = torch.aten.tanh %0 : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  return %1 : !torch.vtensor<[],f32>
}

// -----

// V7: new buffers match their buffers.
// expected-error@below {{'func.func' op result 1 of @joint ('c'): a new value of no buffer}}
// expected-error@+3 {{'func.func' op result 2 of @joint ('b'): expected names [b, alias], got: [b]}}
// expected-error@+2 {{'func.func' op result 2 of @joint ('b'): expected the buffer's type !torch.vtensor<[],f64>, got: !torch.vtensor<[],f32>}}
// expected-error@+1 {{'func.func' op result 3 of @joint ('b'): buffer 'b' has another new value}}
func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}, %b: !torch.vtensor<[],f64> {hp.role = "buffer", hp.fqn = ["b", "alias"]})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "buffer", hp.fqn = ["c"]}, !torch.vtensor<[],f32> {hp.role = "buffer", hp.fqn = ["b"]}, !torch.vtensor<[],f64> {hp.role = "buffer", hp.fqn = ["b", "alias"]}) {
  return %x, %x, %x, %b : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f64>
}

// -----

// V16: nothing crosses before there are stages.
// expected-error@+3 {{'func.func' op argument 0 of @joint ('f0.0'): role 'incoming' is of stages, which there are none of}}
// expected-error@+2 {{'func.func' op result 0 of @joint ('f1.0'): role 'saved' is of stages, which there are none of}}
module {
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "incoming", hp.name = "f0.0"}) -> (!torch.vtensor<[],f32> {hp.role = "saved", hp.name = "f1.0"}, !torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %x, %x : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
  }
}
