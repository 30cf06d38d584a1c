// RUN: hp-opt %s --split-input-file --verify-diagnostics --hp-expand-buckets | filecheck %s
// RUN: hp-opt %s --split-input-file --hp-expand-buckets=layout=packed 2>/dev/null | filecheck %s --check-prefix=PACKED

!a = !torch.vtensor<[2,8],f32>
!b = !torch.vtensor<[3],f32>
!fa = !torch.vtensor<[4,8],f32>
!fb = !torch.vtensor<[6],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // Flat: the shards get places in one buffer, the second at a multiple of 16 bytes; the gathered tensors are views of one.
  // CHECK-LABEL: func.func @gather(
  // CHECK-SAME: %[[A:.*]]: !torch.vtensor<[2,8],f32> {hp.buffer = "l", hp.fqn = ["a"], hp.offset = 0 : i64, hp.role = "param"}
  // CHECK-SAME: %[[B:.*]]: !torch.vtensor<[3],f32> {hp.buffer = "l", hp.fqn = ["b"], hp.offset = 64 : i64, hp.role = "param"}
  // PACKED-LABEL: func.func @gather(
  // PACKED-SAME: {hp.fqn = ["a"], hp.role = "param"}
  func.func @gather(%a: !a {hp.fqn = ["a"], hp.role = "param"}, %b: !b {hp.fqn = ["b"], hp.role = "param"}) -> (!fa, !fb) {
    // CHECK-NEXT: %[[P:.*]] = "hp.pack"(%[[A]], %[[B]]) {alignment = 4 : i64, hp.bucket = "l", hp.module = "l", hp.phase = "forward", ranks = 1 : i64} : {{.*}} -> !torch.vtensor<[20],f32>
    // CHECK-NEXT: %[[F:.*]] = "hp.all_gather"(%[[P]]) {axes = ["dp"], dims = array<i64: 0>, hp.bucket = "l", hp.fqn = ["a", "b"], hp.member_bytes = array<i64: 64, 12>, hp.module = "l", hp.phase = "forward", hp.unit = "l", mesh = @mesh}
    // CHECK-NEXT: %[[W:.*]] = "hp.wait"(%[[F]]) {hp.bucket = "l", hp.fqn = ["a", "b"], hp.member_bytes = array<i64: 64, 12>, hp.phase = "forward"} : {{.*}} -> !torch.vtensor<[40],f32>
    // CHECK-NEXT: %[[U:.*]]:2 = "hp.unpack"(%[[W]]) {alignment = 4 : i64, dims = array<i64: 0, 0>, hp.bucket = "l", hp.module = "l", hp.phase = "forward", layout = "flat", ranks = 2 : i64}
    // CHECK-NEXT: return %[[U]]#0, %[[U]]#1
    // PACKED: "hp.pack"
    // PACKED: "hp.unpack"({{.*}}layout = "packed", ranks = 2 : i64}
    // expected-remark@+1 {{moves 2 tensors as one of 80 bytes, 4 of them padding}}
    %f = "hp.all_gather"(%a, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.fqn = ["a", "b"], hp.phase = "forward", hp.module = "l", hp.unit = "l"} : (!a, !b) -> !hp.future<[!fa, !fb]>
    %g:2 = "hp.wait"(%f) {hp.bucket = "l", hp.fqn = ["a", "b"], hp.phase = "forward"}  : (!hp.future<[!fa, !fb]>) -> (!fa, !fb)
    return %g#0, %g#1 : !fa, !fb
  }
}

// -----

!a = !torch.vtensor<[4,4],f32>
!b = !torch.vtensor<[3,2],f32>
!sa = !torch.vtensor<[2,4],f32>
!sb = !torch.vtensor<[3,1],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // A reduce-scatter is packed rank-major; what arrives is views of one buffer in both layouts. No argument gets a place.
  // CHECK-LABEL: func.func @scatter(%arg0: !torch.vtensor<[4,4],f32>, %arg1: !torch.vtensor<[3,2],f32>)
  // PACKED-LABEL: func.func @scatter(
  func.func @scatter(%a: !a, %b: !b) -> (!sa, !sb) {
    // CHECK-NEXT: %[[P:.*]] = "hp.pack"(%arg0, %arg1) {alignment = 4 : i64, dims = array<i64: 0, 1>, ranks = 2 : i64} : {{.*}} -> !torch.vtensor<[24],f32>
    // CHECK-NEXT: %[[F:.*]] = "hp.reduce_scatter"(%[[P]]) {axes = ["dp"], dims = array<i64: 0>, hp.member_bytes = array<i64: 64, 24>, mesh = @mesh, reduce = "avg"}
    // CHECK-NEXT: %[[W:.*]] = "hp.wait"(%[[F]]) {hp.member_bytes = array<i64: 64, 24>} : {{.*}} -> !torch.vtensor<[12],f32>
    // CHECK-NEXT: "hp.unpack"(%[[W]]) {alignment = 4 : i64, layout = "flat", ranks = 1 : i64} : (!torch.vtensor<[12],f32>) -> (!torch.vtensor<[2,4],f32>, !torch.vtensor<[3,1],f32>)
    // PACKED: "hp.unpack"({{.*}}layout = "flat"
    // expected-remark@+1 {{moves 2 tensors as one of 96 bytes, 8 of them padding}}
    %f = "hp.reduce_scatter"(%a, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 1>, reduce = "avg"} : (!a, !b) -> !hp.future<[!sa, !sb]>
    %g:2 = "hp.wait"(%f) : (!hp.future<[!sa, !sb]>) -> (!sa, !sb)
    return %g#0, %g#1 : !sa, !sb
  }

  // An all-reduce, of some positions of an axis too; scalars are packed as well.
  // CHECK-LABEL: func.func @reduce(
  func.func @reduce(%a: !a, %s: !torch.vtensor<[],f32>) -> (!a, !torch.vtensor<[],f32>) {
    // CHECK-NEXT: %[[P:.*]] = "hp.pack"(%arg0, %arg1) {alignment = 4 : i64, ranks = 1 : i64} : {{.*}} -> !torch.vtensor<[20],f32>
    // CHECK-NEXT: %[[F:.*]] = "hp.all_reduce"(%[[P]]) {axes = ["dp"], coordinates = array<i64: 0, 1>, hp.member_bytes = array<i64: 64, 4>, mesh = @mesh, reduce = "sum"}
    // CHECK-NEXT: %[[W:.*]] = "hp.wait"(%[[F]])
    // CHECK-NEXT: "hp.unpack"(%[[W]]) {alignment = 4 : i64, layout = "flat", ranks = 1 : i64}
    // expected-remark@+1 {{moves 2 tensors as one of 80 bytes, 12 of them padding}}
    %f = "hp.all_reduce"(%a, %s) {mesh = @mesh, axes = ["dp"], coordinates = array<i64: 0, 1>, reduce = "sum"} : (!a, !torch.vtensor<[],f32>) -> !hp.future<[!a, !torch.vtensor<[],f32>]>
    %g:2 = "hp.wait"(%f) : (!hp.future<[!a, !torch.vtensor<[],f32>]>) -> (!a, !torch.vtensor<[],f32>)
    return %g#0, %g#1 : !a, !torch.vtensor<[],f32>
  }

  // A bucket whose operands another one gives: reduced over one axis, then over another.
  // CHECK-LABEL: func.func @chained(
  func.func @chained(%a: !a, %b: !a) -> (!a, !a) {
    // CHECK: %[[U:.*]]:2 = "hp.unpack"
    // CHECK-NEXT: "hp.pack"(%[[U]]#0, %[[U]]#1)
    // expected-remark@+1 {{moves 2 tensors}}
    %f = "hp.all_reduce"(%a, %b) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!a, !a) -> !hp.future<[!a, !a]>
    %g:2 = "hp.wait"(%f) : (!hp.future<[!a, !a]>) -> (!a, !a)
    // expected-remark@+1 {{moves 2 tensors}}
    %h = "hp.all_reduce"(%g#0, %g#1) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!a, !a) -> !hp.future<[!a, !a]>
    %i:2 = "hp.wait"(%h) : (!hp.future<[!a, !a]>) -> (!a, !a)
    return %i#0, %i#1 : !a, !a
  }
}

// -----

!a = !torch.vtensor<[3],bf16>
!b = !torch.vtensor<[2],f64>
!fa = !torch.vtensor<[6],bf16>
!fb = !torch.vtensor<[4],f64>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // Several dtypes are gathered as bytes. A bucket without a name has a buffer all the same.
  // CHECK-LABEL: func.func @bytes(
  // CHECK-SAME: {hp.buffer = "bucket", hp.offset = 0 : i64, hp.role = "param"}
  // CHECK-SAME: {hp.buffer = "bucket", hp.offset = 16 : i64, hp.role = "param"}
  func.func @bytes(%a: !a {hp.role = "param"}, %b: !b {hp.role = "param"}) -> (!fa, !fb) {
    // CHECK: "hp.pack"(%arg0, %arg1) {alignment = 16 : i64, ranks = 1 : i64} : {{.*}} -> !torch.vtensor<[32],ui8>
    // CHECK: "hp.all_gather"({{.*}}hp.member_bytes = array<i64: 6, 16>
    // expected-remark@+1 {{moves 2 tensors as one of 32 bytes, 10 of them padding}}
    %f = "hp.all_gather"(%a, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>} : (!a, !b) -> !hp.future<[!fa, !fb]>
    %g:2 = "hp.wait"(%f) : (!hp.future<[!fa, !fb]>) -> (!fa, !fb)
    return %g#0, %g#1 : !fa, !fb
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // The backward needs the third and the first: they stand first in the buffer, in its order, and it packs them in the
  // buffer's. The names follow. The other one of the forward has the name of a buffer that is taken.
  // CHECK-LABEL: func.func @order(
  // CHECK-SAME: %[[A:.*]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.offset = 0 : i64,
  // CHECK-SAME: %[[B:.*]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.offset = 32 : i64,
  // CHECK-SAME: %[[C:.*]]: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.offset = 16 : i64,
  // CHECK-SAME: %[[D:.*]]: !torch.vtensor<[4],f32> {hp.buffer = "l (2)", hp.offset = 0 : i64,
  // CHECK-SAME: %[[E:.*]]: !torch.vtensor<[4],f32> {hp.buffer = "l (2)", hp.offset = 16 : i64,
  func.func @order(%a: !s {hp.role = "param"}, %b: !s {hp.role = "param"}, %c: !s {hp.role = "param"}, %d: !s {hp.role = "param"}, %e: !s {hp.role = "param"}) -> (!f, !f, !f, !f, !f, !f, !f, !f, !f) {
    // CHECK: "hp.pack"(%[[A]], %[[C]], %[[B]])
    // CHECK: hp.fqn = ["a", "c", "b"], hp.member_bytes = array<i64: 16, 16, 16>
    // CHECK: %[[U:.*]]:3 = "hp.unpack"
    // expected-remark@+1 {{moves 3 tensors}}
    %0 = "hp.all_gather"(%a, %b, %c) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0, 0>, hp.bucket = "l", hp.fqn = ["a", "b", "c"], hp.phase = "forward"} : (!s, !s, !s) -> !hp.future<[!f, !f, !f]>
    %1:3 = "hp.wait"(%0) : (!hp.future<[!f, !f, !f]>) -> (!f, !f, !f)
    // CHECK: "hp.pack"(%[[D]], %[[E]])
    // expected-remark@+1 {{moves 2 tensors}}
    %2 = "hp.all_gather"(%d, %e) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.phase = "forward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %3:2 = "hp.wait"(%2) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // CHECK: "hp.pack"(%[[A]], %[[C]])
    // CHECK: hp.fqn = ["a", "c"], hp.member_bytes = array<i64: 16, 16>
    // CHECK: %[[V:.*]]:2 = "hp.unpack"
    // expected-remark@+1 {{moves 2 tensors}}
    %4 = "hp.all_gather"(%c, %a) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.fqn = ["c", "a"], hp.phase = "backward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %5:2 = "hp.wait"(%4) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // Of two buffers: in the order it has.
    // CHECK: "hp.pack"(%[[D]], %[[B]])
    // expected-remark@+1 {{moves 2 tensors}}
    %6 = "hp.all_gather"(%d, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.phase = "backward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %7:2 = "hp.wait"(%6) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // CHECK: return %[[U]]#0, %[[U]]#2, %[[U]]#1, {{.*}}, {{.*}}, %[[V]]#1, %[[V]]#0,
    return %1#0, %1#1, %1#2, %3#0, %3#1, %5#0, %5#1, %7#0, %7#1 : !f, !f, !f, !f, !f, !f, !f, !f, !f
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // The forward's decides, though the backward's stands first here; a place that is there already stays.
  // CHECK-LABEL: func.func @placed(
  // CHECK-SAME: {hp.buffer = "l", hp.offset = 0 : i64, hp.role = "param"}
  // CHECK-SAME: {hp.buffer = "l", hp.offset = 16 : i64, hp.role = "param"}
  // CHECK-SAME: {hp.buffer = "old", hp.offset = 64 : i64, hp.role = "param"}
  // CHECK-SAME: {hp.role = "param"}
  // CHECK-SAME: {hp.role = "buffer"}
  func.func @placed(%a: !s {hp.role = "param"}, %b: !s {hp.role = "param"}, %c: !s {hp.buffer = "old", hp.offset = 64 : i64, hp.role = "param"}, %d: !s {hp.role = "param"}, %e: !s {hp.role = "buffer"}) -> (!f, !f, !f) {
    // CHECK: "hp.pack"(%arg0, %arg3)
    // expected-remark@+1 {{moves 2 tensors}}
    %0 = "hp.all_gather"(%a, %d) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.phase = "backward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %1:2 = "hp.wait"(%0) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // expected-remark@+1 {{moves 2 tensors}}
    %2 = "hp.all_gather"(%a, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.phase = "forward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %3:2 = "hp.wait"(%2) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // expected-remark@+1 {{moves 2 tensors}}
    %4 = "hp.all_gather"(%d, %c) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "old", hp.phase = "forward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %5:2 = "hp.wait"(%4) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // expected-remark@+1 {{moves 2 tensors}}
    %6 = "hp.all_gather"(%d, %e) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "k", hp.phase = "forward"} : (!s, !s) -> !hp.future<[!f, !f]>
    %7:2 = "hp.wait"(%6) : (!hp.future<[!f, !f]>) -> (!f, !f)
    return %1#0, %3#0, %5#0 : !f, !f, !f
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!h = !torch.vtensor<[4],bf16>
!f = !torch.vtensor<[8],bf16>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  // Shards that are cast alike are packed as stored and cast once; 8 elements are 16 bytes of what is sent.
  // CHECK-LABEL: func.func @cast(
  // CHECK-SAME: {hp.buffer = "l", hp.offset = 0 : i64, hp.role = "param"}
  // CHECK-SAME: {hp.buffer = "l", hp.offset = 32 : i64, hp.role = "param"}
  // PACKED-LABEL: func.func @cast(
  func.func @cast(%a: !s {hp.role = "param"}, %b: !s {hp.role = "param"}) -> (!f, !f, !f) {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int15 = torch.constant.int 15
    // CHECK-NOT: torch.aten._to_copy %arg
    %0 = torch.aten._to_copy %a, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    %1 = torch.aten._to_copy %b, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    // CHECK: %[[P:.*]] = "hp.pack"(%arg0, %arg1) {alignment = 8 : i64, {{.*}} -> !torch.vtensor<[16],f32>
    // CHECK-NEXT: %[[C:.*]] = torch.aten._to_copy %[[P]], {{.*}} {hp.bucket = "l", hp.phase = "forward"} : {{.*}} -> !torch.vtensor<[16],bf16>
    // CHECK-NEXT: "hp.all_gather"(%[[C]]) {{.*}}hp.member_bytes = array<i64: 8, 8>
    // CHECK: "hp.unpack"({{.*}}) {alignment = 8 : i64, {{.*}} : (!torch.vtensor<[32],bf16>) -> (!torch.vtensor<[8],bf16>, !torch.vtensor<[8],bf16>)
    // PACKED: %[[P:.*]] = "hp.pack"(%arg0, %arg1)
    // PACKED-NEXT: torch.aten._to_copy %[[P]]
    // expected-remark@+1 {{moves 2 tensors as one of 32 bytes, 16 of them padding}}
    %2 = "hp.all_gather"(%0, %1) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.phase = "forward"} : (!h, !h) -> !hp.future<[!f, !f]>
    %3:2 = "hp.wait"(%2) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // CHECK: "hp.pack"(%arg0, %arg1) {{.*}}hp.phase = "backward"
    // expected-remark@+1 {{moves 2 tensors}}
    %4 = "hp.all_gather"(%1, %0) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", hp.phase = "backward"} : (!h, !h) -> !hp.future<[!f, !f]>
    %5:2 = "hp.wait"(%4) : (!hp.future<[!f, !f]>) -> (!f, !f)
    return %3#0, %3#1, %5#0 : !f, !f, !f
  }

  // Something else reads a cast: it stays for that.
  // CHECK-LABEL: func.func @cast_and_used(
  // CHECK-SAME: {hp.buffer = "bucket", hp.offset = 0 : i64, hp.role = "param"}
  func.func @cast_and_used(%a: !s {hp.role = "param"}, %b: !s {hp.role = "param"}) -> (!f, !h) {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int15 = torch.constant.int 15
    // CHECK-NOT: torch.aten._to_copy %arg0
    // CHECK: %[[B:.*]] = torch.aten._to_copy %arg1
    // CHECK: %[[P:.*]] = "hp.pack"(%arg0, %arg1) {{.*}} -> !torch.vtensor<[16],f32>
    // CHECK: torch.aten._to_copy %[[P]]
    // CHECK: return {{.*}}, %[[B]]
    %0 = torch.aten._to_copy %a, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    %1 = torch.aten._to_copy %b, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    // expected-remark@+1 {{moves 2 tensors}}
    %2 = "hp.all_gather"(%0, %1) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>} : (!h, !h) -> !hp.future<[!f, !f]>
    %3:2 = "hp.wait"(%2) : (!hp.future<[!f, !f]>) -> (!f, !f)
    return %3#0, %1 : !f, !h
  }

  // Only some are cast: they are gathered as bytes of what they are.
  // CHECK-LABEL: func.func @some_cast(
  func.func @some_cast(%a: !s {hp.role = "param"}, %b: !s {hp.role = "param"}) -> (!f, !torch.vtensor<[8],f32>) {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int15 = torch.constant.int 15
    // CHECK: %[[A:.*]] = torch.aten._to_copy %arg0
    // CHECK: "hp.pack"(%[[A]], %arg1) {{.*}} -> !torch.vtensor<[32],ui8>
    %0 = torch.aten._to_copy %a, %int15, %none, %none, %none, %false, %none : !s, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    // expected-remark@+1 {{moves 2 tensors}}
    %2 = "hp.all_gather"(%0, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>} : (!h, !s) -> !hp.future<[!f, !torch.vtensor<[8],f32>]>
    %3:2 = "hp.wait"(%2) : (!hp.future<[!f, !torch.vtensor<[8],f32>]>) -> (!f, !torch.vtensor<[8],f32>)
    return %3#0, %3#1 : !f, !torch.vtensor<[8],f32>
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>
!d = !torch.vtensor<[?],f32>
!w = !torch.vtensor<[4],f64>

module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["one", "dp"], axis_sizes = array<i64: 1, 2>, sym_name = "mesh"} : () -> ()
  // CHECK-LABEL: func.func @left(
  func.func @left(%a: !s, %b: !s, %d: !d, %w: !w) -> (!s, !f, !d, !w, !f) {
    // One tensor, and what one rank does alone, are no launches to save.
    // CHECK-NOT: hp.pack
    // CHECK: "hp.all_gather"(%arg0, %arg1) {axes = ["one"]
    %0 = "hp.all_gather"(%a, %b) {mesh = @mesh, axes = ["one"], dims = array<i64: 0, 0>} : (!s, !s) -> !hp.future<[!s, !s]>
    %1:2 = "hp.wait"(%0) : (!hp.future<[!s, !s]>) -> (!s, !s)
    // CHECK: "hp.all_gather"(%arg0) {axes = ["dp"]
    %2 = "hp.all_gather"(%a) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!s) -> !hp.future<[!f]>
    %3 = "hp.wait"(%2) : (!hp.future<[!f]>) -> !f
    // CHECK: "hp.all_reduce"(%arg0, %arg2)
    // expected-remark@+1 {{stays a collective of 2 tensors: an operand has a dynamic size}}
    %4 = "hp.all_reduce"(%a, %d) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!s, !d) -> !hp.future<[!s, !d]>
    %5:2 = "hp.wait"(%4) : (!hp.future<[!s, !d]>) -> (!s, !d)
    // CHECK: "hp.all_reduce"(%arg0, %arg3)
    // expected-remark@+1 {{stays a collective of 2 tensors: it reduces several dtypes}}
    %6 = "hp.all_reduce"(%a, %w) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!s, !w) -> !hp.future<[!s, !w]>
    %7:2 = "hp.wait"(%6) : (!hp.future<[!s, !w]>) -> (!s, !w)
    // CHECK: "hp.all_gather"(%arg0, %arg1) {axes = ["dp"]
    // expected-remark@+1 {{stays a collective of 2 tensors: expected one hp.wait for it, found 2 uses}}
    %8 = "hp.all_gather"(%a, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>} : (!s, !s) -> !hp.future<[!f, !f]>
    %9:2 = "hp.wait"(%8) : (!hp.future<[!f, !f]>) -> (!f, !f)
    %10:2 = "hp.wait"(%8) : (!hp.future<[!f, !f]>) -> (!f, !f)
    // CHECK: "hp.all_to_all"(%arg0, %arg1)
    %11 = "hp.all_to_all"(%a, %b) {mesh = @mesh, axes = ["dp"], split_dims = array<i64: 0, 0>, concat_dims = array<i64: 0, 0>} : (!s, !s) -> !hp.future<[!s, !s]>
    %12:2 = "hp.wait"(%11) : (!hp.future<[!s, !s]>) -> (!s, !s)
    return %1#0, %3, %5#1, %7#1, %9#0 : !s, !f, !d, !w, !f
  }
}

// -----

// Without a mesh there is nothing to do.
module attributes {hp.level = "spmd"} {
  // CHECK-LABEL: func.func @alone(
  func.func @alone(%a: !torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> {
    return %a : !torch.vtensor<[],f32>
  }
}
