"""A run of a candidate, column by column, which is compact enough for tens of thousands of tasks."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from tuner.core.insight.traces.gantt import COLUMNS, Gantt
from tuner.wire.base.view import View


class WaitsView(View):
    """Which tasks wait for which."""

    posts: list[int] = Field(description="[task] the signal that it posts to; -1 for none")
    first_wait: list[int] = Field(description="[task] its first wait")
    last_wait: list[int] = Field(description="[task] one past its last wait")
    first_signal: list[int] = Field(description="[wait] the first signal that it waits for")
    last_signal: list[int] = Field(description="[wait] one past the last such signal")


class GanttView(View):
    """One run of a candidate, by task; times are nanoseconds since the first task started."""

    of: str = Field(description="`measured` or `forecast`")
    simulated: bool = Field(description="whether it is a forecast")
    op_names: list[str]
    num_sms: int
    num_ctas: list[int] = Field(description="CTAs of each launch")
    makespan_ns: int
    shares: dict[str, dict[str, float]] = Field(description="op -> phase -> share of the time spent on the op")
    tasks: dict[str, list[int]] = Field(description=f"{', '.join(COLUMNS)}, each with one number per task")
    waits: WaitsView | None = Field(description="null if the plan is no longer available")

    @classmethod
    def of_gantt(cls, gantt: Gantt, of: str) -> Self:
        """Copies `gantt`."""
        signals = gantt.signals
        return cls(
            of=of,
            simulated=gantt.simulated,
            op_names=list(gantt.op_names),
            num_sms=gantt.num_sms,
            num_ctas=list(gantt.num_ctas),
            makespan_ns=gantt.makespan_ns,
            shares=gantt.shares(),
            tasks={name: gantt.tasks[:, column].tolist() for column, name in enumerate(COLUMNS)},
            waits=None
            if signals is None
            else WaitsView(
                posts=signals.posts.tolist(),
                first_wait=signals.waits_of[:, 0].tolist(),
                last_wait=signals.waits_of[:, 1].tolist(),
                first_signal=signals.waits[:, 0].tolist(),
                last_signal=signals.waits[:, 1].tolist(),
            ),
        )
