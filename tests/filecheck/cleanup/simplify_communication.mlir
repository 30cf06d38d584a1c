// RUN: hp-opt %s --hp-simplify --split-input-file | filecheck %s

// All ranks run the same function: an unused gather goes with its wait, a repeated one merges, the backward's stays.
// CHECK-LABEL: @gathers
// CHECK:         %[[F:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.phase = "forward"
// CHECK-NEXT:    %[[FULL:.*]] = "hp.wait"(%[[F]])
// CHECK-NEXT:    %[[B:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.phase = "backward"
// CHECK-NEXT:    %[[AGAIN:.*]] = "hp.wait"(%[[B]])
// CHECK-NEXT:    return %[[FULL]], %[[FULL]], %[[AGAIN]]
module @gathers attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
    %f0 = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %w0 = "hp.wait"(%f0) {hp.phase = "forward"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    %f1 = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %w1 = "hp.wait"(%f1) {hp.phase = "forward"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    %f2 = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "backward"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %w2 = "hp.wait"(%f2) {hp.phase = "backward"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    %f3 = "hp.all_reduce"(%w) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %unused = "hp.wait"(%f3) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %w0, %w1, %w2 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
  }
}

// -----

// Gathers of two units are two gathers, and a bucket stays whole while one of its tensors is used.
// CHECK-LABEL: @units
// CHECK-COUNT-3: "hp.all_gather"
// CHECK:         return
module @units attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
    %f0 = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.unit = "a"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %w0 = "hp.wait"(%f0) : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    %f1 = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.unit = "b"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %w1 = "hp.wait"(%f1) : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    %f2 = "hp.all_gather"(%w, %w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>} : (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>]>
    %w2:2 = "hp.wait"(%f2) : (!hp.future<[!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>]>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>)
    return %w0, %w1, %w2#1 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
  }
}

// -----

// Without a gather of its own the backward keeps its own views and casts of what the forward waited for and of a
// parameter, so that nothing it reads is alive between the phases; other compute merges.
// CHECK-LABEL: @views
// CHECK:         %[[FULL:.*]] = "hp.wait"
// CHECK:         torch.aten.t %[[FULL]] {hp.phase = "forward"}
// CHECK:         %[[T:.*]] = torch.aten.t %[[FULL]] {hp.phase = "backward"}
// CHECK-NEXT:    %[[TT:.*]] = torch.aten.detach %[[T]] {hp.phase = "backward"}
// CHECK-NEXT:    torch.aten.mm %[[T]], %[[TT]]
// CHECK-NEXT:    torch.aten.t %arg1 {hp.phase = "forward"}
// CHECK-NEXT:    torch.aten.t %arg1 {hp.phase = "backward"}
// CHECK-NEXT:    torch.aten.t %arg2 {hp.phase = "forward"}
// CHECK-NEXT:    return
module @views attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2,4],f32> {hp.role = "param", hp.fqn = ["w"]}, %p: !torch.vtensor<[4,4],f32> {hp.role = "param", hp.fqn = ["p"]}, %x: !torch.vtensor<[4,4],f32> {hp.role = "input", hp.name = "x"}) -> (!torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>) {
    %f = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward"} : (!torch.vtensor<[2,4],f32>) -> !hp.future<[!torch.vtensor<[4,4],f32>]>
    %full = "hp.wait"(%f) {hp.phase = "forward"} : (!hp.future<[!torch.vtensor<[4,4],f32>]>) -> !torch.vtensor<[4,4],f32>
    %0 = torch.aten.t %full {hp.phase = "forward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %1 = torch.aten.t %full {hp.phase = "backward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %2 = torch.aten.detach %1 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %3 = torch.aten.detach %1 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %4 = torch.aten.mm %1, %2 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %5 = torch.aten.mm %1, %3 {hp.phase = "backward"} : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %6 = torch.aten.t %p {hp.phase = "forward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %7 = torch.aten.t %p {hp.phase = "backward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %8 = torch.aten.t %x {hp.phase = "forward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    %9 = torch.aten.t %x {hp.phase = "backward"} : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
    return %0, %5, %6, %7, %8, %9 : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],f32>
  }
}

// -----

// Messages stay at any level: another rank waits for them.
// CHECK-LABEL: @messages
// CHECK-COUNT-2: "hp.send"
// CHECK:         %[[F:.*]] = "hp.recv"
// CHECK-NEXT:    "hp.wait"(%[[F]])
module @messages attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%x: !torch.vtensor<[2],f32>) {
    "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!torch.vtensor<[2],f32>) -> ()
    "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!torch.vtensor<[2],f32>) -> ()
    %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 1 : i64} : () -> !hp.future<[!torch.vtensor<[2],f32>]>
    %unused = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return
  }
}

// -----

// Ranks run different functions: a collective that this one does not need is one the others take part in.
// CHECK-LABEL: @programs
// CHECK-COUNT-2: "hp.all_reduce"
// CHECK:         "hp.wait"
// CHECK-COUNT-1: torch.aten.tanh
// CHECK-NOT:     torch.aten.tanh
module @programs attributes {hp.level = "program"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @rank0(%x: !torch.vtensor<[2],f32>) -> (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) {
    %f0 = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %f1 = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %unused = "hp.wait"(%f1) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    %0 = torch.aten.tanh %x : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    %1 = torch.aten.tanh %x : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    return %0, %1 : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}
