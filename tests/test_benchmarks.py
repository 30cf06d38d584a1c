"""The benchmarks run on tiny sizes, what they measure is what they say, and the page has a row for each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import bucketing
import large_export
import large_modules
import overlap_pass
import passes_and_tools
import pipeline_passes
import pipeline_steps
import pytest
import run
import step_pairs
import torch
import training_steps
from measure import Pair, Row, Spread, alternate, bounded, repeat, run_tool
from torch import Tensor, nn
from torch.nn import functional

from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.ir_passes.pass_manager import run_passes
from hpir.lowering.to_program import to_program
from hpir.runtime.simulate import simulate

TINY = step_pairs.Sizes(layers=1, dim=16, rows=2, length=8)


class Block(nn.Module):
    """What `large_modules.training_step` says one of its blocks is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(large_modules.WIDTH, eps=large_modules.EPSILON)
        self.up = nn.Linear(large_modules.WIDTH, large_modules.HIDDEN, bias=False)
        self.down = nn.Linear(large_modules.HIDDEN, large_modules.WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return y


class Blocks(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(count)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)
        return y


@pytest.mark.parametrize("passes", ["hp-verify-level", f"{passes_and_tools.PREPARATION},{passes_and_tools.PASSES}"])
def test_large_modules_compute_what_they_say(passes: str) -> None:
    module = parse_module(large_modules.training_step(3), make_context())
    run_passes(module, f"{passes},hp-verify-level")
    model = Blocks(3)
    shape = (2 * large_modules.ROWS if "dp:2" in passes else large_modules.ROWS, large_modules.LENGTH)
    batch = {name: torch.randn(*shape, large_modules.WIDTH) for name in ("x", "target")}
    result = simulate(to_program(module), model.state_dict(), batch)
    loss = functional.mse_loss(model(batch["x"]), batch["target"])
    torch.autograd.backward(loss)
    torch.testing.assert_close(result.loss, loss.detach())
    assert set(result.grads) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad)


@pytest.mark.parametrize("blocks", [1, 7])
def test_large_modules_are_as_large_as_they_say(blocks: int) -> None:
    text = [large_modules.training_step(count).count(" = torch.") for count in (blocks, blocks + 1)]
    assert text[1] - text[0] == large_modules.OPS_PER_BLOCK
    assert abs(text[0] - large_modules.OPS_PER_BLOCK * blocks) < large_modules.OPS_PER_BLOCK
    assert large_modules.blocks_for(text[0]) == blocks
    assert large_modules.arithmetic(4 * blocks).count(" = arith.") == 4 * blocks


def test_pointwise_ops_make_large_modules_larger() -> None:
    plain, longer = (large_modules.training_step(2, pointwise).count(" = torch.") for pointwise in (0, 5))
    assert longer - plain == 2 * 2 * 5
    assert large_modules.blocks_for(longer, 5) == 2


def test_inductor_is_given_the_same_collectives() -> None:
    found = bucketing.compare_inductor(900, rounds=1)
    assert found.collectives > found.left >= found.left_by_inductor > 0
    assert found.times.first.median > found.times.second.median > 0
    with bucketing.fake_process_group():
        module = bucketing.sharded_step(900)
        graph = bucketing.fx_step(module)
    gathers = [node for node in graph.graph.nodes if "all_gather" in str(node.target)]
    for node in gathers:
        (wait,) = node.users
        assert node.meta["val"].shape == wait.meta["val"].shape
        assert node.meta["val"].shape[0] == bucketing.RANKS * node.args[0].meta["val"].shape[0]


def test_rows_of_buckets() -> None:
    subjects = [row.subject for row in bucketing.rows(sizes=(500, 1000), compared=500, rounds=1)]
    assert subjects == [
        "`hp-bucket-collectives` on about 500 ops",
        "`hp-bucket-collectives` on about 1,000 ops",
        "time of 1,000 over 500 ops",
        "inductor's bucketing over `hp-bucket-collectives`, about 500 ops",
    ]


def test_a_quarter_of_the_arithmetic_is_duplicate() -> None:
    module = parse_module(large_modules.arithmetic(40), make_context())
    run_passes(module, "cse")
    assert str(module).count(" = arith.") == 30


def test_figures() -> None:
    spread = Spread.of([3.0, 1.0, 2.0])
    assert (spread.median, spread.least, spread.most) == (2.0, 1.0, 3.0)
    assert spread.text("ms", 1e3) == "2000 ms (1000..3000)"
    assert spread.divided(2).text() == "1 (0.5..1.5)"
    pair = Pair.of([1.0, 8.0, 3.0], [2.0, 4.0, 3.0])
    assert (pair.ratio.median, pair.ratio.least, pair.ratio.most) == (1.0, 0.5, 2.0)  # turn by turn
    assert pair.divided(2).first.median == 1.5 and pair.divided(2).ratio == pair.ratio
    assert bounded("a", "1", 1.0, 2.0, "s") == Row("a", "1", "at most 2 s", True)
    assert bounded("a", "3", 3.0, 2.0).met is False


def test_actions_are_timed_in_turns() -> None:
    calls: list[str] = []
    alternate(lambda: calls.append("a"), lambda: calls.append("b"), 2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert repeat(lambda: calls.append("c"), 2, warm_up=1).least > 0
    assert calls[6:] == ["c"] * 3


def test_a_tool_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^hp-opt failed: .*unknown pass 'hp-nothing'"):
        run_tool([passes_and_tools.tool("hp-opt"), "--hp-nothing"])
    with pytest.raises(FileNotFoundError, match="hp-nothing is not installed"):
        passes_and_tools.tool("hp-nothing")


def test_passes_and_start(tmp_path: Path) -> None:
    count, inside = passes_and_tools.time_passes(200, rounds=1)
    assert 100 <= count <= 300
    assert 0 < inside.median < passes_and_tools.time_hp_opt(200, rounds=1, folder=tmp_path).median
    assert "hp.reduce_scatter" in (tmp_path / "result.mlir").read_text()
    version, empty = passes_and_tools.time_start(1, tmp_path)
    assert version.median > 0 and empty.median > 0


def test_overlap_of_two_sizes() -> None:
    small, large, growth = overlap_pass.rows(sizes=(500, 1000), rounds=1)
    assert small.subject == "`hp-overlap-collectives` on 343 ops, 53 of them collectives"
    assert large.met and growth.target == "at most 12" and float(growth.measured) > 0


def test_pipelines_of_three_sizes() -> None:
    size = pipeline_passes.Size(layers=2, stages=2, microbatches=2)
    measured = pipeline_passes.rows(size=size, rounds=1)
    assert [row.subject for row in measured] == [
        *(f"`{name}`" for name in ("hp-assign-stages", "hp-split-stages")),
        "`hp-verify-level` of the stages",
        "`hp-schedule-pipeline`",
        "`hp-verify-level` of the program",
        "all of these: 2 layers, 2 stages, 2 microbatches",
        "the same with twice the layers, over this",
        "the same with twice the microbatches, over this",
    ]
    assert measured[5].met


def test_fsdp_against_fsdp2() -> None:
    comparison = step_pairs.compare_ranks(TINY, 1, (training_steps.flat, training_steps.fsdp2))
    assert comparison.times.first.median > 0 and comparison.times.second.median > 0
    assert 0 <= comparison.difference <= step_pairs.TOLERANCE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("schedule", ("1f1b", "interleaved"))
def test_a_pipeline_against_the_peer(schedule: str) -> None:
    sizes = step_pairs.Sizes(layers=4, dim=16, rows=4, length=8)
    pipeline = pipeline_steps.Pipeline(schedule, 2)
    makers = partial(pipeline_steps.ours, pipeline), partial(pipeline_steps.peer, pipeline)
    comparison = step_pairs.compare_ranks(sizes, 1, makers)
    assert comparison.times.ratio.median > 0
    assert 0 <= comparison.difference <= step_pairs.TOLERANCE


def test_a_task_without_work() -> None:
    assert 0 < pipeline_steps.time_task(stages=2, microbatches=2, rounds=1).median < 0.1


def test_launches_per_unit() -> None:
    deeper = replace(TINY, layers=3)
    assert training_steps.launches_per_unit(deeper, reshard=True) == 3
    assert training_steps.launches_per_unit(deeper, reshard=False) == 2


def test_one_rank_against_eager() -> None:
    threads = torch.get_num_threads()
    comparison = training_steps.compare_one_rank(TINY, rounds=2)
    assert comparison.times.ratio.median > 0
    assert 0 <= comparison.difference <= step_pairs.TOLERANCE
    assert torch.get_num_threads() == threads


def test_export() -> None:
    assert training_steps.time_export(TINY, rounds=1).median > 0


def test_different_steps_are_refused() -> None:
    models = (TINY.model(), TINY.model())
    nn.init.zeros_(models[0].head.weight)
    first, second = (training_steps.eager_step(model, TINY.batch(0)) for model in models)
    with pytest.raises(RuntimeError, match="the two steps differ by"):
        step_pairs.compare(first, second, rounds=1, distributed=False)


def test_the_page_has_every_row() -> None:
    page = run.PAGE.read_text()
    assert run.page({}, page) == page
    for subject in (
        "FSDP step over FSDP2's, 2 gloo processes (8 layers, dim 128, batch 4x64)",
        "FSDP step over FSDP2's, 2 gloo processes (8 layers, dim 32, batch 4x64)",
        "FSDP step over FSDP2's, 4 gloo processes (8 layers, dim 128, batch 4x64)",
        "layout `flat` over `packed`, 2 gloo processes (8 layers, dim 128, batch 4x64)",
        "collectives per unit and step, with gathering again in the backward",
        "collectives per unit and step, without gathering again in the backward",
        "one-rank step over eager autograd (8 layers, dim 128, batch 4x64)",
        "`hpir.export` of 8 layers",
        "`hpir.export`, per layer from 8 to 16",
        "`cse,hp-simplify,hp-fsdp` on 996 ops",
        "`cse,hp-simplify,hp-fsdp` on 9,996 ops",
        "`cse,hp-simplify,hp-fsdp` on 99,996 ops",
        "time per op, 100,000 over 10,000 ops",
        "`hp-opt --version`",
        "`hp-opt` on an empty module",
        "`xdsl-opt -p cse` over `hp-opt --cse`, 20,000 ops",
        "`hp-bucket-collectives` on about 10,000 ops",
        "`hp-bucket-collectives` on about 100,000 ops",
        "time of 100,000 over 10,000 ops",
        "inductor's bucketing over `hp-bucket-collectives`, about 10,000 ops",
        "`hp-overlap-collectives` on 65,562 ops, 9,998 of them collectives",
        "time of 100,000 ops over that of 10,000",
        "all of these: 80 layers, 8 stages, 32 microbatches",
        "the same with twice the layers, over this",
        "the same with twice the microbatches, over this",
        "`hpir.export` of a Llama, 80 layers, 70.6B parameters: peak memory",
        "`hpir.export`, seconds per layer at 2, 8, 32, 80 layers",
        *(f"{stage} at 80 layers" for stage in (large_export.EXPORT, *large_export.ROAD)),
        "the Program of 80 layers over 256 ranks",
        "`hpir.export` of `LlamaForCausalLM`, the same shape: peak memory",
    ):
        assert f"\n| {subject} | " in page


def test_a_part_of_the_page_is_written_alone() -> None:
    rows = [Row("passes on `x`", "1 s", "at most 2 s", True), Row("start", "3 s", "at most 2 s", False), Row("a", "b")]
    tools = run.section("tools", rows, "2 cores")
    assert "## Passes and tools\n\n`python benchmarks/run.py tools`, 2 cores:\n" in tools
    assert "| passes on `x` | 1 s | at most 2 s | yes |" in tools
    assert "| start | 3 s | at most 2 s | NO |" in tools
    first = run.page({"tools": tools, "large": run.section("large", rows[2:], "4 cores")})
    again = run.page({"large": run.section("large", rows[:1], "8 cores"), "steps": run.section("steps", [], "")}, first)
    assert [line for line in again.splitlines() if line.startswith("## ")] == [
        "## Training steps",
        "## Passes and tools",
        "## Large models",
    ]
    assert tools in again and "4 cores" not in again and "8 cores" in again
    assert run.page({}, again) == again


def test_growth_and_memory_of_large_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(layers: int, *, model: str = "llama", road: bool = True, limit_mb: int = 0) -> large_export.Figures:
        # Steady per layer, but for loading, and what transformers' export takes.
        stages = dict.fromkeys((large_export.EXPORT, *large_export.ROAD), 0.5 * layers)
        stages[large_export.LOAD] = 0.1 * layers**2
        memory = 9000.0 if model == "transformers" else 700.0
        return large_export.Figures(
            layers, 10**9, 300.0, memory, memory, 100 * layers, 60 * layers, 9000 * layers, 9900 * layers, stages, 2**20
        )

    monkeypatch.setattr(large_export, "fresh", figures)
    rows = {row.subject: row for row in large_export.rows(layers=(1, 2, 4))}
    assert rows["`hpir.export`, seconds per layer at 1, 2, 4 layers"].measured == "0.500, 0.500, 0.500"
    assert rows["`hpir.export` at 4 layers"] == Row(
        "`hpir.export` at 4 layers", "2.00 s; per layer 1.00 times that of 2 layers", "at most 1.3", True
    )
    assert rows["`Program.load` at 4 layers"].met is False
    text = rows["text of the module per op, 400 ops"]
    assert text.met and text.measured.startswith("90 bytes; 99 with source lines; 225 if constants")
    assert rows["`hpir.export` of a Llama, 4 layers, 1.0B parameters: peak memory"].met
    assert rows["`hpir.export` of `LlamaForCausalLM`, the same shape: peak memory"].met is False
