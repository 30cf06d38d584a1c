// RUN: hp-opt %s --split-input-file --hp-set-mesh=axes=dp:2 --hp-fsdp='axes=dp ignore=whole param-dtype=bfloat16 reduce-dtype=float64' | filecheck %s

!act = !torch.vtensor<[2,4],f32>
!weight = !torch.vtensor<[4,4],f32>
!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// The stored parameter stays as it is; its shard is cast at the entry and gathered in half the bytes.
// CHECK-LABEL: func.func @matmul_family
// CHECK-SAME: %[[W:arg0]]: !torch.vtensor<[2,4],f32> {hp.fqn = ["w"]
// CHECK-SAME: %[[B:arg1]]: !torch.vtensor<[2],f32> {hp.fqn = ["b"]
// CHECK-SAME: %[[NORM:arg2]]: !torch.vtensor<[2],f32> {hp.fqn = ["norm"]
// CHECK-SAME: %[[WHOLE:arg3]]: !torch.vtensor<[4],f32> {hp.fqn = ["whole"]
// CHECK-SAME: %[[X:arg4]]: !torch.vtensor<[2,4],f32> {hp.batch_dim
// CHECK-SAME: !torch.vtensor<[2,4],f32> {hp.fqn = ["w"], hp.role = "grad"
func.func @matmul_family(
    %w: !weight {hp.fqn = ["w"], hp.role = "param", hp.trainable},
    %b: !vec {hp.fqn = ["b"], hp.role = "param"},
    %norm: !vec {hp.fqn = ["norm"], hp.role = "param"},
    %whole: !vec {hp.fqn = ["whole"], hp.role = "param"},
    %x: !act {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!scalar {hp.role = "loss"}, !weight {hp.fqn = ["w"], hp.role = "grad"}) {
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  // CHECK-DAG: %[[LOWW:.*]] = torch.aten._to_copy %[[W]], %{{.*}} {hp.module = "", hp.phase = "forward"} : {{.*}} -> !torch.vtensor<[2,4],bf16>
  // CHECK-DAG: %[[LOWX:.*]] = torch.aten._to_copy %[[X]], {{.*}} -> !torch.vtensor<[2,4],bf16>
  // CHECK-DAG: %[[LOWB:.*]] = torch.aten._to_copy %[[B]], {{.*}} -> !torch.vtensor<[2],bf16>
  // CHECK-DAG: %[[LOWNORM:.*]] = torch.aten._to_copy %[[NORM]], {{.*}} -> !torch.vtensor<[2],bf16>
  // CHECK: "hp.all_gather"(%[[LOWW]]) {{.*}} (!torch.vtensor<[2,4],bf16>) -> !hp.future<[!torch.vtensor<[4,4],bf16>]>
  // CHECK: %[[FULLW:.*]] = "hp.wait"
  // CHECK: %[[T:.*]] = torch.aten.t %[[FULLW]] {{.*}} -> !torch.vtensor<[4,4],bf16>
  // CHECK: "hp.all_gather"(%[[LOWB]])
  // CHECK: %[[FULLB:.*]] = "hp.wait"
  // CHECK: %[[LOWH:.*]] = torch.aten.addmm %[[FULLB]], %[[LOWX]], %[[T]], {{.*}} -> !torch.vtensor<[2,4],bf16>
  // CHECK-NEXT: %[[H:.*]] = torch.aten._to_copy %[[LOWH]], {{.*}} {hp.module = "m", hp.phase = "forward"} : {{.*}} -> !torch.vtensor<[2,4],f32>
  %t = torch.aten.t %w {hp.module = "m", hp.phase = "forward"} : !weight -> !weight
  %h = torch.aten.addmm %b, %x, %t, %int1, %int1 {hp.module = "m", hp.phase = "forward"} : !vec, !act, !weight, !torch.int, !torch.int -> !act
  // Other users get the rounded parameter as it is stored; ignored parameters are left alone.
  // CHECK: %[[FULLNORM:.*]] = "hp.wait"
  // CHECK-NEXT: %[[WIDE:.*]] = torch.aten._to_copy %[[FULLNORM]], {{.*}} -> !torch.vtensor<[4],f32>
  // CHECK-NEXT: %[[N:.*]] = torch.aten.mul.Tensor %[[H]], %[[WIDE]] {{.*}} -> !torch.vtensor<[2,4],f32>
  // CHECK-NEXT: %[[Y:.*]] = torch.aten.mul.Tensor %[[N]], %[[WHOLE]]
  %n = torch.aten.mul.Tensor %h, %norm {hp.phase = "forward"} : !act, !vec -> !act
  %y = torch.aten.mul.Tensor %n, %whole {hp.phase = "forward"} : !act, !vec -> !act
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !act, !torch.none -> !scalar
  // The backward's gather is of the same cast shard, and its cast back is its own.
  // CHECK: "hp.all_gather"(%[[LOWNORM]]) {{.*}}hp.phase = "backward"
  // CHECK-NEXT: %[[FULLNORMB:.*]] = "hp.wait"
  // CHECK-NEXT: %[[WIDEB:.*]] = torch.aten._to_copy %[[FULLNORMB]], {{.*}}hp.phase = "backward"
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[WIDEB]]
  %dh = torch.aten.mul.Tensor %y, %norm {hp.phase = "backward"} : !act, !vec -> !act
  // CHECK: "hp.all_gather"(%[[LOWW]]) {{.*}}hp.phase = "backward"
  // CHECK: torch.aten.t {{.*}} -> !torch.vtensor<[4,4],bf16>
  // CHECK: torch.aten.mm %{{.*}} -> !torch.vtensor<[2,4],bf16>
  %tt = torch.aten.t %t {hp.module = "m", hp.phase = "backward"} : !weight -> !weight
  %dx = torch.aten.mm %dh, %tt {hp.module = "m", hp.phase = "backward"} : !act, !weight -> !act
  %xt = torch.aten.t %x {hp.module = "m", hp.phase = "backward"} : !act -> !torch.vtensor<[4,2],f32>
  // The gradient has the stored dtype; it is cast for the reduction and back.
  // CHECK: %[[D:.*]] = torch.aten.mm {{.*}} -> !torch.vtensor<[4,4],f32>
  // CHECK-NEXT: %[[DC:.*]] = torch.aten._to_copy %[[D]], {{.*}} -> !torch.vtensor<[4,4],f64>
  // CHECK-NEXT: %[[R:.*]] = "hp.reduce_scatter"(%[[DC]]) {{.*}} (!torch.vtensor<[4,4],f64>) -> !hp.future<[!torch.vtensor<[2,4],f64>]>
  // CHECK-NEXT: %[[GC:.*]] = "hp.wait"(%[[R]])
  // CHECK-NEXT: %[[G:.*]] = torch.aten._to_copy %[[GC]], {{.*}} -> !torch.vtensor<[2,4],f32>
  // CHECK-NEXT: return %{{.*}}, %[[G]]
  %dw = torch.aten.mm %xt, %dx {hp.module = "m", hp.phase = "backward"} : !torch.vtensor<[4,2],f32>, !act -> !weight
  return %loss, %dw : !scalar, !weight
}

// -----

!act = !torch.vtensor<[2,4],f32>
!weight = !torch.vtensor<[4,4],f32>
!low = !torch.vtensor<[4,4],bf16>
!half = !torch.vtensor<[4,4],f16>
!scalar = !torch.vtensor<[],f32>

// The model's own cast to the low dtype is the gathered parameter; one to another dtype starts from it. A result that
// the next operator of the family wants low again is not widened in between.
// CHECK-LABEL: func.func @casts
// CHECK-SAME: %[[W:arg0]]: {{.*}}%[[V:arg1]]: {{.*}}%[[C:arg2]]: !torch.vtensor<[2],complex<f32>>
func.func @casts(
    %w: !weight {hp.fqn = ["w"], hp.role = "param"}, %v: !weight {hp.fqn = ["v"], hp.role = "param"},
    %c: !torch.vtensor<[4],complex<f32>> {hp.fqn = ["c"], hp.role = "param"},
    %unused: !scalar {hp.fqn = ["whole"], hp.role = "param"},
    %x: !act {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64}) -> (!scalar {hp.role = "loss"}) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int5 = torch.constant.int 5
  %int15 = torch.constant.int 15
  // CHECK: %[[FULL:.*]] = "hp.wait"{{.*}} -> !torch.vtensor<[4,4],bf16>
  // CHECK-NEXT: torch.aten.sin %[[FULL]]
  %cast = torch.aten._to_copy %w, %int15, %none, %none, %none, %false, %none {hp.phase = "forward"} : !weight, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !low
  %s = torch.aten.sin %cast {hp.phase = "forward"} : !low -> !low
  // CHECK-NEXT: torch.prims.convert_element_type %[[FULL]], {{.*}} -> !torch.vtensor<[4,4],f16>
  %other = torch.prims.convert_element_type %w, %int5 {hp.phase = "forward"} : !weight, !torch.int -> !half
  // CHECK: %[[Y:.*]] = torch.aten.mm {{.*}} -> !torch.vtensor<[2,4],bf16>
  // CHECK-NOT: torch.aten._to_copy %[[Y]]
  // CHECK: %[[Z:.*]] = torch.aten.mm %[[Y]], {{.*}} -> !torch.vtensor<[2,4],bf16>
  // CHECK-NEXT: %[[WIDE:.*]] = torch.aten._to_copy %[[Z]], {{.*}} -> !torch.vtensor<[2,4],f32>
  // CHECK-NEXT: torch.aten.sum %[[WIDE]]
  %o = torch.aten.cos %other {hp.phase = "forward"} : !half -> !half
  %y = torch.aten.mm %x, %w {hp.phase = "forward"} : !act, !weight -> !act
  %z = torch.aten.mm %y, %v {hp.phase = "forward"} : !act, !weight -> !act
  %loss = torch.aten.sum %z, %none {hp.phase = "forward"} : !act, !torch.none -> !scalar
  // A complex parameter is gathered as it is stored.
  // CHECK: "hp.all_gather"(%[[C]])
  %r = torch.aten.abs %c {hp.phase = "forward"} : !torch.vtensor<[4],complex<f32>> -> !torch.vtensor<[4],f32>
  return %loss : !scalar
}

// -----

!vec = !torch.vtensor<[4],f32>
!scalar = !torch.vtensor<[],f32>

// A 0-d parameter stays whole, and is rounded all the same.
// CHECK-LABEL: func.func @whole_parameter
// CHECK-SAME: %[[S:arg0]]: !torch.vtensor<[],f32> {
func.func @whole_parameter(
    %s: !scalar {hp.fqn = ["s"], hp.role = "param"}, %unused: !vec {hp.fqn = ["whole"], hp.role = "param"},
    %x: !vec {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64}) -> (!scalar {hp.role = "loss"}) {
  %none = torch.constant.none
  // CHECK: %[[LOW:.*]] = torch.aten._to_copy %[[S]], {{.*}} -> !torch.vtensor<[],bf16>
  // CHECK: %[[WIDE:.*]] = torch.aten._to_copy %[[LOW]], {{.*}} -> !torch.vtensor<[],f32>
  // CHECK-NEXT: torch.aten.mul.Tensor %{{.*}}, %[[WIDE]]
  %y = torch.aten.mul.Tensor %x, %s {hp.phase = "forward"} : !vec, !scalar -> !vec
  %loss = torch.aten.sum %y, %none {hp.phase = "forward"} : !vec, !torch.none -> !scalar
  return %loss : !scalar
}
