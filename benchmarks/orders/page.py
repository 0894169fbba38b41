"""Draws docs/orders.md from the timed orderings: a plot and two tables.

python -m benchmarks.orders.page [--results benchmarks/results/h200/orders.json] [--docs docs]

Only the text between the page's two marks is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_line, redraw, results_of
from tuner.core.schedule.ordering import Assignment

Row = dict[str, Any]

BEGIN, END = "<!-- drawn by benchmarks/orders/page.py -->", "<!-- end of what is drawn -->"
IMAGE = "orders.svg"
#: The difference of an ordering from row-major order: its colour, and its text in the legend.
KINDS = {
    "row_major": ("#111", "row-major"),
    "raster": ("#1f6feb", "another raster"),
    "merge": ("#d9822b", "another merge"),
    "signal": ("#2da44e", "other signals or waits"),
    "assignment": ("#cf222e", "assigned otherwise"),
    "several": ("#a0a0a0", "several of these"),
}
#: Axes that may differ from row-major order.
SINGLE = ("raster", "merge", "signal", "assignment")
TICKS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0)
_STEP, _PAIR_GAP, _LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 46.0, 30.0, 48.0, 16.0, 44.0, 300.0, 56.0
_LETTER = 6.5
_STYLE = "text{font:11px sans-serif;fill:#333}line{stroke:#bbb}"


def axes_of(ordering: str) -> dict[str, str]:
    """The axes in an ordering's line of text, without the grid, which all share."""
    rasters, *words = ordering.split()
    sync = next(i for i, word in enumerate(words) if word.endswith("-sync"))
    assigned = next(i for i, word in enumerate(words) if word in tuple(Assignment))
    grid = next(i for i, word in enumerate(words) if word.endswith("/SM"))
    spans = {"merge": words[:sync], "signal": words[sync:assigned], "assignment": words[assigned:grid]}
    return {"raster": rasters, **{axis: " ".join(span) for axis, span in spans.items()}}


def kind_of(ordering: str, row_major: str) -> str:
    """The axis in which an ordering differs from row-major order."""
    base, axes = axes_of(row_major), axes_of(ordering)
    changed = [axis for axis in SINGLE if axes[axis] != base[axis]]
    return "row_major" if not changed else changed[0] if len(changed) == 1 else "several"


def draw(rows: Sequence[Row]) -> str:
    """SVG: a column of dots per row; each dot is an ordering's time relative to the best one's, on a logarithmic
    axis."""
    pairs = list(dict.fromkeys(_pair_of(row) for row in rows))
    widths = [max(_STEP * sum(_pair_of(row) == pair for row in rows), _LETTER * len(pair)) for pair in pairs]
    width = _LEFT + sum(widths) + _PAIR_GAP * len(pairs) + _RIGHT
    top = math.log(1.05 * max(one["us"] / row["orderings"][0]["us"] for row in rows for one in row["orderings"]))
    low = math.log(0.96)

    def y(ratio: float) -> float:
        return round(_TOP + _HEIGHT * (top - math.log(ratio)) / (top - low), 1)

    shapes = [f'<rect width="{width:g}" height="{_TOP + _HEIGHT + _BOTTOM:g}" fill="#fff"/>', *_legend()]
    for tick in TICKS:
        if math.log(tick) <= top:
            shapes.append(f'<line x1="{_LEFT:g}" x2="{width - _RIGHT:g}" y1="{y(tick)}" y2="{y(tick)}"/>')
            shapes.append(f'<text x="{_LEFT - 6:g}" y="{y(tick) + 4:g}" text-anchor="end">{tick:g}</text>')
    begin = _LEFT + _PAIR_GAP
    for pair, pair_width in zip(pairs, widths, strict=True):
        shapes.append(f'<text x="{begin:g}" y="{_TOP + _HEIGHT + 40:g}">{escape(pair)}</text>')
        for i, row in enumerate(row for row in rows if _pair_of(row) == pair):
            x = begin + _STEP * i
            shapes += [*_dots(row, x, y), f'<text x="{x:g}" y="{_TOP + _HEIGHT + 18:g}">{row["m"]}</text>']
        begin += pair_width + _PAIR_GAP
    size = f'viewBox="0 0 {width:g} {_TOP + _HEIGHT + _BOTTOM:g}" width="{width:g}"'
    title = "<title>Time of each ordering over that of the best one of its tiling</title>"
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', title, f"<style>{_STYLE}</style>", *shapes, "</svg>", ""]
    )


def _pair_of(row: Row) -> str:
    return f"{row['pair']}, {row['engine']}"


def _legend() -> list[str]:
    shapes, x = [], _LEFT
    for colour, label in KINDS.values():
        shapes.append(f'<circle cx="{x:g}" cy="18" r="4" fill="{colour}"/><text x="{x + 8:g}" y="22">{label}</text>')
        x += 34 + _LETTER * len(label)
    return shapes


def _dots(row: Row, x: float, y: Callable[[float], float]) -> list[str]:
    """The dots of a row, with row-major order last, so that nothing covers it; each kind has its own lane."""
    lanes, shapes = list(KINDS), []
    ranked = sorted(row["orderings"], key=lambda one: bool(one["ordering"] == row["row_major"]["ordering"]))
    for one in ranked:
        kind = kind_of(one["ordering"], row["row_major"]["ordering"])
        ratio = one["us"] / row["orderings"][0]["us"]
        title = escape(f"{_pair_of(row)}, m = {row['m']}, {one['ordering']}: {one['us']:.1f} us, {ratio:.3f}")
        at = f'cx="{x + 6 * lanes.index(kind):g}" cy="{y(ratio)}"'
        shapes.append(f'<circle {at} r="3" fill="{KINDS[kind][0]}"><title>{title}</title></circle>')
    return shapes


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown: the effect of order, from the rounds of the three compared orderings."""
    heads = [
        *("pair", "m", "library", "row-major", "best", "row-major / best", "twice the same", "worst / best"),
        *("L2 hit rate: row-major, best, worst", "read from DRAM, GB", "the best order"),
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        three = [row[name] for name in ("row_major", "best", "worst")]
        low, high = row["row_major_over_best_ci95"]
        cells = [
            _pair_of(row),
            row["m"],
            *(f"{us:.1f}" for us in (row["library_us"], row["row_major"]["us"], row["best"]["us"])),
            f"{row['row_major_over_best']:.3f} ({low:.3f}–{high:.3f})",
            f"{row['row_major_over_itself']:.3f}",
            f"{row['worst_over_best']:.2f}",
            ", ".join(_figure(one.get("l2_hit_rate"), 1, " %") for one in three),
            ", ".join(_figure(one.get("dram_read_bytes"), 1e-9, "") for one in three),
            _short(row["best"]["ordering"], row["row_major"]["ordering"]),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _figure(value: float | None, factor: float, unit: str) -> str:
    return "–" if value is None else f"{value * factor:.{0 if unit else 2}f}{unit}"


def _short(ordering: str, row_major: str) -> str:
    """An ordering's difference from row-major order, in code."""
    base, axes = axes_of(row_major), axes_of(ordering)
    axes["merge"] = axes["merge"].removeprefix(f"{base['merge']} ")  # part-major follows it
    changed = [axes[axis] for axis in SINGLE if axes[axis] != base[axis]]
    return f"`{' '.join(changed)}`" if changed else "row-major"


def drawn(results: dict[str, Any]) -> str:
    """The part of the page that is drawn."""
    rows = results["rows"]
    lines = [
        f"{machine_line(results['meta'])} Made by `{results['meta']['command']}`.",
        "",
        f"![Time of each ordering over that of the best]({IMAGE})",
        "",
        "Each dot is the time of an ordering relative to the best ordering of the case, from shared rounds.",
        "",
        "### Row-major, best and worst",
        "",
        "Times are microseconds per pair. Ratios are medians over rounds; the first one has a 95 % interval.",
        "",
        *table(rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Redraws the page."""
    arguments = parser_of(__doc__, "docs", results=Path("benchmarks/results/h200/orders.json")).parse_args()
    results = results_of(arguments.results, "bench-orders")
    redraw(arguments.docs / "orders.md", drawn(results), BEGIN, END)
    (arguments.docs / IMAGE).write_text(draw(results["rows"]))


if __name__ == "__main__":
    main()
