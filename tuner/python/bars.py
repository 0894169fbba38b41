"""The progress of a job while waiting: a bar in a notebook or terminal, otherwise lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any, Protocol

from rich.console import Console

from tuner.client.documents.documents import JobDetail
from tuner.client.terminal import render


class _Handle(Protocol):
    """IPython's handle for a display that can be updated."""

    def update(self, shown: Any) -> None:
        """Replaces the display."""


def shown(jobs: Iterable[JobDetail], console: Console) -> Iterator[JobDetail]:
    """Yields `jobs`, the repeated states of one job, and displays each."""
    if console.is_jupyter:
        return _in_notebook(jobs)
    return _in_terminal(jobs, console) if console.is_terminal else _as_lines(jobs, console)


def line(job: JobDetail) -> str:
    """`searching: 16/60 trials, about 14 s left; best of ours 66.8 µs, ...`."""
    return render.progress_line(job, job["state"], job["num_trials"], job)


def _in_notebook(jobs: Iterable[JobDetail]) -> Iterator[JobDetail]:
    from IPython.display import HTML, display  # available in a notebook's kernel, and needed only there

    handle: _Handle | None = None
    for job in jobs:
        bar = HTML(
            f"<progress value='{job['num_trials']}' max='{job['budget']['trials']}'></progress> {escape(line(job))}"
        )
        if handle is None:
            handle = display(bar, display_id=True)
        else:
            handle.update(bar)
        yield job


def _in_terminal(jobs: Iterable[JobDetail], console: Console) -> Iterator[JobDetail]:
    with render.live_bar(console) as bar:
        task = bar.add_task("", line="")
        for job in jobs:
            bar.update(task, completed=job["num_trials"], total=job["budget"]["trials"], line=line(job))
            yield job


def _as_lines(jobs: Iterable[JobDetail], console: Console) -> Iterator[JobDetail]:
    state = ""
    for job in jobs:
        if job["state"] != state:
            state = job["state"]
            console.print(line(job), highlight=False, soft_wrap=True)
        yield job
