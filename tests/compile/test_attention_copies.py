"""Copies of queries and cache without a copy engine: compiled for GPUs before and after sm_90, and run on the CPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product

import pytest

from tests.support.attention_cases import CASES, plan_of, tiling_of
from tests.support.attention_parameter import WeightsAt
from tests.support.emulated.attention import EmulatedAttention, asked_of_l2, attention_library
from tests.support.emulated.attention_launches import run_out_of_range, worst
from tests.support.lanes import soak_unless, soaked
from tests.support.reports import report_of
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.workload import Dtype
from tuner.ops.attention.schedule import AttentionEngine, AttentionTiling
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import render_attention

ALL_FORMS = AttentionForm(paged=PagedCache(num_pages=9, page_tokens=32), window=100, soft_cap=30.0)
#: Head, columns, tokens per tile, warps that multiply and that finish tasks, loads in flight; these cases just fit in
#: the registers.
EDGE = [(128, 16, 64, 4, 2, 8), (128, 8, 64, 8, 4, 16)]


@pytest.mark.parametrize(
    ("edge", "form", "arch"),
    soak_unless(
        lambda _, one: one in ((EDGE[0], ALL_FORMS, "sm_90a"), (EDGE[1], ALL_FORMS, "sm_80")),
        product(EDGE, (AttentionForm(), ALL_FORMS), ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")),
    ),
    ids=str,
)
def test_a_kernel_without_a_copy_engine_compiles_without_spills_or_warnings(
    edge: tuple[int, ...], form: AttentionForm, arch: str
) -> None:
    head_dim, columns, tile, warps, finish, parts = edge
    tiling = AttentionTiling(
        head_dim=head_dim, columns=columns, tile_tokens=tile, num_stages=max(1, 16 * warps // tile), math_warps=warps,
        finish_warps=finish, parts_at_once=parts, engine=AttentionEngine.MMA,
    )  # fmt: skip
    resources = report_of(render_attention(tiling, Dtype.BF16, form=form), arch).resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())


#: The copy of half a tile by cp.async, and the thread that signals its arrival.
BRING = (
    "  copy_box(args, of_values ? ring.v(stage) : ring.k(stage), of_values ? args.v : args.k, row, 0, num_tokens);\n"
)
TELL = "  cp_async_arrive(of_values ? ring.v_full(stage) : ring.k_full(stage));\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ragged", BRING + TELL, TELL + BRING),
        *soaked(
            ("pages of 16", "row, first + box", "row, first"),
            ("ragged", "cp_async_arrive(ring.task_full(slot))", "mbarrier_arrive(ring.task_full(slot))"),
            ("tiles left over", "load_length(args, queue.task.sequence())", "load_length(args, 0)"),
            ("pages of 16", "static_cast<long long>(hand.task.sequence()) * args.max_pages", "0"),
            ("ragged", "(to ^ (token % 8 * kChunkBytes))", "to"),
            ("ragged", "row + 8 * chunk", "row"),
            ("ragged", BRING, BRING.replace("num_tokens", "num_tokens - 1")),
            ("ragged", "chunk / 8 * (kBoxTokens * 128)", "chunk / 8 * (kBoxTokens * 64)"),
            ("pages of 16", "tile + box * kBoxBytes", "tile"),
            ("pages of 16", "num_tokens - box * kBoxTokens", "num_tokens - 2 * box * kBoxTokens"),
            ("many pages", "first + 32 + lane", "first + lane"),
            ("window", "skipped_tiles(args, task.span(), length) + cluster_rank()", "cluster_rank()"),
            ("pages of 64, tokens before heads, no cluster", "kRowBytes * args.num_kv_heads", "kRowBytes"),
            ("pages of 64, tokens before heads, no cluster", "+ line * 128", ""),
        ),
    ],
)
def test_a_fault_of_the_copies_by_a_warp_shows(name: str, before: str, after: str) -> None:
    """Covers a stale length or page, and a tile that arrives too late or without some tokens; copies have varied
    delays."""
    case = CASES[name]
    found = (worst(case, (before, after), seed=seed, engine=AttentionEngine.MMA) for seed in range(3))
    assert any(not error < case.most for error in found)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_warp_that_does_not_wait_for_a_stage_shows() -> None:
    """The warp fills a stage that is still being read, and signals it full too often."""
    change = ("  if (!wait_until_free(args, ring, place, number)) return false;\n" + BRING, BRING)
    with pytest.raises(AssertionError, match="threads hang"):
        worst(CASES["tiles left over"], change, engine=AttentionEngine.MMA)


# In CI, a page that is not there is caught in another test.
@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_nothing_behind_the_cache_is_read_by_a_warps_copies() -> None:
    """The last tile of the last head ends past the cache. It is the first task of its queue, so it is requested
    speculatively."""
    case = replace(CASES["soft cap"], lengths=(63, 200), queues=12)
    assert worst(case, engine=AttentionEngine.MMA) < case.most
    with pytest.raises(AssertionError, match="from outside of queries and cache"):
        worst(case, ("if (num_tokens < kBoxTokens)", "if (num_tokens < 1)"), engine=AttentionEngine.MMA)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_warp_that_reads_a_page_that_is_not_there_is_caught() -> None:
    with pytest.raises(AssertionError, match="from outside of queries and cache"):
        run_out_of_range(AttentionEngine.MMA, (300, 0, 129, 17), 33, ("is_there ? left : 0", "left"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("early", [False, True])
def test_lines_of_the_weights_behind_are_asked_for_once_without_a_copy_engine(early: bool) -> None:
    """The rows are 1,168 bytes long, and 288 bytes of each are requested: the 128-byte lines that contain these are
    prefetched."""
    case = CASES["ragged"]
    op = DecodeAttention(**case.op)
    tiling = tiling_of(case, op, AttentionEngine.MMA)
    weights = WeightsAt(address=2**32 + 16, num_rows=200, row_bytes=1168, taken_bytes=288, early=early)
    rows = [weights.address + weights.row_bytes * row for row in range(weights.num_rows)]
    wanted = sorted(line for row in rows for line in range(row // 128 * 128, row + weights.taken_bytes, 128))

    def asked(*changes: tuple[str, str]) -> list[int]:
        library = attention_library(tiling, op, changes)
        run = EmulatedAttention(op=op, lengths=case.lengths)
        before = len(asked_of_l2(library))
        run.run(library, plan_of(case, op, contiguous=False), tiling, speculative=True, next_weights=weights)
        found = asked_of_l2(library)[before:]
        assert all(has_waited != early for _, _, has_waited, _ in found)
        return sorted(address for address, *_ in found)

    assert asked() == wanted
    assert asked(("row - reinterpret_cast<u64>(row) % 128", "row")) != wanted
