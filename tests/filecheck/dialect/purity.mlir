// RUN: hp-opt %s --cse --canonicalize | filecheck %s

"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()

// MLIR merges and removes what only computes.
// CHECK-LABEL: func.func @computation(
// CHECK-SAME: %[[X:.*]]: !torch.vtensor<[4],f32>
func.func @computation(%x: !torch.vtensor<[4],f32>)
    -> (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) {
  // CHECK-NEXT: %[[PIECE:.*]] = "hp.shard_slice"(%[[X]])
  // CHECK-NEXT: return %[[PIECE]], %[[PIECE]]
  %0 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[2],f32>
  %1 = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[2],f32>
  %2 = "hp.microbatch"(%x) {index = 0 : i64, count = 2 : i64, dim = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[2],f32>
  %3 = "hp.accumulate"(%x, %x) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  %4 = "hp.uniform"() {stream = 0 : i64} : () -> !torch.vtensor<[],f32>
  %5 = "hp.normal"() {stream = 0 : i64} : () -> !torch.vtensor<[],f32>
  return %0, %1 : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
}

// Communication stays as it is, used or not: another rank waits for it.
// CHECK-LABEL: func.func @communication(
// CHECK-COUNT-2: "hp.all_gather"
// CHECK-COUNT-2: "hp.wait"
// CHECK: "hp.all_reduce"
// CHECK: "hp.recv"
// CHECK: "hp.send"
func.func @communication(%x: !torch.vtensor<[4],f32>) {
  %f = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  %g = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  %0 = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32>
  %1 = "hp.wait"(%g) : (!hp.future<[!torch.vtensor<[8],f32>]>) -> !torch.vtensor<[8],f32>
  %h = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %i = "hp.recv"() {mesh = @mesh, axis = "dp", peer = 0 : i64} : () -> !hp.future<[!torch.vtensor<[4],f32>]>
  "hp.send"(%x) {mesh = @mesh, axis = "dp", peer = 0 : i64} : (!torch.vtensor<[4],f32>) -> ()
  return
}
