"""How well the simulator forecasts random schedules of chains: benchmarks/results/<gpu>/chain_forecasts.json.

python -m benchmarks.chains.forecasts [--row llama3-8b/m16] [--count 75] [--seed 26] [--seconds 70] [--out FILE]
python -m benchmarks.chains.forecasts --judge FILE [FILE ...] [--out FILE]

Of each chain so many schedules of its space are drawn, the same ones for a seed: the engines take turns. Each one's
numbers are checked before it is timed, beside the library in the same rounds. What is there already is not measured
again, so a run can be cut and taken up; about 35 seconds a chain on an H200 with 16 cores. `--judge` needs no card:
it puts the rows of several runs into one file, with what the simulator of this commit says of the same schedules.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.chains.rows import ChainRow, choose_rows
from benchmarks.common.report import commit, machine_of, results_file, rows_of_this_build, write_merged, write_report
from benchmarks.common.workbench import BUILD_CACHE, Ready, Watch, Workbench, open_workbench
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import Gpu, listed_gpu
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.space import Space
from tuner.core.trial.outcome import Failed, Rejected
from tuner.core.trial.stats import median, rank_correlation, selection_regret
from tuner.errors import InvalidInput, WorkerError
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.protocol.messages import Work

ROW_NAMES = ("llama3-8b/m16", "llama3-70b-tp8-synthetic/m16")
SEED = 26
COUNT = 75
#: Schedules in the same rounds, beside the library, and rounds.
NUM_TOGETHER, NUM_ROUNDS = 8, 7
#: What must be reached, and how many of the best by forecast the regret is that of.
SPEARMAN_BAR, NUM_TRUSTED = 0.85, 10


def drawn(row: ChainRow, gpu: Gpu, count: int, seed: int = SEED) -> list[Schedule]:
    """The schedules of a chain, without repetition."""
    return Space(row.workload, gpu).sample(random.Random(f"{seed}/{row.name}"), count)


def measured(
    bench: Workbench, row: ChainRow, schedules: Sequence[Schedule], watch: Watch, limit_s: float
) -> list[dict[str, Any]]:
    """A finding per schedule, until the time is up."""
    begun = [bench.begin(row.problem, fused(schedule)) for schedule in schedules]
    found = list[dict[str, Any]]()
    for first in range(0, len(schedules), NUM_TOGETHER):
        if watch.seconds > limit_s:
            break
        group = schedules[first : first + NUM_TOGETHER]
        ready = [future.result() for future in begun[first : first + NUM_TOGETHER]]
        found += _group(bench, row, group, ready)
    return found


def _group(bench: Workbench, row: ChainRow, group: Sequence[Schedule], ready: Sequence[Ready]) -> list[dict[str, Any]]:
    """Those that came through preparation, in rounds together; each alone where one takes the process along."""
    refused = [one for one in zip(group, ready, strict=True) if isinstance(one[1], Rejected | Failed)]
    good = [one for one in zip(group, ready, strict=True) if not isinstance(one[1], Rejected | Failed)]
    found = [_finding(row, bench, schedule, reason=why.reason) for schedule, why in refused]  # type: ignore[union-attr]
    try:
        return found + (_rounds(bench, row, good) if good else [])
    except WorkerError as error:
        if len(good) == 1:
            return [*found, _finding(row, bench, good[0][0], reason=str(error))]
        return found + [one for pair in good for one in _group(bench, row, [pair[0]], [pair[1]])]


def _rounds(bench: Workbench, row: ChainRow, good: Sequence[tuple[Schedule, Ready]]) -> list[dict[str, Any]]:
    """Times and reasons of schedules that are ready.

    Raises:
        WorkerError: one of them took the process along.
    """
    if isinstance(bench.evaluator, GpuSupervisor):
        works = [ready.work for _, ready in good if isinstance(ready, PreparedKernel)]
        answer = bench.evaluator.time_together(row.problem, (Work(plan_kind=PlanKind.LIBRARY), *works), NUM_ROUNDS)
        times_us, reasons = answer.times_us, answer.reasons
    else:
        candidates = (Candidate(plan_kind=PlanKind.LIBRARY), *(fused(schedule) for schedule, _ in good))
        finals = bench.evaluator.finals(row.problem, candidates, num_rounds=NUM_ROUNDS)
        times_us, reasons = finals.times_us, finals.reasons
    library_us = times_us[0]
    return [
        _finding(row, bench, schedule, reason=reason, us=us, library_us=library_us)
        for (schedule, _), us, reason in zip(good, times_us[1:], reasons[1:], strict=True)
    ]


def _finding(
    row: ChainRow,
    bench: Workbench,
    schedule: Schedule,
    *,
    reason: str = "",
    us: Sequence[float] | None = None,
    library_us: Sequence[float] | None = None,
) -> dict[str, Any]:
    finding: dict[str, Any] = {"digest": schedule.digest, "schedule": str(schedule)}
    if not us or not library_us:
        return finding | {"reason": reason or "no round counts"}
    ratios = [ours / theirs for ours, theirs in zip(us, library_us, strict=True)]
    forecast = forecast_us(row.workload, bench.gpu, fused(schedule))
    return finding | {"us": round(median(us), 3), "ratio": round(median(ratios), 5), "forecast_us": round(forecast, 3)}


def row_of(row: ChainRow, findings: list[dict[str, Any]], count: int, seed: int = SEED) -> dict[str, Any]:
    """A chain's row of the results."""
    timed = [one for one in findings if "us" in one]
    forecasts, ratios = [one["forecast_us"] for one in timed], [one["ratio"] for one in timed]
    rho = rank_correlation(forecasts, ratios) if len(timed) > 1 else None
    return {
        "chain": row.chain,
        "m": row.m,
        "drawn": count,
        "seed": seed,
        "timed": len(timed),
        "spearman": rho and round(rho, 4),
        "spearman_bar": SPEARMAN_BAR,
        "regret_of_best_10": round(selection_regret(forecasts, ratios, NUM_TRUSTED), 4) if timed else None,
        "forecast_over_measured": round(median([a["forecast_us"] / a["us"] for a in timed]), 3) if timed else None,
        "holds": rho is not None and rho >= SPEARMAN_BAR and len(findings) == count,
        "findings": findings,
    }


def judged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report with the rows of all, forecast again.

    Raises:
        InvalidInput: a schedule is not drawn any more.
    """
    gpu = listed_gpu(reports[-1]["meta"]["gpu"].removeprefix("simulated "))
    assert gpu is not None
    rows = []
    for found in (one for report in reports for one in report["rows"]):
        (row,) = choose_rows([f"{found['chain']}/m{found['m']}"])
        seed = found.get("seed", SEED)
        by_digest = {one.digest: one for one in drawn(row, gpu, found["drawn"], seed)}
        if strangers := {one["digest"] for one in found["findings"]} - by_digest.keys():
            raise InvalidInput("judge", f"{len(strangers)} schedules are not drawn any more", "measure them again")
        findings = [_forecast_again(row, gpu, by_digest[one["digest"]], one) for one in found["findings"]]
        then = {"spearman_when_measured": found.get("spearman_when_measured", found["spearman"])}
        rows.append(row_of(row, findings, found["drawn"], seed) | then)
    now = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    return {"meta": reports[-1]["meta"] | {"judged_by": now}, "rows": rows}


def _forecast_again(row: ChainRow, gpu: Gpu, schedule: Schedule, finding: dict[str, Any]) -> dict[str, Any]:
    if "us" not in finding:
        return finding
    return finding | {"forecast_us": round(forecast_us(row.workload, gpu, fused(schedule)), 3)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is missing of the chosen chains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help="a row, a chain or m16")
    parser.add_argument("--count", type=int, default=COUNT, help="of each chain")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draws")
    parser.add_argument("--seconds", type=float, default=70.0, help="after which no group is begun")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", nargs="+", type=Path, help="files of this program, of one model of card")
    options = parser.parse_args(arguments)
    if options.judge:
        report = judged([json.loads(path.read_text()) for path in options.judge])
        write_merged(report, options.out or options.judge[-1])
        for one in report["rows"]:
            print({key: value for key, value in one.items() if key != "findings"})
        return
    watch = Watch()
    with open_workbench(options.gpu, BUILD_CACHE) as bench:
        machine = machine_of(bench.evaluator.environment())
        path = options.out or results_file(bench.evaluator.target.id, "chain_forecasts")
        rows = {f"{one['chain']}/m{one['m']}": one for one in rows_of_this_build(path, machine)}
        for row in choose_rows(options.row or ROW_NAMES):
            before = rows.get(row.name, {})
            findings = before.get("findings", []) if before.get("seed", SEED) == options.seed else []
            known = {one["digest"] for one in findings}
            chosen = drawn(row, bench.gpu, options.count, options.seed)
            left = [one for one in chosen if one.digest not in known]
            findings += measured(bench, row, left, watch, options.seconds)
            rows[row.name] = row_of(row, findings, options.count, options.seed)
            write_report(path, list(rows.values()), machine)
            shown = {key: value for key, value in rows[row.name].items() if key != "findings"}
            print(json.dumps(shown), f"{watch.seconds} s", flush=True)


if __name__ == "__main__":
    main()
