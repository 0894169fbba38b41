"""Draws docs/results.md from the finals of the pairs: a plot and a table per suite.

python -m benchmarks.pairs.page [--results benchmarks/results/h200/pairs.json] [--docs docs]

Only the text between the page's two marks is replaced. The results of each other card, in a sibling folder, are one
column: the verdict's gain there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_line, redraw, results_of
from benchmarks.common.rows import SUITES
from benchmarks.pairs.results import name_of
from tuner.api.pictures.plot import nice_ticks
from tuner.core.schedule.plan_kinds import PlanKind

BEGIN, END = "<!-- drawn by benchmarks/pairs/page.py -->", "<!-- end of what is drawn -->"
#: Points of a row: figure, colour, text in the legend.
SERIES = (
    ("fused_speedup", "#1f6feb", "fused"),
    ("fused_speedup_pdl", "#d9822b", "fused pdl"),
    ("verdict_speedup", "#2da44e", "what the verdict names"),
)
Json = dict[str, Any]
#: The library's time divided by that of the verdict's kind, by row name.
Gains = dict[str, float]

_LETTER = 6.5
_STEP, _PAIR_GAP, _LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 34.0, 26.0, 48.0, 16.0, 40.0, 200.0, 56.0
_STYLE = "text{font:11px sans-serif;fill:#333}line{stroke:#bbb}.whisker{stroke:#1f6feb}"


def draw(suite: str, rows: Sequence[Json]) -> str:
    """SVG: for each row, pair by pair, the library's time over each figure's; the library is the line at 1."""
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    ordered = sorted(rows, key=lambda row: int(row["m"]))
    values = [row[key] for row in rows for key, _, _ in SERIES if key in row] + [1.0, *_bars(suite).values()]
    values += [end for row in rows for end in row.get("ci95", ())]
    margin = 0.08 * (max(values) - min(values)) or 0.1
    low, high = min(values) - margin, max(values) + margin
    widths = [max(_STEP * sum(row["pair"] == pair for row in rows), _LETTER * len(pair)) for pair in pairs]
    width = max(460.0, _LEFT + sum(widths) + _PAIR_GAP * len(pairs) + _RIGHT)

    def y(value: float) -> float:
        return float(round(_TOP + _HEIGHT * (high - value) / (high - low), 1))

    shapes = [f'<rect width="{width:g}" height="{_TOP + _HEIGHT + _BOTTOM:g}" fill="#fff"/>', *_legend()]
    for tick in nice_ticks(low, high):
        shapes.append(
            f'<line x1="{_LEFT:g}" x2="{width - _RIGHT:g}" y1="{y(tick)}" y2="{y(tick)}" stroke-opacity=".4"/>'
        )
        shapes.append(f'<text x="{_LEFT - 6:g}" y="{y(tick) + 4:g}" text-anchor="end">{tick:.4g}</text>')
    shapes.append(f'<line x1="{_LEFT:g}" x2="{width - _RIGHT:g}" y1="{y(1)}" y2="{y(1)}" style="stroke:#333"/>')
    for key, bar in _bars(suite).items():
        colour = next(colour for name, colour, _ in SERIES if name == key)
        line = f'x1="{_LEFT:g}" x2="{width - _RIGHT:g}" y1="{y(bar)}" y2="{y(bar)}"'
        shapes.append(f'<line {line} style="stroke:{colour};stroke-dasharray:5 4"/>')
    begin = _LEFT + _PAIR_GAP
    for pair, pair_width in zip(pairs, widths, strict=True):
        shapes.append(f'<text x="{begin:g}" y="{_TOP + _HEIGHT + 40:g}">{escape(pair)}</text>')
        for i, row in enumerate(row for row in ordered if row["pair"] == pair):
            x = begin + _STEP * i
            shapes += [*_marks(row, x, y), f'<text x="{x:g}" y="{_TOP + _HEIGHT + 18:g}">{row["m"]}</text>']
        begin += pair_width + _PAIR_GAP
    size = f'viewBox="0 0 {width:g} {_TOP + _HEIGHT + _BOTTOM:g}" width="{width:g}"'
    title = f"<title>{escape(suite)}: library time over ours</title>"
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', title, f"<style>{_STYLE}</style>", *shapes, "</svg>", ""]
    )


def _bars(suite: str) -> dict[str, float]:
    """The targets of a suite's means, by figure."""
    bars = SUITES[suite]
    found = {"fused_speedup": bars.fused, "fused_speedup_pdl": bars.fused_pdl}
    return {key: bar for key, bar in found.items() if bar is not None}


def _legend() -> list[str]:
    shapes = []
    for i, (_, colour, label) in enumerate(SERIES):
        x = _LEFT + 140 * i
        shapes.append(f'<circle cx="{x:g}" cy="18" r="4" fill="{colour}"/><text x="{x + 8:g}" y="22">{label}</text>')
    return shapes


def _marks(row: Json, x: float, y: Any) -> list[str]:
    shapes = []
    if "ci95" in row:
        low, high = row["ci95"]
        shapes.append(f'<line class="whisker" x1="{x + 4:g}" x2="{x + 4:g}" y1="{y(low)}" y2="{y(high)}"/>')
    for i, (key, colour, label) in enumerate(SERIES):
        if key in row:
            title = escape(f"{row['pair']}, m = {row['m']}, {label}: {row[key]:.3f}")
            at = f'cx="{x + 4 + 7 * i:g}" cy="{y(row[key])}"'
            shapes.append(f'<circle {at} r="3.5" fill="{colour}"><title>{title}</title></circle>')
    return shapes


def table(rows: Sequence[Json], beside: Mapping[str, Gains] | None = None) -> list[str]:
    """Markdown: a line per row, times in microseconds. `beside` has the results of other cards, by name."""
    beside = beside or {}
    times = "PyTorch | library | fused | programmatic | two launches"
    others = "".join(f" on an {name} |" for name in beside)
    lines = [f"| pair | m | {times} | verdict | its gain | reference |{others}", "|" + " --- |" * (10 + len(beside))]
    for row in rows:
        us = row["kind_us"]
        apart = min((us[kind] for kind in PlanKind if kind in us and kind.is_apart), default=None)
        times_us = [row.get("torch_us"), us.get("library"), us.get("fused"), us.get("fused_pdl"), apart]
        cells = [row["pair"], row["m"], *(_number(value, 1) for value in times_us), row["winner"].replace("_", " ")]
        cells += [_number(row.get("verdict_speedup"), 3), _number(row["reference_us"], 1)]
        cells += [_number(of_card.get(name_of(row)), 3) for of_card in beside.values()]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def section(
    suite: str, rows: Sequence[Json], summary: Json, image: str, beside: Mapping[str, Gains] | None = None
) -> list[str]:
    """Markdown of one suite."""
    means = [("fused", summary["fused"]), ("programmatic", summary["fused_pdl"]), ("verdict", summary["verdict"])]
    for name, of_card in (beside or {}).items():
        own = [of_card[name_of(row)] for row in rows if name_of(row) in of_card]
        means.append((f"verdict on an {name} in {len(own)} rows", geometric_mean(own) if own else None))
    averages = ", ".join(f"{name} {value:.3f}" for name, value in means if value is not None)
    judged = {True: "Every bar is met.", False: "Bars that are missed:", None: "Rows are missing."}[summary["holds"]]
    return [
        f"### {suite}",
        "",
        f"{summary['num_rows']} of {summary['of']} rows. Geometric means: {averages}. {judged}",
        "",
        *(f"- {one}" for one in summary["missed"]),
        *([""] if summary["missed"] else []),
        f"![{suite}: library time over ours]({image})",
        "",
        *table(rows, beside),
        "",
    ]


def drawn(results: Json, others: Sequence[Json] = ()) -> tuple[str, dict[str, str]]:
    """The drawn part of the page, and SVG by file name; `others` are the results of other cards."""
    meta, rows = results["meta"], results["rows"]
    lines = [machine_line(meta), ""]
    beside = {_short(other["meta"]["gpu"]): _gains(other["rows"]) for other in others}
    for name, other in zip(beside, others, strict=True):
        lines += [f"*On an {name}* is the verdict's gain there: {machine_line(other['meta'])}", ""]
    images = {}
    for suite in SUITES:
        own = [row for row in rows if row["suite"] == suite]
        if own:
            images[f"results-{suite}.svg"] = draw(suite, own)
            here = {name_of(row) for row in own}
            others_of_suite = {name: gains for name, gains in beside.items() if here & gains.keys()}
            lines += section(suite, own, meta["suites"][suite], f"results-{suite}.svg", others_of_suite)
    return "\n".join(lines), images


def _short(gpu: str) -> str:
    """E.g. ``H100`` for ``NVIDIA H100 80GB HBM3``."""
    return gpu.removeprefix("NVIDIA ").split()[0]


def _gains(rows: Sequence[Json]) -> Gains:
    return {name_of(row): row["verdict_speedup"] for row in rows if "verdict_speedup" in row}


def others_beside(path: Path) -> list[Json]:
    """The results of other cards: files of the same name in sibling folders."""
    paths = sorted(path.parent.parent.glob(f"*/{path.name}"))
    return [json.loads(one.read_text()) for one in paths if one != path and "simulated" not in one.parent.name]


def main() -> None:
    """Redraws the page if there are results."""
    arguments = parser_of(__doc__, "docs", results=Path("benchmarks/results/h200/pairs.json")).parse_args()
    text, images = drawn(results_of(arguments.results, "bench-gpu"), others_beside(arguments.results))
    redraw(arguments.docs / "results.md", text, BEGIN, END)
    for name, svg in images.items():
        (arguments.docs / name).write_text(svg)


if __name__ == "__main__":
    main()
