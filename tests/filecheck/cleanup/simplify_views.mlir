// RUN: hp-opt %s --hp-simplify --split-input-file | filecheck %s

!x = !torch.vtensor<[4,6],f32>
!t = !torch.vtensor<[6,4],f32>
!c = !torch.vtensor<[2,4,6],f32>
!s = !torch.vtensor<[4,2,6],f32>
!u = !torch.vtensor<[6,4,2],f32>

// What swaps the same dims twice is what it was, of whichever phase; other swaps stay.
// CHECK-LABEL: func.func @swaps
// CHECK-SAME:    %[[X:.*]]: !torch.vtensor<[4,6],f32>, %[[C:.*]]: !torch.vtensor<[2,4,6],f32>
// CHECK:         %[[A:.*]] = torch.aten.tanh %[[X]]
// CHECK-NEXT:    %[[B:.*]] = torch.aten.sin %[[X]]
// CHECK-NEXT:    %[[SWAPPED:.*]] = torch.aten.transpose.int %[[C]], %int0, %int1
// CHECK-NEXT:    %[[OTHER:.*]] = torch.aten.transpose.int %[[SWAPPED]], %int0, %int2
// CHECK-NEXT:    %[[D:.*]] = torch.aten.cos %[[C]]
// CHECK-NEXT:    return %[[A]], %[[B]], %[[OTHER]], %[[D]]
func.func @swaps(%x: !x, %c: !c) -> (!x, !x, !u, !c) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int-3 = torch.constant.int -3
  %0 = torch.aten.t %x {hp.phase = "forward"} : !x -> !t
  %1 = torch.aten.t %0 {hp.phase = "backward"} : !t -> !x
  %a = torch.aten.tanh %1 : !x -> !x
  %2 = torch.aten.t %1 : !x -> !t
  %3 = torch.aten.t %2 : !t -> !x
  %b = torch.aten.sin %3 : !x -> !x
  %4 = torch.aten.transpose.int %c, %int0, %int1 : !c, !torch.int, !torch.int -> !s
  %5 = torch.aten.transpose.int %4, %int0, %int2 : !s, !torch.int, !torch.int -> !u
  %6 = torch.aten.transpose.int %4, %int1, %int-3 : !s, !torch.int, !torch.int -> !c
  %d = torch.aten.cos %6 : !c -> !c
  return %a, %b, %5, %d : !x, !x, !u, !c
}

// -----

!x = !torch.vtensor<[8,6],f32>
!split = !torch.vtensor<[2,4,1,6],f32>
!more = !torch.vtensor<[2,2,2,3,2],f32>
!flat = !torch.vtensor<[48],f32>
!pairs = !torch.vtensor<[24,2],f32>

// A reshape to the shape there is goes, and one that takes dims apart is passed over, back to the shape before too. One
// that puts dims together may have copied, so that what reshapes it stays a reshape of it.
// CHECK-LABEL: func.func @reshapes
// CHECK:         %[[Y:.*]] = torch.aten.tanh %arg0
// CHECK:         %[[MORE:.*]] = torch.aten.reshape %[[Y]], %{{.*}} -> !torch.vtensor<[2,2,2,3,2],f32>
// CHECK-NEXT:    %[[BACK:.*]] = torch.aten.sin %[[Y]]
// CHECK:         %[[FLAT:.*]] = torch.aten.reshape %[[Y]], %{{.*}} -> !torch.vtensor<[48],f32>
// CHECK:         %[[PAIRS:.*]] = torch.aten.reshape %[[FLAT]]
// CHECK-NEXT:    return %[[MORE]], %[[BACK]], %[[PAIRS]]
func.func @reshapes(%x: !x) -> (!more, !x, !pairs) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int8 = torch.constant.int 8
  %int24 = torch.constant.int 24
  %int48 = torch.constant.int 48
  %y = torch.aten.tanh %x : !x -> !x
  %as_split = torch.prim.ListConstruct %int2, %int4, %int1, %int6 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %split = torch.aten.reshape %y, %as_split : !x, !torch.list<int> -> !split
  %as_more = torch.prim.ListConstruct %int2, %int2, %int2, %int3, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %more = torch.aten.reshape %split, %as_more : !split, !torch.list<int> -> !more
  %as_before = torch.prim.ListConstruct %int8, %int6 : (!torch.int, !torch.int) -> !torch.list<int>
  %back = torch.aten.reshape %split, %as_before : !split, !torch.list<int> -> !x
  %again = torch.aten.reshape %back, %as_before : !x, !torch.list<int> -> !x
  %sin = torch.aten.sin %again : !x -> !x
  %as_flat = torch.prim.ListConstruct %int48 : (!torch.int) -> !torch.list<int>
  %flat = torch.aten.reshape %y, %as_flat : !x, !torch.list<int> -> !flat
  %as_pairs = torch.prim.ListConstruct %int24, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %pairs = torch.aten.reshape %flat, %as_pairs : !flat, !torch.list<int> -> !pairs
  return %more, %sin, %pairs : !more, !x, !pairs
}

// -----

!x = !torch.vtensor<[4,6],f32>
!t = !torch.vtensor<[6,4],f32>
!d = !torch.vtensor<[?,6],f32>

// An argument is not returned where a view of it was, ops of checkpointed regions stay, and so does what reshapes sizes
// that are not known.
// CHECK-LABEL: func.func @stay
// CHECK:         torch.aten.t %arg0
// CHECK-NEXT:    %[[VIEW:.*]] = torch.aten.t
// CHECK-NEXT:    torch.aten.t %arg0 {hp.recompute = 0 : i64}
// CHECK-NEXT:    %[[REGION:.*]] = torch.aten.t %{{.*}} {hp.recompute = 0 : i64}
// CHECK-NEXT:    torch.aten.tanh %[[REGION]]
// CHECK:         %[[KNOWN:.*]] = torch.aten.reshape
// CHECK-NEXT:    torch.aten.tanh %[[KNOWN]]
// CHECK:         return %[[VIEW]]
func.func @stay(%x: !x, %d: !d, %n: !torch.int) -> (!x, !x, !d) {
  %int6 = torch.constant.int 6
  %0 = torch.aten.t %x : !x -> !t
  %1 = torch.aten.t %0 : !t -> !x
  %2 = torch.aten.t %x {hp.recompute = 0 : i64} : !x -> !t
  %3 = torch.aten.t %2 {hp.recompute = 0 : i64} : !t -> !x
  %y = torch.aten.tanh %3 : !x -> !x
  %sizes = torch.prim.ListConstruct %n, %int6 : (!torch.int, !torch.int) -> !torch.list<int>
  %4 = torch.aten.reshape %d, %sizes : !d, !torch.list<int> -> !d
  %z = torch.aten.tanh %4 : !d -> !d
  return %1, %y, %z : !x, !x, !d
}
