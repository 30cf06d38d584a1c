// RUN: hp-opt %s --hp-simplify | filecheck %s

// torch's random ops stay, used or not: each moves the generator on.
// CHECK-LABEL: func.func @random
// CHECK-COUNT-2: torch.aten.bernoulli
// CHECK:         torch.operator "torch.aten.native_dropout"
// CHECK:         return
func.func @random(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %none = torch.constant.none
  %half = torch.constant.float 5.000000e-01
  %true = torch.constant.bool true
  %0 = torch.aten.bernoulli %x, %none : !torch.vtensor<[4],f32>, !torch.none -> !torch.vtensor<[4],f32>
  %1 = torch.aten.bernoulli %x, %none : !torch.vtensor<[4],f32>, !torch.none -> !torch.vtensor<[4],f32>
  %2:2 = torch.operator "torch.aten.native_dropout"(%x, %half, %true) : (!torch.vtensor<[4],f32>, !torch.float, !torch.bool) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],i1>)
  return %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// A functional ATen op that torch-mlir does not know is as pure as one it knows; a custom op may do anything.
// CHECK-LABEL: func.func @operators
// CHECK-COUNT-1: torch.operator "torch.aten.silu_backward"
// CHECK-NOT:     torch.operator "torch.aten
// CHECK-COUNT-2: torch.operator "torch.custom.log"
// CHECK-NOT:     torch.operator
func.func @operators(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %0 = torch.operator "torch.aten.silu_backward"(%x, %x) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  %1 = torch.operator "torch.aten.silu_backward"(%x, %x) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  %2 = torch.operator "torch.aten.hardsigmoid_backward"(%x, %x) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  %3 = torch.operator "torch.custom.log"(%x) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  %4 = torch.operator "torch.custom.log"(%x) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// An operator without results is there for something else.
// CHECK-LABEL: func.func @no_results
// CHECK:         torch.operator "torch.aten._linalg_check_errors"
func.func @no_results(%x: !torch.vtensor<[],si32>) {
  %str = torch.constant.str "inverse"
  %true = torch.constant.bool true
  torch.operator "torch.aten._linalg_check_errors"(%x, %str, %true) : (!torch.vtensor<[],si32>, !torch.str, !torch.bool) -> ()
  return
}

// Calls and assertions stay.
// CHECK-LABEL: func.func @calls
// CHECK:         torch.aten._assert_scalar
// CHECK-COUNT-2: call @operators
func.func @calls(%x: !torch.vtensor<[4],f32>, %n: !torch.int) {
  %str = torch.constant.str "expected"
  torch.aten._assert_scalar %n, %str : !torch.int, !torch.str
  %0:2 = call @operators(%x) : (!torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>)
  %1:2 = call @operators(%x) : (!torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>)
  return
}

// Between equal ops a tensor may have changed, so nothing merges in this function; dead ops still go.
// CHECK-LABEL: func.func @mutation
// CHECK-COUNT-2: torch.aten.tanh
// CHECK-NOT:     torch.aten.relu
func.func @mutation(%x: !torch.tensor<[4],f32>, %y: !torch.vtensor<[4],f32>) -> (!torch.tensor<[4],f32>, !torch.tensor<[4],f32>) {
  %0 = torch.aten.tanh %x : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  %dead = torch.aten.relu %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  torch.overwrite.tensor.contents %y overwrites %x : !torch.vtensor<[4],f32>, !torch.tensor<[4],f32>
  %1 = torch.aten.tanh %x : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  return %0, %1 : !torch.tensor<[4],f32>, !torch.tensor<[4],f32>
}

// The same through an in-place operator, whose own result nobody uses.
// CHECK-LABEL: func.func @in_place
// CHECK:         torch.aten.tanh
// CHECK:         torch.aten.add_.Tensor
// CHECK:         torch.aten.tanh
func.func @in_place(%x: !torch.tensor<[4],f32>) -> (!torch.tensor<[4],f32>, !torch.tensor<[4],f32>) {
  %int1 = torch.constant.int 1
  %0 = torch.aten.tanh %x : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  %unused = torch.aten.add_.Tensor %x, %x, %int1 : !torch.tensor<[4],f32>, !torch.tensor<[4],f32>, !torch.int -> !torch.tensor<[4],f32>
  %1 = torch.aten.tanh %x : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  return %0, %1 : !torch.tensor<[4],f32>, !torch.tensor<[4],f32>
}

// A custom op may change a mutable tensor that it is given.
// CHECK-LABEL: func.func @custom_mutation
// CHECK-COUNT-2: torch.aten.tanh
func.func @custom_mutation(%x: !torch.tensor<[4],f32>) -> (!torch.tensor<[4],f32>, !torch.tensor<[4],f32>) {
  %0 = torch.aten.tanh %x : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  torch.operator "torch.custom.scale"(%x) : (!torch.tensor<[4],f32>) -> ()
  %1 = torch.aten.tanh %x : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  return %0, %1 : !torch.tensor<[4],f32>, !torch.tensor<[4],f32>
}

// What is used in a region stays, and the region with it.
// CHECK-LABEL: func.func @region
// CHECK-NEXT:    %[[USED:.*]] = torch.aten.tanh
// CHECK-NEXT:    torch.prim.If
// CHECK-NEXT:      torch.prim.If.yield %[[USED]]
func.func @region(%x: !torch.vtensor<[4],f32>, %cond: !torch.bool) -> !torch.vtensor<[4],f32> {
  %first = torch.aten.tanh %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %used = torch.aten.tanh %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %dead = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %0 = torch.prim.If %cond -> (!torch.vtensor<[4],f32>) {
    torch.prim.If.yield %used : !torch.vtensor<[4],f32>
  } else {
    torch.prim.If.yield %first : !torch.vtensor<[4],f32>
  }
  return %0 : !torch.vtensor<[4],f32>
}
