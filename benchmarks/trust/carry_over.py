"""What a sample leaves for the next one, and what takes it away: results/<gpu>/carry_over.json.

python -m benchmarks.trust.carry_over [--out FILE]

The library and kernels of one pair that differ in what they tell the L2 are timed by turns, each right behind each
other one equally often, and then behind itself. First their weights alone push each other out of the L2, as in every
trial. Then three times the L2 is read in front of each sample besides. At last the driver is asked before that to
forget which lines are to stay. About ten seconds a pair.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.on_card import graphs_on_card, measure_on_card
from benchmarks.common.rows import Row
from benchmarks.common.workbench import Workbench
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Interleave, Ordering, Raster, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Tile, Tiling
from tuner.core.trial.evaluator import Evaluator, Problem
from tuner.core.trial.stats import median
from tuner.errors import WorkerError
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.timing.turns import turns

Json = dict[str, Any]

#: Two of one layer, at 16 rows and at one.
PAIRS = ("decode-plain/llama3-8b/m16", "decode-plain/llama3-8b/m1")
LIBRARY = "library"
#: Rounds of each way to time, in two halves: the ways take turns.
NUM_ROUNDS = 60
#: Samples of a graph behind itself, in each half.
NUM_ALONE = 15
#: In front of a round, as in burst.
PAUSE_S = 0.002


def candidates() -> dict[str, Candidate]:
    """By name: a fused kernel without hints, with one each, and its two launches. It is near the best of `PAIRS`."""
    tiling = Tiling(
        engine=Engine.WGMMA,
        tiles=(Tile(m=16, n=56, k=256), Tile(m=16, n=32, k=256)),
        num_stages=6,
        num_warps=4,
        input_stages=6,
    )
    ordering = Ordering(
        rasters=(Raster(), Raster()),
        interleave=Interleave(),
        granularity=Granularity.CHUNK,
        sync_width=8,
        wait_position=WaitPosition.SLICE,
        assignment=Assignment.FIRST_WAVE,
    )
    tilings = {
        "no hint": tiling,
        "weights evict_last": replace(tiling, weight_hint=CacheHint.EVICT_LAST),
        "weights normal": replace(tiling, weight_hint=CacheHint.NORMAL),
        "intermediate normal": replace(tiling, intermediate_hint=CacheHint.NORMAL),
        "intermediate evict_last": replace(tiling, intermediate_hint=CacheHint.EVICT_LAST),
    }
    found = {
        name: Candidate(plan_kind=PlanKind.FUSED_PDL, schedule=Schedule.of(tiling=one, ordering=ordering))
        for name, one in tilings.items()
    }
    apart = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=Schedule.of(tiling=tiling, ordering=ordering))
    return found | {"two launches": apart}


def prepared_by(evaluator: Evaluator, problem: Problem) -> dict[str, PreparedKernel]:
    """The candidates, proven and built.

    Raises:
        WorkerError: one is refused.
    """
    found = {}
    for name, candidate in candidates().items():
        prepared = evaluator.prepare(problem, candidate)
        if not isinstance(prepared, PreparedKernel):
            raise WorkerError(f"{name}: {prepared}")
        found[name] = prepared
    return found


def leave(timer: Any) -> None:
    """What is done between two samples of a trial."""


def read(timer: Any) -> None:
    """Enqueues a read of three times the L2."""
    with timer.stream:
        timer.enqueue_flush()


def reset(timer: Any) -> None:
    """Has the driver make lines that are to stay usual ones, and enqueues the read."""
    from cuda.bindings import driver

    timer.stream.synchronize()
    (status,) = driver.cuCtxResetPersistingL2Cache()
    if status != driver.CUresult.CUDA_SUCCESS:
        raise WorkerError(f"cuCtxResetPersistingL2Cache: {status}")
    read(timer)


#: What is done in front of a sample, by what the file calls it.
BETWEEN: dict[str, Callable[[Any], None]] = {"nothing": leave, "read": read, "reset and read": reset}


def rounds_of(
    timer: Any, graphs: Mapping[str, Any], first_round: int, num_rounds: int, between: Callable[[Any], None] = leave
) -> list[Json]:
    """Samples in their order: whose each is, behind whose, and its microseconds."""
    names, samples, before = list(graphs), list[Json](), ""
    for number in range(first_round, first_round + num_rounds):
        time.sleep(PAUSE_S)
        timer.sample(graphs[LIBRARY])  # wakes the clocks
        before = LIBRARY
        for turn in turns(len(names), number):
            name = names[turn.index]
            between(timer)
            samples.append({"of": name, "behind": before, "time_us": timer.sample(graphs[name]).time_us})
            before = name
    return samples


def alone(
    timer: Any, graphs: Mapping[str, Any], num_samples: int, between: Callable[[Any], None] = leave
) -> list[Json]:
    """Samples of each graph behind itself."""
    samples = list[Json]()
    for name, graph in graphs.items():
        time.sleep(PAUSE_S)
        timer.sample(graph)
        for _ in range(num_samples):
            between(timer)
            samples.append({"of": name, "behind": name, "time_us": timer.sample(graph).time_us})
    return samples


def figures_of(samples: list[Json]) -> list[Json]:
    """Of each graph its median behind each one, itself among them."""
    by_pair: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in samples:
        by_pair[one["of"]][one["behind"]].append(one["time_us"])
    return [
        {
            "of": name,
            "behind_us": {other: round(median(times), 3) for other, times in sorted(behind.items())},
        }
        for name, behind in by_pair.items()
    ]


def samples_of(timer: Any, graphs: Mapping[str, Any]) -> dict[str, list[Json]]:
    """Those of each way, which take turns."""
    samples = {way: list[Json]() for way in BETWEEN}
    for half in range(2):
        for way, so_far in samples.items():
            so_far += rounds_of(timer, graphs, half * NUM_ROUNDS // 2, NUM_ROUNDS // 2, BETWEEN[way])
            so_far += alone(timer, graphs, NUM_ALONE, BETWEEN[way])
    return samples


def measured(bench: Workbench, row: Row) -> list[Json]:
    """The figures of all ways on the visible card, once the numbers of all are right."""
    kernels = prepared_by(bench.evaluator, row.problem)
    with graphs_on_card(row.problem, bench.gpu.arch, list(kernels.values())) as (timer, on_card):
        samples = samples_of(timer, dict(zip((LIBRARY, *kernels), on_card, strict=True)))
    return [{"between": way} | one for way, found in samples.items() for one in figures_of(found)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures both pairs, and writes the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/carry_over.json")
    options = parser.parse_args(arguments)
    measure_on_card("carry_over", PAIRS, options.out, measured, lack="a simulated one leaves nothing in an L2")


if __name__ == "__main__":
    main()
