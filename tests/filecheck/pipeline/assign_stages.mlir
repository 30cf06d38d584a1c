// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-assign-stages='stages=[up],[down]' | filecheck %s

!s = !torch.vtensor<[],f32>
!t = !torch.vtensor<[4,4],f32>

// Declared modules decide; what is of none follows its operands, its users, and in the backward the forward's values.
// CHECK: module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64}
module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @modules
  // CHECK-SAME:    hp.fqn = ["up.weight"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable
  // CHECK-SAME:    hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable
  // CHECK-SAME:    hp.name = "x", hp.role = "input"}
  func.func @modules(%up: !t {hp.fqn = ["up.weight"], hp.role = "param", hp.trainable},
                     %down: !t {hp.fqn = ["down.weight"], hp.role = "param", hp.trainable},
                     %x: !t {hp.name = "x", hp.role = "input"}, %y: !t {hp.name = "y", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !t {hp.fqn = ["up.weight"], hp.role = "grad"}, !t {hp.fqn = ["down.weight"], hp.role = "grad"}) {
    // CHECK: torch.constant.none{{$}}
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    // CHECK: torch.aten.neg %arg3 {{.*}}hp.stage = 1
    // expected-remark@+1 {{is of no declared module: it runs on stage 1, the earliest of its users'}}
    %0 = torch.aten.neg %y {hp.phase = "forward"} : !t -> !t
    // CHECK: torch.aten.mm {{.*}} {hp.module = "up", hp.phase = "forward", hp.stage = 0 : i64}
    %1 = torch.aten.mm %x, %up {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    // CHECK: torch.aten.tanh {{.*}}hp.stage = 0
    // expected-remark@+1 {{is of no declared module: it runs on stage 0, the latest of its operands'}}
    %2 = torch.aten.tanh %1 {hp.phase = "forward"} : !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 1
    %3 = torch.aten.mm %2, %down {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    // CHECK: torch.aten.mse_loss {{.*}}hp.stage = 1
    // expected-remark@+1 {{is of no declared module: it runs on stage 1, the latest of its operands'}}
    %loss = torch.aten.mse_loss %3, %0, %int1 {hp.phase = "forward"} : !t, !t, !torch.int -> !s
    // CHECK: torch.aten.ones_like {{.*}}hp.stage = 1
    %4 = torch.aten.ones_like %loss, %none, %none, %none, %none, %none {hp.phase = "backward"} : !s, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none -> !s
    // CHECK: torch.aten.mse_loss_backward {{.*}}hp.stage = 1
    %5 = torch.aten.mse_loss_backward %4, %3, %0, %int1 {hp.phase = "backward"} : !s, !t, !t, !torch.int -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 1
    %dw = torch.aten.mm %2, %5 {hp.module = "down", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 1
    %6 = torch.aten.mm %5, %down {hp.module = "down", hp.phase = "backward"} : !t, !t -> !t
    // Only the first stage has what the tanh was given.
    // CHECK: torch.aten.mul.Tensor {{.*}}hp.stage = 0
    %7 = torch.aten.mul.Tensor %6, %1 {hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 0
    %du = torch.aten.mm %x, %7 {hp.module = "up", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: return %{{[a-z0-9, %]*}} :
    return %loss, %du, %dw : !s, !t, !t
  }
}

// -----

!s = !torch.vtensor<[],f32>
!t = !torch.vtensor<[4,4],f32>

// A module that is called again behind a later stage moves there, and its parameter has two owners. The sum of their
// gradients and its reduction have no stage; the parameter's view is made on both.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @called_again
  // CHECK-SAME:    hp.fqn = ["up.weight"], hp.role = "param", hp.stages = array<i64: 0, 1>
  // expected-remark@+1 {{parameter 'up.weight' is held by stages 0, 1, which sum its gradient}}
  func.func @called_again(%up: !t {hp.fqn = ["up.weight"], hp.role = "param", hp.trainable},
                          %down: !t {hp.fqn = ["down.weight"], hp.role = "param"}, %x: !t {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !t {hp.fqn = ["up.weight"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    // CHECK: %[[FIRST:.*]] = torch.aten.t %arg0 {{.*}}hp.stage = 0
    // CHECK-NEXT: %[[SECOND:.*]] = torch.aten.t %arg0 {{.*}}hp.stage = 1
    %t = torch.aten.t %up {hp.module = "up", hp.phase = "forward"} : !t -> !t
    // CHECK: torch.aten.mm %{{.*}}, %[[FIRST]] {{.*}}hp.stage = 0
    %0 = torch.aten.mm %x, %t {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 1
    %1 = torch.aten.mm %0, %down {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    // CHECK: torch.aten.mm %{{.*}}, %[[SECOND]] {{.*}}hp.stage = 1
    // expected-remark@+1 {{of module 'up' runs on stage 1, behind the stage that declares it: what it takes is made there}}
    %2 = torch.aten.mm %1, %t {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    // expected-remark@+1 {{the latest of its operands'}}
    %loss = torch.aten.sum %2, %none {hp.phase = "forward"} : !t, !torch.none -> !s
    // CHECK: torch.aten.mm {{.*}}hp.phase = "backward", hp.stage = 1
    %d1 = torch.aten.mm %2, %1 {hp.module = "up", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: %[[SECOND2:.*]] = torch.aten.mm %{{.*}}, %[[SECOND]] {{.*}}hp.stage = 1
    %3 = torch.aten.mm %2, %t {hp.module = "up", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 1
    %4 = torch.aten.mm %3, %down {hp.module = "down", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 0
    %d0 = torch.aten.mm %4, %x {hp.module = "up", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.add.Tensor {{.*}} {hp.phase = "backward"}
    %d = torch.aten.add.Tensor %d1, %d0, %int1 {hp.phase = "backward"} : !t, !t, !torch.int -> !t
    // CHECK-NEXT: "hp.all_reduce"(%{{[0-9]+}}) {axes = ["dp"], hp.fqn = ["up.weight"], hp.phase = "backward", mesh
    // CHECK-NEXT: "hp.wait"(%{{[0-9]+}}) {hp.fqn = ["up.weight"], hp.phase = "backward"}
    %5 = "hp.all_reduce"(%d) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.phase = "backward", hp.fqn = ["up.weight"]} : (!t) -> !hp.future<[!t]>
    %6 = "hp.wait"(%5) {hp.phase = "backward", hp.fqn = ["up.weight"]} : (!hp.future<[!t]>) -> !t
    return %loss, %6 : !s, !t
  }
}

// -----

!s = !torch.vtensor<[],f32>
!t = !torch.vtensor<[4,4],f32>

// What depends on no argument is made on each stage that uses it, with what it is made of; so are gathers, and views of
// inputs. A buffer that two stages use is on both.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @copies
  // CHECK-SAME:    hp.fqn = ["scale"], hp.role = "param", hp.stages = array<i64: 0, 1>
  // CHECK-SAME:    hp.fqn = ["cos"], hp.role = "buffer", hp.stages = array<i64: 0, 1>
  // CHECK-SAME:    hp.fqn = ["down.idle"], hp.role = "buffer", hp.stages = array<i64: 1>
  // CHECK-SAME:    hp.fqn = ["idle"], hp.role = "buffer", hp.stages = array<i64: 0>
  // expected-warning@+1 {{input 'z' is used by nobody and goes to no stage}}
  func.func @copies(%scale: !torch.vtensor<[2,4],f32> {hp.fqn = ["scale"], hp.role = "param"}, %cos: !t {hp.fqn = ["cos"], hp.role = "buffer"},
                    %idle: !t {hp.fqn = ["down.idle"], hp.role = "buffer"}, %idler: !t {hp.fqn = ["idle"], hp.role = "buffer"},
                    %x: !t {hp.name = "x", hp.role = "input"}, %z: !t {hp.name = "z", hp.role = "input"})
      -> (!s {hp.role = "loss"}) {
    %none = torch.constant.none
    %int0 = torch.constant.int 0
    %int4 = torch.constant.int 4
    %size = torch.prim.ListConstruct %int4, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
    // CHECK: %[[GATHER0:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.stage = 0
    // CHECK: %[[GATHER1:.*]] = "hp.all_gather"(%arg0) {{.*}}hp.stage = 1
    %0 = "hp.all_gather"(%scale) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["scale"], hp.phase = "forward"} : (!torch.vtensor<[2,4],f32>) -> !hp.future<[!t]>
    // CHECK: %[[FULL0:.*]] = "hp.wait"(%[[GATHER0]]) {{.*}}hp.stage = 0
    // CHECK: %[[FULL1:.*]] = "hp.wait"(%[[GATHER1]]) {{.*}}hp.stage = 1
    %1 = "hp.wait"(%0) {hp.fqn = ["scale"], hp.phase = "forward"} : (!hp.future<[!t]>) -> !t
    // CHECK: %[[ONES0:.*]] = torch.aten.ones {{.*}}hp.stage = 0
    // CHECK: %[[ONES1:.*]] = torch.aten.ones {{.*}}hp.stage = 1
    %2 = torch.aten.ones %size, %none, %none, %none, %none {hp.phase = "forward"} : !torch.list<int>, !torch.none, !torch.none, !torch.none, !torch.none -> !t
    // CHECK: %[[MASK0:.*]] = torch.aten.tril %[[ONES0]], {{.*}}hp.stage = 0
    // CHECK: %[[MASK1:.*]] = torch.aten.tril %[[ONES1]], {{.*}}hp.stage = 1
    %3 = torch.aten.tril %2, %int0 {hp.phase = "forward"} : !t, !torch.int -> !t
    // CHECK: %[[X0:.*]] = torch.aten.t %arg4 {{.*}}hp.stage = 0
    // CHECK: %[[X1:.*]] = torch.aten.t %arg4 {{.*}}hp.stage = 1
    %4 = torch.aten.t %x {hp.phase = "forward"} : !t -> !t
    // CHECK: %[[LIST0:.*]] = torch.prim.ListConstruct %[[MASK0]], %[[X0]]
    // CHECK: %[[LIST1:.*]] = torch.prim.ListConstruct %[[MASK1]], %[[X1]]
    %5 = torch.prim.ListConstruct %3, %4 : (!t, !t) -> !torch.list<vtensor>
    // CHECK: torch.aten.cat %[[LIST0]], {{.*}}hp.stage = 0
    %6 = torch.aten.cat %5, %int0 {hp.module = "up", hp.phase = "forward"} : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[8,4],f32>
    // CHECK: torch.aten.mm {{.*}}, %[[FULL0]] {{.*}}hp.stage = 0
    %7 = torch.aten.mm %6, %1 {hp.module = "up", hp.phase = "forward"} : !torch.vtensor<[8,4],f32>, !t -> !torch.vtensor<[8,4],f32>
    // CHECK: torch.aten.mm {{.*}}, %arg1 {{.*}}hp.stage = 0
    %8 = torch.aten.mm %7, %cos {hp.module = "up", hp.phase = "forward"} : !torch.vtensor<[8,4],f32>, !t -> !torch.vtensor<[8,4],f32>
    // CHECK: torch.aten.mm {{.*}}, %[[FULL1]] {{.*}}hp.stage = 1
    %9 = torch.aten.mm %8, %1 {hp.module = "down", hp.phase = "forward"} : !torch.vtensor<[8,4],f32>, !t -> !torch.vtensor<[8,4],f32>
    // CHECK: torch.aten.mm {{.*}}, %arg1 {{.*}}hp.stage = 1
    %10 = torch.aten.mm %9, %cos {hp.module = "down", hp.phase = "forward"} : !torch.vtensor<[8,4],f32>, !t -> !torch.vtensor<[8,4],f32>
    // CHECK: torch.aten.cat %[[LIST1]], {{.*}}hp.stage = 1
    %11 = torch.aten.cat %5, %int0 {hp.module = "down", hp.phase = "forward"} : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[8,4],f32>
    // expected-remark@+1 {{it runs on stage 1, the latest of its operands' (and 1 more of no declared module behind it)}}
    %12 = torch.aten.mul.Tensor %10, %11 {hp.phase = "forward"} : !torch.vtensor<[8,4],f32>, !torch.vtensor<[8,4],f32> -> !torch.vtensor<[8,4],f32>
    %13 = torch.aten.sum %12, %none {hp.phase = "forward"} : !torch.vtensor<[8,4],f32>, !torch.none -> !s
    return %13 : !s
  }
}

// -----

!s = !torch.vtensor<[],f32>
!h = !torch.vtensor<[2,4],f32>
!t = !torch.vtensor<[4,4],f32>

// A gradient that is joined of pieces, or of which a sum is used twice, is not taken apart: one owner has all of it.
module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @joined
  // CHECK-SAME:    hp.fqn = ["w"], hp.role = "param", hp.stages = array<i64: 0, 1>
  // expected-remark@+1 {{parameter 'w' is held by stages 0, 1, which sum its gradient}}
  func.func @joined(%w: !t {hp.fqn = ["w"], hp.role = "param", hp.trainable}, %x: !t {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !t {hp.fqn = ["w"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %int4 = torch.constant.int 4
    %0 = torch.aten.mm %x, %w {hp.module = "up", hp.phase = "forward"} : !t, !t -> !t
    %1 = torch.aten.mm %0, %w {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    // expected-remark@+1 {{the latest of its operands'}}
    %loss = torch.aten.sum %1, %none {hp.phase = "forward"} : !t, !torch.none -> !s
    // CHECK: torch.aten.mm {{.*}}hp.phase = "backward", hp.stage = 1
    %d1 = torch.aten.mm %1, %0 {hp.module = "down", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 0
    %d0 = torch.aten.mm %d1, %x {hp.module = "up", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.add.Tensor {{.*}}hp.stage = 0
    %d = torch.aten.add.Tensor %d1, %d0, %int1 {hp.phase = "backward"} : !t, !t, !torch.int -> !t
    // CHECK: torch.aten.slice.Tensor {{.*}}hp.stage = 0
    %2 = torch.aten.slice.Tensor %d, %int0, %int0, %int2, %int1 {hp.phase = "backward"} : !t, !torch.int, !torch.int, !torch.int, !torch.int -> !h
    %3 = torch.aten.slice.Tensor %d, %int0, %int2, %int4, %int1 {hp.phase = "backward"} : !t, !torch.int, !torch.int, !torch.int, !torch.int -> !h
    %4 = torch.prim.ListConstruct %3, %2 : (!h, !h) -> !torch.list<vtensor>
    // CHECK: torch.aten.cat {{.*}}hp.stage = 0
    %5 = torch.aten.cat %4, %int0 {hp.phase = "backward"} : !torch.list<vtensor>, !torch.int -> !t
    return %loss, %5 : !s, !t
  }
}

// -----

!s = !torch.vtensor<[],f32>
!t = !torch.vtensor<[4,4],f32>

// An early op of no module uses a parameter of the last one: following it would leave the first stage without ops.
module {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @early
  // CHECK-SAME:    hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 0, 1>
  // expected-remark@+1 {{parameter 'down.weight' is held by stages 0, 1, which sum its gradient}}
  func.func @early(%w: !t {hp.fqn = ["down.weight"], hp.role = "param", hp.trainable}, %x: !t {hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !t {hp.fqn = ["down.weight"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    // CHECK: torch.aten.mm {{.*}}hp.stage = 0
    // expected-remark@+1 {{is of no declared module: it runs on stage 0, the earliest of its users'}}
    %0 = torch.aten.mm %x, %w {hp.phase = "forward"} : !t, !t -> !t
    // CHECK: torch.aten.tanh {{.*}}hp.stage = 0
    %1 = torch.aten.tanh %0 {hp.module = "up", hp.phase = "forward"} : !t -> !t
    // CHECK: torch.aten.mul.Tensor {{.*}}hp.stage = 0
    // expected-remark@+1 {{is of no declared module: it runs on stage 0, the latest of its operands'}}
    %2 = torch.aten.mul.Tensor %1, %w {hp.phase = "forward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 1
    %3 = torch.aten.mm %2, %w {hp.module = "down", hp.phase = "forward"} : !t, !t -> !t
    // expected-remark@+1 {{is of no declared module: it runs on stage 1, the latest of its operands'}}
    %loss = torch.aten.sum %3, %none {hp.phase = "forward"} : !t, !torch.none -> !s
    // CHECK: torch.aten.mm {{.*}}hp.phase = "backward", hp.stage = 1
    %d1 = torch.aten.mm %2, %3 {hp.module = "down", hp.phase = "backward"} : !t, !t -> !t
    // CHECK: torch.aten.mm {{.*}}hp.stage = 0
    %d0 = torch.aten.mm %x, %1 {hp.module = "up", hp.phase = "backward"} : !t, !t -> !t
    %d = torch.aten.add.Tensor %d1, %d0, %int1 {hp.phase = "backward"} : !t, !t, !torch.int -> !t
    return %loss, %d : !s, !t
  }
}
