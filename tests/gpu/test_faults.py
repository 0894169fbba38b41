"""Planted faults on a GPU: an endless wait is stopped, reported and survived; a child ends when its parent dies."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import cupy
import pynvml
import pytest

from tests.support.forged import forged, with_others
from tests.support.on_card import fused, problem, schedule
from tests.support.planted import with_raised_threshold
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import evaluate
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Measured
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare
from tuner.workers.host import supervisor as supervisor_module
from tuner.workers.host.cards import Card
from tuner.workers.host.gpu_process import GpuProcess
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol import messages

pytest.importorskip("cupy")


from tuner.workers.gpu.child import lock_path
from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice
from tuner.workers.gpu.library.runners import ChainRunner, launchable_of
from tuner.workers.gpu.session import Session

WORKLOAD = ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256)
PROBLEM = problem(WORKLOAD)
GOOD = fused(schedule(((16, 64, 64), (16, 64, 64))))
#: Longer than a good trial takes here, or good finals of ten rounds.
EVALUATE_S = 3.0
FINALS_S = 5.0
#: SM clock cycles of more than an hour: such a wait ends only with its process.
ENDLESS_CYCLES = 10**13


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
def test_a_wait_that_never_ends_is_reported_poisons_the_output_and_leaves_the_context_alive(
    session: Session, gpu: Gpu, builder: Builder, assignment: Assignment
) -> None:
    chosen = schedule(((16, 64, 64), (16, 64, 64)), assignment=assignment)
    good = prepare(WORKLOAD, gpu, fused(chosen), builder, {})
    bad = with_raised_threshold(good)
    outcome = session.evaluate(PROBLEM, bad.work).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.HANG
    assert "8 posts seen, 9 expected" in outcome.reason
    prepared = session._prepare(PROBLEM)
    output = prepared.data.outputs[0]["down"].bits.view(cupy.float16)
    assert bool(cupy.isnan(output).all())
    assert isinstance(session.evaluate(PROBLEM, good.work).outcome, Measured)


def test_a_plan_without_its_waits_gives_wrong_numbers_that_are_found_and_placed(
    session: Session, gpu: Gpu, builder: Builder
) -> None:
    good = prepare(WORKLOAD, gpu, GOOD, builder, {})
    (plan,) = good.plans
    words = plan.words.copy()
    tasks = words[words[7] : words[8]].reshape(-1, 8)
    tasks[:] = tasks[::-1].copy()  # consumers come first, and nothing waits
    tasks[:, 4] = tasks[:, 3]
    bad = with_others(good.work, plans=(forged(plan, words),))
    outcome = session.evaluate(PROBLEM, bad).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.WRONG_NUMBERS
    assert re.search(
        r"elements of down are wrong, the first at \[\d+, \d+\] \(tile \d+, \d+; task \d+ of", outcome.reason
    )


def test_a_nan_in_the_input_reaches_the_output(session: Session, gpu: Gpu, builder: Builder) -> None:
    workloads = [ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256, activation=activation) for activation in Activation]
    with ThreadPoolExecutor() as pool:
        kernels = list(pool.map(lambda workload: prepare(workload, gpu, GOOD, builder, {}), workloads))
    for workload, good in zip(workloads, kernels, strict=True):
        prepared = session._prepare(problem(workload))
        prepared.data._check_inputs[0]["x"][5, 7] = 0x7FFF
        launchable = launchable_of(good.work)
        runner = ChainRunner(Kernel(launchable), (PlanOnDevice(launchable),))
        assert prepared.run_once(runner, prepared.data.check_ops(0)) is None
        is_nan = cupy.isnan(prepared.data.outputs[0]["down"].bits.view(cupy.float16)).all(axis=1).get()
        assert is_nan.nonzero()[0].tolist() == [5]


def test_signals_count_up_by_the_posts_of_a_launch(session: Session, gpu: Gpu, builder: Builder) -> None:
    for assignment in (Assignment.STATIC, Assignment.TICKET):
        good = prepare(WORKLOAD, gpu, fused(schedule(((16, 64, 64), (16, 64, 64)), assignment=assignment)), builder, {})
        prepared = session._prepare(PROBLEM)
        kernel = Kernel(launchable_of(good.work))
        plan = PlanOnDevice(launchable_of(good.work))
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()  # the plan and its signals are written on another stream
        for _ in range(50):
            kernel.launch(plan, prepared.data.slot_ops(0), stream.ptr)
        stream.synchronize()
        assert plan.abort_record() is None
        assert plan.signals().tolist() == [50 * 8] * 4


@contextmanager
def once_asked(deed: Callable[[GpuProcess], object]) -> Iterator[None]:
    """Applies `deed` to a child that has just received a candidate, before anything waits for its response."""
    send = GpuProcess.send

    def send_and_do(process: GpuProcess, request: messages.Request, deadline_s: float) -> None:
        send(process, request, deadline_s)
        if isinstance(request, messages.EvaluateRequest):
            deed(process)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GpuProcess, "send", send_and_do)
        yield


def kill(process: GpuProcess) -> None:
    """Sends SIGKILL."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)


def hanging(gpu_supervisor: GpuSupervisor) -> PreparedKernel:
    """A candidate that sends no response as long as its process lives."""
    prepared = gpu_supervisor.prepare(PROBLEM, GOOD)
    assert isinstance(prepared, PreparedKernel)
    return with_raised_threshold(prepared, ENDLESS_CYCLES)


@pytest.fixture
def gpu_supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    limits = Limits(evaluate_deadline_s=EVALUATE_S, finals_deadline_s=FINALS_S)
    supervisor = GpuSupervisor(card, build_cache, limits)
    yield supervisor
    supervisor.close()


def test_a_child_killed_while_idle_costs_no_trial_and_one_killed_in_flight_costs_its_own(
    gpu_supervisor: GpuSupervisor,
) -> None:
    assert isinstance(evaluate(gpu_supervisor, PROBLEM, Candidate(plan_kind=PlanKind.LIBRARY)), Measured)
    idle_pid = gpu_supervisor.child_pid
    assert idle_pid is not None
    os.kill(idle_pid, signal.SIGKILL)
    os.waitid(os.P_PID, idle_pid, os.WEXITED | os.WNOWAIT)  # before its supervisor notices
    assert isinstance(evaluate(gpu_supervisor, PROBLEM, GOOD), Measured)
    in_flight = hanging(gpu_supervisor)
    with once_asked(kill):
        lost = gpu_supervisor.measure(PROBLEM, in_flight)
    assert isinstance(lost, Failed)
    assert (lost.kind, lost.reason) == (FailureKind.CRASH, "the GPU process died (signal 9)")
    assert isinstance(evaluate(gpu_supervisor, PROBLEM, GOOD), Measured)


def test_a_deadline_kills_the_child_and_the_next_trial_is_right(gpu_supervisor: GpuSupervisor) -> None:
    assert isinstance(evaluate(gpu_supervisor, PROBLEM, GOOD), Measured)
    hung = gpu_supervisor.measure(PROBLEM, hanging(gpu_supervisor))
    assert isinstance(hung, Failed)
    assert hung.kind is FailureKind.HANG
    assert f"within {EVALUATE_S:g} s" in hung.reason
    begin = time.monotonic()
    assert isinstance(evaluate(gpu_supervisor, PROBLEM, GOOD), Measured)
    assert time.monotonic() - begin < 15


def test_a_finalist_that_hangs_is_left_out_and_the_others_are_timed(
    gpu_supervisor: GpuSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = ((16, 64, 64), (16, 64, 64))
    good, bad = (fused(schedule(tiles, assignment=assignment)) for assignment in (Assignment.STATIC, Assignment.TICKET))

    def planted(*args: object, **kwargs: object) -> PreparedKernel:
        prepared = prepare(*args, **kwargs)  # type: ignore[arg-type]
        return with_raised_threshold(prepared, ENDLESS_CYCLES) if args[2] == bad else prepared

    monkeypatch.setattr(supervisor_module, "prepare", planted)
    finals = gpu_supervisor.finals(PROBLEM, (Candidate(plan_kind=PlanKind.LIBRARY), bad, good), num_rounds=10)
    assert [times is not None for times in finals.times_us] == [True, False, True]
    assert f"within {FINALS_S:g} s" in finals.reasons[1]
    assert set(finals.process_of_round) == {0, 1}


HANGING_PARENT = """
import sys
from pathlib import Path
from tests.gpu.test_faults import PROBLEM, hanging, once_asked
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

if __name__ == "__main__":
    card = usable_gpus()[0]
    supervisor = GpuSupervisor(card, Path(sys.argv[1]))
    with once_asked(lambda child: print("CHILD", child.pid, card.uuid, flush=True)):
        supervisor.measure(PROBLEM, hanging(supervisor))
"""


def wait_until_busy(uuid: str) -> None:
    """Waits until the hung kernel keeps the GPU busy."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    end = time.monotonic() + 30
    while pynvml.nvmlDeviceGetUtilizationRates(handle).gpu < 50:
        assert time.monotonic() < end, "the hang did not start"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_parent_takes_its_hanging_child_along_and_frees_the_card(card: Card, build_cache: Path) -> None:
    # The spin limit is hours, so the kernel hangs practically forever.
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
        assert time.monotonic() - killed < 2, "the child process outlives its parent"
        time.sleep(0.02)
