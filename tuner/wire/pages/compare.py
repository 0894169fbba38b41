"""A comparison of two jobs or two trials."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View


class ComparedSide(View):
    """A job, or a trial of one."""

    name: str = Field(description="a job's id, or `job/trial`")
    href: Link
    heading: str
    simulated: bool


class ComparedRow(View):
    """A figure or a choice, for both sides."""

    name: str
    first: str | None = Field(description="null if there is none")
    second: str | None
    differs: bool
    ratio: float | None = Field(description="the second divided by the first if both are times; else null")


class ComparedGroup(View):
    """Rows that belong together."""

    heading: str
    rows: list[ComparedRow]


class ComparePage(View):
    """Two jobs or two trials; if `sides` is shorter, fewer than two are selected."""

    a: str
    b: str
    sides: list[ComparedSide]
    groups: list[ComparedGroup]
    num_different: int
    suggestions: list[dict[str, Any]] = Field(description="jobs to compare with: id and workload, newest first")
