// RUN: hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 --hp-fsdp=axes=dp | filecheck %s
// RUN: hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 --hp-fsdp='axes=dp reshard-after-forward=false' | filecheck %s --check-prefix=KEEP

!act = !torch.vtensor<[2,4],f32>
!weight = !torch.vtensor<[4,4],f32>
!half = !torch.vtensor<[4,4],f16>
!scalar = !torch.vtensor<[],f32>

// The backward reads the weight through the forward's views and casts. They are cloned, or the forward's full parameter
// would stay alive; without resharding it does, and there is one gather.
// CHECK-LABEL: func.func @forward_views
// CHECK-SAME: %[[W:arg0]]:
// KEEP-LABEL: func.func @forward_views
// KEEP-SAME: %[[W:arg0]]:
func.func @forward_views(
    %w: !weight {hp.fqn = ["w"], hp.role = "param", hp.trainable},
    %x: !act {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["w"], hp.role = "grad"}) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int5 = torch.constant.int 5
  // CHECK: %[[FULL:.*]] = "hp.wait"({{.*}}hp.phase = "forward"
  // CHECK-NEXT: %[[CAST:.*]] = torch.aten._to_copy %[[FULL]]
  // CHECK-NEXT: %[[T:.*]] = torch.aten.t %[[CAST]]
  // KEEP: %[[FULL:.*]] = "hp.wait"({{.*}}hp.phase = "forward"
  // KEEP-NEXT: %[[CAST:.*]] = torch.aten._to_copy %[[FULL]]
  // KEEP-NEXT: %[[T:.*]] = torch.aten.t %[[CAST]]
  %cast = torch.aten._to_copy %w, %int5, %none, %none, %none, %false, %none {hp.module = "m", hp.phase = "forward"} : !weight, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !half
  %t = torch.aten.t %cast {hp.module = "m", hp.phase = "forward"} : !half -> !half
  %y = torch.aten.mm %x, %t {hp.module = "m", hp.phase = "forward"} : !act, !half -> !act
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !act, !torch.none -> !scalar
  // CHECK: torch.aten.sin
  // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"(%[[W]]) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: %[[FULLB:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: %[[CASTB:.*]] = torch.aten._to_copy %[[FULLB]], {{.*}} {hp.module = "m", hp.phase = "backward"}
  // CHECK-NEXT: %[[TB:.*]] = torch.aten.t %[[CASTB]] {hp.module = "m", hp.phase = "backward"}
  // CHECK-NEXT: %[[TT:.*]] = torch.aten.t %[[TB]] {hp.module = "m", hp.phase = "backward"}
  // CHECK-NEXT: torch.aten.mm %{{.*}}, %[[TT]]
  // KEEP-NOT: "hp.all_gather"
  // KEEP: torch.aten.t %[[T]]
  %g = torch.aten.sin %y {hp.phase = "backward"} : !act -> !act
  %tt = torch.aten.t %t {hp.module = "m", hp.phase = "backward"} : !half -> !half
  %dx = torch.aten.mm %g, %tt {hp.module = "m", hp.phase = "backward"} : !act, !half -> !act
  %xt = torch.aten.t %x {hp.module = "m", hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  %dw = torch.aten.mm %xt, %dx {hp.module = "m", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  return %loss, %dw : !scalar, !weight
}

// -----

!vec = !torch.vtensor<[4],f32>
!half = !torch.vtensor<[2],f32>
!scalar = !torch.vtensor<[],f32>

// Pieces taken out of a list are views too. The view that only the backward needs moves there.
// CHECK-LABEL: func.func @pieces
func.func @pieces(
    %w: !vec {hp.fqn = ["w"], hp.role = "param"},
    %x: !half {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64}) -> (!scalar {hp.role = "loss"}) {
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  // CHECK: %[[FULL:.*]] = "hp.wait"({{.*}}hp.phase = "forward"
  // CHECK-NEXT: %[[LIST:.*]] = torch.aten.split.Tensor %[[FULL]]
  // CHECK-NEXT: %[[PAIR:.*]]:2 = torch.prim.ListUnpack %[[LIST]]
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[PAIR]]#0
  // CHECK-NEXT: torch.aten.sum
  %list = torch.aten.split.Tensor %w, %int2, %int0 {hp.phase = "forward"} : !vec, !torch.int, !torch.int -> !torch.list<vtensor>
  %pair:2 = torch.prim.ListUnpack %list {hp.phase = "forward"} : !torch.list<vtensor> -> !half, !half
  %late = torch.aten.slice.Tensor %w, %int0, %int0, %int2, %int1 {hp.phase = "forward"} : !vec, !torch.int, !torch.int, !torch.int, !torch.int -> !half
  %y = torch.aten.mul.Tensor %x, %pair#0 {hp.phase = "forward"} : !half, !half -> !half
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !half, !torch.none -> !scalar
  // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"({{.*}}hp.phase = "backward"
  // CHECK-NEXT: %[[FULLB:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: %[[LISTB:.*]] = torch.aten.split.Tensor %[[FULLB]], {{.*}}hp.phase = "backward"
  // CHECK-NEXT: %[[PAIRB:.*]]:2 = torch.prim.ListUnpack %[[LISTB]] {hp.phase = "backward"}
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[PAIRB]]#1
  // CHECK-NEXT: %[[LATE:.*]] = torch.aten.slice.Tensor %[[FULLB]], {{.*}}hp.phase = "backward"
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[LATE]]
  %dx = torch.aten.mul.Tensor %x, %pair#1 {hp.phase = "backward"} : !half, !half -> !half
  %dz = torch.aten.mul.Tensor %x, %late {hp.phase = "backward"} : !half, !half -> !half
  return %loss : !scalar
}

// -----

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// Used by the backward alone, once as a gradient (of |w|^2 / 2): there is no gather in the forward.
// CHECK-LABEL: func.func @backward_only
// CHECK-SAME: %[[W:arg0]]:
// KEEP-LABEL: func.func @backward_only
func.func @backward_only(
    %w: !vec {hp.fqn = ["w"], hp.role = "param", hp.trainable},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !vec {hp.fqn = ["w"], hp.role = "grad"}) {
  %none = torch.constant.none
  // CHECK-NOT: hp.phase = "forward", hp.unit
  // CHECK: torch.aten.sum
  // KEEP-NOT: hp.phase = "forward", hp.unit
  // KEEP: torch.aten.sum
  %loss = torch.aten.sum %x, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"(%[[W]]) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: %[[FULL:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: torch.aten.sin %[[FULL]]
  // CHECK-NEXT: %[[R:.*]] = "hp.reduce_scatter"(%[[FULL]])
  // CHECK-NEXT: %[[G:.*]] = "hp.wait"(%[[R]])
  // CHECK-NEXT: return %{{.*}}, %[[G]]
  // KEEP-NEXT: "hp.all_gather"({{.*}}hp.phase = "backward"
  // KEEP-NOT: "hp.all_gather"
  // KEEP: "hp.reduce_scatter"
  %s = torch.aten.sin %w {hp.phase = "backward"} : !vec -> !vec
  return %loss, %w : !scalar, !vec
}

// -----

!weight = !torch.vtensor<[4,2],f32>
!turned = !torch.vtensor<[2,4],f32>
!scalar = !torch.vtensor<[],f32>

// The forward makes a view that it does not need: it makes it no more, and gathers nothing for it.
// CHECK-LABEL: func.func @view_for_the_backward
// CHECK-SAME: %[[W:arg0]]:
func.func @view_for_the_backward(
    %w: !weight {hp.fqn = ["w"], hp.role = "param"},
    %x: !turned {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64}) -> (!scalar {hp.role = "loss"}) {
  %none = torch.constant.none
  // CHECK-NOT: hp.phase = "forward", hp.unit
  // CHECK-NOT: torch.aten.t
  // CHECK: torch.aten.sum
  %t = torch.aten.t %w {hp.phase = "forward"} : !weight -> !turned
  %loss = torch.aten.sum %x, %none {hp.phase = "forward"} : !turned, !torch.none -> !scalar
  // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"(%[[W]]) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: %[[FULL:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: %[[T:.*]] = torch.aten.t %[[FULL]] {hp.phase = "backward"}
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[T]]
  %d = torch.aten.mul.Tensor %x, %t {hp.phase = "backward"} : !turned, !turned -> !turned
  return %loss : !scalar
}

// -----

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// A parameter returned as an output is gathered for the return, as a use of the forward. An op without a phase has that
// of the op before it.
// CHECK-LABEL: func.func @returned
func.func @returned(
    %w: !vec {hp.fqn = ["w"], hp.role = "param"}, %v: !vec {hp.fqn = ["v"], hp.role = "param"},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !vec {hp.name = "w", hp.role = "output"}) {
  %none = torch.constant.none
  %loss = torch.aten.sum %x, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  %d = torch.aten.cos %x {hp.phase = "backward"} : !vec -> !vec
  // CHECK: "hp.all_gather"({{.*}}hp.fqn = ["v"], {{.*}}hp.phase = "backward"
  // CHECK: torch.aten.mul.Tensor
  %s = torch.aten.mul.Tensor %d, %v : !vec, !vec -> !vec
  // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"({{.*}}hp.fqn = ["w"], {{.*}}hp.phase = "forward"
  // CHECK-NEXT: %[[FULL:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: return %{{.*}}, %[[FULL]]
  return %loss, %w : !scalar, !vec
}
