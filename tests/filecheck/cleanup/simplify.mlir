// RUN: hp-opt %s --hp-simplify | filecheck %s
// RUN: hp-opt %s --hp-simplify --hp-simplify | filecheck %s

// What nobody uses goes, and then what only it used.
// CHECK-LABEL: func.func @dead_chain
// CHECK-NEXT:    %[[SUM:.*]] = torch.aten.tanh %arg0
// CHECK-NEXT:    return %[[SUM]]
func.func @dead_chain(%x: !torch.vtensor<[4,4],f32>) -> !torch.vtensor<[4,4],f32> {
  %dead = torch.aten.mm %x, %x : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %int1 = torch.constant.int 1
  %y = torch.aten.tanh %x : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %dead_too = torch.aten.add.Tensor %dead, %x, %int1 : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.int -> !torch.vtensor<[4,4],f32>
  return %y : !torch.vtensor<[4,4],f32>
}

// An op with several results stays as long as one is used.
// CHECK-LABEL: func.func @one_result_used
// CHECK:         torch.aten.max.dim
// CHECK:         return
func.func @one_result_used(%x: !torch.vtensor<[4,4],f32>) -> !torch.vtensor<[4],si64> {
  %int0 = torch.constant.int 0
  %false = torch.constant.bool false
  %values, %indices = torch.aten.max.dim %x, %int0, %false : !torch.vtensor<[4,4],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4],f32>, !torch.vtensor<[4],si64>
  return %indices : !torch.vtensor<[4],si64>
}

// Equal ops merge through equal constants and lists, whatever module they came from; the first stays.
// CHECK-LABEL: func.func @equal_chains
// CHECK-COUNT-1: torch.aten.view {{.*}}hp.module = "first"
// CHECK-NOT:     torch.aten.view
// CHECK:         %[[MM:.*]] = torch.aten.mm
// CHECK-NEXT:    return %[[MM]], %[[MM]]
func.func @equal_chains(%x: !torch.vtensor<[4,4],f32>) -> (!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>) {
  %int2 = torch.constant.int 2
  %shape = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %a = torch.aten.view %x, %shape {hp.module = "first"} : !torch.vtensor<[4,4],f32>, !torch.list<int> -> !torch.vtensor<[2,2],f32>
  %int2_0 = torch.constant.int 2
  %shape_0 = torch.prim.ListConstruct %int2, %int2_0 : (!torch.int, !torch.int) -> !torch.list<int>
  %b = torch.aten.view %x, %shape_0 {hp.module = "second"} : !torch.vtensor<[4,4],f32>, !torch.list<int> -> !torch.vtensor<[2,2],f32>
  %ab = torch.aten.mm %a, %b : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
  %ba = torch.aten.mm %b, %a : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
  return %ab, %ba : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>
}

// Equal literals merge; other elements or another type do not.
// CHECK-LABEL: func.func @literals
// CHECK:         %[[ONE:.*]] = torch.vtensor.literal(dense<1.0
// CHECK-NEXT:    %[[TWO:.*]] = torch.vtensor.literal(dense<2.0
// CHECK-NEXT:    %[[WIDE:.*]] = torch.vtensor.literal(dense<1.0{{.*}}f64
// CHECK-NEXT:    return %[[ONE]], %[[ONE]], %[[TWO]], %[[WIDE]]
func.func @literals() -> (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f64>) {
  %a = torch.vtensor.literal(dense<1.0> : tensor<2xf32>) : !torch.vtensor<[2],f32>
  %b = torch.vtensor.literal(dense<1.0> : tensor<2xf32>) : !torch.vtensor<[2],f32>
  %c = torch.vtensor.literal(dense<2.0> : tensor<2xf32>) : !torch.vtensor<[2],f32>
  %d = torch.vtensor.literal(dense<1.0> : tensor<2xf64>) : !torch.vtensor<[2],f64>
  return %a, %b, %c, %d : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f64>
}

// Other operands, another order of operands or another attribute make another op.
// CHECK-LABEL: func.func @not_equal
// CHECK-COUNT-2: torch.aten.mm
// CHECK-COUNT-3: hp.uniform
func.func @not_equal(%x: !torch.vtensor<[4,4],f32>, %y: !torch.vtensor<[4,4],f32>) -> (!torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %0 = torch.aten.mm %x, %y : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %1 = torch.aten.mm %y, %x : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %int4 = torch.constant.int 4
  %2 = "hp.uniform"(%int4) {stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  %3 = "hp.uniform"(%int4) {stream = 1 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  %4 = "hp.uniform"(%int4) {rows = 2 : i64, stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  return %0, %1, %2, %3, %4 : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// So does another result type.
// CHECK-LABEL: func.func @other_type
// CHECK-COUNT-2: torch.derefine
func.func @other_type(%n: !torch.int) -> (!torch.optional<int>, !torch.number) {
  %0 = torch.derefine %n : !torch.int to !torch.optional<int>
  %1 = torch.derefine %n : !torch.int to !torch.number
  return %0, %1 : !torch.optional<int>, !torch.number
}

// Draws of one stream are equal: they are a function of it, in either phase.
// CHECK-LABEL: func.func @one_stream
// CHECK:         %[[U:.*]] = "hp.uniform"
// CHECK-NEXT:    return %[[U]], %[[U]]
func.func @one_stream() -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %int4 = torch.constant.int 4
  %0 = "hp.uniform"(%int4) {hp.phase = "forward", stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  %1 = "hp.uniform"(%int4) {hp.phase = "backward", stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[4],f32>
  return %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// A backward op merges into its forward twin; a forward op that comes later makes what it merges into a forward op.
// CHECK-LABEL: func.func @phases
// CHECK-NEXT:    %[[TANH:.*]] = torch.aten.tanh %arg0 {hp.phase = "forward"}
// CHECK-NEXT:    %[[RELU:.*]] = torch.aten.relu %arg0 {hp.phase = "forward"}
// CHECK-NEXT:    return %[[TANH]], %[[TANH]], %[[RELU]], %[[RELU]]
func.func @phases(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %0 = torch.aten.tanh %x {hp.phase = "forward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.tanh %x {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.relu %x {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %3 = torch.aten.relu %x {hp.phase = "forward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0, %1, %2, %3 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// What is to be recomputed merges with neither its original nor what is not in the same checkpointed region.
// CHECK-LABEL: func.func @recompute
// CHECK-NEXT:    %[[PLAIN:.*]] = torch.aten.tanh %arg0 {hp.phase = "forward"}
// CHECK-NEXT:    %[[FIRST:.*]] = torch.aten.tanh %arg0 {hp.phase = "forward", hp.recompute = 0 : i64}
// CHECK-NEXT:    %[[OTHER:.*]] = torch.aten.tanh %arg0 {hp.phase = "forward", hp.recompute = 1 : i64}
// CHECK-NEXT:    %[[AGAIN:.*]] = torch.aten.tanh %arg0 {hp.phase = "backward", hp.recompute = 0 : i64}
// CHECK-NEXT:    return %[[PLAIN]], %[[FIRST]], %[[FIRST]], %[[OTHER]], %[[AGAIN]]
func.func @recompute(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %0 = torch.aten.tanh %x {hp.phase = "forward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %3 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 1 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %4 = torch.aten.tanh %x {hp.phase = "backward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0, %1, %2, %3, %4 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// What was computed again is merged within its region, not with the forward's op nor with another region's.
// CHECK-LABEL: func.func @computed_again
// CHECK:         torch.aten.tanh {{.*}}hp.recompute = 0 : i64
// CHECK-NEXT:    %[[ZERO:.*]] = torch.aten.tanh {{.*}}hp.recomputed = 0 : i64
// CHECK-NEXT:    %[[ONE:.*]] = torch.aten.tanh {{.*}}hp.recomputed = 1 : i64
// CHECK-NEXT:    return %{{.*}}, %[[ZERO]], %[[ZERO]], %[[ONE]]
func.func @computed_again(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.tanh %x {hp.phase = "backward", hp.recomputed = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %2 = torch.aten.tanh %x {hp.phase = "backward", hp.recomputed = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %3 = torch.aten.tanh %x {hp.phase = "backward", hp.recomputed = 1 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0, %1, %2, %3 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}

// What is saved of one of two equal ops is saved of the one that stays.
// CHECK-LABEL: func.func @saved
// CHECK-NEXT:    torch.aten.tanh {{.*}}hp.saved = array<i64: 0>
// CHECK-NEXT:    return
func.func @saved(%x: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64, hp.saved = array<i64: 0>} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
}
