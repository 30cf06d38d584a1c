// RUN: hp-opt %s --hp-set-mesh=axes=dp:2 --hp-fsdp=axes=dp --hp-simplify --hp-verify-level | FileCheck %s

// Sizes that change stay what they are: an argument is one rank's, and the guards go along.

// CHECK-LABEL: func.func @joint
// CHECK-SAME: %[[W:[a-z0-9]+]]: !torch.vtensor<[2,4],f32>
// CHECK-SAME: %[[ROWS:[a-z0-9]+]]: !torch.int {hp.example = 4 : i64, hp.name = "rows", hp.role = "size"}
// CHECK-SAME: !torch.vtensor<[?,4],f32> {hp.batch_dim = 0 : i64, hp.dim_names = ["rows", ""], hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, {{\[}}["dp"], []]>}
// CHECK-SAME: hp.guards = ["rows <= 8"]
// CHECK: torch.aten.mul.int %[[ROWS]], %[[ROWS]]
// CHECK-NOT: torch.aten.mul.int
// CHECK: "hp.all_gather"(%[[W]])
// CHECK: "hp.reduce_scatter"
module attributes {hp.level = "joint"} {
  func.func @joint(%w: !torch.vtensor<[4,4],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %n: !torch.int {hp.role = "size", hp.name = "rows", hp.example = 4 : i64}, %x: !torch.vtensor<[?,4],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.dim_names = ["rows", ""]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[4,4],f32> {hp.role = "grad", hp.fqn = ["w"]}) attributes {hp.guards = ["rows <= 8"]} {
    %none = torch.constant.none
    %sq = torch.aten.mul.int %n, %n : !torch.int, !torch.int -> !torch.int
    %again = torch.aten.mul.int %n, %n : !torch.int, !torch.int -> !torch.int
    %y = torch.aten.mm %x, %w : !torch.vtensor<[?,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[?,4],f32>
    %s = torch.aten.mul.Scalar %y, %sq : !torch.vtensor<[?,4],f32>, !torch.int -> !torch.vtensor<[?,4],f32>
    %u = torch.aten.mul.Scalar %s, %again : !torch.vtensor<[?,4],f32>, !torch.int -> !torch.vtensor<[?,4],f32>
    %loss = torch.aten.sum %u, %none : !torch.vtensor<[?,4],f32>, !torch.none -> !torch.vtensor<[],f32>
    %t = torch.aten.t %x : !torch.vtensor<[?,4],f32> -> !torch.vtensor<[4,?],f32>
    %g = torch.aten.mm %t, %u : !torch.vtensor<[4,?],f32>, !torch.vtensor<[?,4],f32> -> !torch.vtensor<[4,4],f32>
    return %loss, %g : !torch.vtensor<[],f32>, !torch.vtensor<[4,4],f32>
  }
}
