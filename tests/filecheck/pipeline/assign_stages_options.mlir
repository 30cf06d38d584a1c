// RUN: not hp-opt %s --hp-assign-stages='stages=[up],[dow]' 2>&1 | filecheck %s --check-prefix=NEAREST
// RUN: not hp-opt %s --hp-assign-stages='stages=[up,down],[down]' 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not hp-opt %s --hp-assign-stages='stages=[up,down]' 2>&1 | filecheck %s --check-prefix=FEWER
// RUN: not hp-opt %s --hp-assign-stages='stages=1' 2>&1 | filecheck %s --check-prefix=FEWER
// RUN: not hp-opt %s --hp-assign-stages='stages=0' 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not hp-opt %s --hp-assign-stages='stages=[],[up]' 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not hp-opt %s --hp-assign-stages='stages=5' 2>&1 | filecheck %s --check-prefix=MODULES
// RUN: not hp-opt %s --hp-assign-stages='axis=p' 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not hp-opt %s --hp-assign-stages='stages=2 plan=plan.toml' 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: not hp-opt %s --hp-assign-stages --hp-assign-stages 2>&1 | filecheck %s --check-prefix=AGAIN
// RUN: not hp-opt %s --hp-assign-stages='stages=[up],[empty]' 2>&1 | filecheck %s --check-prefix=SILENT

// NEAREST: assign_stages_options.mlir:[[#]]:1: error: hp-assign-stages: stage 1: 'dow' is no module, did you mean 'down'
// TWICE: error: hp-assign-stages: module 'down' is in two lists, those of stages 0 and 1
// FEWER: error: hp-assign-stages: expected at least 2 stages, one per rank of axis 'pp', got: 1
// NONE: error: hp-assign-stages: option 'stages' expects a number of stages, at least 1, got: 0
// EMPTY: error: hp-assign-stages: option 'stages' has a stage without a module: '[]'
// MODULES: error: hp-assign-stages: cannot cut the model into 5 stages: its forward has 2 ops
// AXIS: error: hp-assign-stages: mesh pp:2 has no axis 'p', did you mean 'pp'?
// BOTH: error: hp-assign-stages: option 'plan' excludes 'axis' and 'stages': the plan says both
// AGAIN: error: hp-assign-stages: the stages of this module are assigned already
// SILENT: error: hp-assign-stages: stage 1 would run nothing of the forward of @step: nothing of its modules (empty), or only behind a later stage

!t = !torch.vtensor<[4,4],f32>

module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @step(%up: !t {hp.fqn = ["up.weight"], hp.role = "param"}, %down: !t {hp.fqn = ["down.weight"], hp.role = "param"},
                  %empty: !t {hp.fqn = ["empty.weight"], hp.role = "param"}, %x: !t {hp.name = "x", hp.role = "input"}) -> (!t {hp.name = "y", hp.role = "output"}) {
    %0 = torch.aten.mm %x, %up {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    %1 = torch.aten.mm %0, %down {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    return %1 : !t
  }
}
