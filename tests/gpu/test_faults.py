"""Planted faults on a card: an endless wait is stopped, told and survived; a dead parent takes its child along."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cupy
import pynvml
import pytest

from tests.support.forged import forged, with_others
from tests.support.on_card import fused, problem, schedule
from tests.support.planted import with_raised_threshold
from tuner.core.problem.gpu import gpu_from_live
from tuner.core.problem.workload import Activation, ffn_pair
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import evaluate
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Measured
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare, try_prepare
from tuner.workers.host import supervisor as supervisor_module
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor

pytest.importorskip("cupy")


from tuner.workers.gpu.baselines import ChainRunner, launchable_of
from tuner.workers.gpu.child import live_facts, lock_path
from tuner.workers.gpu.launch import Kernel, PlanOnDevice
from tuner.workers.gpu.session import Session

WORKLOAD = ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256)


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
def test_a_wait_that_never_ends_is_reported_poisons_the_output_and_leaves_the_context_alive(
    card: Card, builder: Builder, assignment: Assignment
) -> None:
    gpu = gpu_from_live(live_facts(card.uuid))
    chosen = schedule(((16, 64, 64), (16, 64, 64)), assignment=assignment)
    good = prepare(WORKLOAD, gpu, fused(chosen), builder, {})
    bad = with_raised_threshold(good)
    session = Session(builder.build(_tools(), gpu.arch).cubin)
    asked = problem(WORKLOAD)
    outcome = session.evaluate(asked, bad.work).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.HANG
    assert "8 posts seen, 9 expected" in outcome.reason
    prepared = session._prepare(asked)
    output = prepared.data.outputs[0][1].bits.view(cupy.float16)
    assert bool(cupy.isnan(output).all())
    assert isinstance(session.evaluate(asked, good.work).outcome, Measured)


def test_a_plan_without_its_waits_gives_wrong_numbers_that_are_found_and_placed(card: Card, builder: Builder) -> None:
    gpu = gpu_from_live(live_facts(card.uuid))
    good = prepare(WORKLOAD, gpu, fused(schedule(((16, 64, 64), (16, 64, 64)))), builder, {})
    (plan,) = good.plans
    words = plan.words.copy()
    tasks = words[words[7] : words[8]].reshape(-1, 8)
    tasks[:] = tasks[::-1].copy()  # consumers first, and nobody waits
    tasks[:, 4] = tasks[:, 3]
    bad = with_others(good.work, plans=(forged(plan, words),))
    outcome = Session(builder.build(_tools(), gpu.arch).cubin).evaluate(problem(WORKLOAD), bad).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.WRONG_NUMBERS
    assert re.search(
        r"elements of down are wrong, the first at \[\d+, \d+\] \(tile \d+, \d+; task \d+ of", outcome.reason
    )


def test_a_nan_in_the_input_reaches_the_output(card: Card, builder: Builder) -> None:
    gpu = gpu_from_live(live_facts(card.uuid))
    for activation in Activation:
        workload = ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256, activation=activation)
        good = prepare(workload, gpu, fused(schedule(((16, 64, 64), (16, 64, 64)))), builder, {})
        prepared = Session(builder.build(_tools(), gpu.arch).cubin)._prepare(problem(workload))
        prepared.data._check_inputs[0]["x"][5, 7] = 0x7FFF
        launchable = launchable_of(good.work)
        runner = ChainRunner(Kernel(launchable), (PlanOnDevice(launchable),))
        assert prepared.run_once(runner, prepared.data.check_ops(0)) is None
        is_nan = cupy.isnan(prepared.data.outputs[0][1].bits.view(cupy.float16)).all(axis=1).get()
        assert is_nan.nonzero()[0].tolist() == [5]


def test_signals_count_up_by_the_posts_of_a_launch(card: Card, builder: Builder) -> None:
    gpu = gpu_from_live(live_facts(card.uuid))
    for assignment in (Assignment.STATIC, Assignment.TICKET):
        good = prepare(WORKLOAD, gpu, fused(schedule(((16, 64, 64), (16, 64, 64)), assignment=assignment)), builder, {})
        session = Session(builder.build(_tools(), gpu.arch).cubin)
        prepared = session._prepare(problem(WORKLOAD))
        kernel = Kernel(launchable_of(good.work))
        plan = PlanOnDevice(launchable_of(good.work))
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()  # the plan and its signals are written on another stream
        for _ in range(50):
            kernel.launch(plan, prepared.data.slot_ops(0), stream.ptr)
        stream.synchronize()
        assert plan.abort_record() is None
        assert plan.signals().tolist() == [50 * 8] * 4


def _tools() -> str:
    from tuner.workers.source.render import device_text

    return device_text("tools.cu")


@pytest.fixture
def gpu_supervisor(card: Card, build_cache: Path) -> GpuSupervisor:  # type: ignore[misc]
    supervisor = GpuSupervisor(card, build_cache, Limits(evaluate_deadline_s=20.0))
    yield supervisor
    supervisor.close()


def test_a_child_killed_while_idle_costs_no_trial_and_one_killed_in_flight_costs_its_own(
    gpu_supervisor: GpuSupervisor,
) -> None:
    chosen = schedule(((16, 64, 64), (16, 64, 64)))
    asked = problem(WORKLOAD)
    assert isinstance(evaluate(gpu_supervisor, asked, Candidate(plan_kind=PlanKind.LIBRARY)), Measured)
    os.kill(gpu_supervisor.child_pid or 0, signal.SIGKILL)
    time.sleep(0.5)
    assert isinstance(evaluate(gpu_supervisor, asked, fused(chosen)), Measured)
    killer = threading.Timer(0.1, os.kill, (gpu_supervisor.child_pid, signal.SIGKILL))
    killer.start()
    lost = evaluate(gpu_supervisor, asked, fused(chosen))
    assert isinstance(lost, Failed)
    assert (lost.kind, lost.reason) == (FailureKind.CRASH, "the GPU process died (signal 9)")
    assert isinstance(evaluate(gpu_supervisor, asked, fused(chosen)), Measured)


def test_a_deadline_kills_the_child_and_the_next_trial_is_right(
    gpu_supervisor: GpuSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = problem(WORKLOAD)
    chosen = schedule(((16, 64, 64), (16, 64, 64)))
    assert isinstance(evaluate(gpu_supervisor, asked, fused(chosen)), Measured)
    real = try_prepare

    def planted(*args: Any, **kwargs: Any) -> PreparedKernel:
        prepared = real(*args, **kwargs)
        assert isinstance(prepared, PreparedKernel)
        return with_raised_threshold(prepared)

    monkeypatch.setattr(supervisor_module, "try_prepare", planted)
    monkeypatch.setattr(gpu_supervisor, "_limits", Limits(evaluate_deadline_s=0.2))
    hung = evaluate(gpu_supervisor, asked, fused(chosen))
    assert isinstance(hung, Failed)
    assert hung.kind is FailureKind.HANG
    assert "within 0.2 s" in hung.reason
    monkeypatch.undo()
    begin = time.monotonic()
    assert isinstance(evaluate(gpu_supervisor, asked, fused(chosen)), Measured)
    assert time.monotonic() - begin < 15


def test_a_finalist_that_hangs_is_left_out_and_the_others_are_timed(
    gpu_supervisor: GpuSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = problem(WORKLOAD)
    tiles = ((16, 64, 64), (16, 64, 64))
    good, bad = (schedule(tiles, assignment=assignment) for assignment in (Assignment.STATIC, Assignment.TICKET))
    real = prepare

    def planted(*args: object, **kwargs: object) -> PreparedKernel:
        prepared = real(*args, **kwargs)  # type: ignore[arg-type]
        return with_raised_threshold(prepared, 10**13) if args[2] == fused(bad) else prepared

    monkeypatch.setattr(supervisor_module, "prepare", planted)
    monkeypatch.setattr(gpu_supervisor, "_limits", Limits(finals_deadline_s=15.0))
    finals = gpu_supervisor.finals(
        asked, (Candidate(plan_kind=PlanKind.LIBRARY), fused(bad), fused(good)), num_rounds=10
    )
    assert [times is not None for times in finals.times_us] == [True, False, True]
    assert "was killed" in finals.reasons[1]
    assert set(finals.process_of_round) == {0, 1}


HANGING_PARENT = """
import sys, time, threading
from pathlib import Path
import tuner.workers.host.supervisor as s
from tuner.core.trial.evaluator import evaluate
from tuner.workers.host.cards import usable_gpus
from tests.support.on_card import fused, problem, schedule
from tests.support.planted import with_raised_threshold
from tests.gpu.test_faults import WORKLOAD
import tuner.workers.gpu.launch

if __name__ == "__main__":
    real = s.try_prepare
    s.try_prepare = lambda *a, **k: with_raised_threshold(real(*a, **k), 10**13)
    card = usable_gpus()[0]
    sup = s.GpuSupervisor(card, Path(sys.argv[1]))
    print("CHILD", sup.child_pid, card.uuid, flush=True)
    evaluate(sup, problem(WORKLOAD), fused(schedule(((16, 64, 64), (16, 64, 64)))))
"""


def wait_until_busy(uuid: str) -> None:
    """Until the hung kernel keeps the card busy."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    end = time.monotonic() + 30
    while pynvml.nvmlDeviceGetUtilizationRates(handle).gpu < 50:
        assert time.monotonic() < end, "the hang did not start"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_parent_takes_its_hanging_child_along_and_frees_the_card(card: Card, build_cache: Path) -> None:
    # The spin limit is hours, so the kernel hangs for good.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pynvml.nvmlInit()
    command = [sys.executable, "-c", HANGING_PARENT, str(build_cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        word, pid_text, uuid = parent.stdout.readline().split()
        assert word == "CHILD"
        wait_until_busy(uuid)
        parent.kill()
    killed = time.monotonic()
    with lock_path(uuid).open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() - killed < 2, "the lock stays held"
                time.sleep(0.02)
    while is_running(int(pid_text)):
        assert time.monotonic() - killed < 2, "the child outlives its parent"
        time.sleep(0.02)
