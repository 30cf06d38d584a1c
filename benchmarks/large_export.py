"""What it costs to export and compile a step of the size that people train: a 70B-shaped Llama on the meta device.

Each figure is of a fresh process, so that its peak memory is its own. Times are processor time: one process on one
thread, whatever else the machine does. As a script it prints the figures of one size as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_70B, LlamaSizes, build, next_token_loss
from measure import Row, bounded
from torch import Tensor, nn

import hpir

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LAYERS = (2, 8, 32, 80)
"""The sizes that are measured; the last is the whole model."""

RANKS = 256
"""Data ranks of the plan."""

MEMORY_GB = 8.0
GROWTH = 1.3
TEXT_BYTES = 1000


@dataclass(frozen=True)
class Figures:
    """What one size cost.

    Attributes:
        layers: of the model.
        parameters: elements of all of them.
        memory_mb: resident before the export.
        peak_mb: the most that was resident up to the end of the export.
        road_peak_mb: the same up to the end of `stages`.
        ops: operations of the module, constants included.
        constants: how many of them are constants and lists of constants.
        text: bytes of its text.
        debug_text: bytes with source lines.
        stages: processor seconds by what was done.
        program: bytes of the saved Program's JSON.
    """

    layers: int
    parameters: int
    memory_mb: float
    peak_mb: float
    road_peak_mb: float
    ops: int
    constants: int
    text: int
    debug_text: int
    stages: dict[str, float]
    program: int

    def per_layer(self, stage: str) -> float:
        """Return the seconds that a stage took per layer."""
        return self.stages[stage] / self.layers


EXPORT = "`hpir.export`"
PASSES = "`cse,hp-simplify,hp-fsdp,hp-verify-level`"
COMPILE = "`hpir.compile_program`"
SAVE, LOAD = "`Program.save`", "`Program.load`"
HP_OPT = "`hp-opt` with the same passes, whole process"
ROAD = (PASSES, COMPILE, SAVE, LOAD, HP_OPT)


def peak_mb() -> float:
    """Return the most memory that was resident in this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # What `getrusage` says includes the process that started this one.
        return _status_mb(status, "VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _status_mb(status: Path, key: str) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024


def forbid_storage(megabytes: int) -> None:
    """Let this process reserve at most so much more memory, resident or not, than it has now."""
    present = _status_mb(Path("/proc/self/status"), "VmSize")
    limit = int(present + megabytes) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def llama(sizes: LlamaSizes) -> tuple[nn.Module, Callable[..., Any], dict[str, Tensor], str]:
    """Return the model of `examples/llama.py` on the meta device, its step, its batch and its unit pattern."""
    with torch.device("meta"):
        model = build(sizes)
        batch = {name: torch.zeros(1, sizes.length, dtype=torch.int64) for name in ("ids", "labels")}
    return model, next_token_loss, batch, "layers.*"


def transformers_llama(sizes: LlamaSizes) -> tuple[nn.Module, Callable[..., Any], dict[str, Tensor], str]:
    """Return the same for `LlamaForCausalLM`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.dim,
        intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.length,
        use_cache=False,
    )
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
        model.to(torch.bfloat16)
        batch = {name: torch.zeros(1, sizes.length, dtype=torch.int64) for name in ("input_ids", "labels")}

    def loss(model: nn.Module, input_ids: Tensor, labels: Tensor) -> Tensor:
        result: Tensor = model(input_ids=input_ids, labels=labels).loss
        return result

    return model, loss, batch, "model.layers.*"


MODELS: Mapping[str, Callable[[LlamaSizes], tuple[nn.Module, Callable[..., Any], dict[str, Tensor], str]]] = {
    "llama": llama,
    "transformers": transformers_llama,
}


def _processor_seconds(action: Callable[[], Any], rounds: int = 1) -> tuple[float, Any]:
    """Return the least time of some rounds, each from a heap without garbage, and what the last returned."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    least, result = math.inf, None
    for _ in range(rounds):
        result = None
        gc.collect()
        begin = used()
        result = action()
        least = min(least, used() - begin)
    return least, result


def measure(sizes: LlamaSizes, *, model: str = "llama", road: bool = True) -> Figures:
    """Export a model of these sizes in this process and, with `road`, go on to a saved Program and back."""
    module, train_fn, batch, units = MODELS[model](sizes)
    memory = _status_mb(Path("/proc/self/status"), "VmRSS") if Path("/proc/self/status").exists() else peak_mb()
    stages: dict[str, float] = {}
    stages[EXPORT], exported = _processor_seconds(lambda: hpir.export(module, train_fn, batch))
    peak = peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "step.mlir", Path(folder) / "program"
        exported.save(source)
        text = source.read_text()
        if road:
            _road(exported, source, program, units, stages)
        encoded = program / "program.json"
        size = encoded.stat().st_size if road else 0
    lines = [line.strip() for line in text.splitlines()]
    ops = [line for line in lines if line.startswith("%")]
    return Figures(
        layers=sizes.layers,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        memory_mb=memory,
        peak_mb=peak,
        road_peak_mb=peak_mb(),
        ops=len(ops),
        constants=sum(" = torch.constant." in op or " = torch.prim.ListConstruct" in op for op in ops),
        text=len(text),
        debug_text=len(exported.text(debug_info=True)),
        stages=stages,
        program=size,
    )


def _road(exported: hpir.Exported, source: Path, program: Path, units: str, stages: dict[str, float]) -> None:
    from passes_and_tools import tool

    pipeline = f"hp-set-mesh{{axes=dp:{RANKS}}},cse,hp-simplify,hp-fsdp{{axes=dp units={units}}},hp-verify-level"
    plan = {
        "mesh": {"dp": RANKS},
        "data": {"axes": ["dp"], "microbatches": 4},
        "fsdp": {"axes": ["dp"], "units": [units], "reduce_dtype": "float32"},
    }
    command = [tool("hp-opt"), source, "--pass-pipeline", pipeline, "-o", source.with_suffix(".out.mlir")]

    def timed(stage: str, action: Callable[[], Any]) -> Any:
        stages[stage], result = _processor_seconds(action, rounds=2)
        return result

    timed(PASSES, lambda: hpir.run_passes(exported.module.operation.clone(), pipeline))
    compiled = timed(COMPILE, lambda: hpir.compile_program(exported, plan))
    timed(SAVE, lambda: compiled.save(program))
    loaded = timed(LOAD, lambda: hpir.Program.load(program))
    if loaded.digest != compiled.digest:
        raise RuntimeError("the Program is another one after it was saved and loaded")
    timed(HP_OPT, lambda: subprocess.run([str(part) for part in command], check=True))


def fresh(layers: int, *, model: str = "llama", road: bool = True, limit_mb: int = 0) -> Figures:
    """Return the figures of a 70B-shaped model with so many layers, measured in a process of its own.

    Args:
        layers: of the model.
        model: a key of `MODELS`.
        road: whether to compile too.
        limit_mb: what the process may reserve beyond what it starts with; 0 for any amount.

    Raises:
        RuntimeError: it failed; the text is its own.
    """
    command = [sys.executable, __file__, str(layers), "--model", model, "--limit-mb", str(limit_mb)]
    # One thread, and one way from the examples to this process.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [*command, *([] if road else ["--export-only"])], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"measuring {layers} layers failed: {done.stderr.strip()}")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def rows(*, layers: Sequence[int] = LAYERS) -> list[Row]:
    """Measure everything here.

    Args:
        layers: sizes of the model, rising; growth is of the last over the second.
    """
    found = [fresh(count, road=count in (layers[1], layers[-1])) for count in layers]
    small, whole = found[1], found[-1]
    billions = whole.parameters / 1e9
    subject = f"{whole.layers} layers, {billions:.1f}B parameters"
    made = [_memory_row(f"{EXPORT} of a Llama, {subject}: peak memory", whole)]
    per_layer = ", ".join(f"{figures.per_layer(EXPORT):.3f}" for figures in found)
    counts = ", ".join(str(figures.layers) for figures in found)
    made.append(Row(f"{EXPORT}, seconds per layer at {counts} layers", per_layer))
    made.append(
        bounded(
            f"text of the module per op, {whole.ops:,} ops",
            f"{whole.text / whole.ops:.0f} bytes; {whole.debug_text / whole.ops:.0f} with source lines; "
            f"{whole.text / (whole.ops - whole.constants):.0f} if constants do not count as ops",
            whole.text / (whole.ops - whole.constants),
            TEXT_BYTES,
            "bytes",
        )
    )
    for stage in (EXPORT, *ROAD):
        growth = whole.per_layer(stage) / small.per_layer(stage)
        text = f"{whole.stages[stage]:.2f} s; per layer {growth:.2f} times that of {small.layers} layers"
        made.append(bounded(f"{stage} at {whole.layers} layers", text, growth, GROWTH))
    made.append(
        Row(
            f"the Program of {whole.layers} layers over {RANKS} ranks",
            f"{whole.program / 2**20:.1f} MB of JSON; peak memory of the road to it {whole.road_peak_mb / 1024:.2f} GB",
        )
    )
    other = fresh(whole.layers, model="transformers", road=False)
    made.append(_memory_row(f"{EXPORT} of `LlamaForCausalLM`, the same shape: peak memory", other))
    return made


def _memory_row(subject: str, figures: Figures) -> Row:
    text = (
        f"{figures.peak_mb / 1024:.2f} GB, {figures.memory_mb / 1024:.2f} GB of it before the export; "
        f"{figures.stages[EXPORT]:.1f} s"
    )
    return bounded(subject, text, figures.peak_mb / 1024, MEMORY_GB, "GB")


def main() -> int:
    """Print the figures of one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", type=int)
    parser.add_argument("--model", choices=list(MODELS), default="llama")
    parser.add_argument("--export-only", action="store_true", help="do not compile")
    parser.add_argument("--limit-mb", type=int, default=0, help="what may be reserved beyond what the start takes")
    options = parser.parse_args()
    if options.limit_mb:
        forbid_storage(options.limit_mb)
    sizes = replace(LLAMA_70B, layers=options.layers)
    print(json.dumps(asdict(measure(sizes, model=options.model, road=not options.export_only))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
