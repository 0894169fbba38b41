"""Spaces of schedules, shared by the tests of one process: to list the tilings of one takes seconds."""

from __future__ import annotations

from functools import lru_cache

from tuner.core.space.space import Space

#: (workload, gpu) -> the space, which changes in nothing but in what it has worked out.
space_of = lru_cache(maxsize=12)(Space)
