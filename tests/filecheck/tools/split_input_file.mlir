// Parts are separate modules; places are the file's; the failure of one does not hide the others.
// RUN: not hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=ERROR --input-file %t

// CHECK: func.func @first
func.func @first() {
  return
}

// CHECK: // -----

// -----

// ERROR: split_input_file.mlir:15:1: error: custom op 'oops' is unknown
oops

// CHECK: // -----

// -----

// CHECK: func.func @third
func.func @third() {
  return
}
