// RUN: hp-opt %s --split-input-file --hp-split-stages | filecheck %s

// A value that a far stage uses goes there straight, and so does its gradient; the stage between sees neither.

!x = !torch.vtensor<[2,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "outgoing"})
// CHECK: func.func @stage1_forward
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"})
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "f1.0", hp.role = "outgoing"})
// CHECK: func.func @stage2_forward(
// CHECK-SAME: %arg0: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"}
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "f1.0", hp.role = "incoming"})
// CHECK: func.func @stage2_backward(
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "b2.0", hp.role = "outgoing"}
// CHECK: func.func @stage1_backward(
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "b2.0", hp.role = "incoming"})
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "b1.0", hp.role = "outgoing"})
// CHECK: func.func @stage0_backward(
// CHECK-SAME: %arg0: !torch.vtensor<[2,4],f32> {{.*}}hp.name = "x"
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "b2.0", hp.role = "incoming"}
// CHECK-SAME: %arg2: !torch.vtensor<[2,4],f32> {hp.name = "b1.0", hp.role = "incoming"})
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.fqn = ["a"], hp.role = "grad"})
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %b: !x {hp.fqn = ["b"], hp.role = "param", hp.stages = array<i64: 1>},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %one = torch.constant.int 1
    %none = torch.constant.none
    %first = torch.aten.mul.Tensor %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %second = torch.aten.mul.Tensor %first, %b {hp.phase = "forward", hp.stage = 1 : i64} : !x, !x -> !x
    %sum = torch.aten.add.Tensor %second, %first, %one {hp.phase = "forward", hp.stage = 2 : i64}
        : !x, !x, !torch.int -> !x
    %loss = torch.aten.sum %sum, %none {hp.phase = "forward", hp.stage = 2 : i64} : !x, !torch.none -> !s
    %dsum = torch.aten.cos %sum {hp.phase = "backward", hp.stage = 2 : i64} : !x -> !x
    %dfirst = torch.aten.mul.Tensor %dsum, %b {hp.phase = "backward", hp.stage = 1 : i64} : !x, !x -> !x
    %both = torch.aten.add.Tensor %dsum, %dfirst, %one {hp.phase = "backward", hp.stage = 0 : i64}
        : !x, !x, !torch.int -> !x
    %da = torch.aten.mul.Tensor %both, %x {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

// A value of stage 0 that only stage 1's backward needs comes to its forward and is passed again. One of stage 1's
// forward that stage 0's backward needs is saved and goes back with the gradient.

!x = !torch.vtensor<[2,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.name = "f0.1", hp.role = "outgoing"})
// CHECK: %[[SIN:.*]] = torch.aten.sin
// CHECK: %[[MUL:.*]] = torch.aten.mul.Tensor
// CHECK-NEXT: return %[[SIN]], %[[MUL]]
// CHECK: func.func @stage1_forward(%arg0: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"}
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "f0.1", hp.role = "incoming"})
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "f1.0", hp.role = "saved"}, !torch.vtensor<[],f32> {hp.role = "loss"})
// CHECK-NEXT: torch.constant.none
// CHECK-NEXT: %[[TANH:.*]] = torch.aten.tanh %arg1
// CHECK-NEXT: %[[LOSS:.*]] = torch.aten.sum %[[TANH]]
// CHECK-NEXT: return %[[TANH]], %[[LOSS]]
// CHECK: func.func @stage1_backward(%arg0: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"}
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "f1.0", hp.role = "saved"})
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "b1.0", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.name = "b1.1", hp.role = "outgoing"})
// CHECK: %[[GRAD:.*]] = torch.aten.cos %arg0
// CHECK-NEXT: return %arg1, %[[GRAD]]
// CHECK: func.func @stage0_backward(%arg0: !torch.vtensor<[2,4],f32> {hp.name = "b1.0", hp.role = "incoming"}
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "b1.1", hp.role = "incoming"})
// CHECK-NEXT: torch.aten.mul.Tensor %arg1, %arg0
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %early = torch.aten.sin %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %first = torch.aten.mul.Tensor %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %late = torch.aten.tanh %first {hp.phase = "forward", hp.stage = 1 : i64} : !x -> !x
    %loss = torch.aten.sum %late, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    %dlate = torch.aten.cos %early {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    %da = torch.aten.mul.Tensor %dlate, %late {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

// A forward that has nothing to do but to receive for its backward; one that has nothing to do, for every stage has one.

!x = !torch.vtensor<[2,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage1_forward(%arg0: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"})
// CHECK-SAME: attributes {hp.stage = 1 : i64, hp.task = "forward"}
// CHECK-NEXT: return
// CHECK: func.func @stage2_forward() attributes {hp.stage = 2 : i64, hp.task = "forward"} {
// CHECK-NEXT: return
// CHECK: func.func @stage1_backward(%arg0: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "incoming"})
// CHECK: func.func @stage0_backward
// CHECK-NOT: func.func
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %first = torch.aten.mul.Tensor %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %loss = torch.aten.sum %first, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    %dlate = torch.aten.cos %first {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    %da = torch.aten.mul.Tensor %dlate, %x {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da : !s, !x
  }
}
