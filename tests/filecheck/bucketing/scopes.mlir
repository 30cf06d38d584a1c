// RUN: hp-opt %s --hp-bucket-collectives='by=size cap-mb=0.0000458' 2>/dev/null | filecheck %s --check-prefix=SIZE
// RUN: hp-opt %s --hp-bucket-collectives='by=[a.x,b.*],c' 2>/dev/null | filecheck %s --check-prefix=GROUPS
// RUN: hp-opt %s --hp-bucket-collectives 2>/dev/null | filecheck %s --check-prefix=UNITS

!s = !torch.vtensor<[2],f32>
!t = !torch.vtensor<[4],f32>
!u = !torch.vtensor<[4],f32>
!v = !torch.vtensor<[8],f32>
!w = !torch.vtensor<[16],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // By size: in the order of the starts, up to 48 bytes; the whole tensor counts. What is larger travels alone. By groups: a
  // bucket for each, in every phase; what no group claims stays.
  // SIZE-LABEL: func.func @scopes
  // GROUPS-LABEL: func.func @scopes
  // UNITS-LABEL: func.func @scopes
  func.func @scopes(%a: !s {hp.fqn = ["a.x.w"], hp.role = "param"}, %b: !u {hp.fqn = ["b.0.w"], hp.role = "param"},
                    %c: !v {hp.fqn = ["c"], hp.role = "param"}, %d: !s {hp.fqn = ["d"], hp.role = "param"}) -> (!t, !v, !w, !t, !t, !v) {
    // SIZE: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "size 1", hp.fqn = ["a.x.w", "b.0.w"]
    // SIZE-NEXT: "hp.all_gather"(%{{[a-z0-9]+}}) {{.*}}hp.fqn = ["c"]
    // SIZE-NEXT: "hp.all_gather"(%{{[a-z0-9]+}}) {{.*}}hp.fqn = ["d"]
    // SIZE-NEXT: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "size 1", hp.fqn = ["a.x.w", "b.0.w"]
    // GROUPS: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "group 1", hp.fqn = ["a.x.w", "b.0.w"]
    // GROUPS-NEXT: "hp.all_gather"(%{{[a-z0-9]+}}) {{.*}}hp.fqn = ["c"]
    // GROUPS-NEXT: "hp.all_gather"(%{{[a-z0-9]+}}) {{.*}}hp.fqn = ["d"]
    // GROUPS-NEXT: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "group 1", hp.fqn = ["a.x.w", "b.0.w"]
    // UNITS: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "a", hp.fqn = ["a.x.w", "d"]
    // UNITS-NEXT: "hp.all_gather"(%{{.*}}, %{{.*}}) {{.*}}hp.bucket = "b", hp.fqn = ["b.0.w", "c"]
    // UNITS-NEXT: "hp.all_gather"(%{{[a-z0-9]+}}) {{.*}}hp.fqn = ["a.x.w"]
    // UNITS-NEXT: "hp.all_gather"(%{{[a-z0-9]+}}) {{.*}}hp.fqn = ["b.0.w"]
    %0 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a.x.w"], hp.phase = "forward", hp.unit = "a"} : (!s) -> !hp.future<[!t]>
    %1 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b.0.w"], hp.phase = "forward", hp.unit = "b"} : (!u) -> !hp.future<[!v]>
    %2 = "hp.all_gather"(%c) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["c"], hp.phase = "forward", hp.unit = "b"} : (!v) -> !hp.future<[!w]>
    %3 = "hp.all_gather"(%d) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["d"], hp.phase = "forward", hp.unit = "a"} : (!s) -> !hp.future<[!t]>
    %4 = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["a.x.w"], hp.phase = "backward", hp.unit = "a"} : (!s) -> !hp.future<[!t]>
    %5 = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["b.0.w"], hp.phase = "backward", hp.unit = "b"} : (!u) -> !hp.future<[!v]>
    %10 = "hp.wait"(%0) : (!hp.future<[!t]>) -> !t
    %11 = "hp.wait"(%1) : (!hp.future<[!v]>) -> !v
    %12 = "hp.wait"(%2) : (!hp.future<[!w]>) -> !w
    %13 = "hp.wait"(%3) : (!hp.future<[!t]>) -> !t
    %14 = "hp.wait"(%4) : (!hp.future<[!t]>) -> !t
    %15 = "hp.wait"(%5) : (!hp.future<[!v]>) -> !v
    return %10, %11, %12, %13, %14, %15 : !t, !v, !w, !t, !t, !v
  }
}
