// RUN: hp-opt %s --hp-set-mesh=axes=r:2,dp:2 --hp-fsdp='axes=dp replicate-axes=r units=layers.*' | filecheck %s
// RUN: hp-opt %s --hp-set-mesh=axes=r:2,dp:2 --hp-fsdp='replicate-axes=dp,r' | filecheck %s --check-prefix=DDP
// RUN: hp-opt %s --hp-set-mesh=axes=r:2,dp:2 --hp-fsdp='axes=dp replicate-axes=r ignore=layers.0,layers.2.*' | filecheck %s --check-prefix=IGNORE
// RUN: hp-opt %s --hp-set-mesh=axes=r:1,dp:1 --hp-fsdp='axes=dp replicate-axes=r units=layers.*' | filecheck %s --check-prefix=ONE

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// HSDP: split over dp, equal copies over r; the batch is split over both, in mesh order.
// CHECK-LABEL: func.func @three_units
// CHECK-SAME: !torch.vtensor<[2],f32> {hp.fqn = ["layers.0.w"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\]\]}}>
// CHECK-SAME: hp.role = "input", hp.sharding = #hp.sharding<@mesh, {{\[\["r", "dp"\]\]}}>

// Plain data parallel: parameters stay whole and are not gathered; gradients are all-reduced over both axes at once.
// DDP-LABEL: func.func @three_units
// DDP-SAME: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable}
// DDP-SAME: hp.role = "input", hp.sharding = #hp.sharding<@mesh, {{\[\["r", "dp"\]\]}}>
// DDP-SAME: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "grad"}
// DDP-NOT: "hp.all_gather"

// Ignored parameters stay whole and are reduced over all data axes; the others are split.
// IGNORE-LABEL: func.func @three_units
// IGNORE-SAME: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable}
// IGNORE-SAME: !torch.vtensor<[2],f32> {hp.fqn = ["layers.1.w"], hp.role = "param", hp.sharding
// IGNORE-SAME: !torch.vtensor<[4],f32> {hp.fqn = ["layers.2.w"], hp.role = "param", hp.trainable}

// Axes of size 1: the same ops on the same values.
// ONE-LABEL: func.func @three_units
// ONE-SAME: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\]\]}}>
// ONE: "hp.all_gather"{{.*}} (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
func.func @three_units(
    %w0: !vec {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable},
    %w1: !vec {hp.fqn = ["layers.1.w"], hp.role = "param", hp.trainable},
    %w2: !vec {hp.fqn = ["layers.2.w"], hp.role = "param", hp.trainable},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !vec {hp.fqn = ["layers.0.w"], hp.role = "grad"},
        !vec {hp.fqn = ["layers.1.w"], hp.role = "grad"}, !vec {hp.fqn = ["layers.2.w"], hp.role = "grad"}) {
  %none = torch.constant.none
  %h0 = torch.aten.mul.Tensor %x, %w0 {hp.phase = "forward"} : !vec, !vec -> !vec
  %h1 = torch.aten.mul.Tensor %h0, %w1 {hp.phase = "forward"} : !vec, !vec -> !vec
  %h2 = torch.aten.mul.Tensor %h1, %w2 {hp.phase = "forward"} : !vec, !vec -> !vec
  %loss = torch.aten.sum %h2, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  // CHECK: %[[D2:.*]] = torch.aten.sin
  // CHECK-NEXT: %[[S2:.*]] = "hp.reduce_scatter"(%[[D2]]) {axes = ["dp"], {{.*}}hp.fqn = ["layers.2.w"]
  // DDP: %[[D2:.*]] = torch.aten.sin
  // DDP-NEXT: %[[R2:.*]] = "hp.all_reduce"(%[[D2]]) {axes = ["r", "dp"], hp.fqn = ["layers.2.w"], {{.*}}reduce = "avg"}
  // IGNORE: torch.aten.sin
  // IGNORE-NEXT: "hp.all_reduce"({{.*}}axes = ["r", "dp"], hp.fqn = ["layers.2.w"]
  // ONE: torch.aten.sin
  // ONE-NEXT: "hp.reduce_scatter"({{.*}}axes = ["dp"]
  %d2 = torch.aten.sin %h1 {hp.phase = "backward"} : !vec -> !vec
  // Behind the start of the next unit: the reduce-scatter is waited for and the all-reduce over the copies starts.
  // CHECK-NEXT: %[[D1:.*]] = torch.aten.cos
  // CHECK-NEXT: %[[S1:.*]] = "hp.reduce_scatter"(%[[D1]]) {axes = ["dp"], {{.*}}hp.fqn = ["layers.1.w"]
  // CHECK-NEXT: %[[P2:.*]] = "hp.wait"(%[[S2]])
  // CHECK-NEXT: %[[R2:.*]] = "hp.all_reduce"(%[[P2]]) {axes = ["r"], hp.fqn = ["layers.2.w"], hp.module = "layers.2", hp.phase = "backward", hp.unit = "layers.2", mesh = @mesh, reduce = "avg"}
  // CHECK-SAME: (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
  // DDP: %[[R1:.*]] = "hp.all_reduce"({{.*}}hp.fqn = ["layers.1.w"]
  // DDP-NEXT: %[[G2:.*]] = "hp.wait"(%[[R2]])
  // IGNORE: "hp.reduce_scatter"({{.*}}axes = ["dp"], {{.*}}hp.fqn = ["layers.1.w"]
  %d1 = torch.aten.cos %h0 {hp.phase = "backward"} : !vec -> !vec
  // Behind the start of the one after that, the all-reduce is waited for.
  // CHECK-NEXT: %[[D0:.*]] = torch.aten.tanh
  // CHECK-NEXT: %[[S0:.*]] = "hp.reduce_scatter"(%[[D0]]) {axes = ["dp"], {{.*}}hp.fqn = ["layers.0.w"]
  // CHECK-NEXT: %[[G2:.*]] = "hp.wait"(%[[R2]])
  // CHECK-NEXT: %[[P1:.*]] = "hp.wait"(%[[S1]])
  // CHECK-NEXT: %[[R1:.*]] = "hp.all_reduce"(%[[P1]])
  // CHECK-NEXT: %[[G1:.*]] = "hp.wait"(%[[R1]])
  // CHECK-NEXT: %[[P0:.*]] = "hp.wait"(%[[S0]])
  // CHECK-NEXT: %[[R0:.*]] = "hp.all_reduce"(%[[P0]])
  // CHECK-NEXT: %[[G0:.*]] = "hp.wait"(%[[R0]])
  // CHECK-NEXT: return %{{.*}}, %[[G0]], %[[G1]], %[[G2]]
  // DDP: %[[R0:.*]] = "hp.all_reduce"({{.*}}hp.fqn = ["layers.0.w"]
  // DDP-NEXT: %[[G1:.*]] = "hp.wait"(%[[R1]])
  // DDP-NEXT: %[[G0:.*]] = "hp.wait"(%[[R0]])
  // DDP-NEXT: return %{{.*}}, %[[G0]], %[[G1]], %[[G2]]
  // IGNORE: "hp.all_reduce"({{.*}}axes = ["r", "dp"], hp.fqn = ["layers.0.w"]
  // IGNORE: "hp.all_reduce"({{.*}}axes = ["r"], hp.fqn = ["layers.1.w"]
  // IGNORE-NOT: "hp.all_reduce"
  // ONE: "hp.all_reduce"({{.*}}axes = ["r"]
  %d0 = torch.aten.tanh %x {hp.phase = "backward"} : !vec -> !vec
  return %loss, %d0, %d1, %d2 : !scalar, !vec, !vec, !vec
}
