// RUN: hp-opt %s --hp-overlap-collectives='prefetch=2 memory-limit-mb=0.00014' 2>/dev/null | filecheck %s
// RUN: hp-opt %s --hp-overlap-collectives='prefetch=2' 2>&1 >/dev/null | filecheck %s --check-prefix=PEAK
// RUN: hp-opt %s --hp-overlap-collectives='prefetch=2 memory-limit-mb=0.00014' 2>&1 >/dev/null | filecheck %s --check-prefix=LIMITED
// RUN: not hp-opt %s --hp-overlap-collectives='prefetch=2 memory-limit-mb=0.00005' 2>&1 | filecheck %s --check-prefix=TOO-LOW

!shard = !torch.vtensor<[2,4],f32>
!full = !torch.vtensor<[4,4],f32>
!future = !hp.future<[!torch.vtensor<[4,4],f32>]>

// Each gathered parameter has 64 bytes; the limit is 146, so that two fit.
// PEAK: gathered parameters take at most 192 bytes
// LIMITED: 'hp.all_gather' op of 'c' (forward): starts later than prefetch=2 asks for, to stay below memory-limit-mb=0.00014
// LIMITED-NEXT: 'hp.all_gather' op of 'd' (forward): starts later than prefetch=2 asks for, to stay below memory-limit-mb=0.00014
// LIMITED: gathered parameters take at most 128 bytes
// TOO-LOW: memory_limit.mlir:{{[0-9]+}}:11: error: 'hp.all_gather' op of 'a' (forward): gathered parameters need 64 bytes at once where it is used, 64 of them for its unit, even without prefetch; memory-limit-mb=5e-05 allows 52
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()

  // Rule 7: the third gather does not fit at the entry; it starts as soon as the first parameter is freed, which is where
  // the transpose of it, a view, is used last. The fourth has to wait for the second.
  // CHECK-LABEL: func.func @limited
  // CHECK-NEXT: "hp.all_gather"(%arg0)
  // CHECK-NEXT: "hp.all_gather"(%arg1)
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.t
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.all_gather"(%arg2)
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.all_gather"(%arg3)
  // CHECK-NEXT: torch.aten.relu
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  // CHECK-NEXT: "hp.wait"
  // CHECK-NEXT: torch.aten.mm
  func.func @limited(
      %a: !shard {hp.fqn = ["a"], hp.role = "param"}, %b: !shard {hp.fqn = ["b"], hp.role = "param"},
      %c: !shard {hp.fqn = ["c"], hp.role = "param"}, %d: !shard {hp.fqn = ["d"], hp.role = "param"},
      %x: !full {hp.name = "x", hp.role = "input"}) -> (!full {hp.name = "y", hp.role = "output"}) {
    %fa = "hp.all_gather"(%a) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["a"], hp.phase = "forward", mesh = @mesh} : (!shard) -> !future
    %wa = "hp.wait"(%fa) : (!future) -> !full
    %t = torch.aten.t %wa : !full -> !full
    %h0 = torch.aten.mm %x, %wa : !full, !full -> !full
    %r0 = torch.aten.relu %h0 : !full -> !full
    %h1 = torch.aten.mm %r0, %t : !full, !full -> !full
    %fb = "hp.all_gather"(%b) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["b"], hp.phase = "forward", mesh = @mesh} : (!shard) -> !future
    %wb = "hp.wait"(%fb) : (!future) -> !full
    %h2 = torch.aten.mm %h1, %wb : !full, !full -> !full
    %r2 = torch.aten.relu %h2 : !full -> !full
    %fc = "hp.all_gather"(%c) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["c"], hp.phase = "forward", mesh = @mesh} : (!shard) -> !future
    %wc = "hp.wait"(%fc) : (!future) -> !full
    %h3 = torch.aten.mm %r2, %wc : !full, !full -> !full
    %fd = "hp.all_gather"(%d) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["d"], hp.phase = "forward", mesh = @mesh} : (!shard) -> !future
    %wd = "hp.wait"(%fd) : (!future) -> !full
    %h4 = torch.aten.mm %h3, %wd : !full, !full -> !full
    return %h4 : !full
  }
}
