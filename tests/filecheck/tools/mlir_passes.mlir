// MLIR's and torch-mlir's own passes, also those on functions and with options of their own.
// RUN: hp-opt %s --symbol-dce --cse --canonicalize="max-iterations=2" --inline | filecheck %s
// RUN: hp-opt %s --torch-decompose-complex-ops --dump-pass-pipeline 2>&1 >%t | filecheck %s --check-prefix=NESTED

// NESTED: func.func(torch-decompose-complex-ops

// CHECK-NOT: @unused
func.func private @unused() {
  return
}

// CHECK-LABEL: func.func @duplicates(
// CHECK-NEXT: %[[ONE:.*]] = torch.constant.int 1
// CHECK-NEXT: return %[[ONE]], %[[ONE]]
func.func @duplicates() -> (!torch.int, !torch.int) {
  %0 = torch.constant.int 1
  %1 = torch.constant.int 1
  return %0, %1 : !torch.int, !torch.int
}
