"""Follows several jobs and batches: a live table in a terminal, otherwise a line for each step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tuner.client.connection.addresses import is_batch
from tuner.client.connection.http import PATIENCE_S, Client, check_deadline
from tuner.client.errors import Unreachable
from tuner.client.follow.batch import ENDED, line, num_ended
from tuner.client.terminal import render

Json = Mapping[str, Any]

#: Seconds between two polls of the open jobs and batches.
_ASK_EVERY_S = 1.0


def follow_many(client: Client, ids: Sequence[str], console: Console, timeout_s: float | None = None) -> list[Json]:
    """Returns the jobs and batches once all have ended.

    Args:
        ids: of jobs and batches, without duplicates.
        console: a live table in a terminal, otherwise a line for each step.

    Raises:
        TimedOut: `timeout_s` passed first.
    """
    show = _show_live if console.is_terminal else _show_plain
    found: list[Json] = []
    for found in show(_updates(client, ids, timeout_s), console):  # noqa: B007
        pass
    return found


def _updates(client: Client, ids: Sequence[str], timeout_s: float | None) -> Iterator[list[Json]]:
    """The state of all jobs and batches, polled until the last one has ended; ended ones are not polled again. If the
    connection is lost, it is retried, long enough for a restart."""
    deadline, heard_at = None if timeout_s is None else time.monotonic() + timeout_s, time.monotonic()
    found: dict[str, Json] = {}
    while True:
        try:
            for one in ids:
                if one not in found or found[one]["state"] not in ENDED:
                    found[one] = client.batch(one) if is_batch(one) else client.job(one)
            heard_at = time.monotonic()
        except Unreachable:
            if time.monotonic() - heard_at > PATIENCE_S or len(found) < len(ids):
                raise
        else:
            yield [found[one] for one in ids]
        still_open = [one for one in ids if found[one]["state"] not in ENDED]
        if not still_open:
            return
        check_deadline(still_open[0], deadline)
        time.sleep(_ASK_EVERY_S)


def _show_live(updates: Iterator[list[Json]], console: Console) -> Iterator[list[Json]]:
    with Live(console=console, auto_refresh=False) as live:
        for found in updates:
            live.update(standing_table(found, console.width), refresh=True)
            yield found


def _show_plain(updates: Iterator[list[Json]], console: Console) -> Iterator[list[Json]]:
    shown: dict[str, str] = {}
    for found in updates:
        for one in found:
            if one["state"] != shown.get(one["id"]):
                shown[one["id"]] = one["state"]
                console.print(f"{one['id']}: {one['state']}: {_words(one)}", highlight=False, soft_wrap=True)
        yield found


def _words(one: Json) -> str:
    return line(one) if is_batch(one["id"]) else f"{one['workload']}{render.mark(one['simulated'])}"


def standing_table(found: Sequence[Json], width: int) -> Table:
    """One row for each job or batch, at most `width` columns wide; in a narrow table ids have their own lines."""
    table = Table(width=min(width, 120), title=f"{sum(one['state'] in ENDED for one in found)} of {len(found)} ended")
    is_wide = width >= 100
    table.add_column("job", no_wrap=True)
    if is_wide:
        table.add_column("what", ratio=1, overflow="fold")
    for heading in ("state", "trials", "left", "speed-up"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for one in found:
        what = [one["name"] if is_batch(one["id"]) else one["workload"]] if is_wide else []
        table.add_row(one["id"], *what, *_figures(one))
    return table


def _figures(one: Json) -> tuple[str, str, str, str]:
    """State, trials, time left and gain."""
    left = "" if one["eta_s"] is None or one["state"] in ENDED else f"{one['eta_s']:.0f} s"
    if is_batch(one["id"]):
        low, high = one["speedups"] or (None, None)
        gain = render.ratio(low) if low == high else f"{render.ratio(low)}–{render.ratio(high)}"
        trials = render.trials_of(one["num_trials"], one["num_planned"], one["state"]).partition(" ")[0]
        return f"{one['state']}, {num_ended(one)} of {one['num_jobs']}", trials, left, gain
    trials = render.trials_of(one["num_trials"], one["budget"]["trials"], one["state"]).partition(" ")[0]
    state = "paused" if one["is_paused"] and one["state"] not in ENDED else one["state"]
    return state, trials, left, render.ratio(one.get("best_speedup"))
