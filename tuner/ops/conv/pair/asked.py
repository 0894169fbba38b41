"""A pair in one CTA as clients request it: an op of a chain by its fields. Jobs of two convolutions try it, too."""

from __future__ import annotations

from tuner.core.problem.asked import AskedWorkload

WORKLOADS: tuple[type[AskedWorkload], ...] = ()
