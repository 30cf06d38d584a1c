// RUN: hp-opt %s --verify-diagnostics --hp-schedule-pipeline='microbatches=2 schedule=zb-h1' -o /dev/null
// RUN: not hp-opt %s --hp-schedule-pipeline='microbatches=2 schedule=zbh1' 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not hp-opt %s --hp-schedule-pipeline='microbatches=3 table=%S/schedule_pipeline_swapped.txt' 2>&1 | filecheck %s --check-prefix=TABLE
// RUN: not hp-opt %s --hp-schedule-pipeline='microbatches=3 table=%t.absent' 2>&1 | filecheck %s --check-prefix=ABSENT

// NAME: error: hp-schedule-pipeline: unknown schedule 'zbh1', did you mean 'zb-h1'?
// TABLE: error: hp-schedule-pipeline: {{.*}}schedule_pipeline_swapped.txt: expected the actions of 1 ranks, got 3
// ABSENT: error: hp-schedule-pipeline: {{.*}}.absent: cannot read schedule: no such file or directory

!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.role = "loss"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %w : !s
  }
  // expected-error@below {{schedule 'zb-h1' runs the backward in two parts and @stage0_backward is whole: split the stages with hp-split-stages{split-backward}}}
  func.func @stage0_backward(%w: !s {hp.fqn = ["w"], hp.role = "param"}) -> (!s {hp.fqn = ["w"], hp.role = "grad"})
      attributes {hp.stage = 0 : i64, hp.task = "backward"} {
    return %w : !s
  }
}
