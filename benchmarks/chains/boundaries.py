"""A trace's figures for the boundaries between a chain's ops, in microseconds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tuner.core.trial.reports.inspection import TaskSpan, Trace
from tuner.core.trial.stats import median


def boundaries_of(trace: Trace) -> list[dict[str, Any]]:
    """A dict per op with its span; for an op after another, also with figures of how CTAs crossed the boundary.

    `idle_us`: from the last product of a CTA's preceding task to the first operands of its first task of the op.
    `spread_us`: from the median to the last end of the preceding tasks. `signal_us`: from that last end to the median
    time at which a CTA is ready; negative if it starts earlier, by slice or in band. `load_us`: from then until the
    CTA's operands have arrived, in band including the polling.
    """
    first: dict[int, dict[int, TaskSpan]] = defaultdict(dict)
    before: dict[tuple[int, int], TaskSpan] = {}
    for cta_spans in _by_cta(trace).values():
        for earlier, span in zip([None, *cta_spans], cta_spans, strict=False):
            if span.cta not in first[span.op]:
                first[span.op][span.cta] = span
                if earlier is not None:
                    before[span.op, span.cta] = earlier
    rows = []
    for op, name in enumerate(trace.op_names):
        own = [span for span in trace.spans if span.op == op]
        row: dict[str, Any] = {
            "op": name,
            "begin_us": _us(min(span.loaded_ns for span in own)),
            "end_us": _us(max(span.stored_ns for span in own)),
            "compute_us": _us(median([span.computed_ns - span.loaded_ns for span in own])),
            "store_us": _us(median([span.stored_ns - span.computed_ns for span in own])),
        }
        entered = [(before[op, cta], span) for cta, span in first[op].items() if (op, cta) in before]
        if op and entered:
            ends = [span.stored_ns for span in trace.spans if span.op == op - 1]
            row |= {
                "idle_us": _us(median([span.loaded_ns - earlier.computed_ns for earlier, span in entered])),
                "spread_us": _us(max(ends) - median([float(end) for end in ends])),
                "signal_us": _us(median([float(span.ready_ns) for _, span in entered]) - max(ends)),
                "load_us": _us(median([float(span.loaded_ns - span.ready_ns) for _, span in entered])),
            }
        rows.append(row)
    return rows


def _by_cta(trace: Trace) -> dict[tuple[int, int], list[TaskSpan]]:
    found: dict[tuple[int, int], list[TaskSpan]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda span: span.taken_ns):
        found[span.launch, span.cta].append(span)
    return found


def _us(time_ns: float) -> float:
    return round(time_ns / 1000, 2)
