"""Attention jobs on a GPU: planted faults are detected, the library is timed, and a job ends."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_jobs import best_of_job, without_torch
from tests.support.attentions import alone, attention
from tests.support.conformance.launching import OnCard
from tests.support.on_card import ATTENTION_EXAMPLE, problem
from tuner.core.plan.op_launches import MAP_BYTES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import Failed, FailureKind, Measured
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine

cupy = pytest.importorskip("cupy")

ALONE, PAIR = attention(), attention(d_out=520)
SPANS = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=alone(span_tokens=192, speculative=True))
#: Offsets after the caches: the scale of scores for exp2, and whether first tiles are requested early.
_SCALE_OFFSET = 12 * 8 + 24 + 16 + 16
#: Offsets after these: the position of pages, the window, the cap of unscaled scores, and the number of sequences whose
#: tasks a launch assigns.
_WINDOW_OFFSET = _SCALE_OFFSET + 8 + 6 * 4
_ASSIGNED_OFFSET = _WINDOW_OFFSET + 4 + 8


@pytest.fixture(autouse=True)
def has_kernels(on_card: OnCard) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, on_card.gpu):
        pytest.skip(reason)


def planted(on_card: OnCard, workload: Workload, candidate: Candidate, fault: Callable[[Any], Any]) -> str:
    """The result of the check for launches whose attention was changed by `fault`."""
    from tuner.workers.gpu.own.runner import OwnRunner
    from tuner.workers.gpu.session import Kernels, load_runner
    from tuner.workers.gpu.tensors.check import Aborted, WrongNumbers, check_numbers

    prepared = on_card.session._prepare(problem(workload))
    work, kernels = on_card.ready(workload, candidate).work, Kernels()
    runner = load_runner(prepared, work, kernels)
    assert isinstance(runner, OwnRunner)
    fault(runner._own[0])
    try:
        with pytest.raises((WrongNumbers, Aborted)) as error:
            check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
        prepared.check_intact(load_runner(prepared, work, kernels))
        return str(error.value)
    finally:
        kernels.unload()


def with_arguments(change: Callable[[bytearray], None]) -> Callable[[Any], None]:
    """Returns a fault in the parameter of each launch, after its tensor maps or cache addresses."""

    def fault(one: Any) -> None:
        right = one.parameter
        caches = 2 * (MAP_BYTES if one.launchable.schedule.engine is AttentionEngine.TMA else 8)

        def parameter(number: int, ops: Any) -> bytes:
            args = right(number, ops)
            behind = bytearray(args[caches:])
            change(behind)
            return bytes(args[:caches]) + bytes(behind)

        one.parameter = parameter

    return fault


def a_wrong_scale(args: bytearray) -> None:
    (scale,) = struct.unpack_from("<f", args, _SCALE_OFFSET)
    assert 0.1 < scale < 0.3, "the scale is at a different offset"
    struct.pack_into("<f", args, _SCALE_OFFSET, 1.1 * scale)


def a_span_twice(one: Any) -> None:
    """Makes the last task of the first queue repeat the first one: one span is missing, and another is counted
    twice."""
    tasks, queues = one.plan.tasks, one.plan.queues
    last = int(queues[1]) - 1
    assert last > 0
    one._tables[0, "tasks"].words[2 * last : 2 * last + 2] = cupy.asarray(tasks[0])


def stale_lengths(one: Any) -> None:
    """Each launch reads the lengths of the first one."""
    kept: list[int] = []
    right, lengths = one.address_of, one.launchable.op.operands[2]

    def first(tensor: str, ops: Any) -> int:
        if tensor != lengths:
            return int(right(tensor, ops))
        kept.append(right(tensor, ops))
        return kept[0]

    one.address_of = first


def keys_of_another_launch(one: Any) -> None:
    right, (keys, values, *_) = one.address_of, one.launchable.op.operands
    one.address_of = lambda tensor, ops: right(values if tensor == keys else tensor, ops)


@pytest.mark.parametrize(
    "fault",
    [with_arguments(a_wrong_scale), stale_lengths, keys_of_another_launch],
    ids=["a wrong scale", "stale lengths", "another cache"],
)
@pytest.mark.parametrize("workload", [ALONE, attention(head_dim=128, new_tokens=2)], ids=["64", "128"])
@pytest.mark.parametrize("engine", AttentionEngine)
def test_a_planted_fault_is_found_out(
    on_card: OnCard, engine: AttentionEngine, workload: Workload, fault: Callable[[Any], Any]
) -> None:
    schedule = alone(num_stages=4, span_tokens=192, speculative=True, engine=engine)
    said = planted(on_card, workload, replace(SPANS, schedule=schedule), fault)
    assert "of attention are wrong" in said
    assert "sequence" in said


def test_a_span_that_is_dropped_and_one_that_is_doubled_are_found_out(on_card: OnCard) -> None:
    small = replace(SPANS, schedule=alone(tile_tokens=16, num_stages=16, span_tokens=16, contiguous=True))
    said = planted(on_card, attention(sequences=9), small, a_span_twice)
    assert "arrivals of spans, but a launch has" in said  # before numbers are checked


def a_page_of_another_sequence(one: Any) -> None:
    """Each launch reads the page table of the previous sequence."""
    right, op = one.address_of, one.launchable.op

    def shifted(tensor: str, ops: Any) -> int:
        if tensor != op.operands[3]:
            return int(right(tensor, ops))
        one.kept = cupy.roll(ops.arrays[tensor], 1, axis=0)
        return int(one.kept.data.ptr)

    one.address_of = shifted


@pytest.mark.parametrize("engine", AttentionEngine)
def test_a_page_of_another_sequence_is_found_out(on_card: OnCard, engine: AttentionEngine) -> None:
    candidate = replace(SPANS, schedule=alone(span_tokens=192, engine=engine))
    said = planted(on_card, attention(form={"page_tokens": 16}), candidate, a_page_of_another_sequence)
    assert "of attention are wrong" in said


def a_wide_window(args: bytearray) -> None:
    assert struct.unpack_from("<i", args, _WINDOW_OFFSET) == (100,), "the window is at a different offset"
    struct.pack_into("<i", args, _WINDOW_OFFSET, 101)


def another_cap(args: bytearray) -> None:
    cap, tanh_scale = struct.unpack_from("<2f", args, _WINDOW_OFFSET + 4)
    assert cap > 0, "the cap is at a different offset"
    struct.pack_into("<2f", args, _WINDOW_OFFSET + 4, 1.2 * cap, tanh_scale / 1.2)


@pytest.mark.parametrize(
    ("form", "fault"),
    [({"window": 100}, a_wide_window), ({"soft_cap": 1.0}, another_cap)],
    ids=["a window that is too wide by one", "another cap"],
)
@pytest.mark.parametrize("engine", AttentionEngine)
def test_a_wrong_form_is_found_out(
    on_card: OnCard, engine: AttentionEngine, form: dict[str, Any], fault: Callable[[bytearray], None]
) -> None:
    candidate = replace(SPANS, schedule=alone(span_tokens=192, engine=engine))
    assert "of attention are wrong" in planted(on_card, attention(form=form), candidate, with_arguments(fault))


def a_sequence_forgotten(args: bytearray) -> None:
    assert struct.unpack_from("<i", args, _ASSIGNED_OFFSET) == (9,), "the number of sequences is at a different offset"
    struct.pack_into("<i", args, _ASSIGNED_OFFSET, 8)


def test_a_sequence_whose_tasks_nobody_has_is_found_out(on_card: OnCard) -> None:
    schedule = alone(tile_tokens=16, num_stages=16, span_tokens=16, by_length=True)
    fault = with_arguments(a_sequence_forgotten)
    said = planted(on_card, attention(sequences=9), replace(SPANS, schedule=schedule), fault)
    assert "of attention are wrong" in said


@pytest.mark.parametrize("engine", AttentionEngine)
@pytest.mark.parametrize("lengths", [(9000, 5, 700, 0), (-3, 5, 699, 1)])
def test_a_length_out_of_range_is_cut_and_told(
    on_card: OnCard, lengths: tuple[int, ...], engine: AttentionEngine
) -> None:
    from tuner.ops.attention.card.data import AttentionData
    from tuner.workers.gpu.session import Kernels, load_runner

    workload = attention(form={"page_tokens": 16})
    prepared: Any = on_card.session._prepare(problem(workload))
    kernels = Kernels()
    runner = load_runner(prepared, on_card.ready(workload, replace(SPANS, schedule=alone(engine=engine))).work, kernels)
    assert isinstance(prepared.data.own[0], AttentionData)
    given = prepared.data.check_ops(0)
    inputs = given.arrays
    kept = inputs["attention.lengths"].copy()
    try:
        inputs["attention.lengths"][...] = cupy.asarray(lengths)
        said = prepared.run_once(runner, given)
        inside = [min(max(length, 0), 700) for length in lengths]
        wrong = next(length for length in lengths if not 0 <= length <= 700)
        assert said is not None
        assert f"has the length {wrong}: use 0 to 700" in said
        got = inputs["attention"].copy()
        inputs["attention.lengths"][...] = cupy.asarray(inside)
        prepared.run_once(runner, given)
        assert (inputs["attention"] == got).all()
    finally:
        inputs["attention.lengths"][...] = kept
        kernels.unload()
    prepared.check_intact(runner)


@pytest.mark.parametrize(
    "workload",
    [
        ALONE,
        PAIR,
        attention(sequences=1, kv_heads=8, query_heads=4, head_dim=128, max_length=1024, d_out=4096),
        attention(d_out=256, new_tokens=3),
        attention(lengths=Lengths.UNIFORM, d_out=256),
        attention(form={"page_tokens": 16}, lengths=Lengths.UNIFORM, d_out=256),
        attention(form={"page_tokens": 32, "heads_first": False, "window": 100}, new_tokens=2),
        attention(form={"soft_cap": 5.0, "window": 300, "page_tokens": 64}, scale=1.5),
    ],
    ids=[
        "alone",
        "pair",
        "one sequence",
        "new tokens",
        "drawn lengths",
        "pages",
        "pages and a window",
        "pages, window and cap",
    ],
)
def test_the_library_is_right_and_timed(on_card: OnCard, workload: Workload) -> None:
    outcome = on_card.evaluate(workload, on_card.ready(workload, LIBRARY).work)
    assert isinstance(outcome, Measured), outcome
    assert outcome.time_us > 1
    metrics = {metric.tag for metric in outcome.metrics}
    assert "library_algorithm_attention" in metrics


@pytest.mark.parametrize(
    "workload", [ALONE, PAIR, attention(new_tokens=3, d_out=256)], ids=["alone", "pair", "new tokens"]
)
def test_without_pytorch_batched_products_are_the_baseline_and_say_so(on_card: OnCard, workload: Workload) -> None:
    on_card.session._prepared = None
    with without_torch():
        outcome = on_card.evaluate(workload, on_card.ready(workload, LIBRARY).work)
        prepared = on_card.session._prepare(problem(workload))
    assert isinstance(outcome, Measured), outcome
    assert "no vendor's fused attention was available" in prepared.library.recipe().launch_ops
    on_card.session._prepared = None


def test_work_of_another_workload_is_refused(on_card: OnCard) -> None:
    work = on_card.ready(ALONE, SPANS).work
    outcome = on_card.session.evaluate(problem(attention(sequences=5)), work).outcome
    assert "the candidate is of workload" in outcome.reason  # type: ignore[union-attr]


def test_a_cubin_that_was_changed_is_not_loaded(on_card: OnCard) -> None:
    work = on_card.ready(ALONE, SPANS).work
    forged = replace(work.own[0], cubin=work.own[0].cubin[:-1] + b"x")
    outcome = on_card.session.evaluate(problem(ALONE), replace(work, launchables=(forged,))).outcome
    assert "is not the one that was built" in outcome.reason  # type: ignore[union-attr]


def test_a_kernel_that_writes_beside_its_results_is_found_out(on_card: OnCard) -> None:
    from tuner.workers.gpu.own.launch import OwnOnDevice

    right = OwnOnDevice.address_of

    def beside(self: Any, tensor: str, ops: Any) -> int:
        return right(self, tensor, ops) + (64 if tensor == self.launchable.op.name else 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnOnDevice, "address_of", beside)
        outcome = on_card.session.evaluate(problem(ALONE), on_card.ready(ALONE, SPANS).work).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.OVERWRITE
    on_card.session._prepared = None


def check_operator(archive: Path) -> None:
    """Compares an artifact's operator, eager and in a graph, with PyTorch's own operators."""
    import torch

    from tuner.runtime import load_attention, torch_attention

    torch.zeros(1, device="cuda")  # creates a context if this test runs alone
    attention = load_attention(archive)
    op, name = attention.op, attention.op["name"]
    like: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    q, keys, values = (torch.randn(attention.shape(of), **like) for of in ("q", f"{name}.keys", f"{name}.values"))
    w = pages = None
    if attention.product:
        w = torch.randn(attention.shape(f"{attention.output}.w"), **like) * q.shape[1] ** -0.5
    lengths = torch.randint(
        0, op["max_length"] + 1, attention.shape(f"{name}.lengths"), dtype=torch.int32, device="cuda"
    )
    if attention.page_tokens:
        table = torch.randperm(keys.shape[0], dtype=torch.int32, device="cuda")
        pages = table.view(attention.shape(f"{name}.pages"))
    number = torch_attention.register(attention)
    options = (op.get("heads_first", True), op["head_dim"] ** -0.5, op.get("window", 0), op.get("soft_cap", 0.0))
    given = (q, keys, values, lengths, pages, w, *options)
    with torch.no_grad():
        wanted = torch_attention.by_torch(*given)
        eager = torch.ops.tuner.attention_proj(*given, number)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = torch.ops.tuner.attention_proj(*given, number)
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
    assert len(attention._bound) == 2, "PyTorch's own operators ran instead of the kernels"
    error = (eager.double() - wanted.double()).norm() / wanted.double().norm()
    assert float(error) < 1.6e-2
    assert torch.equal(captured.view(torch.int16), eager.view(torch.int16))
    assert attention.refused() == ""
    torch_attention.forget(number)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "pair",
    [
        {"kind": "decoder-attention", "model": "llama3-8b", "sequences": 16, "max_length": 512, "projection": False},
        {"kind": "decoder-attention", "model": "llama3-70b", "tp": 8, "sequences": 16, "max_length": 2048},
        {"kind": "decoder-attention", "model": "llama3-70b", "tp": 8, "sequences": 16, "max_length": 4096,
         "lengths": "uniform", "page_tokens": 16},
    ],
    ids=["alone", "pair", "pages"],
)  # fmt: skip
def test_a_job_ends_with_a_verdict_and_a_kernel_that_runs_from_its_zip(pair: dict[str, Any], tmp_path: Path) -> None:
    best, content = best_of_job(pair, tmp_path)
    kinds = [row["candidate"]["plan_kind"] for row in best["finals"]]
    assert sorted(set(kinds)) == ["library", "two_launches", "two_launches_pdl"], "a kind may have two finalists"
    archive = tmp_path / "best.zip"
    archive.write_bytes(content)
    ran = subprocess.run([sys.executable, str(ATTENTION_EXAMPLE), str(archive)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    check_operator(archive)
    assert "relative error" in ran.stdout
