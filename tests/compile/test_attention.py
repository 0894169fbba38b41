"""Attention kernels compile for sm_90a without spills, and their device code gives softmax on the CPU."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.support.compiled import compile_source
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import from_bits
from tests.support.lanes import soak_unless
from tuner.core.plan.attention import assign
from tuner.core.problem.attention import DecodeAttention
from tuner.core.problem.workload import Dtype
from tuner.core.proof.attention import check_attention
from tuner.workers.builder.nvrtc import parse_log
from tuner.workers.source.attention import AttentionTiling, render_attention

TILINGS = [
    AttentionTiling(head_dim=head_dim, columns=columns, tile_tokens=tile, num_stages=2, math_warps=warps)
    for head_dim in (64, 128)
    for columns in (8, 16)
    for tile, warps in ((16, 4), (16, 8), (32, 4), (64, 4), (64, 8), (128, 8))
]


def is_whole(_: int, tiling: AttentionTiling) -> bool:
    return tiling.tile_tokens == 64 and tiling.math_warps == 8


@pytest.mark.parametrize("tiling", soak_unless(is_whole, TILINGS), ids=str)
@pytest.mark.parametrize("traced", [False, True])
def test_a_kernel_compiles_without_spills_or_warnings(tiling: AttentionTiling, traced: bool) -> None:
    _, log = compile_source(render_attention(tiling, Dtype.BF16, traced=traced), "sm_90a")
    resources = parse_log(log)
    assert (resources.spill_bytes, resources.warnings) == (0, ())


@dataclass(frozen=True, kw_only=True)
class Case:
    op: dict[str, Any]
    lengths: tuple[int, ...]
    #: Columns, tokens of a tile, stages, warps.
    tiling: tuple[int, int, int, int]
    chunk: int
    ctas: int
    speculative: bool = True
    #: Of an element, in units of the results' root mean square.
    most: float = field(default=0.03)


CASES = {
    "ragged": Case(
        op={"sequences": 4, "kv_heads": 1, "query_heads": 8, "head_dim": 128, "max_length": 256},
        lengths=(1, 64, 65, 63),
        tiling=(8, 32, 2, 8),
        chunk=64,
        ctas=3,
    ),
    "new tokens": Case(
        op={
            "sequences": 2,
            "kv_heads": 2,
            "query_heads": 3,
            "head_dim": 64,
            "max_length": 200,
            "new_tokens": 5,
            "dtype": Dtype.FP16,
        },
        lengths=(200, 3),
        tiling=(16, 32, 3, 4),
        chunk=96,
        ctas=4,
        speculative=False,
        most=0.005,
    ),
    "blocks": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 16, "head_dim": 64, "max_length": 130, "new_tokens": 2},
        lengths=(130, 17),
        tiling=(16, 16, 4, 4),
        chunk=32,
        ctas=7,
    ),
    "empty": Case(
        op={"sequences": 3, "kv_heads": 2, "query_heads": 4, "head_dim": 128, "max_length": 300},
        lengths=(300, 0, 129),
        tiling=(8, 64, 3, 8),
        chunk=128,
        ctas=5,
    ),
    "one chunk": Case(
        op={"sequences": 2, "kv_heads": 1, "query_heads": 1, "head_dim": 128, "max_length": 128},
        lengths=(128, 127),
        tiling=(8, 128, 2, 8),
        chunk=128,
        ctas=7,
    ),
}


def worst(case: Case, *changes: tuple[str, str]) -> float:
    """Error of the worst element over two plans, each launched twice on the same counters; bits must not differ."""
    op = DecodeAttention(**case.op)
    columns, tile, stages, warps = case.tiling
    tiling = AttentionTiling(
        head_dim=op.head_dim, columns=columns, tile_tokens=tile, num_stages=stages, math_warps=warps
    )
    library = attention_library(tiling, op, changes)
    run = EmulatedAttention(op=op, lengths=case.lengths)
    found = []
    for contiguous in (False, True):
        plan = assign(op, chunk_tokens=case.chunk, columns=columns, num_ctas=case.ctas, contiguous=contiguous)
        check_attention(plan, tile_tokens=tile)
        found += [run.run(library, plan, tiling, speculative=case.speculative) for _ in range(2)]
    if any((bits != found[0]).any() for bits in found):
        return np.inf
    expected = run.expected()
    errors = np.abs(from_bits(found[0], op.dtype) - expected) / np.sqrt((expected**2).mean())
    return float(errors.max())


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", soak_unless(lambda _, name: name in ("ragged", "new tokens"), list(CASES)))
def test_attention_leaves_the_right_numbers(name: str) -> None:
    assert worst(CASES[name]) < CASES[name].most


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("values[i] &= masks[i / 2]", "values[i] &= 0xFFFFFFFFu"),
        ("args.arrivals_per_launch - live_chunks + 1", "args.arrivals_per_launch - live_chunks"),
        ("most * scale_log2", "most"),
        ("if (is_masked) mask_scores", "if (false) mask_scores"),
        ("softmax.sums[group][step][half] *= kept", "softmax.sums[group][step][half] *= 1.0f"),
    ],
)
def test_a_fault_in_the_device_code_shows(before: str, after: str) -> None:
    case = CASES["new tokens"]
    assert not worst(case, (before, after)) < case.most
