"""Evaluates the table of jobs: a row for each target of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.common.report import check_row, failed_row
from benchmarks.search.tasks import BURST, LADDER_MS, LONG, MORE, NUM_SEEDS, SEEDS, SUSTAINED, Entry, Table
from tuner.core.trial.stats import median

#: Targets: maximum seconds.
BURST_BAR_S, WAIT_BAR_S, FINALS_BAR_S, LONG_BAR_S, SUSTAINED_BAR_S, LADDER_BAR_S = 20.0, 4.0, 5.0, 75.0, 75.0, 150.0
#: Targets: by how much the results may be slower than the best known, relative.
MEDIAN_BAR, WORST_BAR, SEEDS_BAR, LADDER_BAR = 0.010, 0.030, 0.015, 0.015


def judge(table: Table) -> list[dict[str, Any]]:
    """All checks; one with missing entries fails, and lists them."""
    burst = [f"burst/{name}" for name in BURST]
    quality = [*burst, *(f"sustained/{name}" for name in SUSTAINED), *(f"more/{name}" for name in MORE)]
    priors = [f"priors/{name}" for name in (*BURST, *SUSTAINED, *MORE)]
    return [
        _median("burst_job_s", burst, table, "job_s", BURST_BAR_S),
        _median("burst_card_waits_for_builds_s", burst, table, "card_waits_for_builds_s", WAIT_BAR_S),
        _median("burst_finals_s", burst, table, "finals_s", FINALS_BAR_S),
        _worst("job_of_300_trials_s", [f"long/{LONG}"], table, "job_s", LONG_BAR_S),
        _worst("sustained_job_s", [f"sustained/{name}" for name in SUSTAINED], table, "job_s", SUSTAINED_BAR_S),
        _median("loss_median", quality, table, "loss", MEDIAN_BAR),
        _worst("loss_worst", quality, table, "loss", WORST_BAR),
        _median("loss_with_priors_median", priors, table, "loss", MEDIAN_BAR),
        *_seeds(table),
        _worst("ladder_s", ["ladder"], table, "batch_s", LADDER_BAR_S),
        _worst("ladder_loss", [f"own/{m}" for m in LADDER_MS], table, "loss", LADDER_BAR),
    ]


def _values(names: Sequence[str], table: Table, figure: str) -> dict[str, float]:
    """The values of a figure by entry. Losses without a known result to compare with are omitted."""
    found = {name: table[name].get(figure) for name in names if name in table}
    if figure == "loss":
        found = {name: loss for name, loss in found.items() if table[name].get("num_kept") != 0}
    return {name: value for name, value in found.items() if value is not None}


def _row(check: str, values: dict[str, float], value: float, bar: float, num: int) -> dict[str, Any]:
    row = check_row(check, value, bar, of=len(values), wanted=num, each=values)
    return row if len(values) == num else row | {"holds": False, "reason": f"{num - len(values)} entries are missing"}


def _median(check: str, names: Sequence[str], table: Table, figure: str, bar: float) -> dict[str, Any]:
    values = _values(names, table, figure)
    if not values:
        return failed_row(check, "not measured")
    return _row(check, values, median(list(values.values())), bar, len(names)) | {"worst": max(values.values())}


def _worst(check: str, names: Sequence[str], table: Table, figure: str, bar: float) -> dict[str, Any]:
    values = _values(names, table, figure)
    return _row(check, values, max(values.values()), bar, len(names)) if values else failed_row(check, "not measured")


def _seeds(table: Table) -> list[dict[str, Any]]:
    """Verdicts and winners of the job of ten seeds."""
    entry: Entry | None = table.get("seeds")
    if entry is None:
        return [failed_row(check, "not measured") for check in ("verdict_flips", "seeds_loss")]
    verdicts: Counter[str] = Counter(entry["verdicts"])
    flips = len(entry["verdicts"]) - verdicts.most_common(1)[0][1]
    names = (f"burst/{SEEDS}", *(f"seed/{seed}" for seed in range(1, NUM_SEEDS)))
    winners = Counter(table[name]["winner"]["plan_kind"] for name in names if name in table)
    values = {f"seed/{seed}": loss for seed, loss in enumerate(entry["losses"]) if loss is not None}
    return [
        check_row("verdict_flips", flips, 0, verdicts=dict(verdicts), winners=dict(winners), row=SEEDS),
        _row("seeds_loss", values, max(values.values()), SEEDS_BAR, NUM_SEEDS)
        if values
        else failed_row("seeds_loss", "no winner has a time"),
    ]
