"""The kernels that the table asks for: each source once, and what it has in it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields

from tests.support.conformance.case import Case
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.workers.source.render import render, without_comments

#: Fields of a tiling that say nothing alone, or much too much.
_NOT_VALUES = ("engine", "tiles", "split_k")
_OPTIONS = ("activation", "bias", "gated", "residual", "row_scale")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What a source is made from, and the first row that asks for it."""

    id: str
    workload: Workload
    tiling: Tiling

    @property
    def source(self) -> str:
        """As it is compiled."""
        return render(self.workload, self.tiling)

    @property
    def values(self) -> set[Hashable]:
        """What is compiled in, an axis at a time, for its engine."""
        tiling, workload, engine = self.tiling, self.workload, self.tiling.engine
        found = {(field.name, getattr(tiling, field.name)) for field in fields(tiling) if field.name not in _NOT_VALUES}
        found |= {("rows", tile.m) for tile in tiling.tiles} | {("depth", tile.k) for tile in tiling.tiles}
        found |= {("split", bool(tiling.split_k)), ("dtype", workload.dtype), ("ops", len(workload.ops))}
        found |= {(option, getattr(op, option)) for op in workload.ops for option in _OPTIONS}
        return {(engine, *value) for value in found}


def kernels(cases: tuple[Case, ...]) -> list[Kernel]:
    """Every tiling of every workload that the table names, in its order. Some are the same source."""
    found: dict[tuple[Workload, Tiling], Kernel] = {}
    for case in cases:
        workload = case.built_for or case.workload
        for candidate in (case.candidate, *case.others):
            if candidate.schedule is not None:
                tiling = candidate.schedule.tiling
                found.setdefault((workload, tiling), Kernel(id=case.id, workload=workload, tiling=tiling))
    return list(found.values())


def distinct(some: list[Kernel]) -> list[Kernel]:
    """Each source once, comments aside."""
    return list({without_comments(kernel.source): kernel for kernel in reversed(some)}.values())
