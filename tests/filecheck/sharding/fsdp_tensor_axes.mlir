// RUN: hp-opt %s --hp-fsdp=axes=dp | filecheck %s

// After a tensor partition: dp splits what tp left, minor to it on dim 0. Of the batch it is the major axis: the function
// sees one data rank's batch, of which tp holds parts.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp", "tp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // CHECK: func.func @partitioned
  // CHECK-SAME: %[[W:arg0]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["rows"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["tp", "dp"\], \[\]\]}}>
  // CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.fqn = ["columns"], hp.full_shape = array<i64: 3, 8>, hp.role = "param", hp.sharding = #hp.sharding<@mesh, {{\[\["dp"\], \["tp"\]\]}}>
  // CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, {{\[\["dp", "tp"\], \[\]\]}}>
  // CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.fqn = ["rows"], hp.role = "grad", hp.sharding = #hp.sharding<@mesh, {{\[\["tp", "dp"\], \[\]\]}}>
  func.func @partitioned(
      %rows: !torch.vtensor<[4,4],f32> {hp.fqn = ["rows"], hp.role = "param", hp.trainable, hp.sharding = #hp.sharding<@mesh, [["tp"], []]>},
      %columns: !torch.vtensor<[3,4],f32> {hp.fqn = ["columns"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, [[], ["tp"]]>},
      %x: !torch.vtensor<[2,4],f32> {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["tp"], []]>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"},
          !torch.vtensor<[4,4],f32> {hp.fqn = ["rows"], hp.role = "grad", hp.sharding = #hp.sharding<@mesh, [["tp"], []]>}) {
    %none = torch.constant.none
    // CHECK: %[[F:.*]] = "hp.all_gather"(%[[W]]) {axes = ["dp"], {{.*}} -> !hp.future<[!torch.vtensor<[4,4],f32>]>
    %y = torch.aten.mm %x, %rows {hp.phase = "forward"} : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[2,4],f32>
    %z = torch.aten.mm %columns, %rows {hp.phase = "forward"} : !torch.vtensor<[3,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[3,4],f32>
    %part = torch.aten.sum %y, %none {hp.phase = "forward"} : !torch.vtensor<[2,4],f32>, !torch.none -> !torch.vtensor<[],f32>
    // Communication over other axes stays as it is.
    // CHECK: "hp.all_reduce"({{.*}}axes = ["tp"]
    %f = "hp.all_reduce"(%part) {mesh = @mesh, axes = ["tp"], reduce = "sum"} : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
    %loss = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[],f32>]>) -> !torch.vtensor<[],f32>
    // CHECK: "hp.reduce_scatter"({{.*}}axes = ["dp"]
    %d = torch.aten.sin %rows {hp.phase = "backward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    return %loss, %d : !torch.vtensor<[],f32>, !torch.vtensor<[4,4],f32>
  }
}
