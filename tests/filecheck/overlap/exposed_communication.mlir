// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-overlap-collectives='costs=%S/costs.toml' | filecheck %s

!shard = !torch.vtensor<[2,4],f32>
!full = !torch.vtensor<[4,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>

// Each op takes 1 ms; a gather of 64 bytes sends 32 and takes 2 ms. Communication takes its turns: the second gather waits
// for the first, and is exposed for the 1 ms by which it ends after the ops beside it.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-remark@below {{@exposed: communication takes 7 ms, 4 ms of it exposed; computation takes 4 ms; gathered parameters take at most 128 bytes}}
  func.func @exposed(
      %a: !shard {hp.fqn = ["l0.a"], hp.role = "param"}, %b: !shard {hp.fqn = ["l1.b"], hp.role = "param"},
      %x: !full {hp.name = "x", hp.role = "input"}) -> (!full {hp.name = "y", hp.role = "output"}, !full {hp.fqn = ["l1.b"], hp.role = "grad"}) {
    // expected-remark@below {{'hp.all_gather' op of 'l0.a' (forward): 64 bytes over dp take 2 ms, 2 ms of it exposed}}
    %fa = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["l0.a"], hp.phase = "forward", hp.unit = "l0", mesh = @mesh} : (!shard) -> !future
    %wa = "hp.wait"(%fa) : (!future) -> !full
    %h0 = torch.aten.mm %x, %wa : !full, !full -> !full
    // Views cost nothing.
    %t0 = torch.aten.t %h0 : !full -> !full
    // expected-remark@below {{'hp.all_gather' op of bucket 'l1' (forward): 64 bytes over dp take 2 ms, 1 ms of it exposed}}
    %fb = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, hp.bucket = "l1", hp.fqn = ["l1.b"], hp.phase = "forward", hp.unit = "l1", mesh = @mesh} : (!shard) -> !future
    %wb = "hp.wait"(%fb) : (!future) -> !full
    %h1 = torch.aten.mm %t0, %wb : !full, !full -> !full
    // expected-remark@below {{'hp.all_reduce' op of 1 tensor: 64 bytes over dp take 3 ms, 1 ms of it exposed}}
    %r = "hp.all_reduce"(%h1) {axes = ["dp"], mesh = @mesh, reduce = "avg"} : (!full) -> !future
    %g = "hp.wait"(%r) : (!future) -> !full
    %h2 = torch.aten.mm %h1, %h1 : !full, !full -> !full
    %h3 = torch.aten.relu %h2 : !full -> !full
    // CHECK: "hp.all_reduce"
    // CHECK-NEXT: torch.aten.mm
    // CHECK-NEXT: torch.aten.relu
    // CHECK-NEXT: "hp.wait"
    return %h3, %g : !full, !full
  }
}

// -----

!full = !torch.vtensor<[4,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>

// Rule 6: of collectives that are needed by the same op, the one that takes longest starts first: here by the rates of
// its axis.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["slow", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @longest_first
  // CHECK-NEXT: "hp.all_reduce"(%arg1) {axes = ["slow"]
  // CHECK-NEXT: "hp.all_reduce"(%arg0) {axes = ["dp"]
  // CHECK-NEXT: "hp.wait"(%1)
  // CHECK-NEXT: "hp.wait"(%0)
  // expected-remark@below {{@longest_first: communication takes 12 ms, 12 ms of it exposed; computation takes 1 ms}}
  func.func @longest_first(%x: !full {hp.name = "x", hp.role = "input"}, %y: !full {hp.name = "y", hp.role = "input"})
      -> (!full {hp.name = "z", hp.role = "output"}) {
    // expected-remark@below {{of 1 tensor: 64 bytes over dp take 3 ms, 12 ms of it exposed}}
    %rx = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "sum"} : (!full) -> !future
    // expected-remark@below {{of 1 tensor: 64 bytes over slow take 9 ms, 0 us of it exposed}}
    %ry = "hp.all_reduce"(%y) {axes = ["slow"], mesh = @mesh, reduce = "sum"} : (!full) -> !future
    %a = "hp.wait"(%rx) : (!future) -> !full
    %b = "hp.wait"(%ry) : (!future) -> !full
    %z = torch.aten.mm %a, %b : !full, !full -> !full
    return %z : !full
  }
}
