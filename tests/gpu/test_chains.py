"""Chains on a GPU beyond their results: the leftovers of one run must not affect the next, whichever CTAs are late or
missing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chains import run_of_block
from tests.support.conformance import in_band
from tests.support.conformance.chains import APART, BLOCK, FOUR, SHAPES, kinds_of
from tests.support.conformance.launching import OnCard
from tests.support.conformance.schedules import wide
from tests.support.forged import with_others
from tests.support.on_card import problem
from tests.support.planted import KernelFault, planted_source
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import FailureKind
from tuner.workers.source.launchable import Launchable

cupy = pytest.importorskip("cupy")

#: Number of back-to-back chains, and of repetitions.
NUM_CHAINS, NUM_TRIES = 3, 20
#: The first CTA of every launch is delayed by a millisecond, which is longer than the host needs to enqueue the
#: following launches.
LAG = KernelFault(
    name="lag",
    statement="const long long begin = clock64(); while (clock64() - begin < 2000000) {}",
    kind=FailureKind.WRONG_NUMBERS,
    reason="",
)
#: What keeps a programmatic launch from ending before the previous one.
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
#: The code that clears the finished elements in the other half of a mailbox.
TAKEN_AWAY = "*reinterpret_cast<Elements*>(norm.next_mailbox + first) = Elements{};"


def enqueued(on_card: OnCard, launchable: Launchable, seeds: tuple[int, ...]) -> list[Any]:
    """The last outputs of chains with different inputs, enqueued back to back on one stream with the same
    intermediates."""
    from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice
    from tuner.workers.gpu.library.runners import ChainRunner

    prepared = on_card.session._prepare(problem(launchable.workload))
    kernel = Kernel(launchable)
    plans = tuple(PlanOnDevice(launchable, i, programmatic=True) for i in range(len(launchable.plans)))
    runner = ChainRunner(kernel, plans)
    last = launchable.workload.tile_ops[-1].name
    left = [cupy.empty_like(prepared.data.outputs[0][last].bits) for _ in seeds]
    runner.poison()
    for output in prepared.data.outputs[0].values():
        output.poison()
    cupy.cuda.Device().synchronize()
    with prepared.stream:
        for seed, kept in zip(seeds, left, strict=True):
            runner.enqueue(prepared.data.check_ops(seed), prepared.stream.ptr)
            kept[...] = prepared.data.outputs[0][last].bits
    prepared.stream.synchronize()
    assert runner.abort_record() is None
    return left


def launchable_with(on_card: OnCard, shape: str, *, waits: bool) -> Launchable:
    """A chain launched op by op, in which the first CTA of each launch is delayed; `waits`: whether launches wait for
    each other."""
    apart = Candidate(plan_kind=APART[-1], schedule=SHAPES[shape])
    return lagging(on_card, BLOCK, apart, without="" if waits else WAIT)


def lagging(on_card: OnCard, workload: Workload, candidate: Candidate, *, without: str = "") -> Launchable:
    """A chain in which the first CTA of each launch is delayed, in a kernel from which a statement was removed."""
    ready = on_card.ready(workload, candidate)
    source = planted_source(LAG, ready.source)
    assert without in source
    cubin = on_card.builder.build(source.replace(without, "") if without else source, on_card.gpu.arch).cubin
    launchable = with_others(ready.work, cubin=cubin).shared
    assert launchable is not None
    return launchable


@pytest.mark.parametrize("shape", ["wgmma", "wgmma, parts", "mma"])
def test_chains_back_to_back_leave_what_each_leaves_alone(on_card: OnCard, shape: str) -> None:
    launchable = launchable_with(on_card, shape, waits=True)
    alone = [enqueued(on_card, launchable, (seed,))[0] for seed in range(NUM_CHAINS)]
    for _ in range(NUM_TRIES):
        together = enqueued(on_card, launchable, tuple(range(NUM_CHAINS)))
        assert all(bool((one == other).all()) for one, other in zip(alone, together, strict=True))


def test_launches_that_do_not_wait_for_each_other_are_caught(on_card: OnCard) -> None:
    alone = [enqueued(on_card, launchable_with(on_card, "wgmma", waits=True), (seed,))[0] for seed in range(NUM_CHAINS)]
    broken = launchable_with(on_card, "wgmma", waits=False)
    tries = (enqueued(on_card, broken, tuple(range(NUM_CHAINS))) for _ in range(NUM_TRIES))
    assert any(not bool((one == other).all()) for together in tries for one, other in zip(alone, together, strict=True))


def in_band_and_lagging(on_card: OnCard, shape: str, *, without: str = "") -> Launchable:
    """A fused chain whose intermediates are read in band."""
    chosen = in_band.banded(in_band.SHAPES)[shape]
    candidate = Candidate(plan_kind=PlanKind.FUSED_PDL, schedule=chosen)
    return lagging(on_card, in_band.SEVERAL, candidate, without=without)


@pytest.mark.parametrize("shape", ["queues", "parts", "swapped, shared k"])
def test_chains_in_band_back_to_back_leave_what_each_leaves_alone(on_card: OnCard, shape: str) -> None:
    launchable = in_band_and_lagging(on_card, shape)
    alone = [enqueued(on_card, launchable, (seed,))[0] for seed in range(NUM_CHAINS)]
    for _ in range(NUM_TRIES):
        together = enqueued(on_card, launchable, tuple(range(NUM_CHAINS)))
        assert all(bool((one == other).all()) for one, other in zip(alone, together, strict=True))


def test_elements_in_band_that_nobody_takes_away_are_found_by_the_launch_after_the_next_one(on_card: OnCard) -> None:
    alone = [enqueued(on_card, in_band_and_lagging(on_card, "queues"), (seed,))[0] for seed in range(NUM_CHAINS)]
    broken = in_band_and_lagging(on_card, "queues", without=TAKEN_AWAY)
    tries = (enqueued(on_card, broken, tuple(range(NUM_CHAINS))) for _ in range(NUM_TRIES))
    assert any(not bool((one == other).all()) for together in tries for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("kind", kinds_of(run_of_block(50)))
def test_an_input_is_normed_by_what_stands_in_front_of_the_launch(on_card: OnCard, kind: PlanKind) -> None:
    """The contents of the vector that came with the input do not matter: the session's runner recomputes it."""
    workload: Workload = run_of_block(50)
    prepared = on_card.session._prepare(problem(workload))
    for inputs in prepared.data._check_inputs:
        inputs["r.squares"].fill(cupy.nan)
    assert on_card.measured(workload, Candidate(plan_kind=kind, schedule=wide(FOUR[:2]))).rel_error > 0
