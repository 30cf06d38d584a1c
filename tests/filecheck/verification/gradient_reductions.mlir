// RUN: hp-opt %s --hp-verify-level --split-input-file --verify-diagnostics

// V9: a shard that was not gathered is used, behind a view.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2,2],f32> {hp.role = "param", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}, %x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}, %c: !torch.vtensor<[],f32> {hp.role = "constant", hp.fqn = ["c"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    %t = torch.aten.t %w : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    // expected-error@below {{'torch.aten.mm' op computes with 'w' (module 'up'), which is split over data axis 'dp': gather it first}}
    %0 = torch.aten.mm %x, %t {hp.module = "up"} : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    return %c : !torch.vtensor<[],f32>
  }
}

// -----

// V10: not reduced at all: the op that makes it, and where it is returned.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[],f32> {hp.role = "param", hp.fqn = ["layers.0.weight"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "grad", hp.fqn = ["layers.0.weight"]}) {
    %none = torch.constant.none
    // expected-error@below {{'torch.aten.sum' op gradient of 'layers.0.weight' (module 'layers.0') is not reduced over axis 'dp'}}
    %0 = torch.aten.sum %x, %none {hp.module = "layers.0"} : !torch.vtensor<[2],f32>, !torch.none -> !torch.vtensor<[],f32>
    // expected-note@below {{returned here as result 1}}
    return %0, %0 : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
  }
}

// -----

// V10: reduced over one of two data axes only; what is returned is an input as it is.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["rep", "dp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["rep", "dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    // expected-error@below {{'hp.wait' op gradient of 'w' is not reduced over axis 'rep'}}
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-note@below {{returned here as result 1}}
    // expected-error@+2 {{'func.return' op gradient of 'v' is not reduced over axis 'rep'}}
    // expected-error@+1 {{'func.return' op gradient of 'v' is not reduced over axis 'dp'}}
    return %l, %g, %x : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: no input says how it is split: the data axes are those that the other gradients are reduced over.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp", "tp"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x"}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-error@below {{'torch.aten.tanh' op gradient of 'v' is not reduced over axis 'dp'}}
    %h = torch.aten.tanh %x : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    // expected-note@below {{returned here as result 2}}
    return %l, %g, %h : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: a gradient that no rank's data enters needs no mean, but it needs the sum.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "weight"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    // expected-error@below {{'torch.aten.tanh' op gradient of 'w' is not reduced over axis 'dp'}}
    %g = torch.aten.tanh %w : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    // expected-note@below {{returned here as result 2}}
    return %l, %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: each data rank has its own running statistics; a gradient computed from new ones is from its data.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %b: !torch.vtensor<[2],f32> {hp.role = "buffer", hp.fqn = ["b"]}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "buffer", hp.fqn = ["b"]}) {
    // expected-error@below {{'torch.aten.tanh' op gradient of 'w' is not reduced over axis 'dp'}}
    %g = torch.aten.tanh %b : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    // expected-note@below {{returned here as result 1}}
    return %l, %g, %x : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: every data rank draws its own random numbers.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    %int2 = torch.constant.int 2
    // expected-error@below {{'hp.uniform' op gradient of 'w' is not reduced over axis 'dp'}}
    %g = "hp.uniform"(%int2) {stream = 0 : i64} : (!torch.int) -> !torch.vtensor<[2],f32>
    // expected-note@below {{returned here as result 1}}
    return %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: reduced twice, with a cast and a sum between, as one of a bucket of two.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    %int1 = torch.constant.int 1
    %int7 = torch.constant.int 7
    %none = torch.constant.none
    %false = torch.constant.bool false
    // expected-note@below {{first reduced here}}
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    %wide = torch.aten._to_copy %g, %int7, %none, %none, %none, %false, %none : !torch.vtensor<[2],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2],f32>
    %sum = torch.aten.add.Tensor %wide, %g, %int1 : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.int -> !torch.vtensor<[2],f32>
    // expected-error@below {{'hp.all_reduce' op gradient of 'w' (module 'up') is reduced twice over axis 'dp'}}
    %b = "hp.all_reduce"(%sum, %x) {mesh = @mesh, axes = ["dp"], reduce = "avg", hp.module = "up"} : (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>]>
    %h:2 = "hp.wait"(%b) : (!hp.future<[!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>]>) -> (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>)
    %negative = torch.aten.neg %h#0 : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    return %l, %negative, %h#1 : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: one of two contributions is reduced before they are added, whatever happens then.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    %int1 = torch.constant.int 1
    // expected-note@+2 {{reduced here}}
    // expected-note@+1 {{reduced here}}
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-error@+2 {{'torch.aten.add.Tensor' op gradient of 'w' joins values that are reduced over axis 'dp' and values that are not}}
    // expected-error@+1 {{'torch.aten.add.Tensor' op gradient of 'v' joins values that are reduced over axis 'dp' and values that are not}}
    %sum = torch.aten.add.Tensor %g, %x, %int1 : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.int -> !torch.vtensor<[2],f32>
    %f2 = "hp.all_reduce"(%sum) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %h = "hp.wait"(%f2) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %l, %sum, %h : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: the same by accumulation, where the other pair is right.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    // expected-note@below {{reduced here}}
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-error@below {{'hp.accumulate' op gradient of 'w' joins values that are reduced over axis 'dp' and values that are not}}
    %sums:2 = "hp.accumulate"(%g, %g, %x, %g) : (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>)
    return %l, %sums#0, %sums#1 : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: what is split over an axis is no contribution that could be reduced over it.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !torch.vtensor<[4],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    %piece = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[2],f32>
    // expected-error@below {{'hp.all_reduce' op gradient of 'w' is reduced over axis 'dp', which splits it: each rank has another piece}}
    %f = "hp.all_reduce"(%piece) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: a reduction among some of the ranks only does not count.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 4>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg", coordinates = array<i64: 0, 3>} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    // expected-error@below {{'hp.wait' op gradient of 'w' is not reduced over axis 'dp'}}
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-note@below {{returned here as result 1}}
    return %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V11: an axis that splits nothing.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp", "rep"], axis_sizes = array<i64: 2, 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    // expected-error@below {{'hp.all_reduce' op gradient of 'w' is reduced over axis 'rep', over which neither the batch nor an argument is split}}
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp", "rep"], reduce = "avg"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V12: a sum of mean losses' gradients, and of the losses.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}) {
    %none = torch.constant.none
    %0 = torch.aten.mean %x, %none : !torch.vtensor<[2],f32>, !torch.none -> !torch.vtensor<[],f32>
    // expected-error@below {{'hp.all_reduce' op the loss is reduced over axis 'dp' by 'sum', expected 'avg': the function returns a mean loss}}
    %lf = "hp.all_reduce"(%0) {mesh = @mesh, axes = ["dp"], reduce = "sum"} : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
    %l = "hp.wait"(%lf) : (!hp.future<[!torch.vtensor<[],f32>]>) -> !torch.vtensor<[],f32>
    // expected-error@below {{'hp.all_reduce' op gradient of 'w' (module 'up') is reduced over axis 'dp' by 'sum', expected 'avg': the function returns a mean loss}}
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "sum", hp.module = "up"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V12: a mean where the runtime divides by the weight.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %x: !torch.vtensor<[4],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[],f32> {hp.role = "weight"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>}) {
    // expected-error@below {{'hp.reduce_scatter' op gradient of 'w' is reduced over axis 'dp' by 'avg', expected 'sum': the function returns a weight}}
    %f = "hp.reduce_scatter"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %l, %l, %g : !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V13: whole gradients of a split parameter, cut down by a slice of rows that every rank takes from the same place.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %x: !torch.vtensor<[4],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>}) {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    // expected-error@below {{'torch.aten.slice.Tensor' op gradient of 'w' is split over data axes [], its parameter over ['dp']}}
    %h = torch.aten.slice.Tensor %g, %int0, %int0, %int2, %int1 : !torch.vtensor<[4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2],f32>
    return %l, %h : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: two gradients are returned in each other's place.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    // expected-error@below {{'hp.all_reduce' op what is returned as gradient of 'v' (module 'up') is reduced for 'w'}}
    %f = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg", hp.fqn = ["w"], hp.module = "up"} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %g = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-error@below {{'hp.all_reduce' op what is returned as gradient of 'w' is reduced for 'v'}}
    %h = "hp.all_reduce"(%x) {mesh = @mesh, axes = ["dp"], reduce = "avg", hp.fqn = ["v"]} : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %i = "hp.wait"(%h) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    // expected-note@+2 {{returned here as result 1}}
    // expected-note@+1 {{returned here as result 2}}
    return %l, %i, %g : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V10: one reduction is waited for twice, and nothing waits for the other.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["w"], hp.trainable}, %v: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["v"], hp.trainable}, %x: !torch.vtensor<[2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"]]>}, %l: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "l"}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["w"]}, !torch.vtensor<[2],f32> {hp.role = "grad", hp.fqn = ["v"]}) {
    // expected-error@below {{'hp.all_reduce' op what is returned as gradient of 'v' is reduced for 'w', 'u'}}
    %f = "hp.all_reduce"(%x, %x) {mesh = @mesh, axes = ["dp"], reduce = "avg", hp.fqn = ["w", "u"]} : (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>]>
    %g:2 = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>]>) -> (!torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>)
    // expected-note@below {{returned here as result 2}}
    return %l, %g#0, %g#0 : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>
  }
}

// -----

// V9: a gather of one parameter says that it is another's.
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(%w: !torch.vtensor<[1,2],f32> {hp.role = "param", hp.fqn = ["w"], hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}, %x: !torch.vtensor<[2,2],f32> {hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64, hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}, %c: !torch.vtensor<[],f32> {hp.role = "constant", hp.fqn = ["c"]}) -> (!torch.vtensor<[],f32> {hp.role = "loss"}) {
    // expected-error@below {{'hp.all_gather' op gathers 'w', but names 'v' as what it gathers}}
    %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, mesh = @mesh, hp.fqn = ["v"]} : (!torch.vtensor<[1,2],f32>) -> !hp.future<[!torch.vtensor<[2,2],f32>]>
    %1 = "hp.wait"(%0) : (!hp.future<[!torch.vtensor<[2,2],f32>]>) -> !torch.vtensor<[2,2],f32>
    %2 = torch.aten.mm %x, %1 : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
    return %c : !torch.vtensor<[],f32>
  }
}
