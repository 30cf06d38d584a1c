// RUN: hp-opt %s --hp-simplify | filecheck %s

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // What is packed of parameters is merged within a phase only, what is packed of anything else wherever it stands; what
  // nobody takes out is not gathered.
  // CHECK-LABEL: func.func @packed(
  func.func @packed(%a: !s {hp.fqn = ["a"], hp.role = "param"}, %b: !s {hp.fqn = ["b"], hp.role = "param"}, %x: !s {hp.name = "x", hp.role = "input"}) -> (!f, !f, !f, !f, !f) {
    // CHECK-NEXT: %[[P:.*]] = "hp.pack"(%arg0, %arg1) {{.*}}hp.phase = "forward"
    // CHECK-NEXT: %[[Q:.*]] = "hp.pack"(%arg0, %arg1) {{.*}}hp.phase = "backward"
    // CHECK-NEXT: %[[X:.*]] = "hp.pack"(%arg2, %arg2)
    // CHECK-NEXT: return %[[P]], %[[P]], %[[Q]], %[[X]], %[[X]]
    %0 = "hp.pack"(%a, %b) {alignment = 1 : i64, ranks = 1 : i64, hp.phase = "forward"} : (!s, !s) -> !f
    %1 = "hp.pack"(%a, %b) {alignment = 1 : i64, ranks = 1 : i64, hp.phase = "forward"} : (!s, !s) -> !f
    %2 = "hp.pack"(%a, %b) {alignment = 1 : i64, ranks = 1 : i64, hp.phase = "backward"} : (!s, !s) -> !f
    %3 = "hp.pack"(%x, %x) {alignment = 1 : i64, ranks = 1 : i64, hp.phase = "forward"} : (!s, !s) -> !f
    %4 = "hp.pack"(%x, %x) {alignment = 1 : i64, ranks = 1 : i64, hp.phase = "backward"} : (!s, !s) -> !f
    %5 = "hp.all_gather"(%0) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward"} : (!f) -> !hp.future<[!torch.vtensor<[16],f32>]>
    %6 = "hp.wait"(%5) : (!hp.future<[!torch.vtensor<[16],f32>]>) -> !torch.vtensor<[16],f32>
    %7:2 = "hp.unpack"(%6) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 0>, layout = "flat"} : (!torch.vtensor<[16],f32>) -> (!f, !f)
    return %0, %1, %2, %3, %4 : !f, !f, !f, !f, !f
  }

  // CHECK-LABEL: func.func @unpacked(
  func.func @unpacked(%a: !f {hp.fqn = ["a"], hp.role = "param"}) -> (!f, !f, !f) {
    // CHECK: %[[U:.*]]:2 = "hp.unpack"({{.*}}hp.phase = "forward"
    // CHECK: %[[V:.*]]:2 = "hp.unpack"({{.*}}hp.phase = "backward"
    // CHECK: return %[[U]]#0, %[[U]]#1, %[[V]]#0
    %0 = "hp.all_gather"(%a) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward"} : (!f) -> !hp.future<[!torch.vtensor<[16],f32>]>
    %1 = "hp.wait"(%0) : (!hp.future<[!torch.vtensor<[16],f32>]>) -> !torch.vtensor<[16],f32>
    %2:2 = "hp.unpack"(%1) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 0>, layout = "flat", hp.phase = "forward"} : (!torch.vtensor<[16],f32>) -> (!f, !f)
    %3:2 = "hp.unpack"(%1) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 0>, layout = "flat", hp.phase = "backward"} : (!torch.vtensor<[16],f32>) -> (!f, !f)
    return %2#0, %2#1, %3#0 : !f, !f, !f
  }
}
