// RUN: hp-opt %s --hp-bucket-collectives 2> %t.remarks | filecheck %s
// RUN: filecheck %s --check-prefix=REMARK < %t.remarks

!s = !torch.vtensor<[3],f32>
!t = !torch.vtensor<[6],f32>
!e = !torch.vtensor<[2],f32>
!f = !torch.vtensor<[4],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["rep", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // Uneven shards: each member is padded by itself, inside the bucket. 5 rows on 2 ranks are 3 and 2: in the reduction of
  // shards it is the second rank that has padding.
  // CHECK-LABEL: func.func @uneven
  // REMARK: launches: 6 before, 3 after; buckets: 3, of 88 bytes and 12 bytes of padding
  // REMARK-DAG: 'hp.all_gather' op is bucket 'root' of 2 in the forward: 36 bytes and 4 bytes of padding
  // REMARK-DAG: 'hp.reduce_scatter' op is bucket 'root' of 2 in the backward: 36 bytes and 4 bytes of padding
  // REMARK-DAG: 'hp.all_reduce' op is bucket 'root' of 2 in the backward: 16 bytes and 4 bytes of padding
  func.func @uneven(%a: !s {hp.fqn = ["a"], hp.full_shape = array<i64: 5>, hp.role = "param", hp.sharding = #hp.sharding<@mesh, [["dp"]]>},
                    %b: !e {hp.fqn = ["b"], hp.role = "param", hp.sharding = #hp.sharding<@mesh, [["dp"]]>}) -> (!s, !e) {
    // CHECK: %[[F:.*]] = "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}dims = array<i64: 0, 0>
    // CHECK-SAME: (!torch.vtensor<[3],f32>, !torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[6],f32>, !torch.vtensor<[4],f32>]>
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a"], hp.phase = "forward"} : (!s) -> !hp.future<[!t]>
    %1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b"], hp.phase = "forward"} : (!e) -> !hp.future<[!f]>
    %2 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %3 = "hp.wait"(%1) : (!hp.future<[!f]>) -> !f
    %4 = "hp.reduce_scatter"(%2) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!t) -> !hp.future<[!s]>
    %5 = "hp.reduce_scatter"(%3) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!f) -> !hp.future<[!e]>
    %6 = "hp.wait"(%4) : (!hp.future<[!s]>) -> !s
    %7 = "hp.wait"(%5) : (!hp.future<[!e]>) -> !e
    %8 = "hp.all_reduce"(%6) {axes = ["rep"], mesh = @mesh, reduce = "avg", hp.fqn = ["a"], hp.phase = "backward"} : (!s) -> !hp.future<[!s]>
    %9 = "hp.all_reduce"(%7) {axes = ["rep"], mesh = @mesh, reduce = "avg", hp.fqn = ["b"], hp.phase = "backward"} : (!e) -> !hp.future<[!e]>
    %10 = "hp.wait"(%8) : (!hp.future<[!s]>) -> !s
    %11 = "hp.wait"(%9) : (!hp.future<[!e]>) -> !e
    return %10, %11 : !s, !e
  }
}
