"""Where the time of a trial goes, computed from counters of an H200 and from impossible ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.waterfall.rows import ROWS as PAIRS
from tests.support.builders import measured
from tests.support.waterfalls import ROWS, counted, report
from tuner.core.insight.waterfall import (
    ACTIVE_CYCLES,
    COUNTED_CLOCK,
    MEAN_TENSOR_CYCLES,
    MOST_TENSOR_CYCLES,
    TENSOR_OPERATIONS,
    TITLES,
    NoWaterfall,
    Waterfall,
    in_words,
    waterfall_of_trial,
)
from tuner.core.trial.reports.inspection import TaskSpan, Trace, no_counters
from tuner.core.trial.samples import Round

FLOPS = {row.name: row.workload.num_flops for row in PAIRS}


def span(cta: int, computed_ns: int, stored_ns: int) -> TaskSpan:
    whole = {"launch": 0, "task": cta, "op": 0, "tile_m": 0, "tile_n": cta, "cta": cta, "sm": cta}
    stamps = {"taken_ns": 0, "ready_ns": 0, "loaded_ns": 0, "computed_ns": computed_ns, "stored_ns": stored_ns}
    return TaskSpan(**whole, **stamps)


def traced(*spans: TaskSpan) -> Trace:
    return Trace(spans=spans, op_names=("up",), makespan_ns=100_000, shares=(), tail=0.0, simulated=False)


def of_row(row: dict[str, Any]) -> tuple[Waterfall, float]:
    clock = round(row["figures"]["clock_mhz"])
    outcome = measured(row["time_us"], rounds=(Round(time_us=row["time_us"], clock_mhz=clock),))
    return waterfall_of_trial(outcome, FLOPS[row["row"]], [report(row["counters"])]), row["time_us"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['row']} {row['side']}")
def test_bars_of_what_a_card_counted_add_up_to_its_time(row: dict[str, Any]) -> None:
    bars, time_us = of_row(row)
    assert bars.holds(time_us)
    assert min(bars.bars_us.values()) >= 0
    assert bars.main_loop_us == pytest.approx(row["bars_us"]["main_loop_us"], abs=0.01)
    assert bars.tail_us == pytest.approx(row["bars_us"]["tail_us"], abs=0.01)
    assert set(bars.notes) == {"epilogue", "launch"}


def test_a_trace_tells_the_epilogue_and_takes_it_out_of_the_waiting() -> None:
    trace = traced(span(0, 10_000, 14_000), span(1, 10_000, 12_000))
    without = waterfall_of_trial(measured(100.0), 1, [counted(100.0)])
    bars = waterfall_of_trial(measured(100.0), 1, [counted(100.0), trace])
    assert (bars.epilogue_us, without.epilogue_us) == (3.0, 0.0)
    assert without.l2_traffic_us - bars.l2_traffic_us == pytest.approx(3.0)
    assert set(bars.notes) == {"unneeded_rows", "launch"}
    assert bars.launch_us == pytest.approx(10.0)


def test_waiting_is_as_long_in_a_counted_run_whose_clock_is_higher() -> None:
    """On a GPU, a single run was counted at 1980 MHz, and the rounds ran at 1570 MHz."""
    timed = measured(100.0, rounds=(Round(time_us=100.0, clock_mhz=500),))
    counters = report({COUNTED_CLOCK: 1e9, ACTIVE_CYCLES: 50e3, MOST_TENSOR_CYCLES: 120e3, MEAN_TENSOR_CYCLES: 100e3})
    bars = waterfall_of_trial(timed, 1, [counters])
    assert (bars.main_loop_us, bars.tail_us, bars.l2_traffic_us) == (50.0, 10.0, 20.0)


def test_operations_beyond_those_that_are_asked_for_are_rows_that_nobody_needs() -> None:
    counters = counted(100.0)
    done = (replace(counters.counters[0], name=TENSOR_OPERATIONS[0], value=8.0),)
    bars = waterfall_of_trial(measured(100.0), 6, [replace(counters, counters=(*counters.counters, *done))])
    assert bars.unneeded_rows_us == pytest.approx(45.0 / 4)
    assert bars.main_loop_us == pytest.approx(45.0 * 3 / 4)


def test_counters_of_a_longer_run_than_was_timed_do_not_hold() -> None:
    bars = waterfall_of_trial(measured(80.0), 1, [counted(100.0)])
    assert not bars.holds(80.0)
    assert in_words(bars, 80.0)[-1] == (
        "The bars add up to 90.00 µs of 80.00, +12.5%: they do not explain the measured time."
    )


def test_every_bar_has_a_title_and_a_line() -> None:
    bars = waterfall_of_trial(measured(100.0), 1, [counted(100.0)])
    lines = in_words(bars, 100.0)
    assert list(bars.bars_us) == list(TITLES)
    assert all(title in line for title, line in zip(TITLES.values(), lines, strict=False))
    assert lines[-1] == "The bars add up to 100.00 µs of 100.00, within 5%."


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([], "no counters were collected"),
        ([no_counters("only administrators may")], "no counters were collected: only administrators may"),
        ([report({ACTIVE_CYCLES: 1.0})], "not counted: sm__cycles_elapsed.avg.per_second, sm__pipe_tensor"),
        (
            [report({one.name: one.value for one in counted(1.0).counters} | {MEAN_TENSOR_CYCLES: 1e9})],
            "this order",
        ),
    ],
)
def test_without_counters_that_can_be_there_is_none(results: list[Any], why: str) -> None:
    with pytest.raises(NoWaterfall, match=why):
        waterfall_of_trial(measured(1.0), 1, results)
