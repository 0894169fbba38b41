"""PyTorch's time on a GPU: measured after the finals in a separate child, compiled and timed with all finalists.
Without PyTorch, a reason is given."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chains.rows import LAYERS, block
from tests.support.on_card import fused, problem, schedule
from tuner.core.problem.workload import Activation, Dtype
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.limits import Limits
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.core.trial.stats import median
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.gpu.session import Session
from tuner.workers.gpu.tensors.check import WrongNumbers, check_others
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.source.launch_args import OpBuffers

PROBLEM = problem(ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU))
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY, schedule=None)
FINALISTS = (LIBRARY, fused(schedule(((16, 64, 64), (16, 64, 64)))))
#: o_proj with its residual, norm, gate and up, down with its residual, norm, qkv: everything in a decoder layer's
#: chain.
CHAIN = problem(block(replace(LAYERS["llama3-8b"], width=1024, heads=1024, hidden=2048, qkv=1536, k=256), 16))
ROUNDS = 8
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(scope="module")
def supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    supervisor = GpuSupervisor(card, build_cache, torch_baseline=True)
    yield supervisor
    supervisor.close()


def test_finals_are_followed_by_pytorchs_time_or_by_the_reason_why_there_is_none(supervisor: GpuSupervisor) -> None:
    times = supervisor.finals(PROBLEM, FINALISTS, num_rounds=ROUNDS)
    assert times.reasons == ("", "")
    assert times.torch is not None
    if importlib.util.find_spec("torch") is None:
        assert "PyTorch cannot be imported" in times.torch.reason
        return
    assert times.torch.reason == ""
    assert times.torch.time_us is not None
    assert times.torch.library_speedup is not None
    assert 0.5 < times.torch.library_speedup < 4
    assert times.torch.num_rounds > 0


def test_the_child_that_held_pytorch_is_gone_and_the_next_finals_are_as_good(supervisor: GpuSupervisor) -> None:
    supervisor.finals(PROBLEM, FINALISTS, num_rounds=1)
    assert supervisor.child_pid is None
    times = supervisor.finals(PROBLEM, FINALISTS, num_rounds=1)
    assert times.reasons == ("", "")


def test_an_op_that_pytorch_has_no_call_for_costs_the_figure_and_not_the_finals(supervisor: GpuSupervisor) -> None:
    scaled = problem(ffn_pair(m=16, d_in=512, d_hidden=512, d_out=512, row_scale=True))
    times = supervisor.finals(scaled, (LIBRARY,), num_rounds=1)
    assert times.times_us[0]
    assert times.torch is not None
    assert times.torch.time_us is None
    assert times.torch.reason


def test_a_supervisor_without_the_setting_has_no_such_time(card: Card, build_cache: Path) -> None:
    supervisor = GpuSupervisor(card, build_cache)
    try:
        assert supervisor.finals(PROBLEM, (LIBRARY,), num_rounds=1).torch is None
    finally:
        supervisor.close()


def test_torch_compile_is_checked_and_timed_in_rounds_with_all_finalists(supervisor: GpuSupervisor) -> None:
    times = supervisor.finals(PROBLEM, FINALISTS, num_rounds=ROUNDS, torch_compile=True)
    assert times.reasons == ("", "")
    assert times.torch is not None
    assert times.torch.calls is TorchCalls.COMPILED
    assert supervisor.child_pid is None
    if not HAS_TORCH:
        assert "PyTorch cannot be imported" in times.torch.reason
        assert len(set(times.process_of_round)) == 2
        return
    assert times.torch.reason == ""
    assert times.torch.library_speedup is not None
    assert 0.4 < times.torch.library_speedup < 4
    first = times.times_us[0]
    assert first is not None
    assert (median(first) == times.torch.time_us) is times.torch.is_library
    assert len(set(times.process_of_round)) == (1 if times.torch.is_library else 2)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.filterwarnings("ignore")  # warnings of PyTorch's compiler are not ours
def test_wrong_numbers_of_torch_compile_are_a_reason_and_no_time(session: Session) -> None:
    from tuner.workers.gpu.library.torch_baseline import torch_runner

    prepared = session._prepare(CHAIN)
    chain = torch_runner(prepared.data, TorchCalls.COMPILED)
    assert 0 < check_others(prepared.data, prepared.comparer, chain.outputs_of) < Dtype.FP16.row.max_rel_error

    def one_is_off(ops: tuple[OpBuffers, ...]) -> dict[str, Any]:
        outputs = {name: bits.copy() for name, bits in chain.outputs_of(ops).items()}
        outputs["qkv"][:, ::16] ^= 1 << 15  # the sign
        return outputs

    with pytest.raises(WrongNumbers, match="qkv: relative error"):
        check_others(prepared.data, prepared.comparer, one_is_off)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_torch_compile_that_takes_too_long_costs_its_figure_alone(card: Card, build_cache: Path) -> None:
    limits = Limits(torch_compile_deadline_s=0.1, finals_deadline_s=2.5)
    hurried = GpuSupervisor(card, build_cache, limits)
    try:
        another = problem(ffn_pair(m=17, d_in=1536, d_hidden=2560, d_out=1536, activation=Activation.SILU))
        times = hurried.finals(another, (LIBRARY,), num_rounds=1, torch_compile=True)
        assert times.times_us[0]
        assert times.torch is not None
        assert "no answer within 2.6 s" in times.torch.reason
        assert hurried.finals(another, (LIBRARY,), num_rounds=1).times_us[0]
    finally:
        hurried.close()
