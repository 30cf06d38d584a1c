// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-fsdp='axes=dp units=layers.* ignore=head.bias' -o /dev/null
// RUN: not hp-opt %s --hp-fsdp 2>&1 | filecheck %s --check-prefix=NO-AXES
// RUN: not hp-opt %s --hp-fsdp='axes=dp replicate-axes=dp' 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not hp-opt %s --hp-fsdp='axes=dp param-dtype=bfloat61' 2>&1 | filecheck %s --check-prefix=PARAM-DTYPE
// RUN: not hp-opt %s --hp-fsdp='axes=dp reduce-dtype=int8' 2>&1 | filecheck %s --check-prefix=REDUCE-DTYPE
// RUN: not hp-opt %s --hp-fsdp='axes=dp reshard=false' 2>&1 | filecheck %s --check-prefix=OPTION

// NO-AXES: error: hp-fsdp: expected at least one axis in 'axes' or 'replicate-axes'
// TWICE: error: hp-fsdp: axis 'dp' is named twice in 'axes' and 'replicate-axes'
// PARAM-DTYPE: error: hp-fsdp: option 'param-dtype' names no real floating dtype: 'bfloat61', did you mean 'bfloat16'
// REDUCE-DTYPE: error: hp-fsdp: option 'reduce-dtype' names no real floating dtype: 'int8', expected one of bfloat16, float16, float32, float64
// OPTION: error: unknown option 'reshard' of hp-fsdp, did you mean 'reshard-after-forward'?

// expected-error@below {{hp-fsdp: the module has no mesh; run hp-set-mesh first}}
module {
}

// -----

// expected-error@below {{hp-fsdp requires level 'joint' or 'spmd', got: 'annotated'}}
module attributes {hp.level = "annotated"} {
}

// -----

// expected-error@below {{hp-fsdp: mesh pp:2,ddp:2 has no axis 'dp', did you mean 'ddp' or 'pp'?}}
module {
  "hp.mesh"() {axis_names = ["pp", "ddp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
}

// -----

// expected-error@below {{hp-fsdp: expected one step function, got: 0}}
module {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
// expected-error@below {{hp-fsdp: units: pattern 'layers.*' matches no module and no parameter, did you mean 'layer.0'}}
func.func @unmatched_unit(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layer.0.w"], hp.role = "param"},
                          %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"}) {
  return
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
// expected-error@below {{hp-fsdp: ignore: pattern 'head.bias' matches no module and no parameter, did you mean 'heads.bias' or 'heads'?}}
func.func @unmatched_ignore(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                            %b: !torch.vtensor<[4],f32> {hp.fqn = ["heads.bias"], hp.role = "param"}) {
  return
}

// -----

// Run twice.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{hp-fsdp: axis 'dp' splits param 'layers.0.w' already; a data axis is one that nothing uses yet, and the pass runs once}}
  func.func @twice(%w: !torch.vtensor<[2],f32> {hp.fqn = ["layers.0.w"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
                   %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"}) {
    return
  }
}

// -----

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @axis_in_use(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                         %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"}) {
    // expected-error@below {{'hp.all_reduce' op communicates over 'dp' already; hp-fsdp takes an axis that nothing uses yet}}
    %f = "hp.all_reduce"(%w) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %r = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    return
  }
}

// -----

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp", "tp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{hp-fsdp: cannot split 'layers.0.w' further: its 7 rows do not divide by the 2 ranks of tp}}
  func.func @uneven_tensor_axis(
      %w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.full_shape = array<i64: 7>, hp.role = "param", hp.sharding = #hp.sharding<@mesh, [["tp"]]>},
      %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"}) {
    return
  }
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
// expected-error@below {{hp-fsdp: expected parameter 'layers.0.w' to have a static shape, got: !torch.vtensor<[4,?],f32>}}
func.func @dynamic_shape(%w: !torch.vtensor<[4,?],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                         %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"}) {
  return
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
// expected-error@below {{'func.func' op hp-fsdp: result 0 is the gradient of no parameter: 'layers.0.v'}}
func.func @foreign_gradient(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                            %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"})
    -> (!torch.vtensor<[4],f32> {hp.fqn = ["layers.0.v"], hp.role = "grad"}) {
  return %w : !torch.vtensor<[4],f32>
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
func.func @gradient_twice(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                          %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"})
    -> (!torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "grad"}, !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "grad"}) {
  // expected-error@below {{'func.return' op hp-fsdp: the gradient of 'layers.0.w' is returned twice}}
  return %w, %w : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
func.func @gradient_shape(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                          %b: !torch.vtensor<[4,1],f32> {hp.fqn = ["head.bias"], hp.role = "param"})
    -> (!torch.vtensor<[4,1],f32> {hp.fqn = ["layers.0.w"], hp.role = "grad"}) {
  // expected-error@below {{'func.return' op hp-fsdp: expected the gradient of 'layers.0.w' to have the shape of !torch.vtensor<[4],f32>, got: !torch.vtensor<[4,1],f32>}}
  return %b : !torch.vtensor<[4,1],f32>
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
func.func @control_flow(%w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param"},
                        %b: !torch.vtensor<[4],f32> {hp.fqn = ["head.bias"], hp.role = "param"}) {
  %true = torch.constant.bool true
  // expected-error@below {{'torch.prim.If' op is control flow; a step function is expected to be a straight line of ops}}
  torch.prim.If %true -> () {
    torch.prim.If.yield
  } else {
    torch.prim.If.yield
  }
  return
}

// -----

// A weight, and a batch of which every rank has all rows.
"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
// expected-error@below {{hp-fsdp: the loss is weighted, but no input is split over the data axes: give one a batch dim}}
func.func @weighted_loss_of_whole_inputs(
    %w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w", "head.bias"], hp.role = "param", hp.trainable},
    %x: !torch.vtensor<[4],f32> {hp.name = "x", hp.role = "input"}, %n: !torch.vtensor<[],si64> {hp.name = "n", hp.role = "input"})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],si64> {hp.role = "weight"},
        !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w", "head.bias"], hp.role = "grad"}) {
  %none = torch.constant.none
  %z = torch.aten.mul.Tensor %x, %w {hp.phase = "forward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %sum = torch.aten.sum %z, %none {hp.phase = "forward"} : !torch.vtensor<[4],f32>, !torch.none -> !torch.vtensor<[],f32>
  return %sum, %n, %x : !torch.vtensor<[],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[4],f32>
}
