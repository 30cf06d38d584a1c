// RUN: hp-opt %s --hp-recompute | filecheck %s
// RUN: hp-opt %s --hp-recompute=policy=tagged --hp-recompute | filecheck %s
// RUN: hp-opt %s --hp-recompute --cse --canonicalize --hp-simplify | filecheck %s

// What a region made is computed again right before its first use in the backward, from what the region takes, and
// only as far as it is needed: the last product is not.
// CHECK-LABEL: func.func @region
// CHECK:         torch.aten.tanh_backward{{.*}} {hp.phase = "backward"}
// CHECK-NEXT:    %[[AGAIN:.*]] = torch.aten.mm %arg0, %arg1 {hp.module = "layers.0", hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = torch.aten.tanh %[[AGAIN]] {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    %[[GRAD:.*]] = torch.aten.mm %[[TANH]], %{{.*}} {hp.phase = "backward"}
// CHECK-NEXT:    return %{{.*}}, %[[GRAD]]
func.func @region(%x: !torch.vtensor<[4,4],f32>, %w: !torch.vtensor<[4,4],f32>) -> (!torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>) {
  %0 = torch.aten.mm %x, %w {hp.module = "layers.0", hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %1 = torch.aten.tanh %0 {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %2 = torch.aten.mm %1, %w {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %3 = torch.aten.sigmoid %2 {hp.phase = "forward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %4 = torch.aten.tanh_backward %3, %3 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %5 = torch.aten.mm %1, %4 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  return %3, %5 : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>
}

// A region's result that another region takes stays, for both of them; the ops that made it are not repeated.
// CHECK-LABEL: func.func @two_regions
// CHECK:         %[[FIRST:.*]] = torch.aten.tanh %arg0 {hp.phase = "forward", hp.recompute = 0 : i64}
// CHECK:         %[[COS:.*]] = torch.aten.cos %[[FIRST]] {hp.phase = "backward", hp.recomputed = 1 : i64}
// CHECK-NEXT:    %[[G:.*]] = torch.aten.mul.Tensor %arg0, %[[COS]]
// CHECK-NEXT:    torch.aten.tanh_backward %[[G]], %[[FIRST]]
// CHECK-NEXT:    return
func.func @two_regions(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %0 {hp.phase = "forward", hp.recompute = 1 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.mul.Tensor %x, %1 {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %3 = torch.aten.tanh_backward %2, %0 {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %3 : !torch.vtensor<[4],f32>
}

// What an op outside saves, what is returned, and what a view outside shares stays.
// CHECK-LABEL: func.func @kept
// CHECK-NOT:     hp.recomputed
// CHECK:         return
func.func @kept(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> {hp.role = "loss"}) {
  %int4 = torch.constant.int 4
  %int1 = torch.constant.int 1
  %sizes = torch.prim.ListConstruct %int4, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %saved = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64, hp.saved = array<i64: 0>} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %returned = torch.aten.cos %saved {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %shared = torch.aten.sin %returned {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %view = torch.aten.view %shared, %sizes {hp.phase = "forward"} : !torch.vtensor<[4],f32>, !torch.list<int> -> !torch.vtensor<[4,1],f32>
  %0 = torch.aten.mul.Tensor %saved, %returned {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.mul.Tensor %0, %shared {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.mul.Tensor %1, %view {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4],f32>
  return %2, %returned : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// An output does not stay for the training step's sake: that does not return it.
// CHECK-LABEL: func.func @output
// CHECK:         %[[MADE:.*]] = torch.aten.tanh %arg0 {hp.phase = "forward"
// CHECK:         %[[AGAIN:.*]] = torch.aten.tanh %arg0 {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    torch.aten.cos %[[AGAIN]]
// CHECK:         return %[[MADE]]
func.func @output(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32> {hp.role = "output", hp.fqn = ["y"]}, !torch.vtensor<[4],f32> {hp.role = "grad", hp.fqn = ["x"]}) {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %0 {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// What a selective checkpoint keeps is not marked: the ops on both sides of it are, and are cloned.
// CHECK-LABEL: func.func @selective
// CHECK:         %[[MM:.*]] = torch.aten.mm {{.*}} {hp.phase = "forward"}
// CHECK-COUNT-1: torch.aten.tanh %[[MM]] {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NOT:     hp.recomputed
func.func @selective(%x: !torch.vtensor<[4,4],f32>) -> !torch.vtensor<[4,4],f32> {
  %0 = torch.aten.cos %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %1 = torch.aten.mm %0, %0 {hp.phase = "forward"} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %2 = torch.aten.tanh %1 {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %3 = torch.aten.tanh_backward %x, %2 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  return %3 : !torch.vtensor<[4,4],f32>
}

// Draws are repeated with their stream; numbers and literals are used as they are.
// CHECK-LABEL: func.func @draws
// CHECK:         %[[ONE:.*]] = torch.vtensor.literal
// CHECK:         %[[U:.*]] = "hp.uniform"(%{{.*}}) {hp.phase = "backward", hp.recomputed = 3 : i64, stream = 7 : i64}
// CHECK-NEXT:    %[[Y:.*]] = torch.aten.mul.Tensor %[[U]], %[[ONE]] {hp.phase = "backward", hp.recomputed = 3 : i64}
// CHECK-NEXT:    torch.aten.cos %[[Y]]
func.func @draws() -> !torch.vtensor<[4],f32> {
  %int4 = torch.constant.int 4
  %one = torch.vtensor.literal(dense<1.0> : tensor<4xf32>) {hp.phase = "forward", hp.recompute = 3 : i64} : !torch.vtensor<[4],f32>
  %u = "hp.uniform"(%int4) {hp.phase = "forward", hp.recompute = 3 : i64, stream = 7 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %u, %one {hp.phase = "forward", hp.recompute = 3 : i64} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %0 = torch.aten.cos %y {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// A list goes where what it holds goes.
// CHECK-LABEL: func.func @list
// CHECK:         %[[TANH:.*]] = torch.aten.tanh %arg0 {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    %[[LIST:.*]] = torch.prim.ListConstruct %[[TANH]], %arg0 {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    %[[CAT:.*]] = torch.aten.cat %[[LIST]], %{{.*}} {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    torch.aten.cos %[[CAT]]
func.func @list(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[8],f32> {
  %int0 = torch.constant.int 0
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %list = torch.prim.ListConstruct %0, %x : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.list<vtensor>
  %1 = torch.aten.cat %list, %int0 {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[8],f32>
  %2 = torch.aten.cos %1 {hp.phase = "backward"} : !torch.vtensor<[8],f32> -> !torch.vtensor<[8],f32>
  return %2 : !torch.vtensor<[8],f32>
}
