"""Pairs of convolutions in one CTA, run on the CPU from their device code."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.support.emulated.chain import from_bits, to_bits
from tests.support.emulated.source import HERE, RULES, built
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.ops.op import Role
from tuner.ops.conv.pair.numbers import reference
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.plans import plan_of
from tuner.ops.conv.pair.rules import resources_of
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.ops.conv.pair.source import KERNEL, source_of

_REPLACED = ("ptx", "ptx_hopper", "ptx_conv_pair")
Array = np.ndarray[Any, Any]


def library_of(source: str) -> ctypes.CDLL:
    """The kernel compiled by g++."""
    _, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts = list[str]()
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        stem = name.removesuffix(".cuh")
        text = (HERE / f"{stem}.h").read_text() if stem in _REPLACED else "" if stem == "wgmma" else device_text
        if stem == "ptx_hopper":  # operands of a pair have no swizzle
            text = text.replace("struct Wgmma {", "struct Swizzled {")
        for pattern, said in RULES:
            text = re.sub(pattern, said, text, flags=re.DOTALL)
        parts.append(text.replace(KERNEL, "tuner_chain"))
    return built("\n".join([*parts, "using KernelArgs = ConvPairArgs;", (HERE / "launch.h").read_text()]))


@dataclass
class EmulatedPair:
    """The tensors of an op, drawn from a normal distribution."""

    op: ConvPairOp
    dtype: Dtype = Dtype.FP16
    seed: int = 0

    @cached_property
    def given(self) -> dict[str, Array]:
        """Bits of each tensor that is read, by name; filters preserve magnitudes, so that a bias counts."""
        random = np.random.default_rng(self.seed)
        tensors = (one for one in self.op.tensors(self.dtype) if one.role is not Role.OUTPUT)
        scales = {f"{conv.name}.w": conv.k**-0.5 for conv in (self.op.first, self.op.second)}
        return {
            one.name: to_bits(random.standard_normal(one.shape) * scales.get(one.name, 1.0), self.dtype)
            for one in tensors
        }

    def run(self, schedule: ConvPairSchedule, source: str = "", num_ctas: int = 0) -> Array:
        """The output of a launch, by default of the schedule's own source and number of CTAs."""
        op, given = self.op, self.given
        plan, resources = plan_of(op, schedule, CATALOGUE["h200"]), resources_of(op, schedule)
        out = np.full((op.images, op.second.out_height, op.second.out_width, op.filters), 0x7FFF, np.uint16)
        names = [f"{conv.name}.{one}" for conv in (op.first, op.second) for one in ("w", "bias")]
        tensors = [given[op.source], *(given.get(name) for name in names), out]
        args = struct.pack("<6Qi4x", *(0 if one is None else one.ctypes.data for one in tensors), plan.num_tiles)
        if op.residual_source:
            args += struct.pack("<Q", given[op.residual_source].ctypes.data)
        left = library_of(source or source_of(op, schedule, self.dtype)).emulate(
            args, num_ctas or plan.num_ctas, resources.num_threads, 1, resources.smem_bytes
        )
        assert left == 0, f"{left} threads hang"
        return from_bits(out, self.dtype)

    def errors(self, found: Array) -> Array:
        """The error of each element of an output, relative to the allowed one."""
        given = {name: from_bits(bits, self.dtype).astype(np.float64) for name, bits in self.given.items()}
        (expected,) = reference(self.op, given, self.dtype, np).values()
        return np.asarray(np.abs(found - expected.values) / expected.tolerance)


def worst(pair: EmulatedPair, schedule: ConvPairSchedule, changes: Sequence[tuple[str, str]] = ()) -> float:
    """The worst of the errors of a launch whose source is changed; infinity for NaN."""
    source = source_of(pair.op, schedule, pair.dtype)
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    errors = pair.errors(pair.run(schedule, source))
    return float(np.nan_to_num(errors, nan=np.inf).max())
