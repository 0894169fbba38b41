"""Chooses this machine's evaluators from an option, and explains the choice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tuner.core.model.rates import source_of_rates
from tuner.core.problem.gpu import SIMULATED_PREFIX, parse_target
from tuner.core.trial.evaluator import Evaluator
from tuner.core.trial.limits import Limits
from tuner.errors import InvalidInput, WorkerError

#: The fallback of ``auto``.
FALLBACK = SIMULATED_PREFIX + "h200"

#: How often starting on a listed card is tried, and the pause between tries, seconds: while its previous process is
#: ending, the card may refuse the next one.
_NUM_TRIES, _PAUSE_S = 3, 2.0


def make_evaluators(
    gpu: str,
    *,
    build_cache: Path,
    limits: Limits | None = None,
    latency_s: float = 0.0,
    build_s: float = 0.0,
    num_simulated: int = 1,
    when_idle: bool = False,
    torch_baseline: bool = False,
    builds_here: bool = True,
) -> tuple[list[Evaluator], str]:
    """Evaluators for ``auto``, ``none``, or ``simulated:<id>`` (several separated by commas), and sentences about the
    choice and its reason.

    `build_cache` stores compiled kernels; `limits` are time limits (the defaults if None); with `when_idle` a real card
    is only used while nobody else uses it; with `torch_baseline` its finals also measure PyTorch's time; `latency_s`
    slows a simulated trial down, `build_s` the build of a simulated tiling; `num_simulated` is the number of simulated
    GPUs. The build processes start at once, unless candidates are built elsewhere (not `builds_here`).

    Raises:
        InvalidInput: `gpu` is invalid.
        WorkerError: with ``auto``, there are supported cards, but none starts. Simulated figures would be wrong then.
    """
    limits = limits or Limits()
    if gpu == "none":
        return [], "No GPU: this server shows existing results and accepts no new work."
    if gpu == "auto":
        evaluators, why = _real(
            build_cache, limits, when_idle=when_idle, torch_baseline=torch_baseline, builds_here=builds_here
        )
        if evaluators:
            return evaluators, why
        return [_simulated(FALLBACK, limits, latency_s, build_s)], f"Simulating an H200 ({FALLBACK}), since {why}."
    asked_ids = gpu.split(",")
    if all(one.startswith(SIMULATED_PREFIX) for one in asked_ids):
        targets = [parse_target(one) for one in asked_ids]
        asked = f"Simulating {' and '.join(asked_ids)}, as requested"
        why = " ".join([f"{asked}; no figure here is a measurement.", *(source_of_rates(one.gpu) for one in targets)])
        return [_simulated(one, limits, latency_s, build_s) for one in asked_ids for _ in range(num_simulated)], why
    remedy = "use auto, none or simulated:<id>, e.g. simulated:h200, or several of these: simulated:h200,simulated:l40s"
    raise InvalidInput("gpu", f"{gpu!r} is not a valid choice", remedy)


def _simulated(target_id: str, limits: Limits, latency_s: float, build_s: float) -> Evaluator:
    # Each kind of evaluator is imported on demand, since a simulated one needs none of a real one's libraries.
    from tuner.workers.simulated.evaluator import SimulatedEvaluator

    return SimulatedEvaluator(parse_target(target_id), limits=limits, latency_s=latency_s, build_s=build_s)


def _real(
    build_cache: Path, limits: Limits, *, when_idle: bool, torch_baseline: bool, builds_here: bool
) -> tuple[list[Evaluator], str]:
    """An evaluator per usable card, or none if there is no card, and the reason. A broken card does not affect the
    others, and all share one builder.

    Raises:
        WorkerError: there are usable cards, and none starts.
    """
    from tuner.workers.builder import prepare
    from tuner.workers.builder.nvrtc import Builder
    from tuner.workers.builder.places import places_here
    from tuner.workers.host.cards import choice_of_gpus
    from tuner.workers.host.supervisor import GpuSupervisor

    try:
        cards = choice_of_gpus()
    except WorkerError as error:
        return [], str(error)
    evaluators: list[Evaluator] = []
    names, faults = Counter[str](), [f"not on {reason}" for reason in cards.refused]
    builder = Builder(build_cache, limits=limits, num_processes=places_here(), modules=[prepare.__name__])
    if builds_here:
        builder.begin()
    for card in cards.usable:
        try:
            start = partial(GpuSupervisor, card, build_cache, limits, builder)
            evaluators.append(_tried(partial(start, when_idle=when_idle, torch_baseline=torch_baseline)))
            names[card.name] += 1
        except WorkerError as error:
            faults.append(f"not on {card.uuid}: {error}")
    builder.close()  # it is used by the evaluators
    if not evaluators:
        remedy = f"`tuner doctor` finds out more, and `--gpu {FALLBACK}` works without a card"
        raise WorkerError(f"no card can be used: {'; '.join(faults)}; {remedy}")
    found = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())
    idle = " while nobody else uses it" if when_idle else ""
    return evaluators, "; ".join([f"Measuring on {found}{idle}", *faults]) + "."


def _tried(start: Callable[[], Evaluator]) -> Evaluator:
    """The result of `start`, after retries if needed.

    Raises:
        WorkerError: the last try failed.
    """
    for _ in range(_NUM_TRIES - 1):
        try:
            return start()
        except WorkerError:
            time.sleep(_PAUSE_S)
    return start()
