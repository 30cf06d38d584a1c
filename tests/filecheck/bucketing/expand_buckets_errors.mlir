// RUN: not hp-opt %s --hp-expand-buckets=layout=flt 2>&1 | filecheck %s --check-prefix=NEAR
// RUN: not hp-opt %s --hp-expand-buckets=layout=x 2>&1 | filecheck %s --check-prefix=FAR
// RUN: not hp-opt %s --hp-expand-buckets 2>&1 | filecheck %s --check-prefix=LEVEL

// NEAR: error: hp-expand-buckets: option 'layout' names no layout: 'flt', did you mean 'flat'?
// FAR: error: hp-expand-buckets: option 'layout' names no layout: 'x', expected 'flat' or 'packed'
// LEVEL: expand_buckets_errors.mlir:8:1: error: hp-expand-buckets requires level 'spmd' or 'staged', got: 'joint'
module attributes {hp.level = "joint"} {
  func.func @joint(%a: !torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> {
    return %a : !torch.vtensor<[],f32>
  }
}
