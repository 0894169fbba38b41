"""A trace in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Source: "Trace Event Format", Google (JSON object form; complete events X, counter events C, metadata events M).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tuner.core.trial.reports.inspection import TaskSpan, Trace

#: Rows per CTA: more than one only if its tasks overlap, as in a kernel whose warps have roles.
_ROWS_PER_CTA = 8

_PHASES = (
    ("wait", "taken_ns", "ready_ns"),
    ("load", "ready_ns", "loaded_ns"),
    ("compute", "loaded_ns", "computed_ns"),
    ("store", "computed_ns", "stored_ns"),
)


def trace_events(trace: Trace) -> dict[str, Any]:
    """The JSON object: a process per launch, a thread per CTA, a complete event per phase of a task, and a counter
    of the CTAs that work on each op. Times are microseconds."""
    rows = _rows(trace.spans)
    events = _names(trace, rows)
    for span, row in zip(trace.spans, rows, strict=True):
        events += _phases(trace, span, row)
    events += _counters(trace)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "simulated": trace.simulated,
            "makespan_us": trace.makespan_ns / 1e3,
            "tail": trace.tail,
            "shares": {
                op.op: {"wait": op.wait, "load": op.load, "compute": op.compute, "store": op.store}
                for op in trace.shares
            },
            "reason": trace.reason,
        },
    }


def _rows(spans: tuple[TaskSpan, ...]) -> list[int]:
    """[span] its thread. Events of one thread may nest but not straddle, so a task that overlaps another one gets the
    next row.

    Raises:
        ValueError: more tasks of one CTA overlap than it has rows.
    """
    ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    rows = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].taken_ns, spans[i].stored_ns)):
        span = spans[index]
        busy_until = ends[span.launch, span.cta]
        row = next((i for i, end in enumerate(busy_until) if end <= span.taken_ns), len(busy_until))
        if row == _ROWS_PER_CTA:
            raise ValueError(f"more than {_ROWS_PER_CTA} tasks of CTA {span.cta} overlap")
        busy_until[row : row + 1] = [span.stored_ns]
        rows[index] = span.cta * _ROWS_PER_CTA + row
    return rows


def _metadata(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _names(trace: Trace, rows: list[int]) -> list[dict[str, Any]]:
    events = []
    suffix = " (simulated)" if trace.simulated else ""
    for launch in sorted({span.launch for span in trace.spans}):
        ops = sorted({span.op for span in trace.spans if span.launch == launch})
        name = f"launch {launch}: {', '.join(trace.op_names[op] for op in ops)}{suffix}"
        events += [_metadata("process_name", launch, 0, name=name)]
        events += [_metadata("process_sort_index", launch, 0, sort_index=launch)]
    threads = {(span.launch, row): span for span, row in zip(trace.spans, rows, strict=True)}
    by_sm = sorted(threads.items(), key=lambda item: (item[0][0], item[1].sm, item[0][1]))
    for index, ((launch, row), span) in enumerate(by_sm):
        events += [_metadata("thread_name", launch, row, name=f"SM {span.sm} CTA {span.cta}")]
        events += [_metadata("thread_sort_index", launch, row, sort_index=index)]
    return events


def _phases(trace: Trace, span: TaskSpan, row: int) -> list[dict[str, Any]]:
    op = trace.op_names[span.op]
    args = {"task": span.task, "op": op, "tile": [span.tile_m, span.tile_n], "sm": span.sm, "cta": span.cta}
    events = []
    for phase, begin, end in _PHASES:
        begin_ns, end_ns = getattr(span, begin), getattr(span, end)
        events.append(
            {
                "name": f"{op} {phase}",
                "cat": phase,
                "ph": "X",
                "ts": begin_ns / 1e3,
                "dur": (end_ns - begin_ns) / 1e3,
                "pid": span.launch,
                "tid": row,
                "args": args,
            }
        )
    return events


def _counters(trace: Trace) -> list[dict[str, Any]]:
    """Per launch, how many CTAs have a task of each op."""
    changes: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * len(trace.op_names))
    for span in trace.spans:
        changes[span.launch, span.taken_ns][span.op] += 1
        changes[span.launch, span.stored_ns][span.op] -= 1
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(trace.op_names))
    events = []
    for (launch, at_ns), change in sorted(changes.items()):
        counts[launch] = [count + step for count, step in zip(counts[launch], change, strict=True)]
        args = dict(zip(trace.op_names, counts[launch], strict=True))
        events.append({"name": "CTAs at work", "ph": "C", "ts": at_ns / 1e3, "pid": launch, "args": args})
    return events
