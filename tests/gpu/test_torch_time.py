"""PyTorch's time on a card: after the finals, in a child that ends; without PyTorch it is a reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.on_card import fused, problem, schedule
from tuner.core.problem.workload import Activation, ffn_pair
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor

PROBLEM = problem(ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU))
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY, schedule=None)
FINALISTS = (LIBRARY, fused(schedule(((16, 64, 64), (16, 64, 64)))))
ROUNDS = 8


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
