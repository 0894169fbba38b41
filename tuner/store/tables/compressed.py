"""The result of an inspection as compressed JSON: a trace of ten thousand tasks takes a few hundred kilobytes."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, fields
from functools import lru_cache
from operator import attrgetter

from tuner.core.trial.reports.inspection import Counter, CounterReport, EnergyReport, OpShares, TaskSpan, Trace

_SPAN_FIELDS = tuple(field.name for field in fields(TaskSpan))


def pack(result: CounterReport | EnergyReport | Trace) -> bytes:
    """JSON compressed with zlib. The spans of a trace are rows under one header, since their field names would take
    most of the space.
    """
    if not isinstance(result, Trace):
        data = asdict(result)
    else:
        row_of = attrgetter(*_SPAN_FIELDS)
        data = {field.name: getattr(result, field.name) for field in fields(result)}
        data["span_fields"] = _SPAN_FIELDS
        data["spans"] = [row_of(span) for span in result.spans]
        data["shares"] = [asdict(shares) for shares in result.shares]
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode())


def unpack_counters(packed: bytes) -> CounterReport:
    """Inverse of `pack` for counters."""
    data = json.loads(zlib.decompress(packed))
    return CounterReport(**data | {"counters": tuple(Counter(**one) for one in data["counters"])})


def unpack_energy(packed: bytes) -> EnergyReport:
    """Inverse of `pack` for an energy."""
    return EnergyReport(**json.loads(zlib.decompress(packed)))


@lru_cache(maxsize=2)
def unpack_trace(packed: bytes) -> Trace:
    """Inverse of `pack` for a trace; fields added to spans later get their defaults.

    The last few are cached, since a page requests its trace several times.
    """
    data = json.loads(zlib.decompress(packed))
    names = data.pop("span_fields")
    return Trace(
        **data
        | {
            "spans": tuple(TaskSpan(**dict(zip(names, row, strict=True))) for row in data["spans"]),
            "op_names": tuple(data["op_names"]),
            "shares": tuple(OpShares(**one) for one in data["shares"]),
        }
    )
