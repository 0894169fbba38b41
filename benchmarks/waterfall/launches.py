"""What a programmatic launch costs tiles that share weights, and what takes it away: results/<gpu>/shared_weights.json.

python -m benchmarks.waterfall.launches [--row 12288-6144/m96] [--seconds 200] [--out FILE]

A schedule whose neighbours read the same weights is launched plainly and programmatically, fused and an op a launch.
Then what may be the cause is changed, one thing at a time, by patches of the rendered source: when a CTA asks for its
first weights, when the next launch is let in, and which SM processes which queue. All are timed in the same rounds,
each after a check of its numbers. Traced builds say when CTAs begin, and how far apart those are that share weights.
At last counters are read of all graphs: what the copy engine asked for, what came through the coalescers of the L2's
requests, and what came from memory. About 30 seconds a row on 16 cores.
"""

from __future__ import annotations

import argparse
import gc
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, open_workbench
from benchmarks.waterfall.on_card import Build, Builds, PairOnCard, pair_on_card
from benchmarks.waterfall.patches import BY_SM, LATE_TRIGGER, WAITS_FIRST, by_table
from benchmarks.waterfall.rows import CLUSTER_KINDS, SHARING, WaterfallRow
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import CacheHint
from tuner.core.trial.reports.inspection import TaskSpan
from tuner.core.trial.stats import median
from tuner.workers.builder.prepare import PreparedKernel

Json = dict[str, Any]

#: Of an H100 and an H200.
NUM_SMS = 132

_KINDS = (PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL, PlanKind.FUSED, PlanKind.FUSED_PDL)
#: Of which begins and distances are traced.
_TRACED = ("two_launches", "two_launches_pdl", "fused", "fused_pdl", "fused_pdl, as placed plainly")


def on_all_sms(row: WaterfallRow) -> WaterfallRow:
    """The row with a CTA on each SM: an SM's number then names a queue."""
    return replace(row, schedule=row.schedule.but(ordering=replace(row.schedule.ordering, reserved_sms=0)))


def ways(row: WaterfallRow, placed: Sequence[int]) -> dict[str, Build]:
    """All that are timed beside each other, by label; `placed` is the queue of each SM in a plain, fused launch, where
    each has one, else empty."""
    found = {str(kind): Build(row=row.launched(kind)) for kind in _KINDS}
    for kind in (kind for kind in _KINDS if kind.is_programmatic):
        own = row.launched(kind)
        found[f"{kind}, waits first"] = Build(row=own, patches=WAITS_FIRST)
        found[f"{kind}, late trigger"] = Build(row=own, patches=LATE_TRIGGER)
        for hint in (CacheHint.NORMAL, CacheHint.EVICT_LAST):
            tiling = replace(row.schedule.tiling, weight_hint=hint)
            hinted = replace(own, schedule=row.schedule.but(tiling=tiling))
            found[f"{kind}, weights {hint}"] = Build(row=hinted)
    if placed:
        for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL):
            own = on_all_sms(row).launched(kind)
            found[f"{kind}, all SMs"] = Build(row=own)
            found[f"{kind}, as placed plainly"] = Build(row=own, patches=by_table(placed))
            found[f"{kind}, by SM"] = Build(row=own, patches=BY_SM)
            both = (*WAITS_FIRST, *by_table(placed))
            found[f"{kind}, waits first, as placed plainly"] = Build(row=own, patches=both)
    return found


def placement(ctas: Any) -> list[int]:
    """The queue of each SM, by its number; empty where not each has one."""
    by_sm = {int(words[4]): cta for cta, words in enumerate(ctas)}
    is_full = sorted(by_sm) == list(range(len(ctas))) and len(ctas) == NUM_SMS
    return [by_sm[sm] for sm in range(NUM_SMS)] if is_full else []


def apart(spans: Sequence[TaskSpan], ctas: Sequence[Any]) -> Json:
    """How far apart CTAs of a launch begin, and tasks that share weights are: medians over groups, microseconds."""
    groups = defaultdict(list)
    for span in spans:
        groups[span.launch, span.op, span.tile_n].append(span)
    shared = [group for group in groups.values() if len(group) > 1]

    def spread(of: str) -> float:
        times_ns = [[float(getattr(one, of)) for one in group] for group in shared]
        return round(median([max(times) - min(times) for times in times_ns]) / 1e3, 3)

    begins = [rows[:, 1] for rows in ctas]
    return {
        "begin_spread_us": [round(float(one.max() - one.min()) / 1e3, 2) for one in begins],
        "taken_apart_us": spread("taken_ns"),
        "loaded_apart_us": spread("loaded_ns"),
        "computed_apart_us": spread("computed_ns"),
        "same_pair_of_sms": round(
            sum(len({one.sm // 2 for one in group}) < len(group) for group in shared) / len(shared), 3
        ),
        "sms_of_first_groups": [sorted(one.sm for one in group) for group in shared[:6]],
    }


def graphs_of(pair: PairOnCard, kernels: dict[str, PreparedKernel]) -> dict[str, Any]:
    """Of those whose numbers are right."""
    found = {}
    for label, kernel in kernels.items():
        try:
            found[label] = pair.graph(kernel)
        except Exception as error:
            print("  not timed:", label, type(error).__name__, str(error)[:200], flush=True)
    return found


def timed(row: WaterfallRow, builds: Builds) -> tuple[list[Json], list[int], Any]:
    """Times and distances of a row's ways; the queue of each SM in a plain launch; the library's algorithms."""
    with pair_on_card(row, builds.gpu.arch) as pair:
        first = builds.make(Build(row=on_all_sms(row).launched(PlanKind.FUSED), traced=True))
        _, ctas = pair.stamps(first)
        placed = placement(ctas[0])
        asked = ways(row, placed)
        clusters = {
            f"{kind}, {one}": Build(row=replace(row, schedule=one, plan_kind=kind))
            for one in SHARING[row]
            for kind in CLUSTER_KINDS
        }
        graphs = graphs_of(pair, builds.make_all(asked | clusters))
        times = pair.times({"library": pair.on_card.library_graph, **graphs}, 11)
        traced = builds.make_all({label: replace(asked[label], traced=True) for label in _TRACED if label in asked})
        distances = {label: apart(*pair.stamps(kernel)) for label, kernel in traced.items()}
        rows = [
            {"row": row.name, "way": label, "us": round(one.us, 3), **distances.get(label, {})}
            for label, one in times.items()
        ]
        return rows, placed, pair.on_card.picked


def count(row: WaterfallRow, rows: list[Json], placed: list[int], picked: Any, builds: Builds) -> None:
    """Adds counters to the rows."""
    with pair_on_card(row, builds.gpu.arch, picked) as pair:
        kernels = builds.make_all(ways(row, placed))
        for one in rows:
            if one["way"] in kernels:
                one["counters"] = pair.counters(pair.graph(kernels[one["way"]], checked=False))


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no row is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    watch = Watch()
    with open_workbench("auto", BUILD_CACHE) as bench:
        machine, target_id = machine_of(bench.evaluator.environment()), bench.evaluator.target.id
        builds = Builds(bench.gpu)
    path = options.out or results_file(target_id, "shared_weights")
    taken = []
    try:
        for row in SHARING:
            if (not options.row or row.name in options.row) and watch.seconds < options.seconds:
                found = timed(row, builds)
                taken.append((row, *found))
                write_report(path, [one for _, rows, *_ in taken for one in rows], machine)
                for one in found[0]:
                    print(watch.seconds, one, flush=True)
                gc.collect()
        for row, rows, placed, picked in taken:
            count(row, rows, placed, picked, builds)
            rows.append({"row": row.name, "way": "placement", "queue_of_sm": placed})
            write_report(path, [one for _, rows, *_ in taken for one in rows], machine)
            gc.collect()
    finally:
        builds.close()


if __name__ == "__main__":
    main()
