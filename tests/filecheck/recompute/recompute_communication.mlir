// RUN: hp-opt %s --hp-recompute | filecheck %s
// RUN: hp-opt %s --hp-recompute --hp-simplify | filecheck %s --check-prefixes=CHECK,MERGED

module attributes {hp.level = "spmd"} {
"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

// Communication within a region is repeated, start and wait.
// CHECK-LABEL: func.func @within
// CHECK:         %[[LOCAL:.*]] = torch.aten.tanh %arg0 {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:    %[[F:.*]] = "hp.all_reduce"(%[[LOCAL]]) {{.*}}hp.phase = "backward"
// CHECK-NEXT:    %[[SUM:.*]] = "hp.wait"(%[[F]]) {hp.phase = "backward"}
// CHECK-NEXT:    torch.aten.cos %[[SUM]] {hp.phase = "backward"}
func.func @within(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %f = "hp.all_reduce"(%0) {mesh = @mesh, axes = ["dp"], reduce = "sum", hp.phase = "forward", hp.recompute = 0 : i64} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %sum = "hp.wait"(%f) {hp.phase = "forward", hp.recompute = 0 : i64} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %sum {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %1 : !torch.vtensor<[4],f32>
}

// What arrives in a region from a collective outside of it stays: a future is waited for once.
// CHECK-LABEL: func.func @start_outside
// CHECK-COUNT-1: "hp.wait"
// CHECK-NOT:     "hp.wait"
// CHECK:         return
func.func @start_outside(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum", hp.phase = "forward"} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %sum = "hp.wait"(%f) {hp.phase = "forward", hp.recompute = 0 : i64} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %sum {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %1 : !torch.vtensor<[4],f32>
}

// A parameter that a cloned op reads is gathered again, its padding cut off; hp-simplify merges that with the
// backward's own gather.
// CHECK-LABEL:  func.func @gather
// CHECK:          torch.aten.mul.Tensor {{.*}} {hp.phase = "forward", hp.recompute = 0 : i64}
// CHECK:          %[[F:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.phase = "backward", hp.unit = "layers.0"
// CHECK-NEXT:     %[[PADDED:.*]] = "hp.wait"(%[[F]]) {{.*}}hp.phase = "backward"
// CHECK-NEXT:     %[[FULL:.*]] = torch.aten.slice.Tensor %[[PADDED]], {{.*}} {hp.phase = "backward"}
// CHECK-NEXT:     %[[Y:.*]] = torch.aten.mul.Tensor %[[FULL]], %{{.*}} {hp.phase = "backward", hp.recomputed = 0 : i64}
// CHECK-NEXT:     torch.aten.cos %[[Y]]
// MERGED-NOT:     "hp.all_gather"
// MERGED:         torch.aten.mul.Tensor %{{.*}}, %[[FULL]] {hp.phase = "backward"}
// CHECK:          return
func.func @gather(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"]}, %x: !torch.vtensor<[3],f32> {hp.role = "input", hp.name = "x"}) -> (!torch.vtensor<[3],f32> {hp.role = "output", hp.fqn = ["y"]}, !torch.vtensor<[3],f32> {hp.role = "loss"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int3 = torch.constant.int 3
  %f = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", hp.unit = "layers.0"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %padded = "hp.wait"(%f) {hp.phase = "forward", hp.unit = "layers.0"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
  %full = torch.aten.slice.Tensor %padded, %int0, %int0, %int3, %int1 {hp.phase = "forward"} : !torch.vtensor<[4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3],f32>
  %y = torch.aten.mul.Tensor %full, %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
  %0 = torch.aten.cos %y {hp.phase = "backward"} : !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
  %g = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "backward", hp.unit = "layers.0"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %padded_0 = "hp.wait"(%g) {hp.phase = "backward", hp.unit = "layers.0"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
  %full_0 = torch.aten.slice.Tensor %padded_0, %int0, %int0, %int3, %int1 {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3],f32>
  %1 = torch.aten.mul.Tensor %0, %full_0 {hp.phase = "backward"} : !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
  return %y, %1 : !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32>
}

// A parameter that the backward has from the forward is not gathered again.
// CHECK-LABEL:   func.func @held
// CHECK-COUNT-1:   "hp.all_gather"
// CHECK-NOT:       "hp.all_gather"
// CHECK:           return
func.func @held(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"]}, %x: !torch.vtensor<[4],f32> {hp.role = "input", hp.name = "x"}) -> (!torch.vtensor<[4],f32> {hp.role = "loss"}) {
  %f = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %full = "hp.wait"(%f) {hp.phase = "forward"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %full, %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %0 = torch.aten.cos %y {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.mul.Tensor %0, %full {hp.phase = "backward"} : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %1 : !torch.vtensor<[4],f32>
}
}
