// RUN: hp-opt %s --split-input-file --hp-split-stages | filecheck %s

// A value that the backward needs itself is saved, and the views of it are made again.

!x = !torch.vtensor<[2,4],f32>
!t = !torch.vtensor<[4,2],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "saved"}, !torch.vtensor<[],f32> {hp.role = "loss"})
// CHECK: func.func @stage0_backward(
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {hp.name = "f0.0", hp.role = "saved"})
// CHECK-NEXT: %[[T:.*]] = torch.aten.t %arg1 {hp.module = "m", hp.phase = "backward", hp.stage = 0 : i64}
// CHECK-NEXT: %[[BACK:.*]] = torch.aten.t %[[T]]
// CHECK-NEXT: torch.aten.mul.Tensor %[[BACK]], %arg1
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %none = torch.constant.none
    %y = torch.aten.tanh %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %t = torch.aten.t %y {hp.module = "m", hp.phase = "forward", hp.stage = 0 : i64} : !x -> !t
    %loss = torch.aten.sum %t, %none {hp.phase = "forward", hp.stage = 0 : i64} : !t, !torch.none -> !s
    %back = torch.aten.t %t {hp.phase = "backward", hp.stage = 0 : i64} : !t -> !x
    %d = torch.aten.mul.Tensor %back, %y {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    %da = torch.aten.mul.Tensor %d, %a {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

// Where the backward needs views and casts alone, the fewest bytes are saved: a slice and a narrower cast of it here,
// and not the value; of two slices as large as the value together, the value.

!x = !torch.vtensor<[4,4],f32>
!half = !torch.vtensor<[2,4],f32>
!low = !torch.vtensor<[2,4],bf16>
!row = !torch.vtensor<[1,4],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[1,4],f32> {hp.name = "f0.0", hp.role = "saved"}
// CHECK-SAME: !torch.vtensor<[2,4],bf16> {hp.name = "f0.1", hp.role = "saved"}
// CHECK-SAME: !torch.vtensor<[4,4],f32> {hp.name = "f0.2", hp.role = "saved"}
// CHECK: %[[TANH:.*]] = torch.aten.tanh
// CHECK: %[[ROW:.*]] = torch.aten.slice.Tensor %[[TANH]]{{.*}} -> !torch.vtensor<[1,4],f32>
// CHECK: %[[LOW:.*]] = torch.prims.convert_element_type
// CHECK: %[[SIN:.*]] = torch.aten.sin
// CHECK: return %[[ROW]], %[[LOW]], %[[SIN]]
// CHECK: func.func @stage0_backward
// CHECK-DAG: torch.aten.slice.Tensor %arg{{[0-9]}}, %int0, %int0, %int2, %int1
// CHECK-DAG: torch.aten.slice.Tensor %arg{{[0-9]}}, %int0, %int2, %int4, %int1
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %row: !row {hp.fqn = ["row"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %low: !low {hp.fqn = ["low"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %half: !half {hp.fqn = ["half"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !row {hp.fqn = ["row"], hp.role = "grad"},
          !low {hp.fqn = ["low"], hp.role = "grad"}, !half {hp.fqn = ["half"], hp.role = "grad"}) {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %int4 = torch.constant.int 4
    %int15 = torch.constant.int 15
    %none = torch.constant.none
    %y = torch.aten.tanh %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %part = torch.aten.slice.Tensor %y, %int0, %int0, %int2, %int1 {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.int, !torch.int, !torch.int, !torch.int -> !half
    %first = torch.aten.slice.Tensor %y, %int0, %int0, %int1, %int1 {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.int, !torch.int, !torch.int, !torch.int -> !row
    %cast = torch.prims.convert_element_type %part, %int15 {hp.phase = "forward", hp.stage = 0 : i64}
        : !half, !torch.int -> !low
    %z = torch.aten.sin %y {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %top = torch.aten.slice.Tensor %z, %int0, %int0, %int2, %int1 {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.int, !torch.int, !torch.int, !torch.int -> !half
    %rest = torch.aten.slice.Tensor %z, %int0, %int2, %int4, %int1 {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.int, !torch.int, !torch.int, !torch.int -> !half
    %loss = torch.aten.sum %z, %none {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.none -> !torch.vtensor<[],f32>
    %drow = torch.aten.mul.Tensor %first, %row {hp.phase = "backward", hp.stage = 0 : i64} : !row, !row -> !row
    %dlow = torch.aten.mul.Tensor %cast, %low {hp.phase = "backward", hp.stage = 0 : i64} : !low, !low -> !low
    %dhalf = torch.aten.mul.Tensor %top, %rest {hp.phase = "backward", hp.stage = 0 : i64} : !half, !half -> !half
    return %loss, %drow, %dlow, %dhalf : !torch.vtensor<[],f32>, !row, !low, !half
  }
}

// -----

// Constants, draws and the masks made of them, and the views of inputs and parameters are made where they are needed.

!x = !torch.vtensor<[2,4],f32>
!t = !torch.vtensor<[4,2],f32>
!m = !torch.vtensor<[2,4],i1>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[],f32> {hp.role = "loss"})
// CHECK: func.func @stage0_backward(
// CHECK-SAME: %arg0: !torch.vtensor<[2,4],f32> {hp.fqn = ["a"]
// CHECK-SAME: %arg1: !torch.vtensor<[2,4],f32> {{.*}}hp.name = "x"{{[^)]*}})
// CHECK-SAME: -> (!torch.vtensor<[2,4],f32> {hp.fqn = ["a"], hp.role = "grad"})
// CHECK-DAG: %[[DRAW:.*]] = "hp.uniform"({{.*}}) {hp.phase = "backward", hp.stage = 0 : i64, rows = 2 : i64, stream = 3 : i64}
// CHECK-DAG: %[[MASK:.*]] = torch.aten.ge.Scalar %[[DRAW]]
// CHECK-DAG: %[[FULL:.*]] = torch.aten.full
// CHECK-DAG: %[[T:.*]] = torch.aten.t %arg1
// CHECK-DAG: torch.aten.mul.Tensor %[[FULL]], %[[MASK]]
// CHECK-DAG: torch.aten.t %[[T]]
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !x {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !x {hp.fqn = ["a"], hp.role = "grad"}) {
    %int2 = torch.constant.int 2
    %int4 = torch.constant.int 4
    %half = torch.constant.float 5.000000e-01
    %none = torch.constant.none
    %sizes = torch.prim.ListConstruct %int2, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
    %draw = "hp.uniform"(%int2, %int4) {hp.phase = "forward", hp.stage = 0 : i64, rows = 2 : i64, stream = 3 : i64}
        : (!torch.int, !torch.int) -> !x
    %mask = torch.aten.ge.Scalar %draw, %half {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.float -> !m
    %full = torch.aten.full %sizes, %half, %none, %none, %none, %none {hp.phase = "forward", hp.stage = 0 : i64}
        : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none -> !x
    %t = torch.aten.t %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !t
    %kept = torch.aten.mul.Tensor %full, %mask {hp.phase = "forward", hp.stage = 0 : i64} : !x, !m -> !x
    %product = torch.aten.mm %kept, %t {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !t -> !torch.vtensor<[2,2],f32>
    %loss = torch.aten.sum %product, %none {hp.phase = "forward", hp.stage = 0 : i64}
        : !torch.vtensor<[2,2],f32>, !torch.none -> !s
    %d = torch.aten.mul.Tensor %full, %mask {hp.phase = "backward", hp.stage = 0 : i64} : !x, !m -> !x
    %back = torch.aten.t %t {hp.phase = "backward", hp.stage = 0 : i64} : !t -> !x
    %e = torch.aten.mul.Tensor %d, %back {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    %da = torch.aten.mul.Tensor %e, %a {hp.phase = "backward", hp.stage = 0 : i64} : !x, !x -> !x
    return %loss, %da : !s, !x
  }
}

// -----

// A number read from a tensor goes with the tensor, a list with what it holds. Integers, bools, complex numbers and
// tensors without dims cross as any other.

!x = !torch.vtensor<[?,4],f32>
!i = !torch.vtensor<[],si64>
!b = !torch.vtensor<[?,4],i1>
!c = !torch.vtensor<[?,4],complex<f32>>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[?,4],f32> {hp.name = "f0.0", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[],si64> {hp.name = "f0.1", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[?,4],i1> {hp.name = "f0.2", hp.role = "outgoing"}
// CHECK-SAME: !torch.vtensor<[?,4],complex<f32>> {hp.name = "f0.3", hp.role = "outgoing"})
// CHECK: func.func @stage1_forward(%arg0: !torch.int {{.*}}hp.role = "size"}
// CHECK: %[[ROWS:.*]] = torch.aten.size.int %arg1
// CHECK: %[[SIZES:.*]] = torch.prim.ListConstruct %[[ROWS]], %arg0
// CHECK: torch.aten.full %[[SIZES]]
// CHECK: %[[LIST:.*]] = torch.prim.ListConstruct %arg1, %
// CHECK: torch.aten.cat %[[LIST]]
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 2 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %x: !x {hp.batch_dim = 0 : i64, hp.dim_names = ["rows", ""], hp.name = "x", hp.role = "input"},
      %rows: !torch.int {hp.name = "rows", hp.role = "size"})
      -> (!s {hp.role = "loss"}) {
    %int0 = torch.constant.int 0
    %one = torch.constant.float 1.0
    %none = torch.constant.none
    %false = torch.constant.bool false
    %y = torch.aten.tanh %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %arg = torch.aten.argmax %y, %none, %false {hp.phase = "forward", hp.stage = 0 : i64}
        : !x, !torch.none, !torch.bool -> !i
    %positive = torch.aten.gt.Scalar %y, %one {hp.phase = "forward", hp.stage = 0 : i64} : !x, !torch.float -> !b
    %complex = torch.operator "torch.aten.complex"(%y, %x) {hp.phase = "forward", hp.stage = 0 : i64} : (!x, !x) -> !c
    %size = torch.aten.size.int %y, %int0 : !x, !torch.int -> !torch.int
    %sizes = torch.prim.ListConstruct %size, %rows : (!torch.int, !torch.int) -> !torch.list<int>
    %full = torch.aten.full %sizes, %one, %none, %none, %none, %none {hp.phase = "forward", hp.stage = 1 : i64}
        : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none -> !x
    %list = torch.prim.ListConstruct %y, %full : (!x, !x) -> !torch.list<vtensor>
    %cat = torch.aten.cat %list, %int0 {hp.phase = "forward", hp.stage = 1 : i64}
        : !torch.list<vtensor>, !torch.int -> !x
    %loss = torch.operator "torch.aten.loss"(%cat, %arg, %positive, %complex) {hp.phase = "forward", hp.stage = 1 : i64}
        : (!x, !i, !b, !c) -> !s
    return %loss : !s
  }
}

// -----

// Of a value and a view of as many bytes the view is saved where the forward makes it for itself; one that only the
// backward makes is made there, of the value.

!x = !torch.vtensor<[2,4],f32>
!t = !torch.vtensor<[4,2],f32>
!s = !torch.vtensor<[],f32>

// CHECK-LABEL: func.func @stage0_forward
// CHECK-SAME: -> (!torch.vtensor<[4,2],f32> {hp.name = "f0.0", hp.role = "saved"}, !torch.vtensor<[2,4],f32> {hp.name = "f0.1", hp.role = "saved"}
// CHECK: %[[TANH:.*]] = torch.aten.tanh
// CHECK: %[[T:.*]] = torch.aten.t %[[TANH]]
// CHECK: %[[SIN:.*]] = torch.aten.sin
// CHECK: return %[[T]], %[[SIN]]
// CHECK: func.func @stage0_backward(
// CHECK-SAME: %arg2: !torch.vtensor<[4,2],f32> {hp.name = "f0.0", hp.role = "saved"}, %arg3: !torch.vtensor<[2,4],f32> {hp.name = "f0.1", hp.role = "saved"})
// CHECK-NEXT: torch.aten.mul.Tensor %arg2, %arg0
// CHECK-NEXT: %[[U:.*]] = torch.aten.t %arg3
// CHECK-NEXT: torch.aten.mul.Tensor %[[U]], %arg1
module attributes {hp.pipeline_axis = "pp", hp.stage_count = 1 : i64} {
  "hp.mesh"() {axis_names = ["pp"], axis_sizes = array<i64: 1>, sym_name = "mesh"} : () -> ()
  func.func @joint(
      %a: !t {hp.fqn = ["a"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %b: !t {hp.fqn = ["b"], hp.role = "param", hp.stages = array<i64: 0>, hp.trainable},
      %x: !x {hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"})
      -> (!s {hp.role = "loss"}, !t {hp.fqn = ["a"], hp.role = "grad"}, !t {hp.fqn = ["b"], hp.role = "grad"}) {
    %none = torch.constant.none
    %y = torch.aten.tanh %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %t = torch.aten.t %y {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !t
    %loss = torch.aten.sum %t, %none {hp.phase = "forward", hp.stage = 0 : i64} : !t, !torch.none -> !s
    %z = torch.aten.sin %x {hp.phase = "forward", hp.stage = 0 : i64} : !x -> !x
    %da = torch.aten.mul.Tensor %t, %a {hp.phase = "backward", hp.stage = 0 : i64} : !t, !t -> !t
    %u = torch.aten.t %z {hp.phase = "backward", hp.stage = 0 : i64} : !x -> !t
    %db = torch.aten.mul.Tensor %u, %b {hp.phase = "backward", hp.stage = 0 : i64} : !t, !t -> !t
    return %loss, %da, %db : !s, !t, !t
  }
}
