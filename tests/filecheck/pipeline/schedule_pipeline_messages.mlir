// RUN: hp-opt %s --split-input-file --hp-schedule-pipeline='microbatches=2 table=%S/schedule_pipeline_swapped.txt' | filecheck %s --check-prefix=TABLE
// RUN: hp-opt %s --split-input-file --hp-schedule-pipeline='microbatches=2 schedule=gpipe' | filecheck %s

// Three stages on three ranks without backwards, so each rank has a forward per microbatch alone. What stage 0 makes
// goes to stages 1 and 2, straight from rank 0 to each; two values for one rank are one message, equal types together.

!a = !torch.vtensor<[6,8],f32>
!b = !torch.vtensor<[6],si64>
!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(%x: !a {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"},
      %ids: !b {hp.batch_dim = 0 : i64, hp.name = "ids", hp.role = "input"})
      -> (!a {hp.name = "f0.0", hp.role = "outgoing"}, !b {hp.name = "f0.1", hp.role = "outgoing"},
          !a {hp.name = "f0.2", hp.role = "outgoing"})
      attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %x, %ids, %x : !a, !b, !a
  }
  func.func @stage1_forward(%0: !a {hp.name = "f0.0", hp.role = "incoming"}, %1: !b {hp.name = "f0.1", hp.role = "incoming"},
      %2: !a {hp.name = "f0.2", hp.role = "incoming"})
      -> (!a {hp.name = "f1.0", hp.role = "outgoing"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    return %0 : !a
  }
  func.func @stage2_forward(%0: !a {hp.name = "f0.2", hp.role = "incoming"}, %1: !a {hp.name = "f1.0", hp.role = "incoming"})
      -> (!s {hp.role = "loss"}) attributes {hp.stage = 2 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %2 = torch.aten.sum %1, %none : !a, !torch.none -> !s
    return %2 : !s
  }
}

// CHECK-LABEL: func.func @rank0(
// CHECK:         %[[MADE:.*]]:3 = call @stage0_forward({{.*}}) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    "hp.send"(%[[MADE]]#0, %[[MADE]]#2, %[[MADE]]#1) {{.*}}label = "f0.0, f0.2, f0.1 mb 0", {{.*}}peer = 1
// CHECK-NEXT:    "hp.send"(%[[MADE]]#2) {{.*}}label = "f0.2 mb 0", {{.*}}peer = 2

// CHECK-LABEL: func.func @rank1(
// CHECK:         %[[F0:.*]] = "hp.recv"() {{.*}}label = "f0.0, f0.2, f0.1 mb 0"
// CHECK-NEXT:    %[[F1:.*]] = "hp.recv"() {{.*}}label = "f0.0, f0.2, f0.1 mb 1"
// CHECK-NEXT:    %[[GOT:.*]]:3 = "hp.wait"(%[[F0]])
// CHECK-NEXT:    call @stage1_forward(%[[GOT]]#0, %[[GOT]]#2, %[[GOT]]#1) {hp.microbatch = 0 : i64}

// Two channels end at rank 2.
// CHECK-LABEL: func.func @rank2(
// CHECK:         "hp.recv"() {{.*}}label = "f0.2 mb 0", {{.*}}peer = 0
// CHECK-NEXT:    "hp.recv"() {{.*}}label = "f0.2 mb 1", {{.*}}peer = 0
// CHECK-NEXT:    "hp.recv"() {{.*}}label = "f1.0 mb 0", {{.*}}peer = 1
// CHECK-NEXT:    "hp.recv"() {{.*}}label = "f1.0 mb 1", {{.*}}peer = 1
// CHECK-NEXT:    "hp.wait"{{.*}} {label = "f0.2 mb 0"}
// CHECK-NEXT:    "hp.wait"{{.*}} {label = "f1.0 mb 0"}
// CHECK-NEXT:    call @stage2_forward({{.*}}) {hp.microbatch = 0 : i64}

// In the table rank 1 runs microbatch 1 first: the receive of microbatch 0, which is sent first, starts first too.
// TABLE:         hp.schedule = "schedule_pipeline_swapped"
// TABLE-LABEL: func.func @rank1(
// TABLE:         %[[F0:.*]] = "hp.recv"() {{.*}}label = "f0.0, f0.2, f0.1 mb 0"
// TABLE-NEXT:    %[[F1:.*]] = "hp.recv"() {{.*}}label = "f0.0, f0.2, f0.1 mb 1"
// TABLE-NEXT:    "hp.wait"(%[[F1]])
// TABLE-NEXT:    call @stage1_forward({{.*}}) {hp.microbatch = 1 : i64}
// TABLE-NEXT:    "hp.send"{{.*}}label = "f1.0 mb 1"
// TABLE-NEXT:    "hp.wait"(%[[F0]])
// TABLE-NEXT:    call @stage1_forward({{.*}}) {hp.microbatch = 0 : i64}

// -----

// Rows are a dynamic size: messages have a header, and a call is given the rows of its microbatch, also a stage without
// inputs. Other sizes are passed as they are.

!a = !torch.vtensor<[?,?],f32>
!s = !torch.vtensor<[],f32>

module attributes {hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = 3 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 3>, sym_name = "mesh"} : () -> ()
  func.func @stage0_forward(
      %x: !a {hp.batch_dim = 0 : i64, hp.dim_names = ["rows", "length"], hp.name = "x", hp.role = "input"},
      %rows: !torch.int {hp.name = "rows", hp.role = "size"}, %length: !torch.int {hp.name = "length", hp.role = "size"})
      -> (!a {hp.name = "f0.0", hp.role = "outgoing"}) attributes {hp.stage = 0 : i64, hp.task = "forward"} {
    return %x : !a
  }
  func.func @stage1_forward(%rows: !torch.int {hp.name = "rows", hp.role = "size"},
      %length: !torch.int {hp.name = "length", hp.role = "size"}, %0: !a {hp.name = "f0.0", hp.role = "incoming"})
      -> (!a {hp.name = "f1.0", hp.role = "outgoing"}) attributes {hp.stage = 1 : i64, hp.task = "forward"} {
    %1 = torch.aten.mul.int %rows, %length : !torch.int, !torch.int -> !torch.int
    %2 = torch.aten.mul.Scalar %0, %1 : !a, !torch.int -> !a
    return %2 : !a
  }
  func.func @stage2_forward(%0: !a {hp.name = "f1.0", hp.role = "incoming"}) -> (!s {hp.role = "loss"}, !s {hp.role = "weight"})
      attributes {hp.stage = 2 : i64, hp.task = "forward"} {
    %none = torch.constant.none
    %1 = torch.aten.sum %0, %none : !a, !torch.none -> !s
    return %1, %1 : !s, !s
  }
}

// CHECK-LABEL: func.func @rank1(
// CHECK-SAME:    %[[ROWS:.*]]: !torch.int {hp.name = "rows", hp.role = "size"}, %[[LENGTH:.*]]: !torch.int {hp.name = "length"
// CHECK-DAG:     %[[ONE:.*]] = torch.constant.int 1
// CHECK-DAG:     %[[TWO:.*]] = torch.constant.int 2
// CHECK-DAG:     %[[ZERO:.*]] = torch.constant.int 0
// CHECK:         "hp.recv"() {axis = "pp", header, label = "f0.0 mb 0"
// CHECK:         %[[SUM0:.*]] = torch.aten.add.int %[[ROWS]], %[[ONE]]
// CHECK-NEXT:    %[[ROWS0:.*]] = torch.aten.floordiv.int %[[SUM0]], %[[TWO]]
// CHECK-NEXT:    call @stage1_forward(%[[ROWS0]], %[[LENGTH]], {{.*}}) {hp.microbatch = 0 : i64}
// CHECK-NEXT:    "hp.send"({{.*}}) {axis = "pp", header, label = "f1.0 mb 0"
// CHECK:         %[[SUM1:.*]] = torch.aten.add.int %[[ROWS]], %[[ZERO]]
// CHECK-NEXT:    %[[ROWS1:.*]] = torch.aten.floordiv.int %[[SUM1]], %[[TWO]]
// CHECK-NEXT:    call @stage1_forward(%[[ROWS1]], %[[LENGTH]], {{.*}}) {hp.microbatch = 1 : i64}

// A rank of which no stage takes a size has it still.
// CHECK-LABEL: func.func @rank2(
// CHECK-SAME:    %{{.*}}: !torch.int {hp.name = "rows", hp.role = "size"}, %{{.*}}: !torch.int {hp.name = "length", hp.role = "size"})
