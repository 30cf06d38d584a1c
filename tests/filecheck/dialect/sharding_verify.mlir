// RUN: hp-opt %s --split-input-file --verify-diagnostics

// expected-error@below {{expected 2 type arguments, but had 1}}
func.func @no_axes(%x: !torch.vtensor<[4],f32> {hp.sharding = #hp.sharding<@mesh>}) {
  return
}

// -----

// expected-error@below {{expected base attribute 'builtin.symbol_ref' but got 'builtin.string'}}
func.func @no_symbol(%x: !torch.vtensor<[4],f32> {hp.sharding = #hp.sharding<"mesh", [["dp"]]>}) {
  return
}

// -----

// expected-error@below {{expected base attribute 'builtin.array' but got 'builtin.string'}}
func.func @no_list(%x: !torch.vtensor<[4],f32> {hp.sharding = #hp.sharding<@mesh, "dp">}) {
  return
}

// -----

// expected-error@below {{expected dynamic attribute}}
func.func @unknown_attribute(%x: !torch.vtensor<[4],f32> {hp.sharding = #hp.shardings<@mesh, []>}) {
  return
}
