"""A study as a table with a plot, as CSV, and as SVG."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from rich.table import Table

from tuner.client.terminal.render import mark, microseconds, ratio

Json = Mapping[str, Any]

#: Width of the plot, in characters.
_COLUMNS = 25
#: Columns that are left out in a narrow table.
_WIDE = 110
_WIDTH, _ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 24, 240, 90, 34, 30
_OURS, _LIBRARY = "#2a7de1", "#c2571a"


def _ends(one: Json) -> tuple[float, float]:
    """The interval, or only the time if there is none."""
    low, high = one["interval_us"] or (one["time_us"], one["time_us"])
    return low, high


def _axis(members: Sequence[Json]) -> tuple[float, float]:
    """A range slightly wider than that of our times. The library's time may be far outside."""
    ours = (one for one in members if one["time_us"] and one["candidate"]["schedule"])
    ends = [end for one in ours for end in _ends(one)] or [0.0, 1.0]
    room = 0.03 * (max(ends) - min(ends)) or 1.0
    return min(ends) - room, max(ends) + room


def _best_us(found: Json) -> float | None:
    return min(
        (one["time_us"] for one in found["members"] if one["time_us"] and one["candidate"]["schedule"]), default=None
    )


def study_table(found: Json, width: int = _WIDE) -> Table:
    """One row per member, the library first. Below the table, why some have no shared time. Below 110 columns, the plot
    and the forecasts are left out.

    Args:
        found: the response of `GET /jobs/{id}/study`.
        width: in columns.
    """
    members, best_us = found["members"], _best_us(found)
    low, high = _axis(members)
    rounds = (
        f"{found['num_rounds']} shared rounds" if found["num_rounds"] else f"{found['state']}, no shared rounds yet"
    )
    title = f"{found['workload']} on {found['target']}{mark(found['simulated'])}, {rounds}"
    bounds = f"plot: {microseconds(low)} to {microseconds(high)}; lines are 95 % intervals; ◂ ▸: outside the plot"
    is_wide = width >= _WIDE
    is_counted = any(one["panels"] is not None for one in members)
    panels = (
        f"panels: for a cache of {found['cache']}"
        if is_counted
        else "no panels: they are counted in grids of up to 8 x 8 tiles"
    )
    table = Table(title=title, caption=f"{bounds}; {panels}" if is_wide else panels, caption_justify="left")
    reasons = list(dict.fromkeys(one["reason"] for one in members if one["reason"]))
    table.caption = "\n".join([str(table.caption), *(f"({place}) {why}" for place, why in enumerate(reasons, 1))])
    table.add_column("varied", overflow="fold")
    interval_name = "95 % interval, µs" if is_wide else "95 %, µs"
    for header in (
        "time",
        interval_name,
        "over best",
        *(["forecast"] if is_wide else []),
        *(["panels"] if is_counted else []),
    ):
        table.add_column(header, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("plot", no_wrap=True, min_width=_COLUMNS)
    for one in members:
        is_ours, time_us, interval = one["candidate"]["schedule"] is not None, one["time_us"], one["interval_us"]
        mark_of_reason = f" ({reasons.index(one['reason']) + 1})" if one["reason"] else ""
        table.add_row(
            one["varied"] or "as given",
            microseconds(time_us) + mark_of_reason,
            "–" if interval is None else f"{interval[0]:.2f}–{interval[1]:.2f}",
            ratio(time_us / best_us) if is_ours and time_us and best_us else "–",
            *([microseconds(one["forecast_us"])] if is_wide else []),
            *(["–" if one["panels"] is None else str(one["panels"])] if is_counted else []),
            *(["" if time_us is None else _plotted(one, low, high)] if is_wide else []),
            style="bold green" if is_ours and time_us is not None and time_us == best_us else None,
        )
    return table


def _plotted(one: Json, low: float, high: float) -> str:
    if not low <= one["time_us"] <= high:
        return "◂" if one["time_us"] < low else "▸".rjust(_COLUMNS)

    def column(time_us: float) -> int:
        return round((_COLUMNS - 1) * (time_us - low) / (high - low))

    begin, end = map(column, _ends(one))
    row = ["─" if begin <= place <= end else " " for place in range(_COLUMNS)]
    row[column(one["time_us"])] = "●"
    return "".join(row)


def study_csv(found: Json) -> bytes:
    """One line per member; each says whether it is simulated."""
    text = io.StringIO()
    names = ("varied", "plan_kind", "trial_number", "time_us", "low_us", "high_us", "speedup", "forecast_us", "panels")
    writer = csv.writer(text)
    writer.writerow((*names, "simulated", "schedule"))
    for one in found["members"]:
        low, high = one["interval_us"] or (None, None)
        figures = (one["trial_number"], one["time_us"], low, high, one["speedup"], one["forecast_us"], one["panels"])
        candidate = one["candidate"]
        writer.writerow((one["varied"], candidate["plan_kind"], *figures, found["simulated"], candidate["text"]))
    return text.getvalue().encode()


def study_svg(found: Json) -> bytes:
    """Times with their intervals, one row per member, as a standalone picture for a light or dark page."""
    members = [one for one in found["members"] if one["time_us"]]
    low, high = _axis(members)
    bottom = _TOP + _ROW * len(members)

    def x(time_us: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (min(max(time_us, low), high) - low) / (high - low), 1)

    rows = "".join(_svg_row(one, _TOP + _ROW * (number + 0.5), x) for number, one in enumerate(members))
    title = escape(f"{found['workload']} on {found['target']}{mark(found['simulated'])}: microseconds, 95 % intervals")
    ticks = "".join(
        f'<text x="{x(value)}" y="{bottom + 18}" text-anchor="middle">{value:.1f}</text>'
        for value in (low, (low + high) / 2, high)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" width="{_WIDTH}" role="img" aria-label="{title}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
        f'<text x="{_LEFT}" y="16">{title}</text>{rows}{ticks}'
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" stroke="currentColor"/></svg>\n'
    ).encode()


def _svg_row(one: Json, y: float, x: Callable[[float], float]) -> str:
    low, high = _ends(one)
    colour = _OURS if one["candidate"]["schedule"] is not None else _LIBRARY
    return (
        f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(one["varied"] or "as given")}</text>'
        f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        f'<circle cx="{x(one["time_us"])}" cy="{y}" r="4" fill="{colour}"/>'
        f'<text x="{_WIDTH - _RIGHT + 8}" y="{y + 4}">{microseconds(one["time_us"])}</text>'
    )
