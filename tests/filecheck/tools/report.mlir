// A Program's report, as data and as a page: a parameter is gathered, its gradient is reduced, the loss is averaged.
// RUN: hp-opt %s --hp-set-mesh=axes=dp:2 --hp-fsdp=axes=dp -o %t.mlir
// RUN: hp-translate --to-program %t.mlir -o %t.prog
// RUN: hp-report %t.prog --device cpu --json %t.json -o %t.html --trace %t.trace.json
// RUN: %python -m json.tool %t.json | filecheck %s
// RUN: filecheck %s --check-prefix=PAGE --input-file %t.html
// RUN: %python -m json.tool %t.trace.json | filecheck %s --check-prefix=TRACE
// RUN: not hp-report %t.prog --device cpv -o %t.none 2>&1 | filecheck %s --check-prefix=DEVICE
// RUN: not hp-report %t.none -o %t.html 2>&1 | filecheck %s --check-prefix=ABSENT
// RUN: not hp-report %t.prog 2>&1 | filecheck %s --check-prefix=NOTHING

// CHECK:      "mesh": {
// CHECK-NEXT:     "dp": 2
// CHECK:      "name": "built in for cpu"
// CHECK:      "bubble": 0.0
// CHECK-NEXT: "launches": 3
// CHECK:      "kind": "all_gather",
// CHECK-NEXT: "name": "w"
// CHECK-NEXT: "phase": "forward"
// CHECK-NEXT: "bytes": 128
// CHECK:      "kind": "reduce_scatter",
// CHECK-NEXT: "name": "w"
// CHECK-NEXT: "phase": "backward"
// CHECK-NEXT: "bytes": 128
// CHECK:      "kind": "all_reduce",
// CHECK:      "peak_by_category": {
// CHECK-NEXT:     "state": 64
// CHECK-NEXT:     "inputs": 128

// PAGE: <!DOCTYPE html>
// PAGE: Step, simulated
// PAGE-SAME: over dp
// PAGE-SAME: all-gather w, forward:

// TRACE: "process_name"
// TRACE: "ranks 0\u20131 (simulated)"
// TRACE: "all-gather w"
// TRACE: "reduce-scatter w"

// DEVICE: {{^}}hp-report: error: --device: no built-in rates for 'cpv', did you mean 'cpu'
// ABSENT: {{^}}{{.*}}none/program.json: cannot read a Program: No such file or directory{{$}}
// NOTHING: {{^}}hp-report: error: nothing to write; name the page with -o, or use --json or --trace{{$}}

!weight = !torch.vtensor<[8,4],f32>
!scalar = !torch.vtensor<[],f32>

module attributes {hp.level = "joint"} {
  func.func @joint(
      %w: !weight {hp.fqn = ["w"], hp.role = "param", hp.trainable},
      %x: !weight {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
      -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["w"], hp.role = "grad"}) {
    %none = torch.constant.none
    %y = torch.aten.mul.Tensor %x, %w {hp.phase = "forward"} : !weight, !weight -> !weight
    %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !weight, !torch.none -> !scalar
    %d = torch.aten.tanh %x {hp.phase = "backward"} : !weight -> !weight
    return %loss, %d : !scalar, !weight
  }
}
