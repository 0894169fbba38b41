"""The kernels that the table needs: each distinct source once, with its compiled-in values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace

from tests.support.conformance.case import Case
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.tiling import Tiling
from tuner.ops.attention.schedule import AttentionTiling
from tuner.ops.attention.source import render_attention
from tuner.workers.source.render import render, without_comments

#: Fields of a tiling that mean nothing alone, or would change too much.
_NOT_VALUES = ("engine", "tiles", "split_k")
_OPTIONS = ("activation", "bias", "gated", "residual", "row_scale")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The inputs of a product kernel's source, and the first row that needs it."""

    id: str
    workload: Workload
    tiling: Tiling

    @property
    def source(self) -> str:
        """The source that is compiled."""
        return render(self.workload, self.tiling)

    @property
    def values(self) -> set[Hashable]:
        """The compiled-in values by axis, for its engine."""
        tiling, workload, engine = self.tiling, self.workload, self.tiling.engine
        found = {(field.name, getattr(tiling, field.name)) for field in fields(tiling) if field.name not in _NOT_VALUES}
        found |= {("rows", tile.m) for tile in tiling.tiles} | {("depth", tile.k) for tile in tiling.tiles}
        found |= {("split", bool(tiling.split_k)), ("dtype", workload.dtype), ("ops", len(workload.tile_ops))}
        found |= {(option, getattr(op, option)) for op in workload.tile_ops for option in _OPTIONS}
        return {(engine, *value) for value in found}


@dataclass(frozen=True, kw_only=True)
class CacheKernel:
    """The inputs of an attention kernel's source, and the first row that needs it."""

    id: str
    tiling: AttentionTiling
    dtype: Dtype

    @property
    def source(self) -> str:
        """The source that is compiled."""
        return render_attention(self.tiling, self.dtype)

    @property
    def values(self) -> set[Hashable]:
        """The compiled-in values by axis."""
        found = {(field.name, getattr(self.tiling, field.name)) for field in fields(self.tiling)}
        return {("attention", *value) for value in found | {("dtype", self.dtype)}}


def kernels(cases: tuple[Case, ...]) -> list[Kernel | CacheKernel]:
    """Every tiling of every workload of the table, in its order. Some have the same source."""
    found: dict[Hashable, Kernel | CacheKernel] = {}
    for case in cases:
        workload = case.built_for or case.workload
        for candidate in (case.candidate, *case.others):
            for kernel in _kernels_of(case.id, workload, candidate):
                found.setdefault(replace(kernel, id=""), kernel)
    return list(found.values())


def _kernels_of(row: str, workload: Workload, candidate: Candidate) -> list[Kernel | CacheKernel]:
    if (schedule := candidate.schedule) is None:
        return []
    found: list[Kernel | CacheKernel] = [
        CacheKernel(id=f"{row}, {op.name}", tiling=one.tiling_of(op.shape), dtype=workload.dtype)
        for op, one in zip(workload.launch_ops, schedule.launch_ops, strict=True)
    ]
    return found + ([Kernel(id=row, workload=workload, tiling=schedule.tiling)] if workload.tile_ops else [])


def distinct(some: list[Kernel | CacheKernel]) -> list[Kernel | CacheKernel]:
    """Each source once, ignoring comments."""
    return list({without_comments(kernel.source): kernel for kernel in reversed(some)}.values())
