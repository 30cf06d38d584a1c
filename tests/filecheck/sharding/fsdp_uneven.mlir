// RUN: hp-opt %s --split-input-file --hp-fsdp='axes=a,b' | filecheck %s

// One axis: 5 rows on 2 ranks are 3 and 2. Shards are padded to 3 rows, so that the padding is at the end of what is gathered.
"hp.mesh"() {axis_names = ["a", "b"], axis_sizes = array<i64: 1, 2>, sym_name = "mesh"} : () -> ()

!weight = !torch.vtensor<[5,3],f32>
!scalar = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @one_axis
// CHECK-SAME: %[[W:arg0]]: !torch.vtensor<[3,3],f32> {hp.fqn = ["w"], hp.full_shape = array<i64: 5, 3>, hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["a", "b"\], \[\]\]}}>
// CHECK-SAME: -> {{.*}}!torch.vtensor<[3,3],f32> {hp.fqn = ["w"], hp.full_shape = array<i64: 5, 3>, hp.role = "grad"
func.func @one_axis(
    %w: !weight {hp.fqn = ["w"], hp.role = "param", hp.trainable}, %x: !weight {hp.name = "x", hp.role = "input"})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["w"], hp.role = "grad"}) {
  %none = torch.constant.none
  // Constants stand at the entry, in the order they were needed: the pad of the gradient, the slice.
  // CHECK: %[[INT0:.*]] = torch.constant.int 0
  // CHECK-NEXT: %[[INT1:.*]] = torch.constant.int 1
  // CHECK-NEXT: %[[PADS:.*]] = torch.prim.ListConstruct %[[INT0]], %[[INT0]], %[[INT0]], %[[INT1]]
  // CHECK-NEXT: %[[ZERO:.*]] = torch.constant.float 0.0
  // CHECK-NEXT: %[[INT5:.*]] = torch.constant.int 5
  // CHECK: %[[F:.*]] = "hp.all_gather"(%[[W]]) {{.*}}: (!torch.vtensor<[3,3],f32>) -> !hp.future<[!torch.vtensor<[6,3],f32>]>
  // CHECK-NEXT: %[[PADDED:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: %[[FULL:.*]] = torch.aten.slice.Tensor %[[PADDED]], %[[INT0]], %[[INT0]], %[[INT5]], %[[INT1]] {hp.module = "", hp.phase = "forward"} : {{.*}} -> !torch.vtensor<[5,3],f32>
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[FULL]]
  %y = torch.aten.mul.Tensor %x, %w {hp.phase = "forward"} : !weight, !weight -> !weight
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !weight, !torch.none -> !scalar
  // The gradient is padded likewise: no rank's rows are left out, the last one's neither.
  // CHECK: %[[D:.*]] = torch.aten.tanh
  // CHECK-NEXT: %[[DP:.*]] = torch.aten.constant_pad_nd %[[D]], %[[PADS]], %[[ZERO]] {hp.module = "", hp.phase = "backward"} : {{.*}} -> !torch.vtensor<[6,3],f32>
  // CHECK-NEXT: %[[R:.*]] = "hp.reduce_scatter"(%[[DP]]) {{.*}} -> !hp.future<[!torch.vtensor<[3,3],f32>]>
  // CHECK-NEXT: %[[G:.*]] = "hp.wait"(%[[R]])
  // CHECK-NEXT: return %{{.*}}, %[[G]]
  %d = torch.aten.tanh %x {hp.phase = "backward"} : !weight -> !weight
  return %loss, %d : !scalar, !weight
}

// -----

// Two axes: 10 rows on 2x2 are 3, 2, 3, 2: padding stands between the ranks' rows too.
"hp.mesh"() {axis_names = ["a", "b"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()

!weight = !torch.vtensor<[10],f32>
!scalar = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @two_axes
// CHECK-SAME: %[[W:arg0]]: !torch.vtensor<[3],f32> {hp.fqn = ["w"], hp.full_shape = array<i64: 10>
func.func @two_axes(
    %w: !weight {hp.fqn = ["w"], hp.role = "param", hp.trainable}, %x: !weight {hp.name = "x", hp.role = "input"})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["w"], hp.role = "grad"}) {
  %none = torch.constant.none
  // CHECK-DAG: %[[INT0:.*]] = torch.constant.int 0
  // CHECK-DAG: %[[INT1:.*]] = torch.constant.int 1
  // CHECK-DAG: %[[INT5:.*]] = torch.constant.int 5
  // CHECK-DAG: %[[INT6:.*]] = torch.constant.int 6
  // CHECK-DAG: %[[INT10:.*]] = torch.constant.int 10
  // CHECK-DAG: %[[INT11:.*]] = torch.constant.int 11
  // CHECK: %[[F:.*]] = "hp.all_gather"(%[[W]]) {axes = ["a", "b"], {{.*}} -> !hp.future<[!torch.vtensor<[12],f32>]>
  // CHECK-NEXT: %[[PADDED:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: %[[LOW:.*]] = torch.aten.slice.Tensor %[[PADDED]], %[[INT0]], %[[INT0]], %[[INT5]], %[[INT1]]
  // CHECK-NEXT: %[[HIGH:.*]] = torch.aten.slice.Tensor %[[PADDED]], %[[INT0]], %[[INT6]], %[[INT11]], %[[INT1]]
  // CHECK-NEXT: %[[LIST:.*]] = torch.prim.ListConstruct %[[LOW]], %[[HIGH]]
  // CHECK-NEXT: %[[FULL:.*]] = torch.aten.cat %[[LIST]], %[[INT0]] {{.*}} -> !torch.vtensor<[10],f32>
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[FULL]]
  %y = torch.aten.mul.Tensor %x, %w {hp.phase = "forward"} : !weight, !weight -> !weight
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !weight, !torch.none -> !scalar
  // CHECK: %[[D:.*]] = torch.aten.tanh
  // CHECK-NEXT: %[[DLOW:.*]] = torch.aten.slice.Tensor %[[D]], %[[INT0]], %[[INT0]], %[[INT5]], %[[INT1]]
  // CHECK-NEXT: %[[PLOW:.*]] = torch.aten.constant_pad_nd %[[DLOW]], {{.*}} -> !torch.vtensor<[6],f32>
  // CHECK-NEXT: %[[DHIGH:.*]] = torch.aten.slice.Tensor %[[D]], %[[INT0]], %[[INT5]], %[[INT10]], %[[INT1]]
  // CHECK-NEXT: %[[PHIGH:.*]] = torch.aten.constant_pad_nd %[[DHIGH]], {{.*}} -> !torch.vtensor<[6],f32>
  // CHECK-NEXT: %[[LIST:.*]] = torch.prim.ListConstruct %[[PLOW]], %[[PHIGH]]
  // CHECK-NEXT: %[[PADDED:.*]] = torch.aten.cat %[[LIST]]
  // CHECK-NEXT: "hp.reduce_scatter"(%[[PADDED]])
  %d = torch.aten.tanh %x {hp.phase = "backward"} : !weight -> !weight
  return %loss, %d : !scalar, !weight
}

// -----

// Fewer rows than ranks: one rank has the row, three have padding. Nothing is left whole because it does not divide.
"hp.mesh"() {axis_names = ["a", "b"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()

!weight = !torch.vtensor<[1,2],f32>
!scalar = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @one_row
// CHECK-SAME: !torch.vtensor<[1,2],f32> {hp.fqn = ["w"], hp.full_shape = array<i64: 1, 2>, hp.role = "param"
func.func @one_row(
    %w: !weight {hp.fqn = ["w"], hp.role = "param", hp.trainable}, %x: !weight {hp.name = "x", hp.role = "input"})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["w"], hp.role = "grad"}) {
  %none = torch.constant.none
  // CHECK: "hp.all_gather"{{.*}} -> !hp.future<[!torch.vtensor<[4,2],f32>]>
  // CHECK: torch.aten.slice.Tensor {{.*}} -> !torch.vtensor<[1,2],f32>
  %y = torch.aten.mul.Tensor %x, %w {hp.phase = "forward"} : !weight, !weight -> !weight
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !weight, !torch.none -> !scalar
  // CHECK: torch.aten.constant_pad_nd {{.*}} -> !torch.vtensor<[4,2],f32>
  // CHECK: "hp.reduce_scatter"{{.*}} -> !hp.future<[!torch.vtensor<[1,2],f32>]>
  %d = torch.aten.tanh %x {hp.phase = "backward"} : !weight -> !weight
  return %loss, %d : !scalar, !weight
}
