// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V1: as at level "joint".
// expected-error@below {{expected one function @joint, got: none}}
module attributes {hp.level = "spmd"} {
}

// -----

// V8: the module's mesh is named.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{'func.func' op argument 0 of @joint ('x'): hp.sharding names '@grid', the module's mesh is '@mesh'}}
  // expected-error@+1 {{'func.func' op result 0 of @joint ('loss'): hp.sharding names '@grid', the module's mesh is '@mesh'}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x", hp.sharding = #hp.sharding<@grid, []>}) -> (!torch.vtensor<[],f32> {hp.role = "loss", hp.sharding = #hp.sharding<@grid, []>}) {
    return %x : !torch.vtensor<[],f32>
  }
}

// -----

// V8: there is a mesh to name.
module attributes {hp.level = "spmd"} {
  // expected-error@below {{'func.func' op argument 0 of @joint: hp.sharding names '@mesh' but the module has no mesh}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x", hp.sharding = #hp.sharding<@mesh, []>}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %x : !torch.vtensor<[],f32>
  }
}

// -----

// V8: types are those of the largest shard: 5 rows over 2 x 2 ranks are 3 and 2, and of the 3 again 2; an argument that
// is not split is whole.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["a", "b"], axis_sizes = array<i64: 2, 2>} : () -> ()
  // expected-error@below {{'func.func' op argument 1 of @joint ('w'): expected the local type of [5], [['a', 'b']], to be !torch.vtensor<[2],f32>, got: !torch.vtensor<[3],f32>}}
  // expected-error@+1 {{'func.func' op argument 3 of @joint ('b'): expected the local type of [8], not split, to be !torch.vtensor<[8],f32>, got: !torch.vtensor<[4],f32>}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"},
      %w: !torch.vtensor<[3],f32> {hp.role = "param", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["a", "b"]]>, hp.full_shape = array<i64: 5>},
      %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.sharding = #hp.sharding<@mesh, [["a", "b"]]>, hp.full_shape = array<i64: 5>},
      %b: !torch.vtensor<[4],f32> {hp.role = "buffer", hp.fqn = ["b"], hp.full_shape = array<i64: 8>})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %x : !torch.vtensor<[],f32>
  }
}
