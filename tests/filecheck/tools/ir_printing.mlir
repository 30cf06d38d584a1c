// What a pass changed can be watched, hpir's passes under their own names.
// RUN: hp-opt %s --hp-set-mesh=axes=dp:2 --cse --mlir-print-ir-after-all 2>&1 >%t | filecheck %s --check-prefix=AFTER
// RUN: hp-opt %s --hp-set-mesh=axes=dp:2 --mlir-print-ir-before-all 2>&1 >%t | filecheck %s --check-prefix=BEFORE
// RUN: hp-opt %s --hp-set-mesh=axes=dp:2 --cse --mlir-timing 2>&1 >%t | filecheck %s --check-prefix=TIMING
// RUN: not hp-opt %s --hp-set-mesh=axes=dp:2 --hp-set-mesh=axes=dp:4 --mlir-print-ir-after-all 2>&1 >%t | filecheck %s --check-prefix=FAILED

// AFTER:      IR Dump After hp-set-mesh
// AFTER:      "hp.mesh"
// AFTER:      IR Dump After CSE

// BEFORE:     IR Dump Before hp-set-mesh
// BEFORE-NOT: "hp.mesh"

// TIMING:     Execution time report
// TIMING:     hp-set-mesh
// TIMING:     CSE

// FAILED:     IR Dump After hp-set-mesh: hp-set-mesh{axes=dp:2}
// FAILED:     IR Dump After hp-set-mesh Failed: hp-set-mesh{axes=dp:4}
// FAILED:     error: 'hp.mesh' op the module has mesh @mesh of dp:2, hp-set-mesh got: dp:4
func.func @f() {
  return
}
