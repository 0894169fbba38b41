"""Products around an attention on the CPU: each launch runs its device code, in launch order."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.support.cases import H200
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import FP32_NAN, NAN, Array, EmulatedChain, from_bits
from tests.support.emulated.source import encoded, library_of
from tuner.core.problem.ops.kv_cache import CACHES
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import launches_of, own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.ops.attention.artifact import CacheKernel
from tuner.ops.attention.source import CacheMap
from tuner.runtime.device.launch_values import pages_of
from tuner.runtime.tensors.arrays import View
from tuner.workers.source.variants import Variant

#: Tolerance of an fp16 output: roundings of its factors and of itself.
MOST = 2e-3


class EmulatedBetween(EmulatedChain):
    """Tensors of a workload with an attention between products, and a candidate's launches over them."""

    def __init__(
        self,
        workload: Workload,
        candidate: Candidate,
        lengths: Sequence[int],
        changes: Sequence[tuple[str, str]] = (),
        *,
        is_packed: bool = False,
    ) -> None:
        """Draws the tensors and builds the kernels; `lengths` are the sequences', `changes` are applied to the
        attention's source. `is_packed`: the cache is packed, as in `EmulatedCache`."""
        super().__init__(workload, is_packed=is_packed)
        op = workload.launch_ops[0]
        self._put(op.name, np.zeros((op.m, op.n)))
        self.attention = EmulatedAttention(op=op.shape, lengths=lengths, form=op.form)
        #: The product before it, whose output is the queries.
        self.front = workload.tile_ops[workload.borders[0] - 1]
        self._is_turned = workload.turned_for is not None
        if self._is_turned:
            cache = self.caches[self.front.name]
            cache.lengths[:] = lengths
            for held, drawn in zip(cache._caches, (self.attention.k, self.attention.v), strict=True):
                held[...] = drawn
            self.attention.k, self.attention.v = cache._caches
            cache.pages = self.attention.pages
        self.attention.q = self._tensors[self.front.name].reshape(self.attention.q.shape)
        assert candidate.schedule
        (self._schedule,), (self._plan,) = candidate.schedule.launch_ops, own_plans_for(workload, H200, candidate)
        self._tiling = self._schedule.tiling_of(op.shape)
        plans = plans_for(workload, H200, candidate)
        #: The indices of the ops of each launch.
        self.order = launches_of(workload, candidate)
        tiling = candidate.schedule.tiling
        memory = self._memory_of(tiling, plans)
        places = [tuple(workload.tile_places[op] for op in plan.graph.op_indices) for plan in plans]
        self._held = dict(zip(places, memory, strict=True))
        self._of_products = library_of(workload, tiling, (), Variant.MEASURED)
        self._of_attention = attention_library(self._tiling, op.shape, changes, form=op.form)
        if is_packed:
            recipe = CacheKernel(
                workload=workload, gpu=H200, index=0, schedule=self._schedule, plan=self._plan, proof="", source=""
            ).recipes(lambda *_: {}, programmatic=True)[0]
            self.attention.changed = partial(self._packed, recipe)

    def _packed(self, recipe: dict[str, Any], args: bytes) -> bytes:
        """The attention's parameter over the packed cache, as `tuner.runtime` builds it from the manifest's recipe."""
        cache, changed = self.caches[self.front.name], bytearray(args)
        view = partial(View, dtype="float16")
        steps = tuple(one // 2 for one in cache._caches[0].strides)
        names, table = [f"{recipe['op']}.{name}" for name in CACHES], recipe["pages"]["tensor"]
        views = {
            name: view(address=held.ctypes.data, shape=held.shape, steps=steps)
            for name, held in zip(names, cache._caches, strict=True)
        }
        views[table] = View(address=cache.pages.ctypes.data, shape=cache.pages.shape, dtype="int32")
        own, maps = pages_of(names, views, table).of_reader(recipe)
        offsets = {field["name"]: field["offset"] for field in recipe["parameter"]["fields"]}
        for name, value in own.items():
            struct.pack_into("<i", changed, offsets[name], value)
        for name, one in maps.items():
            made = CacheMap(**{part: tuple(one[part]) for part in ("dims", "strides_bytes", "box")})
            words = encoded(made, views[one["tensor"]].address)
            changed[offsets[name] : offsets[name] + len(words)] = words
        return bytes(changed)

    def new_rows(self) -> list[tuple[Array, tuple[Any, ...]]]:
        """The bits of both caches, and the positions of the tokens that the preceding product writes."""
        cache = self.caches[self.front.name]
        return [cache.new_rows(held) for held in cache._caches]

    def poison(self) -> None:
        """Fills all outputs of a run with NaN."""
        for op in self.workload.ops:
            self._tensors[op.name][...] = NAN
        for squares in self._squares.values():
            squares[...] = FP32_NAN
        for held, rows in self.new_rows() if self._is_turned else ():
            held[rows] = NAN

    def draw(self, seed: int) -> None:
        """Draws new inputs for the first product, and new sums of squares of their rows."""
        source = self._tensors[self.front.source]
        drawn = np.asarray(np.random.default_rng(seed).standard_normal(source.shape))
        self._put(self.front.source, drawn)

    def launch(self, order: Sequence[tuple[int, ...]]) -> None:
        """Runs the launches in `order` on the current memory."""
        for ops in order:
            if ops not in self._held:
                found = self.attention.run(
                    self._of_attention, self._plan, self._tiling, speculative=self._schedule.speculative
                )
                written = self._tensors[self.workload.launch_ops[0].name]
                written[...] = found.reshape(written.shape)
                continue
            plan, words, workspace, first_sum = self._held[ops]
            workspace[first_sum:] = 0xFF
            self._launch(self._of_products, plan, words, workspace)

    def wrong(self) -> list[str]:
        """The ops with wrong results: each is compared with a reference computed from its actual inputs."""
        dtype, name = self.workload.dtype, self.workload.launch_ops[0].name
        wanted = self.expected() | {name: self.attention.expected().reshape(self._tensors[name].shape)}
        got = {op.name: from_bits(self._made(op.name), dtype) for op in self.workload.ops}
        return [one for one, rows in got.items() if not error_of(rows, wanted[one]) < MOST]

    def _made(self, name: str) -> Array:
        """The queries, keys and values of a rotating op."""
        if name != self.front.name or not self._is_turned:
            return self._tensors[name]
        cache = self.caches[name]
        rows = [self._tensors[name]]
        for held, at in self.new_rows():
            new = np.zeros((self.front.m, cache.rotary.kv_heads, cache.rotary.head_dim), np.uint16)
            new[cache.is_kept()] = held[at]
            rows.append(new.reshape(self.front.m, -1))
        return np.concatenate(rows, axis=1)


def error_of(got: Array, wanted: Array) -> float:
    """||got - wanted|| / ||wanted||."""
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
