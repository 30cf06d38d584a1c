// RUN: hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 --hp-fsdp='axes=dp units=layers.*' | filecheck %s

!act = !torch.vtensor<[2,4],f32>
!weight = !torch.vtensor<[4,4],f32>
!scalar = !torch.vtensor<[],f32>

// Parameters and their gradients become shards of dim 0. The input is one data rank's batch: its type stays and its batch
// dim is split over the data axis; so is the output's. The buffer and the loss stay.
// CHECK: module attributes {hp.level = "spmd"}
// CHECK: func.func @units_and_root
// CHECK-SAME: (%[[EMBED:arg0]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["embed"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \[\]\]}}>, hp.trainable},
// CHECK-SAME: %[[W0:arg1]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["layers.0.w"],
// CHECK-SAME: %[[B0:arg2]]: !torch.vtensor<[2],f32> {hp.fqn = ["layers.0.b"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\]\]}}>, hp.trainable},
// CHECK-SAME: %[[W1:arg3]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["layers.1.w"],
// CHECK-SAME: %{{arg4}}: !torch.vtensor<[4],f32> {hp.fqn = ["scale"], hp.role = "buffer"},
// CHECK-SAME: %[[X:arg5]]: !torch.vtensor<[2,4],f32> {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \[\]\]}}>})
// CHECK-SAME: -> (!torch.vtensor<[],f32> {hp.role = "loss"},
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.batch_dim = 0 : i64, hp.name = "y", hp.role = "output", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \[\]\]}}>},
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.fqn = ["embed"], hp.role = "grad", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \[\]\]}}>},
// CHECK-SAME: !torch.vtensor<[2],f32> {hp.fqn = ["layers.0.b"], hp.role = "grad", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\]\]}}>}
func.func @units_and_root(
    %embed: !weight {hp.fqn = ["embed"], hp.role = "param", hp.trainable},
    %w0: !weight {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable},
    %b0: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.b"], hp.role = "param", hp.trainable},
    %w1: !weight {hp.fqn = ["layers.1.w"], hp.role = "param", hp.trainable},
    %scale: !torch.vtensor<[4],f32> {hp.fqn = ["scale"], hp.role = "buffer"},
    %x: !act {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !act {hp.name = "y", hp.role = "output", hp.batch_dim = 0 : i64},
        !weight {hp.fqn = ["embed"], hp.role = "grad"}, !weight {hp.fqn = ["layers.0.w"], hp.role = "grad"},
        !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.b"], hp.role = "grad"},
        !weight {hp.fqn = ["layers.1.w"], hp.role = "grad"}) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %dims = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  // A parameter of the root unit is gathered at its own first use.
  // CHECK: %[[F:.*]] = "hp.all_gather"(%[[EMBED]]) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["embed"], hp.module = "", hp.phase = "forward", hp.unit = "", mesh = @mesh}
  // CHECK-SAME: (!torch.vtensor<[2,4],f32>) -> !hp.future<[!torch.vtensor<[4,4],f32>]>
  // CHECK-NEXT: %[[FULL:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: %[[H:.*]] = torch.aten.mm %[[X]], %[[FULL]]
  %h = torch.aten.mm %x, %embed {hp.module = "", hp.phase = "forward"} : !act, !weight -> !act
  // A unit's gathers start together before the first use of any of its parameters; each is waited for at its own.
  // CHECK-NEXT: %[[FW0:.*]] = "hp.all_gather"(%[[W0]]) {{.*}}hp.fqn = ["layers.0.w"], hp.module = "layers.0", hp.phase = "forward", hp.unit = "layers.0"
  // CHECK-NEXT: %[[FB0:.*]] = "hp.all_gather"(%[[B0]]) {{.*}}hp.fqn = ["layers.0.b"], hp.module = "layers.0", hp.phase = "forward", hp.unit = "layers.0"
  // CHECK-NEXT: %[[FULLW0:.*]] = "hp.wait"(%[[FW0]]) {hp.fqn = ["layers.0.w"], hp.module = "layers.0", hp.phase = "forward", hp.unit = "layers.0"}
  // CHECK-NEXT: %[[M0:.*]] = torch.aten.mm %[[H]], %[[FULLW0]]
  // CHECK-NEXT: %[[FULLB0:.*]] = "hp.wait"(%[[FB0]])
  // CHECK-NEXT: torch.aten.add.Tensor %[[M0]], %[[FULLB0]]
  %m0 = torch.aten.mm %h, %w0 {hp.module = "layers.0", hp.phase = "forward"} : !act, !weight -> !act
  %h0 = torch.aten.add.Tensor %m0, %b0, %int1 {hp.module = "layers.0", hp.phase = "forward"} : !act, !torch.vtensor<[4],f32>, !torch.int -> !act
  // CHECK-NEXT: %[[FW1:.*]] = "hp.all_gather"(%[[W1]])
  // CHECK-NEXT: %[[FULLW1:.*]] = "hp.wait"(%[[FW1]])
  // CHECK-NEXT: torch.aten.mm %{{.*}}, %[[FULLW1]]
  %y = torch.aten.mm %h0, %w1 {hp.module = "layers.1", hp.phase = "forward"} : !act, !weight -> !act
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !act, !torch.none -> !scalar
  %g = torch.aten.ones_like %y, %none, %none, %none, %none, %none {hp.phase = "backward"} : !act, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none -> !act
  %h0t = torch.aten.t %h0 {hp.module = "layers.1", hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  // A unit's gradients are reduced as soon as it has all of them: the mean over data ranks.
  // CHECK: %[[DW1:.*]] = torch.aten.mm {{.*}} -> !torch.vtensor<[4,4],f32>
  // CHECK-NEXT: %[[RW1:.*]] = "hp.reduce_scatter"(%[[DW1]]) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["layers.1.w"], hp.module = "layers.1", hp.phase = "backward", hp.unit = "layers.1", mesh = @mesh, reduce = "avg"}
  // CHECK-SAME: (!torch.vtensor<[4,4],f32>) -> !hp.future<[!torch.vtensor<[2,4],f32>]>
  %dw1 = torch.aten.mm %h0t, %g {hp.module = "layers.1", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  // The backward gathers anew.
  // CHECK-NEXT: %[[BW1:.*]] = "hp.all_gather"(%[[W1]]) {{.*}}hp.phase = "backward", hp.unit = "layers.1"
  // CHECK-NEXT: %[[FULLBW1:.*]] = "hp.wait"(%[[BW1]]) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: torch.aten.t %[[FULLBW1]]
  %w1t = torch.aten.t %w1 {hp.module = "layers.1", hp.phase = "backward"} : !weight -> !weight
  %g0 = torch.aten.mm %g, %w1t {hp.module = "layers.1", hp.phase = "backward"} : !act, !weight -> !act
  // A unit's reductions start together behind the last of its gradients.
  // CHECK: %[[DB0:.*]] = torch.aten.sum.dim_IntList
  // CHECK-NOT: hp.reduce_scatter
  %db0 = torch.aten.sum.dim_IntList %g0, %dims, %false, %none {hp.module = "layers.0", hp.phase = "backward"} : !act, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4],f32>
  %ht = torch.aten.t %h {hp.module = "layers.0", hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  // CHECK: %[[DW0:.*]] = torch.aten.mm {{.*}} -> !torch.vtensor<[4,4],f32>
  // CHECK-NEXT: %[[RW0:.*]] = "hp.reduce_scatter"(%[[DW0]]) {{.*}}hp.fqn = ["layers.0.w"]
  // CHECK-NEXT: %[[RB0:.*]] = "hp.reduce_scatter"(%[[DB0]]) {{.*}}hp.fqn = ["layers.0.b"]
  // The waits of a unit stand behind the last start of the unit that comes next.
  // CHECK-NEXT: %[[GW1:.*]] = "hp.wait"(%[[RW1]])
  %dw0 = torch.aten.mm %ht, %g0 {hp.module = "layers.0", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  // The bias has no use in the backward: only the weight is gathered.
  // CHECK-NEXT: "hp.all_gather"(%[[W0]]) {{.*}}hp.phase = "backward"
  // CHECK-NOT: "hp.all_gather"
  %w0t = torch.aten.t %w0 {hp.module = "layers.0", hp.phase = "backward"} : !weight -> !weight
  %g1 = torch.aten.mm %g0, %w0t {hp.module = "layers.0", hp.phase = "backward"} : !act, !weight -> !act
  %xt = torch.aten.t %x {hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  // CHECK: %[[RE:.*]] = "hp.reduce_scatter"({{.*}}hp.fqn = ["embed"]
  // CHECK-NEXT: %[[GW0:.*]] = "hp.wait"(%[[RW0]])
  // CHECK-NEXT: %[[GB0:.*]] = "hp.wait"(%[[RB0]])
  // CHECK-NEXT: %[[GE:.*]] = "hp.wait"(%[[RE]])
  // CHECK-NEXT: return %{{.*}}, %{{.*}}, %[[GE]], %[[GW0]], %[[GB0]], %[[GW1]]
  %de = torch.aten.mm %xt, %g1 {hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  return %loss, %y, %de, %dw0, %db0, %dw1 : !scalar, !act, !weight, !weight, !torch.vtensor<[4],f32>, !weight
}

// -----

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// A 0-d parameter cannot be split: it stays whole and its gradient is all-reduced, not forgotten.
// CHECK-LABEL: func.func @scalar_parameter
// CHECK-SAME: %[[S:arg0]]: !torch.vtensor<[],f32> {hp.fqn = ["s"], hp.role = "param", hp.trainable}
// CHECK-SAME: !torch.vtensor<[],f32> {hp.fqn = ["s"], hp.role = "grad"}
func.func @scalar_parameter(
    %s: !scalar {hp.fqn = ["s"], hp.role = "param", hp.trainable},
    %w: !vec {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !scalar {hp.fqn = ["s"], hp.role = "grad"},
        !vec {hp.fqn = ["layers.0.w"], hp.role = "grad"}) {
  %none = torch.constant.none
  // CHECK: torch.aten.mul.Tensor %{{.*}}, %[[S]]
  %y = torch.aten.mul.Tensor %x, %s {hp.phase = "forward"} : !vec, !scalar -> !vec
  %z = torch.aten.mul.Tensor %y, %w {hp.phase = "forward"} : !vec, !vec -> !vec
  %loss = torch.aten.sum %z, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  %dy = torch.aten.mul.Tensor %x, %w {hp.phase = "backward"} : !vec, !vec -> !vec
  // CHECK: %[[D:.*]] = torch.aten.sum
  // CHECK: %[[D:.*]] = torch.aten.sum
  // CHECK-NEXT: %[[R:.*]] = "hp.all_reduce"(%[[D]]) {axes = ["dp"], hp.fqn = ["s"], {{.*}}reduce = "avg"}
  %ds = torch.aten.sum %dy, %none {hp.phase = "backward"} : !vec, !torch.none -> !scalar
  // A gradient that the forward made is reduced with the backward's last.
  // CHECK-NEXT: %[[RW:.*]] = "hp.reduce_scatter"(%{{.*}}) {{.*}}hp.fqn = ["layers.0.w"]
  // CHECK-NEXT: %[[G:.*]] = "hp.wait"(%[[R]])
  // CHECK-NEXT: %[[GW:.*]] = "hp.wait"(%[[RW]])
  // CHECK-NEXT: return %{{.*}}, %[[G]], %[[GW]]
  return %loss, %ds, %y : !scalar, !scalar, !vec
}

// -----

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// A loss with a weight: the sum is reduced, and divided once by the weight.
// CHECK-LABEL: func.func @weighted_loss
func.func @weighted_loss(
    %w: !vec {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable},
    %s: !scalar {hp.fqn = ["s"], hp.role = "param", hp.trainable},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !scalar {hp.role = "weight"}, !vec {hp.fqn = ["layers.0.w"], hp.role = "grad"},
        !scalar {hp.fqn = ["s"], hp.role = "grad"}) {
  %none = torch.constant.none
  %z = torch.aten.mul.Tensor %x, %w {hp.phase = "forward"} : !vec, !vec -> !vec
  %sum = torch.aten.sum %z, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  %loss = torch.aten.mul.Tensor %sum, %s {hp.phase = "forward"} : !scalar, !scalar -> !scalar
  // CHECK: "hp.reduce_scatter"{{.*}} reduce = "sum"
  %dw = torch.aten.mul.Tensor %x, %s {hp.phase = "backward"} : !vec, !scalar -> !vec
  // CHECK: "hp.all_reduce"{{.*}} reduce = "sum"
  return %loss, %sum, %dw, %sum : !scalar, !scalar, !vec, !scalar
}

// -----

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// One value is the gradient of two parameters, and an argument that of a third: each is reduced once.
// CHECK-LABEL: func.func @shared_gradient
// CHECK-SAME: %[[A:arg0]]: {{.*}}%[[B:arg1]]: {{.*}}%[[C:arg2]]: {{.*}}%[[X:arg3]]:
func.func @shared_gradient(
    %a: !vec {hp.fqn = ["layers.0.a"], hp.role = "param", hp.trainable},
    %b: !vec {hp.fqn = ["layers.0.b"], hp.role = "param", hp.trainable},
    %c: !vec {hp.fqn = ["layers.0.c"], hp.role = "param", hp.trainable},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !vec {hp.fqn = ["layers.0.a"], hp.role = "grad"},
        !vec {hp.fqn = ["layers.0.b"], hp.role = "grad"}, !vec {hp.fqn = ["layers.0.c"], hp.role = "grad"}) {
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  %ab = torch.aten.add.Tensor %a, %b, %int1 {hp.phase = "forward"} : !vec, !vec, !torch.int -> !vec
  %abc = torch.aten.mul.Tensor %ab, %c {hp.phase = "forward"} : !vec, !vec -> !vec
  %loss = torch.aten.sum %abc, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  // CHECK: %[[ONES:.*]] = torch.aten.ones_like
  // CHECK-NEXT: %[[RA:.*]] = "hp.reduce_scatter"(%[[ONES]]) {{.*}}hp.fqn = ["layers.0.a"]
  // CHECK-NEXT: %[[RB:.*]] = "hp.reduce_scatter"(%[[ONES]]) {{.*}}hp.fqn = ["layers.0.b"]
  %ones = torch.aten.ones_like %ab, %none, %none, %none, %none, %none {hp.phase = "backward"} : !vec, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none -> !vec
  // CHECK-NEXT: %[[RC:.*]] = "hp.reduce_scatter"(%[[X]]) {{.*}}hp.fqn = ["layers.0.c"]
  // CHECK-NEXT: %[[GA:.*]] = "hp.wait"(%[[RA]])
  // CHECK-NEXT: %[[GB:.*]] = "hp.wait"(%[[RB]])
  // CHECK-NEXT: %[[GC:.*]] = "hp.wait"(%[[RC]])
  // CHECK-NEXT: return %{{.*}}, %[[GA]], %[[GB]], %[[GC]]
  return %loss, %ones, %ones, %x : !scalar, !vec, !vec, !vec
}
