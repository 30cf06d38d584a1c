// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

// V10, V13: each member of a bucket is what it is: gathered, reduced once, split as its parameter. A cast keeps them apart.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%v: !s {hp.role = "param", hp.fqn = ["v"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %x: !f {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !s {hp.role = "grad", hp.fqn = ["v"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, !s {hp.role = "grad", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>}) {
    %none = torch.constant.none
    %false = torch.constant.bool false
    %int7 = torch.constant.int 7
    %p = "hp.pack"(%v, %w) {alignment = 1 : i64, ranks = 1 : i64} : (!s, !s) -> !f
    %c = torch.aten._to_copy %p, %int7, %none, %none, %none, %false, %none : !f, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[8],f64>
    %g = "hp.all_gather"(%c) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>} : (!torch.vtensor<[8],f64>) -> !hp.future<[!torch.vtensor<[16],f64>]>
    %h = "hp.wait"(%g) : (!hp.future<[!torch.vtensor<[16],f64>]>) -> !torch.vtensor<[16],f64>
    %u:2 = "hp.unpack"(%h) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 0>, layout = "flat"} : (!torch.vtensor<[16],f64>) -> (!torch.vtensor<[8],f64>, !torch.vtensor<[8],f64>)
    %0 = torch.aten.mul.Tensor %x, %u#0 : !f, !torch.vtensor<[8],f64> -> !f
    %1 = torch.aten.mul.Tensor %x, %u#1 : !f, !torch.vtensor<[8],f64> -> !f
    %q = "hp.pack"(%0, %1) {alignment = 1 : i64, ranks = 2 : i64, dims = array<i64: 0, 0>} : (!f, !f) -> !torch.vtensor<[16],f32>
    %r = "hp.reduce_scatter"(%q) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[16],f32>) -> !hp.future<[!f]>
    %y = "hp.wait"(%r) : (!hp.future<[!f]>) -> !f
    %z:2 = "hp.unpack"(%y) {alignment = 1 : i64, ranks = 1 : i64, layout = "flat"} : (!f) -> (!s, !s)
    return %l, %z#0, %z#1 : !torch.vtensor<[],f32>, !s, !s
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

// V10: one member was reduced before, the other was not. Only that one is wrong.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%v: !s {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %w: !s {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !s {hp.role = "grad", hp.fqn = ["v"]}, !s {hp.role = "grad", hp.fqn = ["w"]}) {
    // expected-note@below {{first reduced here}}
    %a = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!s) -> !hp.future<[!s]>
    %b = "hp.wait"(%a) : (!hp.future<[!s]>) -> !s
    %q = "hp.pack"(%b, %x) {alignment = 1 : i64, ranks = 1 : i64} : (!s, !s) -> !f
    // expected-error@below {{'hp.all_reduce' op gradient of 'v' is reduced twice over axis 'dp'}}
    %r = "hp.all_reduce"(%q) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!f) -> !hp.future<[!f]>
    %y = "hp.wait"(%r) : (!hp.future<[!f]>) -> !f
    %z:2 = "hp.unpack"(%y) {alignment = 1 : i64, ranks = 1 : i64, layout = "flat"} : (!f) -> (!s, !s)
    return %l, %z#0, %z#1 : !torch.vtensor<[],f32>, !s, !s
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

// V10: packed and unpacked, but never reduced.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%v: !s {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !s {hp.role = "grad", hp.fqn = ["v"]}) {
    %q = "hp.pack"(%v, %x) {alignment = 1 : i64, ranks = 1 : i64} : (!s, !s) -> !f
    // expected-error@below {{'hp.unpack' op gradient of 'v' is not reduced over axis 'dp'}}
    %z:2 = "hp.unpack"(%q) {alignment = 1 : i64, ranks = 1 : i64, layout = "flat"} : (!f) -> (!s, !s)
    // expected-note@below {{returned here as result 1}}
    return %l, %z#1 : !torch.vtensor<[],f32>, !s
  }
}

// -----

!s = !torch.vtensor<[4],f32>
!f = !torch.vtensor<[8],f32>

// V9: what is packed is not gathered. V10: what is made of a packed tensor as a whole is of all its members.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%v: !s {hp.role = "param", hp.fqn = ["v"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %w: !f {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !s {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !f {hp.role = "grad", hp.fqn = ["w"]}) {
    %q = "hp.pack"(%v, %x) {alignment = 1 : i64, ranks = 1 : i64} : (!s, !s) -> !f
    // expected-error@below {{'torch.aten.tanh' op computes with 'v', which is split over data axis 'dp': gather it first}}
    // expected-error@below {{'torch.aten.tanh' op gradient of 'w' is not reduced over axis 'dp'}}
    %t = torch.aten.tanh %q : !f -> !f
    // expected-note@below {{returned here as result 1}}
    return %l, %t : !torch.vtensor<[],f32>, !f
  }
}
