"""A pair in one CTA as clients request it: a `conv-pair` with `in_one_cta`, or an op of a chain by its fields."""

from __future__ import annotations

from tuner.core.problem.asked import AskedWorkload

WORKLOADS: tuple[type[AskedWorkload], ...] = ()
