from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tuner.core.problem.gpu import CATALOGUE, parse_target
from tuner.core.schedule.candidate import fused
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.limits import Limits
from tuner.dispatch import make_evaluators
from tuner.dispatch.diagnosis import Finding, diagnose_workers
from tuner.errors import InvalidInput, WorkerError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.host.cards import Card, Choice
from tuner.workers.simulated.evaluator import SimulatedEvaluator


def test_a_simulated_gpu_is_taken_at_its_word(tmp_path: Path) -> None:
    (evaluator,), why = make_evaluators("simulated:a40", build_cache=tmp_path)
    assert evaluator.target.id == "simulated:a40"
    assert "no figure here is a measurement" in why


def test_several_simulated_gpus_are_served_at_once_and_each_says_what_its_times_are_made_of(tmp_path: Path) -> None:
    found, why = make_evaluators("simulated:a100,simulated:h200", build_cache=tmp_path)
    assert [one.target.id for one in found] == ["simulated:a100", "simulated:h200"]
    assert f"by the data sheet of the {CATALOGUE['a100'].name}; no trials" in why
    assert "measured trials on an NVIDIA H200" in why


def test_none_is_none(tmp_path: Path) -> None:
    assert make_evaluators("none", build_cache=tmp_path)[0] == []


def test_auto_falls_back_to_a_simulated_h200_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[object]:
        raise WorkerError("no NVIDIA driver responds")

    monkeypatch.setattr("tuner.workers.host.cards.choice_of_gpus", refuse)
    (evaluator,), why = make_evaluators("auto", build_cache=tmp_path)
    assert (evaluator.target.id, evaluator.environment().simulated) == ("simulated:h200", True)
    assert why == "Simulating an H200 (simulated:h200), since no NVIDIA driver responds."


@pytest.mark.parametrize(
    "gpu",
    ["", "h200", "simulated:", "simulated:z80", "AUTO", "simulated:h200,", "simulated:h200,auto", "simulated:h200,z80"],
)
def test_any_other_word_is_refused(tmp_path: Path, gpu: str) -> None:
    with pytest.raises(InvalidInput):
        make_evaluators(gpu, build_cache=tmp_path)


class CardOrNone(SimulatedEvaluator):
    """Replaces a GPU's supervisor; ``GPU-broken`` never starts, ``GPU-late`` starts at its third attempt."""

    late_tries = 0

    def __init__(
        self, card: Card, build_cache: Path, limits: Limits, builder: Builder, *, when_idle: bool, torch_baseline: bool
    ) -> None:
        if card.uuid == "GPU-broken":
            raise WorkerError("the probe failed")
        if card.uuid == "GPU-late":
            CardOrNone.late_tries += 1
            if CardOrNone.late_tries < 3:
                raise WorkerError("cudaErrorInitializationError")
        super().__init__(parse_target("simulated:h200"))
        self.limits = limits
        self.has_torch = torch_baseline
        self.builder = builder.share()

    def close(self) -> None:
        self.builder.close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries a GPU without pauses."""
    monkeypatch.setattr("tuner.dispatch.factory._PAUSE_S", 0.0)
    monkeypatch.setattr(CardOrNone, "late_tries", 0)


def put_in(monkeypatch: pytest.MonkeyPatch, *uuids: str, refused: tuple[str, ...] = ()) -> None:
    """Makes this machine appear to have these GPUs."""
    cards = [Card(uuid=uuid, name="NVIDIA H200", compute_capability=(9, 0), driver="580") for uuid in uuids]
    monkeypatch.setattr("tuner.workers.host.cards.choice_of_gpus", lambda: Choice(usable=tuple(cards), refused=refused))
    monkeypatch.setattr("tuner.workers.host.cards.missing_packages", lambda: ())
    monkeypatch.setattr("tuner.workers.host.supervisor.GpuSupervisor", CardOrNone)


def test_a_card_that_is_not_measured_is_named_beside_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, "GPU-1", refused=("GPU-2, which is cut into slices",))
    _, message = make_evaluators("auto", build_cache=tmp_path)
    assert message == "Measuring on NVIDIA H200; not on GPU-2, which is cut into slices."
    (driver, *_) = diagnose_workers()
    assert (driver.finding, "GPU-2, which is cut into slices" in driver.found) == (Finding.WARN, True)


@pytest.mark.parametrize(
    ("uuids", "count", "why"),
    [
        (["GPU-1"], 1, "Measuring on NVIDIA H200."),
        (["GPU-1", "GPU-2"], 2, "Measuring on 2 x NVIDIA H200."),
        (["GPU-broken", "GPU-2"], 1, "Measuring on NVIDIA H200; not on GPU-broken: the probe failed."),
        (["GPU-late"], 1, "Measuring on NVIDIA H200."),
    ],
)
def test_every_card_that_works_gets_an_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uuids: list[str], count: int, why: str
) -> None:
    put_in(monkeypatch, *uuids)
    evaluators, message = make_evaluators("auto", build_cache=tmp_path)
    assert (len(evaluators), message) == (count, why)
    assert len({evaluator.builder for evaluator in evaluators if isinstance(evaluator, CardOrNone)}) <= 1
    for evaluator in evaluators:
        evaluator.close()


@pytest.mark.parametrize("builds_here", [True, False])
def test_processes_that_build_start_at_once_where_candidates_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds_here: bool
) -> None:
    put_in(monkeypatch, "GPU-1")
    others = set(multiprocessing.active_children())
    (evaluator,), _ = make_evaluators("auto", build_cache=tmp_path, builds_here=builds_here)
    assert bool(set(multiprocessing.active_children()) - others) is builds_here
    evaluator.close()
    assert not set(multiprocessing.active_children()) - others


def test_a_card_that_is_there_and_does_not_come_up_is_never_stood_in_for_by_a_simulated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, "GPU-broken")
    with pytest.raises(
        WorkerError,
        match=(
            r"no card can be used: not on GPU-broken: the probe failed; "
            r".*simulated:h200"
        ),
    ):
        make_evaluators("auto", build_cache=tmp_path)


def test_the_limits_reach_every_evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, "GPU-1")
    limits = Limits(evaluate_deadline_s=3.0, spin_limit_cycles=77)
    (real,), _ = make_evaluators("auto", build_cache=tmp_path, limits=limits)
    assert isinstance(real, CardOrNone)
    assert real.limits == limits
    real.close()
    (twin,), _ = make_evaluators("simulated:h200", build_cache=tmp_path, limits=limits)
    workload = ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64)
    schedule = next(iter(Space(workload, twin.target.gpu)))
    made = twin.artifact(Problem(workload=workload, objective=Objective()), fused(schedule), {})
    assert made.manifest["parameter"]["spin_limit_cycles"] == 77


@pytest.mark.parametrize("torch_baseline", [True, False])
def test_pytorch_is_timed_by_every_card_where_the_setting_says_so_and_by_none_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_baseline: bool
) -> None:
    put_in(monkeypatch, "GPU-1")
    (real,), _ = make_evaluators("auto", build_cache=tmp_path, torch_baseline=torch_baseline)
    assert isinstance(real, CardOrNone)
    assert real.has_torch is torch_baseline
    real.close()
