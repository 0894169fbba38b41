"""Many jobs as one piece of work: submitted together, followed together, taken up again where they were left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tuner.client import render
from tuner.client.http import Client

Json = Mapping[str, Any]

#: Seconds between two updates, and between two plain lines.
_ASK_EVERY_S = 1.0
_PLAIN_EVERY_S = 10.0
_ENDED = ("succeeded", "failed", "cancelled")


def submit_all(client: Client, bodies: Sequence[Json]) -> list[Json]:
    """A job for each body, in their order. One that is open, or finished, of the same problem is taken up again where
    the body says ``reuse``; the server works them off in the order of their arrival."""
    return [client.submit(body) for body in bodies]


def follow(
    client: Client, jobs: Sequence[Json], console: Console, clock: Callable[[], float] = time.time
) -> list[Json]:
    """The jobs once all have ended, with a bar and the time that is left on the way.

    Args:
        jobs: as `POST /jobs` answered them.
        console: a live bar where it is a terminal, else a line now and then.
    """
    batch = Batch(jobs={job["id"]: job for job in jobs}, begun_at=clock())
    show = _show_live if console.is_terminal else _show_plain
    show(batch, _updates(client, batch, clock), console)
    return [batch.jobs[job["id"]] for job in jobs]


@dataclass(kw_only=True)
class Batch:
    """Some jobs and how far they are."""

    #: By id, as last seen.
    jobs: dict[str, Json]
    #: Seconds since the epoch, and the trials that had been done by then.
    begun_at: float
    num_done_before: int = field(default=-1)

    def __post_init__(self) -> None:
        self.num_done_before = self.num_done

    @property
    def open(self) -> list[Json]:
        """Those that have not ended, the oldest first: so the server takes them."""
        left = [job for job in self.jobs.values() if job["state"] not in _ENDED]
        return sorted(left, key=lambda job: str(job["created_at"]))

    @property
    def num_trials(self) -> int:
        """Trials of all budgets."""
        return sum(int(job["budget"]["trials"]) for job in self.jobs.values())

    @property
    def num_done(self) -> int:
        """Trials that need not be waited for any more: of a job that ended, all of its budget."""
        return sum(
            int(job["budget"]["trials"] if job["state"] in _ENDED else job["num_trials"]) for job in self.jobs.values()
        )

    def eta_s(self, now: float) -> float | None:
        """Seconds left at the pace so far; None before the first trial."""
        done = self.num_done - self.num_done_before
        return (self.num_trials - self.num_done) * (now - self.begun_at) / done if done > 0 else None

    def line(self) -> str:
        """How many have ended, and what the one under way has found."""
        ended = len(self.jobs) - len(self.open)
        under_way = next((job for job in self.open if job["state"] != "queued"), None)
        now = f"; {under_way['workload']}: {render.status_line(under_way, under_way)}" if under_way else ""
        return f"{ended} of {len(self.jobs)} jobs{now}"


def _updates(client: Client, batch: Batch, clock: Callable[[], float]) -> Iterator[float]:
    """Brings `batch` up to date again and again until all have ended; the time of each question."""
    while True:
        for job in batch.open:
            seen = batch.jobs[job["id"]] = client.job(job["id"])
            if seen["state"] == "queued":  # those behind it wait too
                break
        yield clock()
        if not batch.open:
            return
        time.sleep(_ASK_EVERY_S)


def _show_live(batch: Batch, updates: Iterator[float], console: Console) -> None:
    columns = (
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} trials"),
        TextColumn("{task.fields[eta]}"),
    )
    with Progress(*columns, TextColumn("{task.fields[line]}"), console=console) as bar:
        task = bar.add_task("", total=batch.num_trials, eta="", line="")
        for now in updates:
            left = batch.eta_s(now)
            eta = "" if left is None else f"ETA {round(left) // 60}:{round(left) % 60:02}"
            bar.update(task, completed=batch.num_done, eta=eta, line=batch.line())


def _show_plain(batch: Batch, updates: Iterator[float], console: Console) -> None:
    shown_at = 0.0
    for now in updates:
        if now - shown_at >= _PLAIN_EVERY_S or not batch.open:
            shown_at, left = now, batch.eta_s(now)
            eta = "" if not left else f", about {left:.0f} s left"
            line = f"{batch.num_done}/{batch.num_trials} trials{eta}; {batch.line()}"
            console.print(line, highlight=False, soft_wrap=True)


def shape_bodies(
    shapes: Mapping[Any, int], rows: Sequence[int], *, budget: Json, target: str | None, l2: str | None, reuse: bool
) -> list[Json]:
    """The body of `POST /jobs` for each shape at each m, the shape of the most layers first."""
    objective = {} if l2 is None else {"l2": l2}
    return [
        {
            "pair": {"kind": "ffn", "m": m, **vars(shape)},
            "budget": budget,
            "objective": objective,
            "reuse": reuse,
            **({} if target is None else {"target": target}),
        }
        for shape in sorted(shapes, key=lambda shape: (-shapes[shape], str(shape)))
        for m in rows
    ]
