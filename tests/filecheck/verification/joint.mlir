// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V1: there is a step function.
// expected-error@below {{expected one function @joint, got: none}}
module attributes {hp.level = "joint"} {
  func.func private @declared()
}

// -----

// V1: it is named joint.
// expected-error@below {{expected one function @joint, got: @step, @other}}
module attributes {hp.level = "joint"} {
  func.func @step() {
    return
  }
  func.func @other() {
    return
  }
}

// -----

// V1: it is alone.
module attributes {hp.level = "joint"} {
  func.func @joint() {
    return
  }
  // expected-error@below {{'func.func' op @other is one function too many: expected @joint alone}}
  func.func @other() {
    return
  }
}

// -----

// V1: it has no control flow between blocks.
// expected-error@below {{'func.func' op expected one block in @joint, got: 2}}
func.func @joint() {
  cf.br ^bb1
^bb1:
  return
}

// -----

// V2: no communication and no local pieces, in regions neither.
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
func.func @joint(%x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x"}, %c: !torch.vtensor<[],f32> {hp.role = "constant", hp.fqn = ["c"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
  // expected-error@below {{'hp.all_reduce' op is not allowed at level 'joint': nothing is split yet}}
  %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
  // expected-error@below {{'hp.wait' op is not allowed at level 'joint': nothing is split yet}}
  %r = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
  // expected-error@below {{'hp.shard_slice' op is not allowed at level 'joint': nothing is split yet}}
  %s = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[2],f32>) -> !torch.vtensor<[1],f32>
  %true = torch.constant.bool true
  torch.prim.If %true -> () {
    // expected-error@below {{'hp.send' op is not allowed at level 'joint': nothing is split yet}}
    "hp.send"(%x) {mesh = @mesh, axis = "dp", peer = 1 : i64} : (!torch.vtensor<[2],f32>) -> ()
    torch.prim.If.yield
  } else {
    // expected-error@below {{'hp.recv' op is not allowed at level 'joint': nothing is split yet}}
    %q = "hp.recv"() {mesh = @mesh, axis = "dp", peer = 1 : i64} : () -> !hp.future<[!torch.vtensor<[2],f32>]>
    torch.prim.If.yield
  }
  return %c : !torch.vtensor<[],f32>
}

// -----

// V3: types are global.
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
// expected-error@below {{'func.func' op argument 0 of @joint ('x') has hp.sharding, but types are global at level 'joint'}}
func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x", hp.sharding = #hp.sharding<@mesh, []>}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
  // expected-error@below {{'torch.aten.tanh' op has hp.sharding, which level 'joint' does not know}}
  %0 = torch.aten.tanh %x {hp.sharding = #hp.sharding<@mesh, []>} : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  return %0 : !torch.vtensor<[],f32>
}

// -----

// V3: types are global when they are annotated too.
module attributes {hp.level = "annotated"} {
  // expected-error@below {{'func.func' op argument 0 of @joint ('x') has hp.full_shape, but types are global at level 'annotated'}}
  func.func @joint(%x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.full_shape = array<i64: 4>}, %c: !torch.vtensor<[],f32> {hp.role = "constant", hp.fqn = ["c"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %c : !torch.vtensor<[],f32>
  }
}

// -----

// V3: an annotation names the module's mesh.
module attributes {hp.level = "annotated"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  // expected-error@below {{'func.func' op argument 0 of @joint ('x'): hp.sharding names '@grid', the module's mesh is '@mesh'}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x", hp.sharding = #hp.sharding<@grid, []>}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    // expected-error@below {{'torch.aten.tanh' op hp.sharding names '@grid', the mesh is '@mesh'}}
    %0 = torch.aten.tanh %x {hp.sharding = #hp.sharding<@grid, []>} : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
    return %0 : !torch.vtensor<[],f32>
  }
}

// -----

// V3: an annotation needs a mesh.
module attributes {hp.level = "annotated"} {
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    // expected-error@below {{'torch.aten.tanh' op hp.sharding names '@mesh', there is no mesh}}
    %0 = torch.aten.tanh %x {hp.sharding = #hp.sharding<@mesh, []>} : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
    return %0 : !torch.vtensor<[],f32>
  }
}

// -----

// V3: it names axes that exist, each once, one list per dim.
module attributes {hp.level = "annotated"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp", "tp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @joint(%x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x"}, %c: !torch.vtensor<[],f32> {hp.role = "constant", hp.fqn = ["c"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    // expected-error@below {{'torch.aten.tanh' op hp.sharding: mesh has no axis 'dq', did you mean 'dp'?}}
    %0 = torch.aten.tanh %x {hp.sharding = #hp.sharding<@mesh, [["dq"], []]>} : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    // expected-error@below {{'torch.aten.tanh' op hp.sharding: axis 'dp' splits it twice}}
    %1 = torch.aten.tanh %x {hp.sharding = #hp.sharding<@mesh, [["dp"], ["dp"]]>} : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    // expected-error@below {{'torch.aten.tanh' op hp.sharding: expected 2 dims, got: 1 dims}}
    %2 = torch.aten.tanh %x {hp.sharding = #hp.sharding<@mesh, [["dp"]]>} : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    // expected-error@below {{'torch.aten.tanh' op expected an #hp.sharding, got: "dp"}}
    %3 = torch.aten.tanh %x {hp.sharding = "dp"} : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    // expected-error@below {{'torch.constant.int' op hp.sharding: expected a tensor, got: 0 dims}}
    %4 = torch.constant.int 1 {hp.sharding = #hp.sharding<@mesh, []>}
    return %c : !torch.vtensor<[],f32>
  }
}
