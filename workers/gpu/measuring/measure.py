"""Measures one candidate against the library, and finalists against each other, in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tuner.core.insight.traces.tracing import op_names
from tuner.core.trial.outcome import Measured, Metric
from tuner.core.trial.samples import Round, whole

from ...protocol.messages import Work
from ...timing.clocks import Sample
from ...timing.rounds import (
    Ending,
    are_enough_together,
    counting_together,
    is_hopeless_by,
    is_previewed_enough,
    summary,
    to_previews,
    to_rounds,
)
from ...timing.stop_rules import HopelessRule, is_previewed, stop_rule
from ..library.runners import Runner
from ..tensors.check import Aborted
from .problem import ProblemOnCard


def measure(prepared: ProblemOnCard, runner: Runner, work: Work, incumbent_speedup: float | None) -> Measured:
    """Rounds with the library until the ratio is known well enough, or is certainly too low; under sustained load after
    a preview. `rel_error` and `stage_s` are not filled in.

    Raises:
        Aborted: a wait of the run expired.
    """
    regime = prepared.problem.objective.regime
    is_library = not work.plan_kind.is_ours
    ending = Ending(
        stop=stop_rule(regime),
        hopeless=HopelessRule(),
        incumbent_speedup=None if is_library else incumbent_speedup,
    )
    enough = False

    def rounds_of(tracks: Sequence[Sequence[Sample]]) -> tuple[Round, ...]:
        """`tracks` are the candidate's samples, followed by the library's, if there are any."""
        return to_rounds(tracks[-1], None if is_library else tracks[0], regime)

    def is_over(tracks: Sequence[Sequence[Sample]], elapsed_s: float) -> bool:
        nonlocal enough
        rounds = rounds_of(tracks)
        enough = ending.is_enough(rounds, elapsed_s)
        return enough or ending.is_truncation(rounds)

    graph = prepared.timer.capture(runner)
    graphs = [graph] if is_library else [prepared.library_graph, graph]
    rounds: tuple[Round, ...] = ()
    if is_previewed(regime) and not is_library:
        library, candidate = prepared.timer.preview(
            graphs, lambda tracks: is_previewed_enough(to_previews(tracks[1], tracks[0]), incumbent_speedup)
        )
        rounds = to_previews(candidate, library)
    if not is_hopeless_by(rounds, incumbent_speedup):
        rounds = (*rounds, *rounds_of(prepared.timer.rounds(graphs, is_over, shares_first=not is_library)))
    _check_abort(runner)
    procedure = prepared.timer.procedure(work.plan_kind)
    measured = summary(rounds, procedure, truncated=not enough, library_us=prepared.library_us)
    if whole(rounds):
        prepared.library_us = measured.library_us
    return replace(measured, metrics=(*measured.metrics, *_work_metrics(prepared, work)))


def measure_together(
    prepared: ProblemOnCard, runners: Sequence[Runner], num_rounds: int, others: Sequence[Any] = ()
) -> tuple[list[list[float]], int]:
    """The result of `time_together` for the runners' chains, followed by the graphs of `others`."""
    if not runners:
        return [], 0
    graphs = [prepared.timer.capture(runner) for runner in runners]
    return time_together(prepared, [*graphs, *others], num_rounds)


def time_together(prepared: ProblemOnCard, graphs: Sequence[Any], num_rounds: int) -> tuple[list[list[float]], int]:
    """[graph][round] microseconds of the valid rounds, and the number of invalid ones.

    The first graph settles the card before the first round.
    """
    regime = prepared.problem.objective.regime
    prepared.timer.settle(graphs[0])
    tracks = prepared.timer.rounds(graphs, lambda tracks, _: are_enough_together(tracks, num_rounds, regime))
    counted = counting_together(tracks, num_rounds, regime)
    return [[track[i].time_us for i in counted] for track in tracks], len(tracks[0]) - len(counted)


def _check_abort(runner: Runner) -> None:
    record = runner.abort_record()
    if record:
        raise Aborted(record)


def _work_metrics(prepared: ProblemOnCard, work: Work) -> tuple[Metric, ...]:
    if not work.plan_kind.is_ours:
        return prepared.picked.metrics(op_names(prepared.data.workload))
    plans, own = [plan.plan for plan in work.plans], [one.launches for one in work.own]
    num_tasks = sum(plan.num_tasks for plan in plans) + sum(one.num_tasks for one in own)
    num_ctas = [plan.num_ctas for plan in plans] + [one.num_ctas for one in own]
    smem_bytes = [one.smem_bytes for one in own]
    smem_bytes += [work.shared.smem_bytes] if work.shared else []
    return (
        Metric(tag="num_tasks", unit="", value=num_tasks),
        Metric(tag="num_ctas", unit="", value=max(num_ctas)),
        Metric(tag="dynamic_smem", unit="bytes", value=max(smem_bytes)),
    )
