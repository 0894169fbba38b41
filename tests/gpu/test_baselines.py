"""Every plan kind on a GPU is correct in single launches, and in a chain that a graph repeats."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy
import pytest

from tests.support.on_card import check_artifact, problem, schedule
from tuner.core.legal.legality import kind_problem
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Measured
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare

pytest.importorskip("cupy")


from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice
from tuner.workers.gpu.library.runners import launchable_of, runner_of
from tuner.workers.gpu.measuring.algorithms import pick_algorithms
from tuner.workers.gpu.measuring.problem import ProblemOnCard
from tuner.workers.gpu.session import Session
from tuner.workers.gpu.tensors.op_data import from_bits
from tuner.workers.protocol.messages import Work
from tuner.workers.source.launchable import LaunchRefused

#: A weight-bound pair, a ragged one, and one with several waves of tiles.
SHAPES = [(16, 512, 1024, 256), (37, 129, 31, 257), (640, 512, 1024, 768)]
OURS = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)]


def chosen_for(workload: Workload, assignment: Assignment) -> Schedule:
    tile_m = 16 if workload.tile_ops[0].m <= 16 else 64
    return schedule(((tile_m, 64, 64), (tile_m, 64, 64)), assignment=assignment)


def ready(gpu: Gpu, builder: Builder, asked: Problem, kind: PlanKind, chosen: Schedule) -> Work:
    if kind_problem(asked.workload, gpu, kind):
        pytest.skip(f"{kind} is not for {gpu.name}")
    if kind is PlanKind.TWO_STREAMS and not chosen.ordering.assignment.is_static:
        pytest.skip("two streams need queues")
    prepared = prepare(asked.workload, gpu, Candidate(plan_kind=kind, schedule=chosen), builder, {})
    assert not prepared.refusal
    return prepared.work


def replayed(prepared: ProblemOnCard, work: Work, num_replays: int) -> list[Any]:
    """The final outputs of every slot after one graph repeats a chain; NaN where nothing was stored."""
    kernel = Kernel(launchable_of(work))
    runner = runner_of(work, kernel)
    graph = prepared.timer.capture(runner)
    for outputs in prepared.data.outputs:
        for output in outputs.values():
            output.poison()
    cupy.cuda.Device().synchronize()
    for _ in range(num_replays):
        graph.launch(prepared.stream)
    prepared.stream.synchronize()
    assert runner.abort_record() is None
    return [[*outputs.values()][-1].bits.copy() for outputs in prepared.data.outputs]


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", OURS)
def test_every_kind_is_right_alone_and_in_a_chain_that_is_repeated(
    session: Session,
    builder: Builder,
    gpu: Gpu,
    kind: PlanKind,
    shape: tuple[int, int, int, int],
    assignment: Assignment,
) -> None:
    m, d_in, d_hidden, d_out = shape
    asked = problem(ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, activation=Activation.SILU))
    chosen = chosen_for(asked.workload, assignment)
    work = ready(gpu, builder, asked, kind, chosen)
    outcome = session.evaluate(asked, work).outcome
    assert isinstance(outcome, Measured), outcome
    prepared = session._prepare(asked)
    assert prepared.data.chain_length >= 8
    plain = ready(gpu, builder, asked, PlanKind.TWO_LAUNCHES, chosen)
    wanted = replayed(prepared, plain, 1)
    found = replayed(prepared, work, 20)
    assert all(bool((a == b).all()) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize("granularity", [Granularity.ROW, Granularity.TILE, Granularity.BARRIER])
def test_two_streams_are_right_over_many_launches(
    session: Session, builder: Builder, gpu: Gpu, granularity: Granularity
) -> None:
    asked = problem(ffn_pair(m=640, d_in=512, d_hidden=1024, d_out=768, activation=Activation.RELU))
    tiles = ((64, 64, 64), (64, 64, 64))
    chosen = schedule(tiles, assignment=Assignment.SHARES, granularity=granularity, ctas_per_sm=2)
    prepared = session._prepare(asked)
    plain = ready(gpu, builder, asked, PlanKind.TWO_LAUNCHES, schedule(tiles))
    wanted = replayed(prepared, plain, 1)
    found = replayed(prepared, ready(gpu, builder, asked, PlanKind.TWO_STREAMS, chosen), 300)
    assert all(bool((a == b).all()) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize("manifest_format", [1, 2])
def test_two_streams_run_from_a_zip_alone_also_from_an_old_one(
    builder: Builder, gpu: Gpu, tmp_path: Path, manifest_format: int
) -> None:
    asked = problem(ffn_pair(m=640, d_in=512, d_hidden=1024, d_out=768))
    streams = Candidate(plan_kind=PlanKind.TWO_STREAMS, schedule=chosen_for(asked.workload, Assignment.STATIC))
    manifest = check_artifact(builder, gpu, asked, streams, tmp_path, manifest_format=manifest_format)
    assert manifest["launches"][1]["start_gate"], "nothing was waited for"


def test_independent_ops_run_on_two_streams_without_a_start_gate(session: Session, builder: Builder, gpu: Gpu) -> None:
    asked = problem(independent_pair((64, 512, 512), (64, 128, 512)))
    chosen = schedule(((64, 64, 64), (32, 64, 64)), assignment=Assignment.STATIC)
    outcome = session.evaluate(asked, ready(gpu, builder, asked, PlanKind.TWO_STREAMS, chosen)).outcome
    assert isinstance(outcome, Measured), outcome


def test_a_start_gate_that_waits_in_vain_poisons_the_output(session: Session, builder: Builder, gpu: Gpu) -> None:
    asked = problem(ffn_pair(m=640, d_in=512, d_hidden=1024, d_out=768))
    work = ready(gpu, builder, asked, PlanKind.TWO_STREAMS, chosen_for(asked.workload, Assignment.STATIC))
    prepared = session._prepare(asked)
    kernel = Kernel(launchable_of(work))
    first = PlanOnDevice(launchable_of(work), 0, spin_limit_cycles=10**6)
    second = PlanOnDevice(launchable_of(work), 1, spin_limit_cycles=10**6, first=first)
    cupy.cuda.Device().synchronize()
    kernel.launch_start_gate(first, prepared.stream.ptr)  # without a first launch
    kernel.launch(second, prepared.data.slot_ops(0), prepared.stream.ptr)
    prepared.stream.synchronize()
    record = second.abort_record()
    assert str(record) == f"the start gate saw 0 of the first launch's {work.plans[0].plan.num_ctas} CTAs start"
    for output in prepared.data.outputs[0].values():
        assert bool(cupy.isnan(output.bits.view(cupy.float16)).all())


def test_the_librarys_best_algorithms_are_never_slower_than_its_first(
    session: Session, builder: Builder, gpu: Gpu
) -> None:
    asked = problem(ffn_pair(m=64, d_in=1024, d_hidden=4096, d_out=1024, activation=Activation.RELU))
    library = prepare(asked.workload, gpu, Candidate(plan_kind=PlanKind.LIBRARY), builder, {})
    prepared = session._prepare(asked)
    begin = time.perf_counter()
    again = pick_algorithms(prepared.library, prepared.timer)
    assert time.perf_counter() - begin < 1.5
    outcome = session.evaluate(asked, library.work).outcome
    assert isinstance(outcome, Measured), outcome
    figures = {metric.tag: metric.value for metric in outcome.metrics}
    assert figures["library_best_us"] <= 1.01 * figures["library_first_us"]
    assert all(count >= 1 for count in prepared.library.num_algorithms)
    assert {f"library_algorithm_{op.name}" for op in asked.workload.tile_ops} <= set(figures)
    assert again.best_us <= 1.01 * again.first_us


def test_the_library_runs_two_products_that_share_nothing_both_ways_and_keeps_the_better(
    session: Session, builder: Builder, gpu: Gpu
) -> None:
    asked = problem(independent_pair((64, 512, 512), (64, 128, 512)))
    library = prepare(asked.workload, gpu, Candidate(plan_kind=PlanKind.LIBRARY), builder, {})
    prepared = session._prepare(asked)
    picked = prepared.picked
    times_us = []
    for beside in (False, True):
        prepared.library.use(replace(picked, beside=beside))
        outcome = session.evaluate(asked, library.work).outcome
        assert isinstance(outcome, Measured), outcome
        times_us.append(outcome.time_us)
        tags = {metric.tag for metric in outcome.metrics}
        assert {"library_one_stream_us", "library_two_streams_us"} <= tags
    prepared.library.use(picked)
    assert times_us[picked.beside] <= 1.05 * min(times_us)


def test_the_librarys_recipe_names_the_algorithm_of_each_product(gpu: Gpu, builder: Builder, session: Session) -> None:
    asked = problem(ffn_pair(m=64, d_in=512, d_hidden=1024, d_out=512, activation=Activation.SILU, bias=True))
    library = prepare(asked.workload, gpu, Candidate(plan_kind=PlanKind.LIBRARY), builder, {})
    recipe = session.finals(asked, (library.work,), 2).library
    assert recipe is not None
    assert recipe.cublaslt_version >= 120000
    assert [call.op for call in recipe.calls] == [op.name for op in asked.workload.tile_ops]
    for call in recipe.calls:
        assert {"id", "tile_id", "stages_id", "splitk_num"} <= set(call.algorithm)
    assert (recipe.calls[0].rows, recipe.calls[0].columns, recipe.calls[0].k) == (1024, 64, 512)
    assert "apply silu" in recipe.calls[0].afterwards


@pytest.mark.parametrize("dtype", UNSCALED)
@pytest.mark.parametrize("activation", [Activation.RELU, Activation.SILU])
def test_pytorch_computes_the_same_numbers_on_the_same_buffers(
    session: Session, activation: Activation, dtype: Dtype
) -> None:
    pytest.importorskip("torch")
    from tuner.workers.gpu.library.torch_baseline import torch_runner

    pair = ffn_pair(m=64, d_in=1024, d_hidden=2048, d_out=1024, activation=activation, bias=True, dtype=dtype)
    prepared = session._prepare(problem(pair))
    chain = torch_runner(prepared.data)
    for graph in (prepared.library_graph, chain):
        graph.launch(prepared.stream)
    prepared.stream.synchronize()
    for slot, outputs in enumerate(prepared.data.outputs):
        library, torch = (from_bits(bits, dtype) for bits in (outputs["down"].bits, chain.output(slot)))
        most = 2 * dtype.row.max_rel_error * float(cupy.linalg.norm(library))
        assert float(cupy.linalg.norm(library - torch)) <= most
    library_us, torch_us = prepared.timer.sample_us(prepared.library_graph), prepared.timer.sample_us(chain)
    assert 0.5 < torch_us / library_us < 4


def test_a_programmatic_grid_that_does_not_fit_is_refused_with_a_sentence(
    session: Session, builder: Builder, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = problem(ffn_pair(m=640, d_in=512, d_hidden=1024, d_out=768))
    work = ready(gpu, builder, asked, PlanKind.FUSED_PDL, chosen_for(asked.workload, Assignment.STATIC))
    monkeypatch.setattr(Kernel, "ctas_per_sm", lambda _: 0)
    with pytest.raises(LaunchRefused, match=r"the grid has \d+ CTAs, but according to the driver"):
        runner_of(work, Kernel(launchable_of(work)))
