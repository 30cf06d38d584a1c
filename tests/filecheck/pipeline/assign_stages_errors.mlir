// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-assign-stages='stages=[up],[down]'

// expected-error@+1 {{hp-assign-stages requires level 'joint' or 'spmd', got: 'staged'}}
module attributes {hp.level = "staged"} {
}

// -----

// expected-error@+1 {{hp-assign-stages: the module has no mesh; run hp-set-mesh first}}
module {
}

// -----

// expected-error@+1 {{hp-assign-stages: expected one step function, got: 0}}
module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
}

// -----

!t = !torch.vtensor<[4,4],f32>

module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @updated(%up: !t {hp.fqn = ["up.mean"], hp.role = "buffer"}, %x: !t {hp.name = "x", hp.role = "input"})
      -> (!t {hp.name = "y", hp.role = "output"}, !t {hp.fqn = ["up.mean"], hp.role = "buffer"}) {
    // expected-error@+1 {{'torch.aten.mul.Tensor' op uses buffer 'up.mean' on stage 0, but the later stage 1 updates it; declare both modules on one stage}}
    %0 = torch.aten.mul.Tensor %x, %up {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    %1 = torch.aten.mul.Tensor %0, %up {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    return %1, %1 : !t, !t
  }
}

// -----

!t = !torch.vtensor<[4,4],f32>

module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @number(%x: !t {hp.name = "x", hp.role = "input"}) -> (!t {hp.name = "y", hp.role = "output"}) {
    %0 = torch.aten.neg %x {hp.module = "up", hp.phase = "forward"} : !t -> !t
    // expected-note@+1 {{made here, on stage 0}}
    %1 = torch.aten.item %0 {hp.module = "up", hp.phase = "forward"} : !t -> !torch.number
    // expected-error@+1 {{'torch.aten.mul.Scalar' op runs on stage 1 and takes a !torch.number of stage 0: only tensors go from stage to stage}}
    %2 = torch.aten.mul.Scalar %0, %1 {hp.module = "down", hp.phase = "forward"} : !t, !torch.number -> !t
    return %2 : !t
  }
}

// -----

!s = !torch.vtensor<[2,4],f32>
!t = !torch.vtensor<[4,4],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  func.func @bucket(%up: !s {hp.fqn = ["up.weight"], hp.role = "param"}, %down: !s {hp.fqn = ["down.weight"], hp.role = "param"},
                    %x: !t {hp.name = "x", hp.role = "input"}) -> (!t {hp.name = "y", hp.role = "output"}) {
    // expected-error@+1 {{'hp.all_gather' op is a bucket of parameters of stages 0, 1; fuse collectives after the split}}
    %0 = "hp.all_gather"(%up, %down) {axes = ["dp"], dims = array<i64: 0, 0>, mesh = @mesh} : (!s, !s) -> !hp.future<[!t, !t]>
    %1:2 = "hp.wait"(%0) : (!hp.future<[!t, !t]>) -> (!t, !t)
    %2 = torch.aten.mm %x, %1#0 {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    %3 = torch.aten.mm %2, %1#1 {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    return %3 : !t
  }
}

// -----

!t = !torch.vtensor<[4,4],f32>

module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @nameless(%x: !t {hp.name = "x", hp.role = "input"}) -> (!t {hp.name = "y", hp.role = "output"}) {
    // expected-error@+1 {{'torch.aten.neg' op expected 'hp.module' to be a string, the name of a module, got: 3 : i64}}
    %0 = torch.aten.neg %x {hp.module = 3 : i64, hp.phase = "forward"} : !t -> !t
    return %0 : !t
  }
}

// -----

!t = !torch.vtensor<[4,4],f32>

// A parameter that nothing else uses decides where its user runs.
// expected-error@+1 {{hp-assign-stages: stage 0 would run nothing of the forward of @behind: nothing of its modules (up), or only behind a later stage}}
module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @behind(%down: !t {hp.fqn = ["down.weight"], hp.role = "param"}, %x: !t {hp.name = "x", hp.role = "input"})
      -> (!t {hp.name = "y", hp.role = "output"}) {
    // expected-note@+1 {{runs on stage 1, that of a parameter it uses; what stage 0 declares only runs behind it}}
    %0 = torch.aten.mul.Tensor %x, %down {hp.phase = "forward"} : !t, !t -> !t
    %1 = torch.aten.neg %0 {hp.phase = "forward"} : !t -> !t
    %2 = torch.aten.tanh %1 {hp.module = "up", hp.phase = "forward"} : !t -> !t
    %3 = torch.aten.neg %2 {hp.module = "down", hp.phase = "forward"} : !t -> !t
    return %3 : !t
  }
}
