# torch-mlir ships no type information; what hpir uses of it is typed here, the rest is Any.
