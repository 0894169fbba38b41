"""Attention kernels compile for sm_90a without spills, and their device code gives softmax on the CPU."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.attention_cases import CASES, Case
from tests.support.compiled import compile_source
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import from_bits
from tests.support.lanes import soak_unless
from tuner.core.plan.attention import assign
from tuner.core.problem.attention import DecodeAttention
from tuner.core.problem.workload import Dtype
from tuner.core.proof.attention import check_attention
from tuner.errors import IllegalSchedule
from tuner.workers.builder.nvrtc import parse_log
from tuner.workers.source.attention import AttentionTiling, render_attention

TILINGS = [
    AttentionTiling(
        head_dim=head_dim, columns=columns, tile_tokens=tile, num_stages=max(2, 16 * warps // tile), math_warps=warps
    )
    for head_dim in (64, 128)
    for columns in (8, 16)
    for tile, warps in ((16, 4), (16, 8), (32, 4), (64, 4), (64, 8), (128, 8))
]


@pytest.mark.parametrize(("stages", "warps", "says"), [(3, 8, "no multiple of the 2 teams"), (2, 6, "no whole teams")])
def test_teams_that_share_a_stage_are_refused(stages: int, warps: int, says: str) -> None:
    with pytest.raises(IllegalSchedule, match=says):
        AttentionTiling(head_dim=128, columns=8, tile_tokens=64, num_stages=stages, math_warps=warps)


def is_whole(_: int, tiling: AttentionTiling) -> bool:
    return tiling.tile_tokens == 64 and tiling.math_warps == 8


@pytest.mark.parametrize("tiling", soak_unless(is_whole, TILINGS), ids=str)
@pytest.mark.parametrize("traced", [False, True])
def test_a_kernel_compiles_without_spills_or_warnings(tiling: AttentionTiling, traced: bool) -> None:
    _, log = compile_source(render_attention(tiling, Dtype.BF16, traced=traced), "sm_90a")
    resources = parse_log(log)
    assert (resources.spill_bytes, resources.warnings) == (0, ())


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
