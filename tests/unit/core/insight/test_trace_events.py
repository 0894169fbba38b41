from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.core.insight.test_tracing import OPS, span
from tuner.core.insight.traces.trace_events import trace_events
from tuner.core.insight.traces.tracing import make_trace, no_trace
from tuner.core.trial.reports.inspection import Trace

SPANS = (
    span(0, 0, 0, 0, 10, 120, 1700, 1801),
    span(1, 0, 1, 3, 10, 120, 1500, 1600),
    span(2, 1, 1, 1600, 1900, 2100, 2600, 2800),
    span(0, 1, 0, 3000, 3000, 3100, 3200, 3300, launch=1),
)


def trace(*, simulated: bool = False) -> Trace:
    return make_trace(SPANS, OPS, [2, 2], simulated=simulated)


def events(of: Trace, phase: str) -> list[dict[str, Any]]:
    parsed = json.loads(json.dumps(trace_events(of), allow_nan=False))
    return [event for event in parsed["traceEvents"] if event["ph"] == phase]


def test_every_event_has_the_fields_of_its_kind() -> None:
    for event in events(trace(), "X"):
        assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert event["dur"] >= 0
    for event in events(trace(), "C"):
        assert set(event) == {"name", "ph", "ts", "pid", "args"}
        assert all(isinstance(value, int) for value in event["args"].values())
    names = {event["name"]: set(event["args"]) for event in events(trace(), "M")}
    assert names == {
        "process_name": {"name"},
        "process_sort_index": {"sort_index"},
        "thread_name": {"name"},
        "thread_sort_index": {"sort_index"},
    }
    assert trace_events(trace())["displayTimeUnit"] == "ns"


def test_a_task_is_four_phases_in_microseconds_on_its_launch_and_cta() -> None:
    found = [event for event in events(trace(), "X") if event["pid"] == 0 and event["args"]["task"] == 2]
    assert [(event["name"], event["ts"], event["dur"]) for event in found] == [
        ("down wait", 1.6, 0.3),
        ("down load", 1.9, 0.2),
        ("down compute", 2.1, 0.5),
        ("down store", 2.6, 0.2),
    ]
    assert found[0]["args"] == {"task": 2, "op": "down", "tile": [0, 2], "sm": 1, "cta": 1}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(trace(), "M") if e["name"] == "thread_name"}
    assert threads[0, found[0]["tid"]] == "SM 1 CTA 1"
    assert len(threads) == 3


def straddles(found: list[dict[str, Any]]) -> bool:
    threads = defaultdict(list)
    for event in found:
        begin_ns = round(event["ts"] * 1e3)
        threads[event["pid"], event["tid"]].append((begin_ns, begin_ns + round(event["dur"] * 1e3)))
    return any(before[1] > after[0] for lane in threads.values() for before, after in pairwise(sorted(lane)))


def test_no_two_events_of_a_thread_straddle_even_where_tasks_overlap() -> None:
    assert not straddles(events(trace(), "X"))
    overlapping = (span(0, 0, 0, 0, 10, 100, 500, 600), span(1, 0, 0, 300, 310, 400, 900, 1000))
    found = events(make_trace(overlapping, OPS, [1], simulated=False), "X")
    assert not straddles(found)
    assert len({event["tid"] for event in found}) == 2
    assert len(found) == 8


def test_too_many_overlapping_tasks_are_refused() -> None:
    many = tuple(span(task, 0, 0, task, task, task, task, 100 + task) for task in range(9))
    with pytest.raises(ValueError, match="overlap"):
        trace_events(make_trace(many, OPS, [1], simulated=False))


def test_the_counter_tells_the_ctas_at_work_on_each_op() -> None:
    found = {event["ts"]: event["args"] for event in events(trace(), "C") if event["pid"] == 0}
    assert found == {
        0.0: {"up": 1, "down": 0},
        0.003: {"up": 2, "down": 0},
        1.6: {"up": 1, "down": 1},
        1.801: {"up": 0, "down": 1},
        2.8: {"up": 0, "down": 0},
    }


def test_a_simulated_trace_says_so() -> None:
    def process(of: Trace) -> str:
        return str(next(e["args"]["name"] for e in events(of, "M") if e["name"] == "process_name"))

    assert process(trace()) == "launch 0: up, down"
    assert process(trace(simulated=True)) == "launch 0: up, down (simulated)"
    assert trace_events(trace(simulated=True))["otherData"]["simulated"] is True


def test_without_a_trace_there_are_no_events_but_the_reason() -> None:
    made = trace_events(no_trace("no card", simulated=False))
    assert made["traceEvents"] == []
    assert made["otherData"]["reason"] == "no card"
