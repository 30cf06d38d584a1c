// RUN: hp-opt %s --split-input-file --hp-split-stages | filecheck %s
// RUN: hp-opt %s --split-input-file --hp-split-stages 2>&1 >/dev/null | filecheck %s --check-prefix=REMARK

// REMARK: split_stages.mlir:[[#]]:3: remark: 'func.func' op stage 0 keeps 1 value (192 bytes) for its backward and sends 1 value (192 bytes) to later stages
// REMARK-NEXT: remark: 'func.func' op stage 1 keeps 2 values (240 bytes) for its backward and sends 0 values (0 bytes) to later stages
// REMARK-NOT: {{.}}

// Two stages: what crosses, in which role and by which name; state, inputs and constants go straight to who uses them.

!x = !torch.vtensor<[6,4],f32>
!w0 = !torch.vtensor<[8,4],f32>
!h = !torch.vtensor<[6,8],f32>
!w1 = !torch.vtensor<[2,8],f32>
!y = !torch.vtensor<[6,2],f32>

// CHECK-LABEL: module attributes
// CHECK-SAME: hp.guards = [], hp.level = "staged", hp.output_tree = "null", hp.pipeline_axis = "pp", hp.stage_count = 2
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  // CHECK-NEXT: "hp.mesh"
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %up: !w0 {hp.fqn = ["up.weight"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %down: !w1 {hp.fqn = ["down.weight"], hp.role = "param", hp.stages = array<i64: 1>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"},
      %y: !y {hp.batch_dim = 0 : i64, hp.name = "y", hp.role = "input"})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !w0 {hp.fqn = ["up.weight"], hp.role = "grad"},
          !w1 {hp.fqn = ["down.weight"], hp.role = "grad"})
      attributes {hp.guards = [], hp.output_tree = "null"} {
    %one = torch.constant.int 1
    // CHECK: func.func @stage0_forward(%arg0: !torch.vtensor<[8,4],f32> {hp.fqn = ["up.weight"]
    // CHECK-SAME: %arg1: !torch.vtensor<[6,4],f32> {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
    // CHECK-SAME: -> (!torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "outgoing"})
    // CHECK-SAME: attributes {hp.stage = 0 : i64, hp.task = "forward"}
    // CHECK-NEXT: %[[T:.*]] = torch.aten.t %arg0
    // CHECK-NEXT: %[[MM:.*]] = torch.aten.mm %arg1, %[[T]] {hp.module = "up", hp.phase = "forward", hp.stage = 0 : i64}
    // CHECK-NEXT: %[[TANH:.*]] = torch.aten.tanh %[[MM]]
    // CHECK-NEXT: return %[[TANH]]
    %t0 = torch.aten.t %up {hp.module = "up", hp.phase = "forward", hp.stage = 0 : i64}
        : !w0 -> !torch.vtensor<[4,8],f32>
    %mm0 = torch.aten.mm %x, %t0 {hp.module = "up", hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.vtensor<[4,8],f32> -> !h
    %tanh = torch.aten.tanh %mm0 {hp.phase = "forward", hp.stage = 0 : i64} : !h -> !h
    // CHECK: func.func @stage1_forward(%arg0: !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"]
    // CHECK-SAME: %arg1: !torch.vtensor<[6,2],f32> {{.*}}hp.name = "y"
    // CHECK-SAME: %arg2: !torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "incoming"})
    // CHECK-SAME: -> (!torch.vtensor<[6,2],f32> {hp.name = "f1.0", hp.role = "saved"}, !torch.vtensor<[],f32> {hp.role = "loss"})
    // CHECK: %[[MM1:.*]] = torch.aten.mm %arg2
    // CHECK: %[[LOSS:.*]] = torch.aten.mse_loss %[[MM1]], %arg1
    // CHECK-NEXT: return %[[MM1]], %[[LOSS]]
    %t1 = torch.aten.t %down {hp.module = "down", hp.phase = "forward", hp.stage = 1 : i64}
        : !w1 -> !torch.vtensor<[8,2],f32>
    %mm1 = torch.aten.mm %tanh, %t1 {hp.module = "down", hp.phase = "forward", hp.stage = 1 : i64}
        : !h, !torch.vtensor<[8,2],f32> -> !y
    %loss = torch.aten.mse_loss %mm1, %y, %one {hp.phase = "forward", hp.stage = 1 : i64}
        : !y, !y, !torch.int -> !torch.vtensor<[],f32>
    // The transposed weight is made again, the loss's gradient is a constant.
    // CHECK: func.func @stage1_backward(%arg0: !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"]
    // CHECK-SAME: %arg1: !torch.vtensor<[6,2],f32> {{.*}}hp.name = "y"
    // CHECK-SAME: %arg2: !torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "incoming"}
    // CHECK-SAME: %arg3: !torch.vtensor<[6,2],f32> {hp.name = "f1.0", hp.role = "saved"})
    // CHECK-SAME: -> (!torch.vtensor<[6,8],f32> {hp.name = "b1.0", hp.role = "outgoing"}
    // CHECK-SAME: !torch.vtensor<[2,8],f32> {hp.fqn = ["down.weight"], hp.role = "grad"})
    // CHECK-SAME: attributes {hp.stage = 1 : i64, hp.task = "backward"}
    // CHECK-DAG: %[[T1:.*]] = torch.aten.t %arg0 {hp.module = "down", hp.phase = "backward", hp.stage = 1 : i64}
    // CHECK-DAG: %[[DY:.*]] = torch.aten.mse_loss_backward %{{.*}}, %arg3, %arg1
    // CHECK: %[[BACK:.*]] = torch.aten.t %[[T1]]
    // CHECK: torch.aten.mm %[[DY]], %[[BACK]]
    %none = torch.constant.none
    %float = torch.constant.float 1.0
    %sizes = torch.prim.ListConstruct : () -> !torch.list<int>
    %ones = torch.aten.full %sizes, %float, %none, %none, %none, %none {hp.phase = "backward", hp.stage = 1 : i64}
        : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
    %dy = torch.aten.mse_loss_backward %ones, %mm1, %y, %one {hp.phase = "backward", hp.stage = 1 : i64}
        : !torch.vtensor<[],f32>, !y, !y, !torch.int -> !y
    %back = torch.aten.t %t1 {hp.module = "down", hp.phase = "backward", hp.stage = 1 : i64}
        : !torch.vtensor<[8,2],f32> -> !w1
    %dh = torch.aten.mm %dy, %back {hp.module = "down", hp.phase = "backward", hp.stage = 1 : i64} : !y, !w1 -> !h
    %dyt = torch.aten.t %dy {hp.module = "down", hp.phase = "backward", hp.stage = 1 : i64}
        : !y -> !torch.vtensor<[2,6],f32>
    %ddown = torch.aten.mm %dyt, %tanh {hp.module = "down", hp.phase = "backward", hp.stage = 1 : i64}
        : !torch.vtensor<[2,6],f32>, !h -> !w1
    // f0.0 is sent to stage 1 and kept by stage 0: one result, "outgoing" where it is made and "saved" here.
    // CHECK: func.func @stage0_backward(%arg0: !torch.vtensor<[6,4],f32> {{.*}}hp.name = "x"
    // CHECK-SAME: %arg1: !torch.vtensor<[6,8],f32> {hp.name = "b1.0", hp.role = "incoming"}
    // CHECK-SAME: %arg2: !torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "saved"})
    // CHECK-SAME: -> (!torch.vtensor<[8,4],f32> {hp.fqn = ["up.weight"], hp.role = "grad"})
    // CHECK-NEXT: torch.aten.tanh_backward %arg1, %arg2
    // CHECK-NOT: func.func
    %dmm = torch.aten.tanh_backward %dh, %tanh {hp.phase = "backward", hp.stage = 0 : i64} : !h, !h -> !h
    %dmmt = torch.aten.t %dmm {hp.module = "up", hp.phase = "backward", hp.stage = 0 : i64}
        : !h -> !torch.vtensor<[8,6],f32>
    %dup = torch.aten.mm %dmmt, %x {hp.module = "up", hp.phase = "backward", hp.stage = 0 : i64}
        : !torch.vtensor<[8,6],f32>, !x -> !w0
    return %loss, %dup, %ddown : !torch.vtensor<[],f32>, !w0, !w1
  }
}
