"""The table of a job's trials: the possible columns, and their values for a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.api.http.rendering import clock
from tuner.core.units import figure, microseconds, ratio
from tuner.errors import InvalidInput
from tuner.wire.responses.responses import MeasuredView, TrialView


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table."""

    #: Its name in the page's address, and in the header of a CSV file.
    name: str
    heading: str
    #: The text of a cell.
    text: Callable[[TrialView], str]
    #: Its value in a file, as a plain number, in microseconds or seconds.
    value: Callable[[TrialView], object]
    #: The meaning of the heading, if it is not obvious.
    title: str = ""
    is_number: bool = True
    #: The sort order that its heading selects; empty if the table cannot be sorted by this column.
    sort: Literal["number", "time", "speedup", ""] = ""
    #: Whether the table shows it by default.
    is_usual: bool = False


def _measured(trial: TrialView) -> MeasuredView | None:
    return trial.outcome if isinstance(trial.outcome, MeasuredView) else None


def _of_measured(name: str) -> Callable[[TrialView], float | None]:
    return lambda trial: None if (outcome := _measured(trial)) is None else getattr(outcome, name)


def _of_metrics(tag: str) -> Callable[[TrialView], float | None]:
    def value(trial: TrialView) -> float | None:
        outcome = _measured(trial)
        return next((one.value for one in outcome.metrics if one.tag == tag), None) if outcome else None

    return value


def _of_stage(stage: str) -> Callable[[TrialView], float | None]:
    return lambda trial: trial.outcome.stage_s.get(stage)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _plain(unit: str) -> Callable[[float | None], str]:
    return lambda value: "–" if value is None else figure(value, unit)


def _outcome(trial: TrialView) -> str:
    outcome = trial.outcome
    return outcome.failure if outcome.kind == "failed" else outcome.kind


def _schedule(trial: TrialView) -> str:
    return trial.candidate.text


def _schedule_or_reason(trial: TrialView) -> str:
    """The outcome in a few words."""
    first, second = trial.candidate.text, _reason(trial)
    if _measured(trial) is None:
        first, second = second, first
    return f"{first} ({second})" if second else first


def _reason(trial: TrialView) -> str:
    outcome = _measured(trial)
    return outcome.remark if outcome else trial.outcome.reason  # type: ignore[union-attr]


def _figure(
    name: str, heading: str, value: Callable[[TrialView], float | None], show: Callable[[float | None], str],
    title: str = "", sort: Literal["number", "time", "speedup", ""] = "", is_usual: bool = False,
) -> Column:  # fmt: skip
    return Column(
        name=name, heading=heading, text=lambda trial: show(value(trial)), value=value, title=title, sort=sort,
        is_usual=is_usual,
    )  # fmt: skip


def _words(name: str, heading: str, value: Callable[[TrialView], str], is_usual: bool = False) -> Column:
    return Column(name=name, heading=heading, text=value, value=value, is_number=False, is_usual=is_usual)


#: All columns, in the order of the table.
COLUMNS = (
    Column(name="number", heading="Trial", text=lambda trial: str(trial.number), value=lambda trial: trial.number,
           sort="number", is_usual=True),
    _words("plan_kind", "Plan kind", lambda trial: trial.candidate.plan_kind.heading, True),
    _words("outcome", "Outcome", _outcome, True),
    _figure("time_us", "Time", _of_measured("time_us"), microseconds, sort="time", is_usual=True),
    _figure("speedup", "Speed-up", _of_measured("speedup"), ratio, (
        "library time divided by this time"
    ), "speedup", True),
    _figure("spread", "Spread", _of_measured("spread"), _percent, "half the interquartile range divided by the median",
            is_usual=True),
    _figure("library_us", "Library", _of_measured("library_us"), microseconds, "the library's time in the same rounds"),
    _figure("forecast_us", "Forecast", _of_metrics("forecast"), microseconds, "the simulator's forecast"),
    _figure("rel_error", "Error", _of_measured("rel_error"), lambda value: "–" if value is None else f"{value:.1e}",
            "of the results, compared with the reference"),
    _figure("registers", "Registers", _of_metrics("registers_per_thread"), _plain(""), "of a thread"),
    _figure("shared_memory", "Shared memory", _of_metrics("dynamic_smem"), _plain("bytes"), "of a CTA"),
    _figure("tasks", "Tasks", _of_metrics("num_tasks"), _plain("")),
    _figure("build_s", "Build", _of_stage("build"), _plain("s")),
    _figure("time_s", "Timing", _of_stage("time"), _plain("s"), "how long it occupied the card"),
    Column(name="finished_at", heading="Finished", text=lambda trial: clock(trial.finished_at),
           value=lambda trial: trial.finished_at.isoformat(), is_number=False),
    Column(name="schedule", heading="Schedule, or reason", text=_schedule_or_reason, value=_schedule, is_number=False,
           is_usual=True),
    _words("reason", "Reason or remark", _reason),
)  # fmt: skip
_BY_NAME = {column.name: column for column in COLUMNS}


def chosen_columns(names: Sequence[str]) -> tuple[Column, ...]:
    """The columns named in `names`, in the table's order; the usual columns if `names` is empty.

    Raises:
        InvalidInput: there is no such column.
    """
    for name in names:
        if name not in _BY_NAME:
            raise InvalidInput("column", f"{name!r} is not a column", f"use one of {', '.join(_BY_NAME)}")
    return tuple(column for column in COLUMNS if (column.name in names if names else column.is_usual))


def csv_rows(trials: Sequence[TrialView]) -> Iterator[list[object]]:
    """A row per trial with a value for every column."""
    for trial in trials:
        values = [column.value(trial) for column in COLUMNS]
        yield ["" if value is None else value for value in values] + [trial.simulated]


#: The header line; each row says whether its figures are simulated.
CSV_HEADER = [*_BY_NAME, "simulated"]
