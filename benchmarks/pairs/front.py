"""Draws the front page's table and picture: PyTorch, the library, a first job's kernel, and the result of a long
search.

python -m benchmarks.pairs.front [--results benchmarks/results/h200] [--root .]

Only the text between README's two marks is replaced.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_line, redraw
from benchmarks.common.rows import ROWS, Row
from benchmarks.pairs.results import name_of
from tuner.core.schedule.plan_kinds import PlanKind

BEGIN, END = "<!-- drawn by benchmarks/pairs/front.py -->", "<!-- end of what is drawn -->"
#: The rows of the table: decode to prefill, and rows where the library wins.
SHOWN = (
    "decode-plain/llama3-8b/m1",
    "decode-plain/llama3-8b/m16",
    "decode-plain/llama3-8b/m64",
    "decode-plain/llama3-70b/m16",
    "decode-plain/gpt3-tp8/m16",
    "decode-swiglu/llama3-8b/m16",
    "decode-swiglu/llama3-70b-tp8/m16",
    "decode-swiglu/llama65b-tp8/m64",
    "middle/gpt3-tp8/m192",
    "middle/llama65b-tp8-swiglu/m128",
    "middle/llama3-8b-swiglu/m256",
)
#: The rows of the picture.
PICTURED = (
    "decode-plain/llama3-8b/m16",
    "decode-plain/gpt3-tp8/m16",
    "decode-swiglu/llama3-8b/m16",
    "decode-swiglu/llama65b-tp8/m64",
    "middle/gpt3-tp8/m192",
)
#: Bars of a row: name, colour, heading.
SERIES = (
    ("torch_us", "#8b949e", "PyTorch"),
    ("library_us", "#57606a", "cuBLASLt at its best"),
    ("first_us", "#54aeff", "first job, 60 trials"),
    ("best_us", "#1f6feb", "long search"),
)
#: The suites' names on the front page.
SUITE_WORDS = {
    "decode-plain": "1 to 64 rows, ReLU",
    "decode-swiglu": "1 to 64 rows, SwiGLU",
    "middle": "96 to 256 rows",
    "prefill-plain": "512 to 4096 rows, ReLU, sustained load",
    "prefill-swiglu": "512 to 4096 rows, SwiGLU, sustained load",
}
_STYLE = "text{font:12px sans-serif;fill:#24292f}.light{fill:#57606a}"
_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 860.0, 230.0, 70.0, 44.0, 13.0, 16.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One pair at one number of rows, times in microseconds; None if it was not measured."""

    pair: str
    m: int
    torch_us: float | None
    library_us: float
    first_us: float | None
    fused_us: float | None
    fused_pdl_us: float | None
    apart_us: float | None
    winner: str

    @property
    def best_us(self) -> float:
        """The fastest of all kinds, including the library."""
        times = (self.library_us, self.fused_us, self.fused_pdl_us, self.apart_us)
        return min(time_us for time_us in times if time_us is not None)


def title_of(row: Row) -> str:
    """e.g. ``4096 → 14336 → 4096, SwiGLU``."""
    up, down = row.workload.tile_ops
    return f"{up.k} → {up.n} → {down.n}, {'SwiGLU' if up.gated else 'ReLU'}"


def lines_of(names: Sequence[str], pairs: dict[str, Any], jobs: dict[str, Any]) -> list[Line]:
    """The named rows of the finals, with a first job's result if one ran."""
    rows = {row.name: row for row in ROWS}
    finals = {name_of(one): one for one in pairs["rows"]}
    firsts = {name_of(one): one["kind_us"] for one in jobs["rows"] if "kind_us" in one}
    found = []
    for name in names:
        if name in finals:
            us = finals[name]["kind_us"]
            apart = [us[kind] for kind in PlanKind if kind in us and kind.is_apart]
            found.append(
                Line(
                    pair=title_of(rows[name]),
                    m=rows[name].m,
                    torch_us=finals[name].get("torch_us"),
                    library_us=us["library"],
                    first_us=min(firsts[name].values()) if name in firsts else None,
                    fused_us=us.get("fused"),
                    fused_pdl_us=us.get("fused_pdl"),
                    apart_us=min(apart, default=None),
                    winner=finals[name]["winner"].replace("_", " "),
                )
            )
    return found


def table(lines: Sequence[Line]) -> list[str]:
    """Markdown: a line per row, microseconds."""
    heads = ("pair", "M", "PyTorch", "library", "first job", "fused", "fused pdl", "apart", "verdict")
    found = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for line in lines:
        times = (line.torch_us, line.library_us, line.first_us, line.fused_us, line.fused_pdl_us, line.apart_us)
        cells = [line.pair, str(line.m), *("" if one is None else f"{one:.1f}" for one in times), line.winner]
        found.append("| " + " | ".join(cells) + " |")
    return found


def draw(lines: Sequence[Line]) -> str:
    """SVG: bars of time, a group per row; shorter is faster."""
    longest = max(time_us for line in lines for time_us in _times(line).values())
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    parts, y = [_legend()], _TOP
    for line in lines:
        shown = [(key, colour, label) for key, colour, label in SERIES if key in _times(line)]
        middle = y + _BAR * len(shown) / 2
        parts.append(f'<text x="{_LEFT - 10:g}" y="{middle - 3:g}" text-anchor="end">{escape(line.pair)}</text>')
        rows = f"{line.m} row" + ("s" if line.m > 1 else "")
        parts.append(f'<text class="light" x="{_LEFT - 10:g}" y="{middle + 13:g}" text-anchor="end">{rows}</text>')
        for key, colour, label in shown:
            time_us = _times(line)[key]
            title = escape(f"{line.pair}, {rows}, {label}: {time_us:.1f} µs")
            box = f'x="{_LEFT:g}" y="{y:g}" width="{time_us * scale:.1f}" height="{_BAR - 2:g}"'
            parts.append(f'<rect {box} fill="{colour}"><title>{title}</title></rect>')
            at = f'x="{_LEFT + time_us * scale + 6:.1f}" y="{y + _BAR - 3:g}"'
            parts.append(f"<text {at}>{time_us:.1f}</text>")
            y += _BAR
        y += _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {y:g}" width="{_WIDTH:g}">'
    title = "<title>Microseconds a pair: PyTorch, the library, a first job and a long search</title>"
    ground = f'<rect width="{_WIDTH:g}" height="{y:g}" fill="#fff"/>'
    return "\n".join([head, title, f"<style>{_STYLE}</style>", ground, *parts, "</svg>", ""])


def _times(line: Line) -> dict[str, float]:
    return {key: time_us for key, _, _ in SERIES if (time_us := getattr(line, key)) is not None}


def _legend() -> str:
    parts = []
    for number, (_, colour, label) in enumerate(SERIES):
        x = 24 + 190 * number
        parts.append(
            f'<rect x="{x}" y="14" width="11" height="11" fill="{colour}"/><text x="{x + 17}" y="24">{label}</text>'
        )
    return "\n".join(parts)


def means(pairs: dict[str, Any]) -> list[str]:
    """Markdown: for each suite, the geometric means of the verdict over the library and over PyTorch, and how often
    each plan kind wins."""
    found = ["| rows | measured | over the library | over PyTorch | recommended |", "|" + " --- |" * 5]
    for suite, words in SUITE_WORDS.items():
        kinds = [(row, row["kind_us"][row["winner"]]) for row in pairs["rows"] if row["suite"] == suite]
        over_torch = [row["torch_us"] / time_us for row, time_us in kinds if row.get("torch_us")]
        over_library = [row["kind_us"]["library"] / time_us for row, time_us in kinds]
        if kinds:
            figures = (f"{geometric_mean(ratios):.2f}" if ratios else "" for ratios in (over_library, over_torch))
            named = Counter(row["winner"].replace("_", " ") for row, _ in kinds).most_common()
            won = ", ".join(f"{kind} {count}" for kind, count in named)
            found.append(f"| {words} | {len(kinds)} | {' | '.join(figures)} | {won} |")
    return found


def drawn(pairs: dict[str, Any], jobs: dict[str, Any]) -> tuple[str, str]:
    """The drawn part of the page, and the picture."""
    seconds = sorted(row.get("job_s") or row["wall_s"] for row in jobs["rows"])
    took = f"A first job took {seconds[0]:.0f} to {seconds[-1]:.0f} s." if seconds else ""
    lines = [
        "![Microseconds a pair](docs/front-page.svg)",
        "",
        *means(pairs),
        "",
        *table(lines_of(SHOWN, pairs, jobs)),
        "",
        f"Finals: {machine_line(pairs['meta'])} First jobs: commit {jobs['meta']['commit'][:12]}. {took}".rstrip(),
        "",
    ]
    return "\n".join(lines), draw(lines_of(PICTURED, pairs, jobs))


def main() -> None:
    """Redraws the front page if there are results."""
    parser = parser_of(__doc__, results=Path("benchmarks/results/h200"))
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    text, picture = drawn(
        *(json.loads((arguments.results / f"{name}.json").read_text()) for name in ("pairs", "first_jobs"))
    )
    redraw(arguments.root / "README.md", text, BEGIN, END)
    (arguments.root / "docs" / "front-page.svg").write_text(picture)


if __name__ == "__main__":
    main()
