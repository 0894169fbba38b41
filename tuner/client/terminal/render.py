"""Jobs and results in a terminal: a live bar if possible, otherwise plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from tuner.core.units import counted, figure
from tuner.core.units import microseconds as microseconds
from tuner.core.units import ratio as ratio

Json = Mapping[str, Any]

#: Seconds of search between two plain lines.
_PLAIN_EVERY_S = 5.0
#: Minimum width of a job table with one column per value, and width of an id.
_WIDE_COLUMNS, _ID_COLUMNS = 120, 16
#: Width of a bar; the rest of the line is text.
_BAR_COLUMNS = 16


def millijoules(value: float | None) -> str:
    """`31.4 mJ`, or a dash."""
    return "–" if value is None else f"{value:,.1f} mJ"


def mark(simulated: bool) -> str:
    """The mark for figures that were not measured on a card."""
    return " (simulated)" if simulated else ""


def words(kind: str) -> str:
    """`two_launches` as `two launches`."""
    return kind.replace("_", " ")


def trials_of(num_trials: int, num_planned: int, state: str) -> str:
    """`16/60 trials` while more may follow, then `16 trials`. A job of a ladder may have more than planned, since it
    also tries the results of the ladder's other jobs."""
    may_follow = state in ("queued", "searching") and num_trials <= num_planned
    if may_follow or num_trials == num_planned:
        return f"{num_trials}/{counted(num_planned, 'trial')}"
    return counted(num_trials, "trial")


def pace_line(figures: Json, budget: Json) -> str:
    """`about 12 s left, card busy 84 %, 7/30 without progress`, with the known parts."""
    eta_s, share, patience = figures.get("eta_s"), figures.get("card_share"), budget.get("patience")
    found = [] if eta_s is None else [f"about {eta_s:.0f} s left"]
    found += [] if share is None else [f"card busy {100 * share:.0f} %"]
    found += [] if patience is None else [f"{figures.get('since_progress', 0)}/{patience} without progress"]
    return ", ".join(found)


def status_line(job: Json, figures: Json) -> str:
    """`fused best 63.2 µs, 1.18x the library`, from the last event with figures."""
    best_us, speedup = figures.get("best_us"), figures.get("best_speedup")
    if best_us is None:
        return f"library {microseconds(figures.get('library_us'))}" + mark(job["simulated"])
    speed = f", {ratio(speedup)} the library's speed" if speedup else ""
    return f"best of ours {microseconds(best_us)}{speed}{mark(job['simulated'])}"


def status_lines(job: Json) -> list[str]:
    """A job: its state, its results so far, the accuracy of its forecasts, and what its search started from.

    Args:
        job: as returned by `GET /jobs/{id}`.
    """
    count = trials_of(job["num_trials"], job["budget"]["trials"], job["state"])
    pace = pace_line(job, job["budget"]) if job["state"] == "searching" else ""
    lines = [
        f"{job['id']}: {job['workload']} on {job['target']}",
        f"{job['state']}: {count}{', ' if pace else ''}{pace}; {status_line(job, job)}",
        f"forecast: {forecast_line(job['forecast'])}{mark(job['simulated'])}",
        f"priors: {job['priors']}",
        *(prior_line(prior) for prior in job["priors_used"]),
    ]
    return [*lines, f"reason: {job['reason']}"] if job["reason"] else lines


def prior_line(prior: Json) -> str:
    """`  fused (job-…, ffn …: 1.12x there): trial 3, 63.2 µs, 1.10x`: the origin of a prior, and its result."""
    gave = "not tried yet"
    if prior["outcome"] == "measured":
        gave = f"trial {prior['trial_number']}, {microseconds(prior['time_us'])}, {ratio(prior['speedup'])}"
    elif prior["outcome"]:
        gave = f"trial {prior['trial_number']}, {prior['outcome']}"
    adapted = ", adapted" if prior["is_adapted"] else ""
    found = f"{prior['source']}, {prior['workload']}: {ratio(prior['found_speedup'])} there{adapted}"
    return f"  {words(prior['candidate']['plan_kind'])} ({found}): {gave}{mark(prior['simulated'])}"


def forecast_line(quality: Json) -> str:
    """`rank correlation 0.86 over 41 fused trials; ...`, or why there is no figure."""
    if quality["reason"]:
        return str(quality["reason"])
    return (
        f"rank correlation {quality['rank_correlation']:.2f} over "
        f"{counted(quality['num_trials'], 'fused trial')}; the best of the ten candidates with the "
        f"shortest forecasts is {100 * quality['regret']:.1f} % slower than the best measured"
    )


def progress(job: Json, events: Iterable[Json], console: Console) -> str:
    """Shows `events` of `job` as they arrive; returns the job's last state.

    Args:
        job: from `GET /jobs/{id}`.
        events: as `Client.events` yields them.
        console: shows a live bar in a terminal, otherwise a line now and then.
    """
    console.print(f"{job['id']}: {job['workload']} on {job['target']}", highlight=False)
    follow = _follow_live if console.is_terminal else _follow_plain
    state = str(job["state"])
    for state in follow(job, events, console):  # noqa: B007
        pass
    return state


def _follow_live(job: Json, events: Iterable[Json], console: Console) -> Iterator[str]:
    with live_bar(console) as bar:
        task = bar.add_task("", total=job["budget"]["trials"], line="")
        for state, num_trials, figures in _figures(job, events):
            bar.update(task, completed=num_trials, line=progress_line(job, state, num_trials, figures))
            yield state


def live_bar(console: Console) -> Progress:
    """A bar, with the field `line` of its task next to it, which takes several lines in a narrow terminal."""
    return Progress(
        BarColumn(bar_width=_BAR_COLUMNS),
        TextColumn("{task.fields[line]}", markup=False, table_column=Column()),
        console=console,
    )


def progress_line(job: Json, state: str, num_trials: int, figures: Json) -> str:
    """`searching: 16/60 trials, about 14 s left; best of ours 66.8 µs, ...`."""
    pace = pace_line(figures, job["budget"]) if state == "searching" and figures else ""
    count = trials_of(num_trials, job["budget"]["trials"], state) + (f", {pace}" if pace else "")
    return f"{state}: {count}; {status_line(job, figures)}"


def _follow_plain(job: Json, events: Iterable[Json], console: Console) -> Iterator[str]:
    shown_state, shown_s, shown = "", 0.0, ""
    for state, num_trials, figures in _figures(job, events):
        search_s = figures.get("search_s", 0.0)
        words = progress_line(job, state, num_trials, figures)
        if words != shown and (state != shown_state or search_s - shown_s >= _PLAIN_EVERY_S):
            shown_state, shown_s, shown = state, search_s, words
            console.print(words, highlight=False, soft_wrap=True)
        yield state


def _figures(job: Json, events: Iterable[Json]) -> Iterator[tuple[str, int, Json]]:
    """After each event: the job's state, its recorded trials, and the figures of the last trial."""
    state, num_trials, figures = str(job["state"]), 0, {}
    for event in events:
        data = event["data"]
        if event["kind"] == "state":
            state = data["state"]
        elif event["kind"] == "trial":
            num_trials, figures = data["number"] + 1, data
        yield state, num_trials, figures


def results_table(best: Json, width: int = _WIDE_COLUMNS) -> Table:
    """The best of each plan kind with speed-up, interval and, if known, energy; then the verdict. Below 120 columns, a
    schedule is printed under its kind.

    Args:
        best: as returned by `GET /jobs/{id}/best`.
        width: in columns.
    """
    simulated = best["simulated"]
    table = Table(
        title=f"{best['workload']} on {best['target']}{mark(simulated)}",
        caption=verdict_line(best),
        caption_justify="left",
        caption_style="bold",
        show_lines=width < _WIDE_COLUMNS,
    )
    energy = ["energy"] if any(row["energy_mj"] is not None for row in best["finals"]) else []
    is_wide = width >= _WIDE_COLUMNS
    table.add_column("plan kind")
    for header in ("time", "speed-up", "95 % interval", *(["of the bound"] if is_wide else []), *energy):
        table.add_column(header, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("schedule")

    def add_row(name: str, row: Json, energy_mj: float | None, about: str, style: str | None = None) -> None:
        interval, time_us = row["speedup_ci95"], row["time_us"]
        of_bound = "–" if time_us is None else f"{100 * best['reference_us'] / time_us:.0f} %"
        table.add_row(
            name if is_wide else f"{name}\n{about}",
            microseconds(time_us),
            ratio(row["speedup"]),
            "–" if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}",
            *([of_bound] if is_wide else []),
            *([millijoules(energy_mj)] if energy else []),
            *([about] if is_wide else []),
            style=style,
        )

    for index, row in enumerate(best["finals"]):
        name = words(row["candidate"]["plan_kind"]) + mark(simulated)
        about = row["reason"] or row["candidate"]["text"] or "the vendor's own"
        add_row(name, row, row["energy_mj"], about, "bold green" if index == best["winner_row"] else None)
    for one in best.get("baselines", ()):  # older services do not send it
        add_row(one["name"], one, None, own_program_words(one))
    return table


def own_program_words(one: Json) -> str:
    """For a user's own program, in place of the schedule: its time relative to the winner, or why it has none."""
    if one["reason"]:
        return f"your own: {one['reason']}"
    behind = one["winner_speedup"]
    return "your own" if behind is None else f"your own, {behind:.3f} times the winner's time"


def verdict_line(best: Json) -> str:
    """`Verdict: fused pdl, 1.06x the library's speed (within 1.0 % is a tie)`."""
    if best["energy_row"] is not None:
        row = best["finals"][best["energy_row"]]
        least = f"; {words(row['candidate']['plan_kind'])} uses the least energy, {millijoules(row['energy_mj'])}"
    else:
        least = ""
    torch = best.get("torch") or {}  # older services do not send it
    compiled = torch.get("calls") == "compiled"
    whose_speed = "torch.compile's" if compiled else "PyTorch's"
    beside = f"; {torch['winner_speedup']:.2f} times {whose_speed} speed" if torch.get("winner_speedup") else ""
    if torch.get("is_library"):
        beside = "; the library is torch.compile"
    elif compiled and torch.get("reason"):
        beside = f"; torch.compile was not timed: {torch['reason']}"
    whose = (best.get("library") or {}).get("attention", "")
    library = f"; for the products, the library is {whose}" if whose else ""
    band = f"within {100 * best['tie_band']:.1f} % is a tie"
    return f"Verdict: {headline(best)} ({band}){beside}{least}{library}{mark(best['simulated'])}"


def headline(best: Json) -> str:
    """What to run and its gain: `two launches, 1.81x the library's speed`; for the library its name."""
    kind, speedup = words(best["winner"]), best["finals"][best["winner_row"]]["speedup"]
    return kind if kind == "library" or speedup is None else f"{kind}, {ratio(speedup)} the library's speed"


def jobs_table(jobs: Iterable[Json], width: int) -> RenderableType:
    """One row per job. With fewer than 120 columns, pair and target go on a separate line below."""
    rows = [
        (
            job["id"],
            job["state"],
            trials_of(job["num_trials"], job["budget"]["trials"], job["state"]).partition(" ")[0],
            microseconds(job["best_us"]),
            microseconds(job["library_us"]),
            ratio(job.get("best_speedup")),
            job["workload"],
            job["target"] + mark(job["simulated"]),
        )
        for job in jobs
    ]
    figures = ("state", "trials", "best of ours", "library", "speed-up")
    if width < _WIDE_COLUMNS:
        return _stacked(("job", *figures), [(row[:-2], f"{row[-2]} on {row[-1]}") for row in rows])
    table = Table("job", "pair", "target", *figures)
    table.columns[0].min_width = _ID_COLUMNS
    for one, *values, pair, target in rows:
        table.add_row(one, pair, target, *values)
    return table


def trials_table(trials: Iterable[Json], width: int = _WIDE_COLUMNS) -> RenderableType:
    """One row per trial. With fewer than 120 columns, its schedule or reason is below it."""
    rows = list[tuple[str, ...]]()
    for trial in trials:
        outcome, candidate = trial["outcome"], trial["candidate"]
        remark = f" ({outcome['remark']})" if outcome.get("remark") else ""
        early = " (truncated)" if outcome.get("truncated") else ""
        failure = f": {words(outcome['failure'])}" if outcome["kind"] == "failed" else ""
        rows.append(
            (
                str(trial["number"]),
                words(candidate["plan_kind"]) + mark(trial["simulated"]),
                outcome["kind"] + failure + early,
                microseconds(outcome.get("time_us")),
                ratio(outcome.get("speedup")),
                outcome.get("reason") or candidate["text"] + remark,
            )
        )
    headers = ("trial", "plan kind", "outcome", "time", "speed-up")
    if width < _WIDE_COLUMNS:
        return _stacked(headers, [(row[:-1], row[-1]) for row in rows])
    table = Table(*headers, "schedule, or reason")
    for row in rows:
        table.add_row(*row)
    return table


def _stacked(headers: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> RenderableType:
    """A table with columns as narrow as possible; each row's text is below its figures, and breaks between words."""
    widths = [max(map(len, cells)) for cells in zip(headers, *(figures for figures, _ in rows), strict=True)]
    lines: list[RenderableType] = [Text(_in_columns(headers, widths), style="bold")]
    for figures, below in rows:
        lines.append(Text(_in_columns(figures, widths)))
        lines += [Padding(Text(below), (0, 0, 0, 2), expand=False)] if below else []
    return Group(*lines)


def _in_columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def counters_table(found: Json) -> Table:
    """One row per counter.

    Args:
        found: the response of `GET /jobs/{id}/trials/{number}/counters`.
    """
    title = f"Counters of trial {found['trial_number']} of {found['job_id']}{mark(found['simulated'])}"
    table = Table("counter", "value", "meaning", title=title)
    table.columns[1].justify = "right"
    for counter in found["counters"]:
        value = figure(counter["value"], counter["unit"])
        table.add_row(counter["name"], value + mark(found["simulated"]), counter["description"])
    for name, reason in found["absent"].items():
        table.add_row(name, "–", reason)
    return table
