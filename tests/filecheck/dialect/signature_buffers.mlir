// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-verify-level

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected hp.buffer on a parameter of static shape, got: input}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x", hp.buffer = "b", hp.offset = 0 : i64}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %x : !torch.vtensor<[],f32>
  }
}

// -----

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 1 of @joint: expected hp.buffer on a parameter of static shape, got: param}}
  func.func @joint(%x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"}, %w: !torch.vtensor<[?],f32> {hp.role = "param", hp.fqn = ["w"], hp.buffer = "b", hp.offset = 0 : i64}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %x : !torch.vtensor<[],f32>
  }
}

// -----

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected hp.buffer and hp.offset together}}
  func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w"], hp.offset = 0 : i64}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %w : !torch.vtensor<[],f32>
  }
}

// -----

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected hp.offset to be a multiple of 4 bytes, got: 6 : i64}}
  func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w"], hp.buffer = "b", hp.offset = 6 : i64}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %w : !torch.vtensor<[],f32>
  }
}

// -----

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected hp.buffer and hp.offset together}}
  func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w"], hp.buffer = "b"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %w : !torch.vtensor<[],f32>
  }
}

// -----

module attributes {hp.level = "joint"} {
  // expected-error@below {{argument 0 of @joint: expected hp.buffer to be a name, got: 3 : i64}}
  func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["w"], hp.buffer = 3 : i64, hp.offset = 0 : i64}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    return %w : !torch.vtensor<[],f32>
  }
}
