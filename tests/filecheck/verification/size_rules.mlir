// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V14: a step with a dynamic size, well formed.
module attributes {hp.level = "joint"} {
  func.func @joint(%n: !torch.int {hp.role = "size", hp.name = "rows", hp.example = 4 : i64}, %x: !torch.vtensor<[?,2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.dim_names = ["rows", ""]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) attributes {hp.guards = ["rows <= 8 and rows % 2 == 0"]} {
    %none = torch.constant.none
    %0 = torch.aten.sum %x, %none : !torch.vtensor<[?,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    return %0 : !torch.vtensor<[],f32>
  }
}

// -----

// V14: a dim and a guard name a size that is no argument.
module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 1 of @joint ('x'): hp.dim_names: no argument is the size 'row', did you mean 'rows'?}}
  // expected-error@below {{guard 'lines < 8': no argument is the size 'lines'}}
  func.func @joint(%n: !torch.int {hp.role = "size", hp.name = "rows"}, %x: !torch.vtensor<[?,2],f32> {hp.role = "input", hp.name = "x", hp.dim_names = ["row", ""]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) attributes {hp.guards = ["lines < 8"]} {
    %none = torch.constant.none
    %0 = torch.aten.sum %x, %none : !torch.vtensor<[?,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    return %0 : !torch.vtensor<[],f32>
  }
}

// -----

// V14: an input whose dim has no name, a parameter of unknown size, guards that are no list.
module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint ('w') is a param, expected fixed sizes, got: !torch.vtensor<[?],f32>}}
  // expected-error@below {{argument 1 of @joint ('x') has sizes that change but no hp.dim_names}}
  // expected-error@below {{expected hp.guards to be a list of conditions, got: "n < 8"}}
  func.func @joint(%w: !torch.vtensor<[?],f32> {hp.role = "param", hp.fqn = ["w"]}, %x: !torch.vtensor<[?,2],f32> {hp.role = "input", hp.name = "x"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) attributes {hp.guards = "n < 8"} {
    %none = torch.constant.none
    %0 = torch.aten.sum %x, %none : !torch.vtensor<[?,2],f32>, !torch.none -> !torch.vtensor<[],f32>
    return %0 : !torch.vtensor<[],f32>
  }
}

// -----

// Malformed: a fixed dim with a name, and an example of what is no size.
module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected no name in hp.dim_names for dim 1, got: ["rows", "two"]}}
  func.func @joint(%x: !torch.vtensor<[?,2],f32> {hp.role = "input", hp.name = "x", hp.dim_names = ["rows", "two"]}) -> (!torch.vtensor<[?,2],f32> {hp.role = "loss"}) {
    return %x : !torch.vtensor<[?,2],f32>
  }
}

// -----

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected hp.example to be the example of a size, got: 3 : i64}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x", hp.example = 3 : i64}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %x : !torch.vtensor<[],f32>
  }
}
