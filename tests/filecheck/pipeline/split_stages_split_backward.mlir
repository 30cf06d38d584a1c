// RUN: hp-opt %s --split-input-file --hp-split-stages=split-backward | filecheck %s

// What the stage before waits for is the backward's input part, gradients of parameters the rest; the reductions of
// the gradients go with them. The first stage, for which nobody waits, has the weight part alone.

!x = !torch.vtensor<[4,4],f32>
!shard = !torch.vtensor<[2,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage1_backward_input(
// CHECK-SAME: %arg0: !torch.vtensor<[4,4],f32> {hp.fqn = ["b"]
// CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.name = "i1.1", hp.role = "outgoing"}, !torch.vtensor<[4,4],f32> {hp.name = "i1.0", hp.role = "saved"})
// CHECK-SAME: attributes {hp.stage = 1 : i64, hp.task = "backward_input"}
// CHECK-NEXT: %[[DY:.*]] = torch.aten.cos
// CHECK-NEXT: %[[DH:.*]] = torch.aten.mm %[[DY]], %arg0
// CHECK-NEXT: return %[[DH]], %[[DY]]
// The value of stage 0 was taken by the forward and is passed again; a view of what is saved is made again.
// CHECK: func.func @stage1_backward_weight(%arg0: !torch.vtensor<[4,4],f32> {hp.name = "f0.0", hp.role = "incoming"}
// CHECK-SAME: %arg1: !torch.vtensor<[4,4],f32> {hp.name = "i1.0", hp.role = "saved"})
// CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.fqn = ["b"], hp.role = "grad"}
// CHECK-SAME: attributes {hp.stage = 1 : i64, hp.task = "backward_weight"}
// CHECK: %[[T:.*]] = torch.aten.t %arg1
// CHECK: %[[DB:.*]] = torch.aten.mm %[[T]], %arg0
// CHECK: %[[START:.*]] = "hp.all_reduce"(%[[DB]])
// CHECK: %[[REDUCED:.*]] = "hp.wait"(%[[START]])
// CHECK: return %[[REDUCED]]
// CHECK: func.func @stage0_backward_weight(
// CHECK-SAME: %{{.*}}: !torch.vtensor<[4,4],f32> {hp.name = "i1.1", hp.role = "incoming"}
// CHECK-NOT: func.func
module attributes {hp.level = "spmd", hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %b: !x {hp.fqn = ["b"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input", hp.sharding = #hp.sharding<@mesh, [["dp"], []]>})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}, !x {hp.fqn = ["b"], hp.role = "grad"}) {
    %none = torch.constant.none
    %h = torch.aten.mm %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %y = torch.aten.mm %h, %b {hp.phase = "forward", hp.stage = 1 : i64} : !x, !x -> !x
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    %dy = torch.aten.cos %y {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    %dyt = torch.aten.t %dy {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    %db = torch.aten.mm %dyt, %h {hp.phase = "backward", hp.stage = 1 : i64} : !x, !x -> !x
    %dh = torch.aten.mm %dy, %b {hp.phase = "backward", hp.stage = 1 : i64} : !x, !x -> !x
    %0 = "hp.all_reduce"(%db) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.phase = "backward", hp.stage = 1 : i64}
        : (!x) -> !hp.future<[!x]>
    %reduced = "hp.wait"(%0) {hp.phase = "backward", hp.stage = 1 : i64} : (!hp.future<[!x]>) -> !x
    %da = torch.aten.mm %dh, %x {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    %1 = "hp.all_reduce"(%da) {axes = ["dp"], mesh = @mesh, reduce = "avg", hp.phase = "backward", hp.stage = 0 : i64}
        : (!x) -> !hp.future<[!x]>
    %summed = "hp.wait"(%1) {hp.phase = "backward", hp.stage = 0 : i64} : (!hp.future<[!x]>) -> !x
    return %loss, %summed, %reduced : !s, !x, !x
  }
}

// -----

// A fused operator is asked for the input's gradient by one part and for the weights' by the other; where one part needs
// all that is asked for, it stays whole.

!x = !torch.vtensor<[4,4],f32>
!w = !torch.vtensor<[4],f32>
!m = !torch.vtensor<[4,1],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage1_backward_input(
// CHECK: %[[NO:.*]] = torch.constant.bool false
// CHECK: %[[YES:.*]] = torch.constant.bool true
// CHECK: %[[MASK:.*]] = torch.prim.ListConstruct %[[YES]], %[[NO]], %[[NO]]
// CHECK: %[[DX:.*]], %{{.*}}, %{{.*}} = torch.aten.native_layer_norm_backward %{{.*}}, %[[MASK]] {hp.phase = "backward", hp.stage = 1 : i64}
// CHECK-SAME: -> !torch.vtensor<[4,4],f32>, !torch.none, !torch.none
// CHECK: return {{.*}}%[[DX]], 
// CHECK: func.func @stage1_backward_weight(
// CHECK-NOT: native_layer_norm_backward
// CHECK: %[[MASK:.*]] = torch.prim.ListConstruct %false, %true, %true
// CHECK: %{{.*}}, %[[DW:.*]], %[[DB:.*]] = torch.aten.native_layer_norm_backward %{{.*}}, %[[MASK]] {hp.phase = "backward", hp.stage = 1 : i64}
// CHECK-SAME: -> !torch.none, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
// CHECK: return %[[DW]], %[[DB]]
// CHECK: func.func @stage0_backward_weight(
// CHECK: %[[ALL:.*]] = torch.prim.ListConstruct %true, %true, %true
// CHECK: torch.aten.native_layer_norm_backward %{{.*}}, %[[ALL]]
// CHECK-SAME: -> !torch.vtensor<[4,4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
// CHECK-NOT: native_layer_norm_backward
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %w: !w {hp.fqn = ["w"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %b: !w {hp.fqn = ["b"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %w0: !w {hp.fqn = ["w0"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}, !w {hp.fqn = ["w"], hp.role = "grad"},
          !w {hp.fqn = ["b"], hp.role = "grad"}, !w {hp.fqn = ["w0"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int4 = torch.constant.int 4
    %eps = torch.constant.float 1.000000e-05
    %true = torch.constant.bool true
    %shape = torch.prim.ListConstruct %int4 : (!torch.int) -> !torch.list<int>
    %h = torch.aten.mm %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %y, %mean, %rstd = torch.aten.native_layer_norm %h, %shape, %w, %b, %eps {hp.phase = "forward", hp.stage = 1 : i64}
        : !x, !torch.list<int>, !w, !w, !torch.float -> !x, !m, !m
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    %dy = torch.aten.cos %y {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    %mask = torch.prim.ListConstruct %true, %true, %true : (!torch.bool, !torch.bool, !torch.bool) -> !torch.list<bool>
    %dx, %dw, %db = torch.aten.native_layer_norm_backward %dy, %h, %shape, %mean, %rstd, %w, %b, %mask
        {hp.phase = "backward", hp.stage = 1 : i64}
        : !x, !x, !torch.list<int>, !m, !m, !w, !w, !torch.list<bool> -> !x, !w, !w
    %dx0, %dw0, %db0 = torch.aten.native_layer_norm_backward %dx, %h, %shape, %mean, %rstd, %w0, %w0, %mask
        {hp.phase = "backward", hp.stage = 0 : i64}
        : !x, !x, !torch.list<int>, !m, !m, !w, !w, !torch.list<bool> -> !x, !w, !w
    %da = torch.aten.mm %dx0, %x {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da, %dw, %db, %dw0 : !s, !x, !w, !w, !w
  }
}

// -----

// A gradient that others wait for, too, is returned by the input part; a fused operator without a mask stays there
// with all its results. A value that only the weight part of the stage before needs is passed on by its input part.

!x = !torch.vtensor<[4,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage2_backward_input(
// CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {hp.name = "i2.0", hp.role = "outgoing"}, !torch.vtensor<[4,4],f32> {hp.name = "i2.1", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[4,4],f32> {hp.fqn = ["c"], hp.role = "grad"})
// CHECK: torch.operator "torch.aten.fused_backward"
// CHECK-NOT: @stage2_backward_weight
// CHECK: func.func @stage1_backward_input(
// CHECK-SAME: {hp.name = "i2.0", hp.role = "incoming"}
// CHECK-SAME: {hp.name = "i2.1", hp.role = "incoming"}
// CHECK: func.func @stage1_backward_weight(
// CHECK-SAME: {hp.name = "i2.1", hp.role = "incoming"}
// CHECK: func.func @stage0_backward_weight(
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %b: !x {hp.fqn = ["b"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %c: !x {hp.fqn = ["c"], hp.role = "param", hp.stages = array<i64: 2>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}, !x {hp.fqn = ["b"], hp.role = "grad"},
          !x {hp.fqn = ["c"], hp.role = "grad"}) {
    %none = torch.constant.none
    %h = torch.aten.mm %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !x, !x -> !x
    %i = torch.aten.mm %h, %b {hp.phase = "forward", hp.stage = 1 : i64} : !x, !x -> !x
    %y = torch.aten.mm %i, %c {hp.phase = "forward", hp.stage = 2 : i64} : !x, !x -> !x
    %loss = torch.aten.sum %y, %none {hp.phase = "forward", hp.stage = 2 : i64} : !x, !torch.none -> !s
    %dc, %di = torch.operator "torch.aten.fused_backward"(%y) {hp.phase = "backward", hp.stage = 2 : i64}
        : (!x) -> (!x, !x)
    %db = torch.aten.mm %di, %h {hp.phase = "backward", hp.stage = 1 : i64} : !x, !x -> !x
    %dh = torch.aten.mm %dc, %b {hp.phase = "backward", hp.stage = 1 : i64} : !x, !x -> !x
    %da = torch.aten.mm %dh, %x {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da, %db, %dc : !s, !x, !x, !x
  }
}

// -----

// What the input part makes for itself of a gradient, the weight part is given: it does not make it again.

!x = !torch.vtensor<[2,8],f32>
!y = !torch.vtensor<[4,4],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK: func.func @stage1_backward_input(
// CHECK: %[[D:.*]] = torch.aten.cos
// CHECK: %[[RESHAPED:.*]] = torch.aten.reshape %[[D]]
// CHECK: %[[DH:.*]] = torch.aten.mm %[[RESHAPED]]
// CHECK: return %[[DH]], %[[RESHAPED]]
// CHECK: func.func @stage1_backward_weight(
// CHECK-NOT: torch.aten.reshape
// CHECK: return
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !y {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %b: !y {hp.fqn = ["b"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %x: !y {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !y {hp.fqn = ["a"], hp.role = "grad"}, !y {hp.fqn = ["b"], hp.role = "grad"}) {
    %none = torch.constant.none
    %int2 = torch.constant.int 2
    %int4 = torch.constant.int 4
    %int8 = torch.constant.int 8
    %h = torch.aten.mm %x, %a {hp.phase = "forward", hp.stage = 0 : i64} : !y, !y -> !y
    %y = torch.aten.mm %h, %b {hp.phase = "forward", hp.stage = 1 : i64} : !y, !y -> !y
    %flat = torch.prim.ListConstruct %int2, %int8 : (!torch.int, !torch.int) -> !torch.list<int>
    %wide = torch.aten.reshape %y, %flat {hp.phase = "forward", hp.stage = 1 : i64} : !y, !torch.list<int> -> !x
    %loss = torch.aten.sum %wide, %none {hp.phase = "forward", hp.stage = 1 : i64} : !x, !torch.none -> !s
    %d = torch.aten.cos %wide {hp.phase = "backward", hp.stage = 1 : i64} : !x -> !x
    %square = torch.prim.ListConstruct %int4, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
    %dy = torch.aten.reshape %d, %square {hp.phase = "backward", hp.stage = 1 : i64} : !x, !torch.list<int> -> !y
    %dh = torch.aten.mm %dy, %b {hp.phase = "backward", hp.stage = 1 : i64} : !y, !y -> !y
    %dyt = torch.aten.t %dy {hp.phase = "backward", hp.stage = 1 : i64} : !y -> !y
    %db = torch.aten.mm %dyt, %h {hp.phase = "backward", hp.stage = 1 : i64} : !y, !y -> !y
    %da = torch.aten.mm %dh, %x {hp.phase = "backward", hp.stage = 0 : i64} : !y, !y -> !y
    return %loss, %da, %db : !s, !y, !y
  }
}
