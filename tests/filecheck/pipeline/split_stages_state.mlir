// RUN: hp-opt %s --split-input-file --hp-split-stages | filecheck %s

// A buffer that the step changes: the new value is the forward's of its stage, and where the backward needs the old
// one it is saved, for by then the argument is another microbatch's. A buffer that stays is given to both.

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward(
// CHECK-SAME: %arg1: !torch.vtensor<[4],f32> {hp.fqn = ["mean"], hp.role = "buffer"
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.name = "f0.0", hp.role = "saved"}, !torch.vtensor<[4],f32> {hp.fqn = ["mean"], hp.role = "buffer"}
// CHECK: %[[NEW:.*]] = torch.aten.maximum %arg1
// CHECK: return %arg1, %[[NEW]], %
// CHECK: func.func @stage0_backward(
// CHECK-SAME: %arg1: !torch.vtensor<[4],f32> {hp.fqn = ["table"], hp.role = "buffer"
// CHECK-SAME: %arg2: !torch.vtensor<[4],f32> {hp.name = "f0.0", hp.role = "saved"})
// CHECK-NEXT: torch.aten.mul.Tensor %arg2, %arg1
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %mean: !x {hp.fqn = ["mean"], hp.role = "buffer", hp.stages = array<i64: 0>},
      %table: !x {hp.fqn = ["table"], hp.role = "buffer", hp.stages = array<i64: 0>},
      %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}, !x {hp.fqn = ["mean"], hp.role = "buffer"}) {
    %none = torch.constant.none
    %new = torch.aten.maximum %mean, %x {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %y = torch.aten.mul.Tensor %a, %table {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    %d = torch.aten.mul.Tensor %mean, %table {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    %da = torch.aten.mul.Tensor %d, %a {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da, %new : !s, !x, !x
  }
}

// -----

// A frozen first stage has no backward. The loss and its weight may be made on different stages, outputs on any; what
// is given back as it is comes from its stage, or from the last.

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward(
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.name = "f0.0", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[],f32> {hp.role = "weight"}, !torch.vtensor<[4],f32> {hp.name = "frozen", hp.role = "output"})
// CHECK: func.func @stage1_forward(%arg0: !torch.vtensor<[4],f32> {hp.fqn = ["a"]
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.name = "f1.0", hp.role = "outgoing"}, !torch.vtensor<[],f32> {hp.role = "loss"}
// CHECK: func.func @stage2_forward(
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.name = "late", hp.role = "output"}, !torch.vtensor<[4],f32> {hp.name = "given", hp.role = "output"})
// CHECK: func.func @stage1_backward(
// CHECK-SAME: -> (!torch.vtensor<[4],f32> {hp.fqn = ["a"], hp.role = "grad"})
// CHECK-NOT: func.func
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %frozen: !x {hp.fqn = ["frozen"], hp.role = "param", hp.stages = array<i64: 0>},
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !s {hp.role = "weight"}, !x {hp.name = "late", hp.role = "output"},
          !x {hp.name = "given", hp.role = "output"}, !x {hp.name = "frozen", hp.role = "output"},
          !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %weight = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    %h = torch.aten.mul.Tensor %x, %frozen {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %y = torch.aten.mul.Tensor %h, %a {hp.phase = "forward", hp.stage = 1 : i64} : !x, !x -> !x
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    %late = torch.aten.cos %y {hp.phase = "forward", hp.stage = 2 : i64} : !x -> !x
    %da = torch.aten.mul.Tensor %h, %a {hp.phase = "backward", hp.stage = 1 : i64} : !x, !x -> !x
    return %loss, %weight, %late, %x, %frozen, %da : !s, !s, !x, !x, !x, !x
  }
}

// -----

// Unused state is given to the forward of its stage, unused inputs and sizes to the first.
// What nobody needs is left out.

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward(
// CHECK-SAME: %arg1: !torch.vtensor<[4],f32> {hp.name = "ignored", hp.role = "input"}
// CHECK-SAME: %arg2: !torch.int {hp.name = "rows", hp.role = "size"}
// CHECK-NOT: torch.aten.cos
// CHECK: func.func @stage1_forward(%arg0: !torch.vtensor<[4],f32> {hp.fqn = ["forgotten"]{{[^)]*}})
// CHECK-SAME: attributes {hp.stage = 1 : i64, hp.task = "forward"} {
// CHECK-NEXT: return
// CHECK-NOT: func.func
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %forgotten: !x {hp.fqn = ["forgotten"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %x: !x {hp.name = "x", hp.role = "input"}, %ignored: !x {hp.name = "ignored", hp.role = "input"},
      %rows: !torch.int {hp.name = "rows", hp.role = "size"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    %dead = torch.aten.cos %x {hp.phase = "forward", hp.stage = 1 : i64} : !x -> !x
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

// State that another stage uses than those that hold it crosses as any value: a view of a parameter, forward as an
// activation; its gradient comes back. Held by two stages, it is made again on both.

!x = !torch.vtensor<[2,4],f32>
!t = !torch.vtensor<[4,2],f32>
!y = !torch.vtensor<[2,2],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward(%arg0: !torch.vtensor<[2,4],f32> {hp.fqn = ["a"]
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.fqn = ["frozen"]
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "outgoing"}, !torch.vtensor<[2,4],f32> {hp.name = "f0.1", hp.role = "outgoing"})
// CHECK: func.func @stage1_forward(%arg0: !torch.vtensor<[2,4],f32> {hp.fqn = ["frozen"]
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"}
// CHECK-DAG: %[[A:.*]] = torch.aten.t %arg1
// CHECK-DAG: %[[F:.*]] = torch.aten.t %arg0
// CHECK-DAG: torch.aten.mm %{{.*}}, %[[A]]
// CHECK-DAG: torch.aten.mm %{{.*}}, %[[F]]
// CHECK: func.func @stage1_backward(
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "b1.0", hp.role = "outgoing"})
// CHECK: func.func @stage0_backward(%arg0: !torch.vtensor<[2,4],f32> {hp.name = "b1.0", hp.role = "incoming"})
// CHECK-NEXT: return %arg0
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %frozen: !x {hp.fqn = ["frozen"], hp.role = "param", hp.stages = array<i64: 0, 1>},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %one = torch.constant.int 1
    %at = torch.aten.t %a {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !t
    %ft = torch.aten.t %frozen {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !t
    %h = torch.aten.mm %x, %ft {hp.phase = "forward", hp.stage = 0 : i64} : !x, !t -> !y
    %h1 = torch.aten.mm %h, %frozen {hp.phase = "forward", hp.stage = 0 : i64} : !y, !x -> !x
    %y = torch.aten.mm %h1, %at {hp.phase = "forward", hp.stage = 1 : i64} : !x, !t -> !y
    %z = torch.aten.mm %h1, %ft {hp.phase = "forward", hp.stage = 1 : i64} : !x, !t -> !y
    %sum = torch.aten.add.Tensor %y, %z, %one {hp.phase = "forward", hp.stage = 1 : i64} : !y, !y, !torch.int -> !y
    %loss = torch.aten.sum %sum, %none {hp.phase = "forward", hp.stage = 1 : i64} : !y, !torch.none -> !s
    %da = torch.aten.sin %h1 {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    return %loss, %da : !s, !x
  }
}
