"""The sample of schedules for evaluating the simulator, and its measurement on the simulated GPU."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.rows import Row
from benchmarks.common.workbench import Workbench
from benchmarks.simulator.data import NUM_AGAIN, NUM_COUNTED, collect
from benchmarks.simulator.draw import MAX_TASKS, NUM_ORDERS, draw, judged_rows
from tests.support.lanes import soak_unless
from tuner.core.legal.legality import check_schedule
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import WorkloadKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.ops.gemm.pairs import ffn_pair

H200 = CATALOGUE["h200"]
TINY = Row(
    suite="tiny", pair="tiny", m=64, regime=Regime.BURST, workload=ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256)
)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# In CI, tests/unit/core/space draws legal schedules.
@pytest.mark.soak
@pytest.mark.parametrize(
    "row",
    soak_unless(lambda _, row: row.name == "decode-plain/llama3-8b/m16", judged_rows()),
    ids=lambda row: row.name,
)
def test_a_draw_is_legal_and_has_tilings_in_many_orders(row: Row) -> None:
    drawn = draw(row.workload, H200, row.name)
    assert len(drawn) >= 150
    assert len({one.schedule for one in drawn}) == len(drawn)
    for one in drawn[::5]:
        check_schedule(row.workload, H200, one.schedule)
        if one.stratum != "guesses":
            assert tile_graph(row.workload, one.schedule.tiling).num_tasks <= MAX_TASKS
    for engine in (Engine.MMA, Engine.WGMMA):
        orders = Counter(one.schedule.tiling for one in drawn if one.schedule.tiling.engine is engine)
        assert sum(count >= NUM_ORDERS - 1 for count in orders.values()) >= 3
        assert len(orders) >= 25


def test_the_pairs_go_from_decode_to_prefill() -> None:
    rows = judged_rows()
    assert len({row.name for row in rows}) == len(rows) >= 8
    assert min(row.m for row in rows) == 16
    assert max(row.m for row in rows) >= 1024
    assert WorkloadKind.INDEPENDENT in {row.workload.kind for row in rows}


# In CI, test_pairs_search.py goes on with a run that was cut.
@pytest.mark.soak
def test_a_share_is_taken_of_everything_and_a_run_that_was_cut_goes_on_where_it_stopped(
    bench: Workbench, tmp_path: Path
) -> None:
    path = tmp_path / "data.jsonl"
    assert draw(TINY.workload, H200, TINY.name) == draw(TINY.workload, H200, TINY.name)
    assert collect(bench, path, [TINY], 100.0, 0.25)
    whole = lines_of(path)
    times = [line for line in whole if line["kind"] == "time"]
    for line in times:
        assert Schedule.from_json(line["schedule"]).digest == line["digest"]
        assert line["ratio"] == pytest.approx(line["time_us"] / line["library_us"], rel=0.05)
    counts = Counter(line["kind"] for line in whole)
    assert counts["time"] == math.ceil(len(draw(TINY.workload, H200, TINY.name)) / 4)
    assert (counts["again"], counts["count"]) == (NUM_AGAIN / 4, NUM_COUNTED / 4)

    lines = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] != "again"][:-3]
    path.write_text("\n".join(lines) + "\n")
    assert collect(bench, path, [TINY], 100.0, 0.25)
    found = Counter((line["kind"], line.get("digest")) for line in lines_of(path) if line["kind"] != "meta")
    assert set(found) == {(line["kind"], line["digest"]) for line in whole if line["kind"] != "meta"}
    assert set(found.values()) == {1}


def test_nothing_is_begun_when_the_time_is_up(bench: Workbench, tmp_path: Path) -> None:
    assert not collect(bench, tmp_path / "data.jsonl", [TINY], 0.0)
    assert {line["kind"] for line in lines_of(tmp_path / "data.jsonl")} == {"meta"}
