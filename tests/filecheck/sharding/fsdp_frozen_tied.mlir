// RUN: hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 --hp-fsdp='axes=dp units=encoder,head' | filecheck %s

!act = !torch.vtensor<[2,4],f32>
!weight = !torch.vtensor<[4,4],f32>
!scalar = !torch.vtensor<[],f32>

// A frozen parameter is split as well as gathered, in the backward too (the gradient flows through it), and reduced nowhere.
// One that nothing uses is split and costs no communication.
// CHECK-LABEL: func.func @frozen_and_unused
// CHECK-SAME: %[[FROZEN:arg0]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["encoder.w"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \[\]\]}}>}
// CHECK-SAME: %[[UNUSED:arg1]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["encoder.unused"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \[\]\]}}>, hp.trainable}
// CHECK-SAME: %[[W:arg2]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["adapter.w"]
func.func @frozen_and_unused(
    %frozen: !weight {hp.fqn = ["encoder.w"], hp.role = "param"},
    %unused: !weight {hp.fqn = ["encoder.unused"], hp.role = "param", hp.trainable},
    %w: !weight {hp.fqn = ["adapter.w"], hp.role = "param", hp.trainable},
    %unused_head: !weight {hp.fqn = ["head.w"], hp.role = "param"},
    %x: !act {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["adapter.w"], hp.role = "grad"}) {
  %none = torch.constant.none
  // CHECK-NOT: %[[UNUSED]]
  // CHECK: "hp.all_gather"(%[[W]]) {{.*}}hp.phase = "forward"
  %h = torch.aten.mm %x, %w {hp.module = "adapter", hp.phase = "forward"} : !act, !weight -> !act
  // CHECK: "hp.all_gather"(%[[FROZEN]]) {{.*}}hp.phase = "forward", hp.unit = "encoder"
  // CHECK-NEXT: "hp.wait"
  %y = torch.aten.mm %h, %frozen {hp.module = "encoder", hp.phase = "forward"} : !act, !weight -> !act
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !act, !torch.none -> !scalar
  // CHECK: "hp.all_gather"(%[[FROZEN]]) {{.*}}hp.phase = "backward", hp.unit = "encoder"
  %dh = torch.aten.mm %h, %frozen {hp.module = "encoder", hp.phase = "backward"} : !act, !weight -> !act
  %xt = torch.aten.t %x {hp.module = "adapter", hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  // CHECK-NOT: "hp.all_gather"
  // CHECK: "hp.reduce_scatter"({{.*}}hp.fqn = ["adapter.w"]
  // CHECK-NOT: "hp.reduce_scatter"
  %dw = torch.aten.mm %xt, %dh {hp.module = "adapter", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  return %loss, %dw : !scalar, !weight
}

// -----

!act = !torch.vtensor<[2,4],f32>
!weight = !torch.vtensor<[4,4],f32>
!scalar = !torch.vtensor<[],f32>

// A tied parameter is one argument: one shard, one gather per phase, one gradient. A pattern on any of its names claims it.
// CHECK-LABEL: func.func @tied
// CHECK-SAME: %[[W:arg0]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["embed.w", "head.w"]
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.fqn = ["embed.w", "head.w"], hp.role = "grad"
func.func @tied(
    %w: !weight {hp.fqn = ["embed.w", "head.w"], hp.role = "param", hp.trainable},
    %encoder: !weight {hp.fqn = ["encoder.w"], hp.role = "param"},
    %x: !act {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["embed.w", "head.w"], hp.role = "grad"}) {
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  // CHECK: %[[F:.*]] = "hp.all_gather"(%[[W]]) {{.*}}hp.fqn = ["embed.w", "head.w"], hp.module = "head", hp.phase = "forward", hp.unit = "head"
  // CHECK-NEXT: %[[FULL:.*]] = "hp.wait"(%[[F]])
  // CHECK-NEXT: torch.aten.mm %{{.*}}, %[[FULL]]
  // CHECK-NOT: "hp.all_gather"
  // CHECK: torch.aten.mm %{{.*}}, %[[FULL]]
  %h = torch.aten.mm %x, %w {hp.module = "embed", hp.phase = "forward"} : !act, !weight -> !act
  %y = torch.aten.mm %h, %w {hp.module = "head", hp.phase = "forward"} : !act, !weight -> !act
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !act, !torch.none -> !scalar
  // CHECK: "hp.all_gather"(%[[W]]) {{.*}}hp.phase = "backward"
  // CHECK-NOT: "hp.all_gather"
  %dh = torch.aten.mm %y, %w {hp.module = "head", hp.phase = "backward"} : !act, !weight -> !act
  %ht = torch.aten.t %h {hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  %dhead = torch.aten.mm %ht, %dh {hp.module = "head", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  %dx = torch.aten.mm %dh, %w {hp.module = "embed", hp.phase = "backward"} : !act, !weight -> !act
  %dembed = torch.aten.mm %ht, %dx {hp.module = "embed", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  // CHECK: %[[SUM:.*]] = torch.aten.add.Tensor
  // CHECK-NEXT: "hp.reduce_scatter"(%[[SUM]]) {{.*}}hp.fqn = ["embed.w", "head.w"]
  // CHECK-NOT: "hp.reduce_scatter"
  %sum = torch.aten.add.Tensor %dhead, %dembed, %int1 {hp.phase = "backward"} : !weight, !weight, !torch.int -> !weight
  return %loss, %sum : !scalar, !weight
}
