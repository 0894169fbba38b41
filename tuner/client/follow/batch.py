"""Many jobs as one unit: submitted and followed together, and resumed after interruptions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tuner.client.connection.http import PATIENCE_S, Client, check_deadline
from tuner.client.delivery.artifact import Artifact
from tuner.client.delivery.files import check_places, place_below
from tuner.client.delivery.meaning import check_kernel
from tuner.client.delivery.output import document, write_or_print
from tuner.client.errors import JobFailed, Unreachable
from tuner.client.terminal import render
from tuner.core.units import counted

Json = Mapping[str, Any]

#: Seconds between updates, and between plain lines.
_ASK_EVERY_S = 1.0
_PLAIN_EVERY_S = 10.0
ENDED = ("succeeded", "failed", "cancelled")


def follow(client: Client, batch: Json, console: Console, timeout_s: float | None = None) -> Json:
    """Returns the batch once it has ended; meanwhile, shows a bar and the remaining time.

    Args:
        batch: as returned by `POST /batches`.
        console: shows a live bar in a terminal, otherwise a line now and then.

    Raises:
        TimedOut: `timeout_s` passed first.
    """
    show = _show_live if console.is_terminal else _show_plain
    last = batch
    for last in show(_updates(client, batch, timeout_s), console):  # noqa: B007
        pass
    return last


def _updates(client: Client, batch: Json, timeout_s: float | None) -> Iterator[Json]:
    """The batch's state, polled until it has ended. If the connection is lost, it is retried, long enough for a
    restart."""
    deadline, heard_at = None if timeout_s is None else time.monotonic() + timeout_s, time.monotonic()
    while True:
        try:
            batch, heard_at = client.batch(batch["id"]), time.monotonic()
        except Unreachable:
            if time.monotonic() - heard_at > PATIENCE_S:
                raise
        else:
            yield batch
        if batch["state"] in ENDED:
            return
        check_deadline(batch["id"], deadline)
        time.sleep(_ASK_EVERY_S)


def num_ended(batch: Json) -> int:
    """Number of jobs of a batch that have ended."""
    return sum(count for state, count in batch["jobs_by_state"].items() if state in ENDED)


def line(batch: Json) -> str:
    """`12/80 trials, about 40 s left, card busy 84 %; 1 of 4 jobs (simulated)`."""
    is_over = batch["state"] in ENDED
    pace = "" if is_over else render.pace_line({**batch, "eta_s": batch["eta_s"] or None}, {})
    tried = render.trials_of(batch["num_trials"], batch["num_planned"], batch["state"])
    trials = ", ".join([tried, *([pace] if pace else [])])
    paused = f", {batch['num_paused']} paused" if batch.get("num_paused") else ""
    return (
        f"{trials}; {num_ended(batch)} of {counted(batch['num_jobs'], 'job')}{paused}{render.mark(batch['simulated'])}"
    )


def _show_live(updates: Iterator[Json], console: Console) -> Iterator[Json]:
    with render.live_bar(console) as bar:
        task = bar.add_task("", line="")
        for batch in updates:
            done = {"completed": batch["num_trials"], "total": batch["num_planned"]}
            bar.update(task, **done, line=f"{batch['state']}: {line(batch)}")
            yield batch


def _show_plain(updates: Iterator[Json], console: Console) -> Iterator[Json]:
    shown_at, shown_state, shown = 0.0, "", ""
    for batch in updates:
        now, words = time.monotonic(), f"{batch['state']}: {line(batch)}"
        if words != shown and (now - shown_at >= _PLAIN_EVERY_S or batch["state"] != shown_state):
            shown_at, shown_state, shown = now, batch["state"], words
            console.print(words, highlight=False, soft_wrap=True)
        yield batch


def ladder_shapes(shapes: Mapping[Any, int], rows: Sequence[int]) -> list[Json]:
    """The `shapes` in the form of `POST /batches`, those with the most layers first."""
    by_layers = sorted(shapes, key=lambda shape: (-shapes[shape], str(shape)))
    return [{**vars(shape), "m": list(rows)} for shape in by_layers]


def status_lines(batch: Json) -> list[str]:
    """A batch and its state."""
    states = ", ".join(f"{count} {state}" for state, count in batch["jobs_by_state"].items())
    return [f"{batch['id']} on {batch['target']}: {batch['state']}", f"{line(batch)}: {states}"]


def ladder_tables(best: Json) -> Iterator[Table]:
    """Which kernel runs for which rows: a table for each ladder.

    Args:
        best: as returned by `GET /batches/{id}/best`.
    """
    for ladder in best["ladders"]:
        table = Table(title=f"Up to {ladder['workload']} on {best['target']}{render.mark(best['simulated'])}")
        for header in ("m", "runs", "time", "library", "speed-up", "95 % interval", "schedule"):
            table.add_column(header, justify="left" if header in ("runs", "schedule") else "right")
        for rung in ladder["rungs"]:
            kernel = None if rung["kernel"] is None else ladder["kernels"][rung["kernel"]]
            interval = rung["speedup_ci95"]
            table.add_row(
                str(rung["m_hi"]) if rung["m_lo"] == rung["m_hi"] else f"{rung['m_lo']}–{rung['m_hi']}",
                "library" if kernel is None else f"kernel {rung['kernel']}",
                render.microseconds(rung["time_us"]),
                render.microseconds(rung["library_us"]),
                render.ratio(rung["speedup"]),
                "–" if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}",
                "" if kernel is None else kernel["candidate"]["text"],
            )
        count = len(ladder["kernels"])
        proof = (
            "the minimum" if count == ladder["least_kernels"] else f"and at least {ladder['least_kernels']} are needed"
        )
        kinds = [render.words(kernel["candidate"]["plan_kind"]) for kernel in ladder["kernels"]]
        named = f" ({', '.join(kinds)})" if kinds else ""
        kernels = f"{counted(count, 'kernel')}{named}"
        found = f"{kernels}, {proof}; the library runs for more rows"
        table.caption = ladder["reason"] or (found if kinds else "no tuner kernel: the library runs everywhere")
        yield table


def best_of(client: Client, batch_id: str) -> Json:
    """The results of a batch.

    Raises:
        JobFailed: it failed or was cancelled.
        NoResult: there is no such batch, or no result yet.
    """
    batch = client.batch(batch_id)
    if batch["state"] in ("failed", "cancelled"):
        raise JobFailed(f"{batch_id} {batch['state']}")
    return client.batch_best(batch_id)


def check_kernels(client: Client, best: Json, key: str | None) -> None:
    """Checks that `key`, if given, signed every kernel in a batch's results.

    Raises:
        Refused: a signature is wrong.
    """
    if key is not None:
        for _ in _kernels(client, best, key):
            pass


def write_kernels(client: Client, best: Json, folder: Path, key: str | None = None) -> None:
    """Writes `ladders.json` and the kernel of each range as a zip into a folder; each file atomically. If `key` is
    given, it must have signed them."""
    files = [(name, artifact.in_format("zip")) for name, artifact in _kernels(client, best, key)]
    files.append(("ladders.json", document(best)))
    places = [(place_below(folder, name), content) for name, content in files]
    try:
        check_places([place for place, _ in places])
    except OSError as error:
        raise click.UsageError(f"{error.filename} cannot be written: {error.strerror}; nothing was written") from error
    for place, content in places:
        write_or_print(content, place)


def _kernels(client: Client, best: Json, key: str | None) -> Iterator[tuple[str, Artifact]]:
    for ladder in best["ladders"]:
        for index, kernel in enumerate(ladder["kernels"]):
            if kernel["artifact"] is not None:
                artifact = client.artifact(kernel["artifact"]["digest"], key)
                kinds = [kernel["candidate"]["plan_kind"]]
                check_kernel(artifact.manifest, job_ids=[kernel["job_id"]], target=best["target"], kinds=kinds)
                yield f"ladder{ladder['number']}-kernel{index}.zip", artifact
