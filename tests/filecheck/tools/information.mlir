// RUN: hp-opt --version | filecheck %s --check-prefix=VERSION
// RUN: hp-opt --list-passes | filecheck %s
// RUN: hp-opt --help | filecheck %s --check-prefix=HELP

// VERSION: hpir {{[0-9.]+}} (torch-mlir {{.+}})

// CHECK:      --hp-set-mesh
// CHECK-NEXT:     Name the ranks a module runs on, as a grid of named axes.
// CHECK-NEXT:       axes=<list>
// CHECK:      --hp-simplify
// CHECK:      --hp-fsdp
// CHECK:      --hp-verify-level
// CHECK:      --hp-plan
// CHECK:      MLIR's passes run too, among them:
// CHECK-NEXT:   canonicalize, cse

// HELP:       usage: hp-opt [options] [passes] [input file, default: -]
// HELP:       --split-input-file
// HELP:       --hp-set-mesh
