// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-recompute -o /dev/null
// RUN: not hp-opt %s --hp-recompute=policy=tagd 2>&1 | filecheck %s --check-prefix=NEAREST
// RUN: not hp-opt %s --hp-recompute=policy=everything 2>&1 | filecheck %s --check-prefix=UNKNOWN

// NEAREST: error: hp-recompute: option 'policy' names no policy: 'tagd', did you mean 'tagged'?
// UNKNOWN: error: hp-recompute: option 'policy' names no policy: 'everything', expected 'tagged'

// expected-error@below {{hp-recompute requires level 'joint' or 'annotated' or 'spmd', got: 'program'}}
module attributes {hp.level = "program"} {
}

// -----

func.func @not_a_number(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'torch.aten.tanh' op expected hp.recompute to be the number of a region, got: "layers.0"}}
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = "layers.0"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// -----

func.func @negative(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'torch.aten.tanh' op expected hp.recompute to be the number of a region, got: -1 : i64}}
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = -1 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// -----

func.func @saved(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'torch.aten.tanh' op expected hp.saved to list numbers of its results, got: array<i64: 1>}}
  %0 = torch.aten.tanh %x {hp.phase = "forward", hp.recompute = 0 : i64, hp.saved = array<i64: 1>} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// -----

func.func @backward(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'torch.aten.tanh' op is in a checkpointed region, but of the backward; expected ops of the forward alone}}
  %0 = torch.aten.tanh %x {hp.phase = "backward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// -----

func.func @random(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %none = torch.constant.none
  // expected-error@+1 {{'torch.aten.bernoulli' op is in checkpointed region 2: draws from torch's generator: computed again, it would draw other numbers}}
  %0 = torch.aten.bernoulli %x, %none {hp.phase = "forward", hp.recompute = 2 : i64} : !torch.vtensor<[4],f32>, !torch.none -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// -----

func.func @mutating(%x: !torch.tensor<[4],f32>) -> !torch.tensor<[4],f32> {
  // expected-error@+1 {{'torch.aten.tanh_' op is in checkpointed region 0: changes an operand, which cannot be done twice}}
  %0 = torch.aten.tanh_ %x {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.tensor<[4],f32> -> !torch.tensor<[4],f32>
  return %0 : !torch.tensor<[4],f32>
}

// -----

func.func private @callee(!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
func.func @opaque(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'func.call' op is in checkpointed region 0: nothing is known of it that would allow to compute it again}}
  %0 = func.call @callee(%x) {hp.phase = "forward", hp.recompute = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}

// -----

"hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
func.func @message(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'hp.send' op is in checkpointed region 0: what is sent once is received once}}
  "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 1 : i64, hp.phase = "forward", hp.recompute = 0 : i64} : (!torch.vtensor<[4],f32>) -> ()
  return %x : !torch.vtensor<[4],f32>
}

// -----

"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
func.func @bucket(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"]}) -> !torch.vtensor<[4],f32> {
  // expected-error@+1 {{'hp.all_gather' op is a bucket that would have to be gathered again; run hp-recompute before bucketing}}
  %f = "hp.all_gather"(%w) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", hp.bucket = "root"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
  %full = "hp.wait"(%f) {hp.phase = "forward"} : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
  %0 = torch.aten.tanh %full {hp.phase = "forward", hp.recompute = 0 : i64} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %1 = torch.aten.cos %0 {hp.phase = "backward"} : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %1 : !torch.vtensor<[4],f32>
}
