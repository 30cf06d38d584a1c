// RUN: hp-opt %s | hp-opt - | filecheck %s
// RUN: hp-opt %s --emit-bytecode | hp-opt - | filecheck %s

// Axes per dim, major to minor; a 0-d tensor has none.
// CHECK-LABEL: func.func @shardings(
// CHECK-SAME: %arg0: !torch.vtensor<[4,8],f32> {hp.sharding = #hp.sharding<@mesh, [["tp", "dp"], []]>}
// CHECK-SAME: %arg1: !torch.vtensor<[],f32> {hp.sharding = #hp.sharding<@mesh, []>}
func.func @shardings(%x: !torch.vtensor<[4,8],f32> {hp.sharding = #hp.sharding<@mesh, [["tp", "dp"], []]>},
                     %y: !torch.vtensor<[],f32> {hp.sharding = #hp.sharding<@mesh, []>}) {
  return
}
