// RUN: hp-opt %s --split-input-file --hp-overlap-collectives 2> /dev/null | filecheck %s

!shard = !torch.vtensor<[2,4],f32>
!full = !torch.vtensor<[4,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()

  // Rule 8: no start moves up across a send. The wait for a message moves as any other does.
  // CHECK-LABEL: func.func @messages
  // CHECK-NEXT: %[[F:.*]] = "hp.recv"
  // CHECK-NEXT: %[[H:.*]] = torch.aten.relu
  // CHECK-NEXT: "hp.send"(%[[H]])
  // CHECK-NEXT: "hp.all_gather"(%arg0)
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: "hp.wait"(%[[F]])
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  func.func @messages(%w: !shard {hp.fqn = ["w"], hp.role = "param"}, %x: !full {hp.name = "x", hp.role = "input"})
      -> (!full {hp.name = "y", hp.role = "output"}) {
    %f = "hp.recv"() {axis = "pp", mesh = @mesh, peer = 1 : i64} : () -> !future
    %m = "hp.wait"(%f) : (!future) -> !full
    %h = torch.aten.relu %x : !full -> !full
    "hp.send"(%h) {axis = "pp", mesh = @mesh, peer = 1 : i64} : (!full) -> ()
    %r = torch.aten.relu %h : !full -> !full
    %g = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!shard) -> !future
    %full = "hp.wait"(%g) : (!future) -> !full
    %y0 = torch.aten.mm %r, %m : !full, !full -> !full
    %y = torch.aten.mm %y0, %full : !full, !full -> !full
    return %y : !full
  }

  // Rule 8: nothing crosses an op that changes a tensor in place.
  // CHECK-LABEL: func.func @in_place
  // CHECK-NEXT: "hp.all_gather"(%arg0)
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.overwrite.tensor.contents
  // CHECK-NEXT: "hp.all_gather"(%arg1)
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  func.func @in_place(%w: !shard {hp.fqn = ["w"], hp.role = "param"}, %v: !shard {hp.fqn = ["v"], hp.role = "param"}, %x: !full {hp.name = "x", hp.role = "input"}, %buffer: !torch.tensor<[4,4],f32>)
      -> (!full {hp.name = "y", hp.role = "output"}) {
    %f = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!shard) -> !future
    %full = "hp.wait"(%f) : (!future) -> !full
    %h = torch.aten.relu %x : !full -> !full
    torch.overwrite.tensor.contents %h overwrites %buffer : !full, !torch.tensor<[4,4],f32>
    %y0 = torch.aten.mm %h, %full : !full, !full -> !full
    %g = "hp.all_gather"(%v) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!shard) -> !future
    %other = "hp.wait"(%g) : (!future) -> !full
    %y = torch.aten.mm %y0, %other : !full, !full -> !full
    return %y : !full
  }

  // Rule 8: a gather of what another collective gives keeps its place; the wait that it needs stands before it. One
  // whose result nothing uses stays too.
  // CHECK-LABEL: func.func @chained
  // CHECK-NEXT: "hp.all_reduce"
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: "hp.all_gather"
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: "hp.all_gather"
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.tanh
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  func.func @chained(%s: !shard {hp.name = "s", hp.role = "input"}, %x: !full {hp.name = "x", hp.role = "input"})
      -> (!full {hp.name = "y", hp.role = "output"}) {
    %f = "hp.all_reduce"(%s) {axes = ["dp"], mesh = @mesh, reduce = "sum"} : (!shard) -> !hp.future<[!shard]>
    %p = "hp.wait"(%f) : (!hp.future<[!shard]>) -> !shard
    %h = torch.aten.relu %x : !full -> !full
    %g = "hp.all_gather"(%p) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!shard) -> !future
    %full = "hp.wait"(%g) : (!future) -> !full
    %r = torch.aten.relu %h : !full -> !full
    %d = "hp.all_gather"(%s) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!shard) -> !future
    %dead = "hp.wait"(%d) : (!future) -> !full
    %t = torch.aten.tanh %r : !full -> !full
    %y = torch.aten.mm %t, %full : !full, !full -> !full
    return %y : !full
  }
}
