"""Figures with their units, for people."""

from __future__ import annotations

#: Decimal prefixes of plain numbers and bytes.
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

#: Nanoseconds per unit of time; and the units that people read, the greatest first.
_TIMES = {"ns": 1.0, "us": 1e3}
_TIME_UNITS = ((1e6, "ms"), (1e3, "µs"))


def figure(value: float, unit: str) -> str:
    """`1.5 MB`, `51.5 %`, `68.1 µs`, or a plain number with its unit."""
    scale, prefix = 1.0, ""
    if unit in ("", "bytes"):
        scale, prefix = next((known for known in _PREFIXES if abs(value) >= known[0]), (1.0, ""))
    if unit in _TIMES:
        value *= _TIMES[unit]
        scale, unit = next((known for known in _TIME_UNITS if abs(value) >= known[0]), (1.0, "ns"))
    number = f"{value:,.0f}" if scale == 1.0 and value == int(value) else f"{value / scale:,.4g}"
    return f"{number} {prefix}{'B' if unit == 'bytes' else unit}".rstrip()


def microseconds(value: float | None) -> str:
    """`63.2 µs`, or a dash."""
    return "–" if value is None else f"{value:,.1f} µs" if value < 1000 else f"{value / 1000:,.2f} ms"


def ratio(value: float | None) -> str:
    """`1.18x`, or a dash."""
    return "–" if value is None else f"{value:.2f}x"


def counted(number: int, what: str) -> str:
    """`1 trial`, `12 trials`; `1 batch`, `2 batches`."""
    ending = "" if number == 1 else "es" if what.endswith(("ch", "s", "x")) else "s"
    return f"{number} {what}{ending}"
