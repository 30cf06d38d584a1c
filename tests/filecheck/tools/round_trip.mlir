// Text and bytecode say the same, locations included.
// RUN: hp-opt %s --mlir-print-debuginfo | hp-opt - --mlir-print-debuginfo | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt --mlir-print-debuginfo | filecheck %s
// RUN: hp-opt %s -o %t.mlirbc --emit-bytecode
// RUN: hp-opt %t.mlirbc -mlir-print-debuginfo -o - | filecheck %s

// CHECK: module attributes {hp.level = "joint"}
module attributes {hp.level = "joint"} {
  // CHECK: func.func @joint(%[[X:.*]]: !torch.vtensor<[2,3],f32> {hp.fqn = ["w"], hp.role = "param", hp.trainable} loc(
  func.func @joint(%x: !torch.vtensor<[2,3],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}) -> !torch.vtensor<[3,2],f32> {
    // CHECK: torch.aten.t %[[X]] {hp.module = "up"} : {{.*}} loc(#[[LOC:loc[0-9]*]])
    %0 = torch.aten.t %x {hp.module = "up"} : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[3,2],f32> loc("model.py":12:8)
    return %0 : !torch.vtensor<[3,2],f32>
  }
}
// CHECK: #[[LOC]] = loc("model.py":12:8)
