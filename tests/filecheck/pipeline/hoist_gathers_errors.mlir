// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-hoist-gathers

// expected-error@+1 {{hp-hoist-gathers requires level 'program', got: 'staged'}}
module attributes {hp.level = "staged"} {
}

// -----

!s = !torch.vtensor<[2],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @helper(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "y", hp.role = "output"}) {
    return %w : !s
  }
  func.func @evaluate0(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "y", hp.role = "output"}) {
    // expected-error@+1 {{'func.call' op calls @helper, which is no stage function}}
    %y = call @helper(%w) : (!s) -> !s
    return %y : !s
  }
}

// -----

!s = !torch.vtensor<[2],f32>
!f = !torch.vtensor<[4],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!f {hp.name = "y", hp.role = "output"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!s) -> !hp.future<[!f]>
    %1 = "hp.wait"(%0) : (!hp.future<[!f]>) -> !f
    return %1 : !f
  }
  func.func @evaluate0(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!f {hp.name = "y", hp.role = "output"}) {
    %v = torch.aten.neg %w : !s -> !s
    // expected-error@+1 {{'func.call' op gives param 'w' to @stage0_forward as a computed value, expected an argument of @evaluate0}}
    %y = call @stage0_forward(%v) : (!s) -> !f
    return %y : !f
  }
}

// -----

!s = !torch.vtensor<[2],f32>
!f = !torch.vtensor<[4],f32>

module attributes {hp.level = "program"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!f {hp.name = "y", hp.role = "output"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh} : (!s) -> !hp.future<[!f]>
    %1 = "hp.wait"(%0) : (!hp.future<[!f]>) -> !f
    return %1 : !f
  }
  func.func @evaluate0(%w: !s {hp.fqn = ["w"], hp.role = "param"}, %v: !s {hp.fqn = ["v"], hp.role = "param"})
      -> (!f {hp.name = "y", hp.role = "output"}) {
    %x = call @stage0_forward(%w) : (!s) -> !f
    // expected-error@+1 {{gives param 'w' to @stage0_forward as another argument than a call before does}}
    %y = call @stage0_forward(%v) : (!s) -> !f
    return %y : !f
  }
}

// -----

// expected-error@below {{hp-hoist-gathers: the module has no mesh; run hp-set-mesh first}}
module attributes {hp.level = "program"} {
  func.func @evaluate0(%x: !torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> {
    return %x : !torch.vtensor<[],f32>
  }
}
