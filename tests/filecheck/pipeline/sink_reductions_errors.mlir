// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-sink-reductions

// expected-error@+1 {{hp-sink-reductions requires level 'program', got: 'staged'}}
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

// expected-error@below {{hp-sink-reductions: the module has no mesh; run hp-set-mesh first}}
module attributes {hp.level = "program"} {
  func.func @rank0(%x: !torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> {
    return %x : !torch.vtensor<[],f32>
  }
}
