// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-split-stages -o /dev/null

// expected-error@below {{hp-split-stages requires level 'joint' or 'spmd', got: 'staged'}}
module attributes {hp.level = "staged"} {
}

// -----

// expected-error@below {{hp-split-stages: the module has no mesh; run hp-set-mesh first}}
module {
}

// -----

// expected-error@below {{hp-split-stages: the module has no stages; run hp-assign-stages first}}
module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
}

// -----

// expected-error@below {{hp-split-stages: mesh pp:2,dp:2 has no axis 'pq', did you mean 'pp'}}
module attributes {hp.pipeline_axis = "pq", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
}

// -----

// expected-error@below {{hp-split-stages: expected one step function, got: 0}}
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{argument 0 of @joint ('a'): expected hp.stages to name stages from 0 to 1, got: none}}
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "param"}, %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{argument 0 of @joint ('a'): expected hp.stages to name stages from 0 to 1, got: [1, 2]}}
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 1, 2>},
                   %x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-error@below {{'torch.aten.tanh' op has no hp.stage; run hp-assign-stages first}}
    %y = torch.aten.tanh %x {hp.phase = "forward"} : !x -> !x
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-error@below {{'torch.aten.sum' op expected hp.stage to be one of 0 to 1, got: 2 : i64}}
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 2 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-note@below {{made here (module 'late')}}
    %y = torch.aten.tanh %x {hp.module = "late", hp.phase = "forward", hp.stage = 1 : i64} : !x -> !x
    // expected-error@below {{'torch.aten.sum' op is on stage 0 and uses a value of a later stage, 1 (module 'early')}}
    %loss = torch.aten.sum %y, %none {hp.module = "early", hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-note@below {{made here}}
    %y = torch.aten.tanh %x {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    // expected-error@below {{'torch.aten.sum' op is of the forward and uses a value of the backward}}
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

// A view between the two changes nothing.

!x = !torch.vtensor<[4,4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
                   %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    // expected-note@below {{made here}}
    %dx = torch.aten.cos %x {hp.phase = "backward", hp.stage = 0 : i64} : !x -> !x
    %t = torch.aten.t %dx {hp.phase = "backward", hp.stage = 0 : i64} : !x -> !x
    // expected-error@below {{'torch.aten.sin' op is of the backward on stage 1 and uses a value of the backward of an earlier stage, 0, which runs later}}
    %da = torch.aten.sin %t {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
                   %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    // expected-error@below {{'torch.aten.cos' op makes the gradient of 'a' on stage 0, but stage 1 holds it, whose backward runs before}}
    %da = torch.aten.cos %x {hp.phase = "backward", hp.stage = 0 : i64} : !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 1, 2>, hp.trainable},
                   %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    // expected-error@below {{'torch.aten.cos' op makes a term of the gradient of 'a' on stage 0, but the first stage that holds 'a' is 1}}
    %da = torch.aten.cos %x {hp.phase = "backward", hp.stage = 0 : i64} : !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "buffer", hp.stages = array<i64: 1>}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-error@below {{'torch.aten.sum' op is on stage 0 and uses buffer 'a', which a later stage holds}}
    %loss = torch.aten.sum %a, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

// The old value of a buffer is the forward's of the stage that changes it.

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "buffer", hp.stages = array<i64: 0, 1>})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "buffer"}) {
    %none = torch.constant.none
    // expected-error@below {{'torch.aten.sum' op is on stage 0 and uses buffer 'a', which a later stage changes}}
    %loss = torch.aten.sum %a, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    %new = torch.aten.cos %a {hp.phase = "forward", hp.stage = 1 : i64} : !x -> !x
    return %loss, %new : !s, !x
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !x {hp.fqn = ["a"], hp.role = "buffer", hp.stages = array<i64: 0>},
                   %x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "buffer"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    // expected-error@below {{'torch.aten.cos' op makes the new value of buffer 'a' on stage 1, which does not hold it (hp.stages = [0])}}
    %new = torch.aten.cos %a {hp.phase = "forward", hp.stage = 1 : i64} : !x -> !x
    return %loss, %new : !s, !x
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{'func.func' op returns a new value of buffer 'b', which is no argument}}
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["b"], hp.role = "buffer"}) {
    %none = torch.constant.none
    %loss = torch.aten.sum %x, %none {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.none -> !s
    return %loss, %x : !s, !x
  }
}

// -----

// No future and no list crosses.

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.level = "spmd", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-error@below {{'hp.all_reduce' op gives what is no tensor of known rank and dtype, !hp.future<[!torch.vtensor<[4],f32>]>, and @stage1_forward needs it}}
    %0 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.phase = "forward", hp.stage = 0 : i64}
        : (!x) -> !hp.future<[!x]>
    %1 = "hp.wait"(%0) {hp.phase = "forward", hp.stage = 1 : i64} : (!hp.future<[!x]>) -> !x
    %loss = torch.aten.sum %1, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.level = "spmd", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-error@below {{'hp.all_reduce' op has no hp.stage; run hp-assign-stages first}}
    %0 = "hp.all_reduce"(%x) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.phase = "forward"}
        : (!x) -> !hp.future<[!x]>
    %1 = "hp.wait"(%0) {hp.phase = "forward", hp.stage = 1 : i64} : (!hp.future<[!x]>) -> !x
    %loss = torch.aten.sum %1, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}

// -----

!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%x: !x {hp.name = "x", hp.role = "input"}) -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    // expected-error@below {{'torch.operator' op changes an operand, which stages cannot share}}
    %y = torch.operator "torch.aten.relu_"(%x) {hp.phase = "forward", hp.stage = 0 : i64} : (!x) -> !x
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    return %loss : !s
  }
}
