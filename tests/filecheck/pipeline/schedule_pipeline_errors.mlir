// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-schedule-pipeline=microbatches=2 -o /dev/null
// RUN: not hp-opt %s --hp-schedule-pipeline 2>&1 | filecheck %s --check-prefix=NEEDED
// RUN: not hp-opt %s --hp-schedule-pipeline=microbatches=0 2>&1 | filecheck %s --check-prefix=NONE

// NEEDED: error: hp-schedule-pipeline needs option 'microbatches', an integer
// NONE: error: hp-schedule-pipeline: option 'microbatches' expects 1 to 65536, got: 0

// expected-error@below {{hp-schedule-pipeline requires level 'staged', got: 'spmd'}}
module attributes {hp.level = "spmd"} {
}

// -----

// expected-error@below {{hp-schedule-pipeline: the module has no mesh; run hp-set-mesh first}}
module attributes {hp.level = "staged"} {
}

// -----

// expected-error@below {{expected hp.pipeline_axis to be the name of a mesh axis, got: nothing}}
module attributes {hp.level = "staged"} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
}

// -----

// expected-error@below {{'builtin.module' op hp.pipeline_axis: mesh dp:2,pp:2 has no axis 'ppp', did you mean 'pp'}}
module attributes {hp.level = "staged", hp.pipeline_axis = "ppp"} {
  "hp.mesh"() {axis_names = ["dp", "pp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
}

// -----

// expected-error@below {{expected hp.stage_count to be a number of stages, got: "two"}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = "two"} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
}

// -----

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{'func.func' op expected hp.stage < 2 (hp.stage_count), got: 2}}
  func.func @stage2_forward() attributes {hp.stage = 2 : i64, hp.task = "forward"} {
    return
  }
}

// -----

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{'func.func' op unknown hp.task 'forwards', did you mean 'forward'?}}
  func.func @stage0_forward() attributes {hp.stage = 0 : i64, hp.task = "forwards"} {
    return
  }
}

// -----

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-note@below {{first one}}
  func.func @stage0_forward() attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return
  }
  // expected-error@below {{'func.func' op @again is a second forward of stage 0}}
  func.func @again() attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return
  }
}

// -----

// expected-error@below {{expected one function that returns the loss, got: none}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward() attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-note@below {{first returned here}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{'func.func' op loss 'loss' is returned a second time}}
  func.func @stage1_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %w : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{'func.func' op @stage0_backward returns output 'out', which only forwards do}}
  func.func @stage0_backward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "out", hp.role = "output"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %w : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-note@below {{first made here}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "f0.0", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{'func.func' op @stage1_forward makes 'f0.0' a second time}}
  func.func @stage1_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "f0.0", hp.role = "outgoing"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %w : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "f0.10", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{'func.func' op @stage1_forward takes 'f0.11', which no function makes, did you mean 'f0.10'?}}
  func.func @stage1_forward(%h: !s {hp.name = "f0.11", hp.role = "incoming"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %h : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>
!v = !torch.vtensor<[1],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-note@below {{made here}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "f0.0", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{@stage1_forward takes 'f0.0' as !torch.vtensor<[1],f32>, it is made as !torch.vtensor<[],f32>}}
  func.func @stage1_forward(%h: !v {hp.name = "f0.0", hp.role = "incoming"}) -> (!v {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %h : !v
  }
}

// -----

!s = !torch.vtensor<[],f32>

// expected-error@below {{hp-schedule-pipeline: schedule '1f1b' on 2 ranks needs 2 stages, one per rank, got 4; 4 stages work with 'interleaved' or 'zb-v' or 'dualpipe-v'}}
module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 4 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{buffer 'b' is changed by @stage0_forward and used by @stage1_forward: put the modules that use it on one stage}}
  func.func @stage0_forward(%b: !s {hp.fqn = ["b"], hp.role = "buffer"}) -> (!s {hp.fqn = ["b"], hp.role = "buffer"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %b : !s
  }
  // expected-note@below {{used here}}
  func.func @stage1_forward(%b: !s {hp.fqn = ["b"], hp.role = "buffer"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %b : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  // expected-note@below {{where it is another}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{'func.func' op param 'w' of @stage0_backward is not what it is in @stage0_forward}}
  func.func @stage0_backward(%w: !s {hp.fqn = ["w"], hp.role = "param", hp.trainable}) -> (!s {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %w : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{'func.func' op gradient of 'w' is returned by a forward}}
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"}, !s {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w, %w : !s, !s
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  func.func @stage0_backward_input(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward_input"} {
    return %w : !s
  }
  // expected-error@below {{'func.func' op gradient of 'w' is returned by stage 0 twice}}
  func.func @stage0_backward_weight(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward_weight"} {
    return %w : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>
!v = !torch.vtensor<[1],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @stage1_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-note@below {{where it is another}}
  func.func @stage1_backward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 1 : i64, hp.task = "backward"} {
    return %w : !s
  }
  // expected-error@below {{gradient of 'w' of @stage0_backward is not what it is in @stage1_backward}}
  func.func @stage0_backward(%w: !v {hp.fqn = ["v"], hp.role = "param"}) -> (!v {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %w : !v
  }
}

// -----

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{'func.func' op gradient of 'v' is of no parameter of any stage}}
  func.func @stage0_backward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.fqn = ["v"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %w : !s
  }
}

// -----

// What stage 0 takes is made by a later stage's forward, which waits for stage 0.

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{'func.func' op schedule '1f1b' cannot run: rank 0: call 0, @stage0_forward of microbatch 0, waits for @stage1_forward of microbatch 0, call 0 of rank 1}}
  func.func @stage0_forward(%0: !s {hp.name = "f1.0", hp.role = "incoming"}) -> (!s {hp.name = "f0.0", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %0 : !s
  }
  // expected-note@below {{rank 1: call 0, @stage1_forward of microbatch 0, waits for @stage0_forward of microbatch 0, call 0 of rank 0}}
  func.func @stage1_forward(%0: !s {hp.name = "f0.0", hp.role = "incoming"})
      -> (!s {hp.name = "f1.0", hp.role = "outgoing"}, !s {hp.role = "loss"})
      attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %0, %0 : !s, !s
  }
}

// -----

// A forward takes what a backward makes.

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  // expected-error@below {{schedule '1f1b' cannot run: rank 0: call 0, @stage0_forward of microbatch 0, waits for @stage0_backward of microbatch 0, call 1 of rank 0}}
  func.func @stage0_forward(%0: !s {hp.name = "b0.0", hp.role = "saved"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %0 : !s
  }
  func.func @stage0_backward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.name = "b0.0", hp.role = "saved"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %w : !s
  }
}
