// What cannot be read is one located error and exit status 1.
// RUN: echo garbage | not hp-opt - 2>&1 | filecheck %s --check-prefix=GARBAGE
// RUN: not hp-opt %t.none.mlir 2>&1 | filecheck %s --check-prefix=ABSENT
// RUN: not hp-opt %S 2>&1 | filecheck %s --check-prefix=DIRECTORY
// RUN: echo -n "" > %t.empty.mlir
// RUN: not hp-opt %t.empty.mlir 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: printf 'module {\n  \000\n}' > %t.binary.mlir
// RUN: not hp-opt %t.binary.mlir 2>&1 | filecheck %s --check-prefix=BINARY
// RUN: printf 'module {\n  "\377"\n}' > %t.latin.mlir
// RUN: not hp-opt %t.latin.mlir 2>&1 | filecheck %s --check-prefix=LATIN
// RUN: hp-opt %s --emit-bytecode -o %t.mlirbc
// RUN: head -c 60 %t.mlirbc > %t.short.mlirbc
// RUN: not hp-opt %t.short.mlirbc 2>&1 | filecheck %s --check-prefix=SHORT
// RUN: echo 'func.func @f() {' | not hp-opt 2>&1 | filecheck %s --check-prefix=TRUNCATED
// RUN: not hp-opt %s -o %t.none/out.mlir 2>&1 | filecheck %s --check-prefix=OUTPUT
// RUN: not hp-opt %s %s 2>&1 | filecheck %s --check-prefix=TWO
// RUN: not hp-opt %s -o 2>&1 | filecheck %s --check-prefix=NO-VALUE

// GARBAGE:   {{^}}<stdin>:1:1: error: custom op 'garbage' is unknown (tried 'builtin.garbage' as well){{$}}
// ABSENT:    {{^.*}}none.mlir: error: cannot read input: no such file or directory{{$}}
// DIRECTORY: {{^.*}}tools: error: cannot read input: is a directory{{$}}
// EMPTY:     {{^.*}}empty.mlir:1:1: error: input is empty{{$}}
// BINARY:    {{^.*}}binary.mlir:2:3: error: input is binary, neither MLIR text nor bytecode{{$}}
// LATIN:     {{^.*}}latin.mlir:2:4: error: input is not UTF-8 text (byte 0xff){{$}}
// SHORT:     {{^.*}}short.mlirbc:1:1: error: {{.+$}}
// TRUNCATED: {{^}}<stdin>:{{[12]}}:{{[0-9]+}}: error: {{.+$}}
// OUTPUT:    {{^.*}}out.mlir: error: cannot write output: no such file or directory{{$}}
// TWO:       {{^}}hp-opt: error: expected one input, got: {{.+$}}
// NO-VALUE:  {{^}}hp-opt: error: argument -o: expected one argument{{$}}
func.func @f() {
  return
}
