// hp-plan stands for the passes that a plan file asks for.

// RUN: printf '[mesh]\ndp = 2\n[fsdp]\naxes = ["dp"]\nunits = ["layers.*"]\nreshard_after_forward = false\nreduce_dtype = "float32"' > %t.toml
// RUN: hp-opt %s --hp-plan=file=%t.toml | filecheck %s
// RUN: hp-opt %s --hp-plan{file=%t.toml} --dump-pass-pipeline 2>&1 >%t.out | filecheck %s --check-prefix=EXPANDED

// RUN: printf '[mesh]\nreplica = 2\ndp = 2\n[data]\naxes = ["replica", "dp"]' > %t.ddp.toml
// RUN: hp-opt %s --cse --hp-plan=file=%t.ddp.toml --dump-pass-pipeline 2>&1 >%t.out | filecheck %s --check-prefix=DATA-PARALLEL

// RUN: printf '[mesh]\ndp = 2\n[fsdp]\naxes = ["dq"]' > %t.axis.toml
// RUN: not hp-opt %s --hp-plan=file=%t.axis.toml 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: printf '[mesh]\ntp = 2\n[[tensor]]\nparam = "w"\nsharding = [["tp"]]' > %t.later.toml
// RUN: not hp-opt %s --hp-plan=file=%t.later.toml 2>&1 | filecheck %s --check-prefix=LATER
// RUN: not hp-opt %s --hp-plan=file=%t.none.toml 2>&1 | filecheck %s --check-prefix=ABSENT

// RUN: printf '[mesh]\npp = 2\ndp = 2\n[data]\naxes = ["dp"]\nmicrobatches = 2\n[buckets]\n[pipeline]\nschedule = "zb-h1"' > %t.stages.toml
// RUN: hp-opt %s --hp-plan=file=%t.stages.toml --dump-pass-pipeline 2>&1 | filecheck %s --check-prefix=STAGES

// STAGES: builtin.module(hp-set-mesh{axes=pp:2,dp:2},hp-simplify,hp-recompute,hp-fsdp{replicate-axes=dp},hp-simplify,hp-assign-stages,hp-split-stages{split-backward},hp-bucket-collectives,hp-expand-buckets,hp-schedule-pipeline{microbatches=2 schedule=zb-h1},hp-verify-level)
// STAGES: module attributes {hp.level = "program", hp.microbatches = 2 : i64
// EXPANDED: {{^}}builtin.module(hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp units=layers.* reshard-after-forward=false reduce-dtype=float32},hp-simplify,hp-verify-level){{$}}
// DATA-PARALLEL: {{^}}builtin.module(cse,hp-set-mesh{axes=replica:2,dp:2},hp-simplify,hp-recompute,hp-fsdp{replicate-axes=replica,dp},hp-simplify,hp-verify-level){{$}}
// AXIS: error: {{.*}}axis.toml: fsdp.axes: the mesh has no axis 'dq', did you mean 'dp'?{{$}}
// LATER: error: {{.*}}later.toml: tensor: this version has no pass for it{{$}}
// ABSENT: error: {{.*}}none.toml: cannot read plan: no such file or directory{{$}}

// CHECK: module attributes {hp.level = "spmd"}
// CHECK: "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>
// CHECK: func.func @joint(%[[W:.*]]: !torch.vtensor<[2],f32>
// CHECK: "hp.all_gather"(%[[W]])
// CHECK: "hp.reduce_scatter"
func.func @joint(
    %w: !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "param", hp.trainable},
    %x: !torch.vtensor<[2,4],f32> {hp.name = "x", hp.role = "input", hp.batch_dim = 0 : i64})
    -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[4],f32> {hp.fqn = ["layers.0.w"], hp.role = "grad"}) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int0 = torch.constant.int 0
  %dims = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %y = torch.aten.mul.Tensor %x, %w : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,4],f32>
  %loss = torch.aten.sum %y, %none : !torch.vtensor<[2,4],f32>, !torch.none -> !torch.vtensor<[],f32>
  %grad = torch.aten.sum.dim_IntList %x, %dims, %false, %none : !torch.vtensor<[2,4],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4],f32>
  return %loss, %grad : !torch.vtensor<[],f32>, !torch.vtensor<[4],f32>
}
