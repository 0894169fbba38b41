"""Figures with their units, for people."""

from __future__ import annotations

#: Decimal prefixes of plain numbers and bytes.
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def figure(value: float, unit: str) -> str:
    """`1.5 MB`, `51.5 %`, or a plain number with its unit."""
    scale, prefix = 1.0, ""
    if unit in ("", "bytes"):
        scale, prefix = next((known for known in _PREFIXES if abs(value) >= known[0]), (1.0, ""))
    number = f"{value:,.0f}" if scale == 1.0 and value == int(value) else f"{value / scale:,.4g}"
    return f"{number} {prefix}{'B' if unit == 'bytes' else unit}".rstrip()
