"""The measured schedules for fitting and evaluating the simulator: the file, and its trials.

`benchmarks.simulator.data` writes lines; here they become one row per schedule. Every time is the median ratio to the
library in the same rounds, times the library's median over all rounds of the pair, so clock drift cancels out.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.rows import choose_rows
from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.legal.legality import estimated_resources
from tuner.core.model.fit import Trial
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.schedule import Schedule

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """All pairs' measured schedules."""

    #: The machine and the run.
    meta: Row
    #: Pair, stratum, schedule, time_us, spread; and for some: again_us, and counters by name.
    rows: list[Row]

    def of(self, pair: str) -> list[Row]:
        """The trials of a pair."""
        return [row for row in self.rows if row["pair"] == pair]

    @property
    def pairs(self) -> list[str]:
        """The pairs' names, in the file's order."""
        return list(dict.fromkeys(row["pair"] for row in self.rows))

    def noise(self, pair: str) -> float:
        """Median relative difference of two measurements of one schedule in different groups."""
        twice = [row for row in self.of(pair) if "again_us" in row]
        return float(median(abs(row["again_us"] / row["time_us"] - 1) for row in twice))


def pack(lines: list[Row]) -> DataSet:
    """Packs the lines of `benchmarks.simulator.data`; schedules without a time are left out."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for line in lines:
        by_kind[line["kind"]].append(line)
    library: dict[str, list[float]] = defaultdict(list)
    for line in by_kind["time"]:
        if "ratio" in line:
            library[line["pair"]].append(line["library_us"])
    library_us = {pair: median(times) for pair, times in library.items()}

    def beside(kind: str) -> dict[tuple[str, str], Row]:
        return {(line["pair"], line["digest"]): line for line in by_kind[kind]}

    again, counts = beside("again"), beside("count")
    rows = []
    for line in by_kind["time"]:
        if "ratio" not in line:
            continue
        pair, key = line["pair"], (line["pair"], line["digest"])
        row = {"pair": pair, "stratum": line["stratum"], "schedule": line["schedule"], "spread": line["spread"]}
        row["time_us"] = round(line["ratio"] * library_us[pair], 3)
        if "ratio" in again.get(key, {}):
            row["again_us"] = round(again[key]["ratio"] * library_us[pair], 3)
        if counters := counts.get(key, {}).get("counters"):
            row["counters"] = {name: round(value, 2) for name, value in counters.items()}
        rows.append(row)
    baseline = {"library_us": {pair: round(value, 3) for pair, value in library_us.items()}}
    return DataSet(meta={**{k: v for k, v in by_kind["meta"][-1].items() if k != "kind"}, **baseline}, rows=rows)


def write(path: Path, data: DataSet) -> None:
    """Writes one line of JSON per row, compressed; equal data give equal bytes."""
    text = "\n".join(json.dumps(row, separators=(",", ":")) for row in (data.meta, *data.rows))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read(path: Path) -> DataSet:
    """Inverse of `write`."""
    meta, *rows = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return DataSet(meta=meta, rows=rows)


def counted_bytes(row: Row) -> float | None:
    """Bytes read from and written to DRAM in one run."""
    counters = row.get("counters")
    return counters[DRAM_READ_BYTES] + counters[DRAM_WRITE_BYTES] if counters else None


def trial_of(row: Row, gpu: Gpu) -> Trial:
    """A row with its proven plan, for the kernel that was measured, whose CTAs fitted the card even if those of a later
    version need more registers."""
    (pair,) = choose_rows((), (row["pair"],))
    return trial_of_workload(row, pair.workload, gpu)


def trial_of_workload(row: Row, workload: Workload, gpu: Gpu) -> Trial:
    """Same as `trial_of`, for a pair that is not in `benchmarks.common.rows`."""
    schedule = Schedule.from_json(row["schedule"])
    graph = tile_graph(workload, schedule.tiling)
    resources = estimated_resources(workload, schedule.tiling)
    share = gpu.registers_per_sm // (schedule.ordering.ctas_per_sm * resources.num_threads) // 8 * 8
    resources = replace(resources, registers_per_thread=min(share, resources.registers_per_thread))
    plan = verify(make_plan(graph, schedule.ordering, gpu), graph, resources, gpu)
    return Trial(workload=row["pair"], plans=(plan,), time_us=row["time_us"], dram_bytes=counted_bytes(row))
