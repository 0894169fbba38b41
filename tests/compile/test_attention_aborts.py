"""Waits of attention's device code that would never end: each launch ends, says who waited for what, and leaves NaN."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from tests.support.attention_cases import CASES, form_of, plan_of, tiling_of
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import from_bits
from tuner.core.problem.attention import DecodeAttention
from tuner.core.schedule.attention import AttentionEngine
from tuner.workers.source.attention import aborted_launch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TMA, MMA = AttentionEngine.TMA, AttentionEngine.MMA
#: Rounds of all threads; a copy takes 40 at most.
SPIN_LIMIT_CYCLES = 1200
#: What reads a length, which a fault makes another one for some of those that read it.
LENGTH = "load_relaxed_gpu(args.lengths + sequence)"
READS = f"  return {LENGTH};"
SEEN_BY_VALUES = (
    READS,
    f"  return {LENGTH} / (threadIdx.x >= kRequester + 32 ? 2 : 1);",
)
SEEN_BY_KEYS = (READS, f"  return {LENGTH} / (threadIdx.x < kRequester + 32 ? 2 : 1);")
SEEN_BY_SECOND = (READS, f"  return cluster_rank() == 1 ? 1 : {LENGTH};")
GROWN_FOR_SECOND = (
    READS,
    f"  return cluster_rank() == 1 ? args.max_length : {LENGTH};",
)
#: Signals that get lost.
NO_STAGE_BACK = ("  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty(stage));", "")
NO_SUMS = ("      if (thread % 32 == 0) mbarrier_arrive(ring.sums_full());", "")
NO_SUMS_READ = ("    if (thread % 32 == 0) mbarrier_arrive(ring.sums_empty());", "")
NO_TASK_BACK = ("  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.task_empty(number % kTaskSlots));", "")
NO_SHARE = (
    "      send(ring, buffer, item, num_items, sum);",
    "      if (item) send(ring, buffer, item, num_items, sum);",
)

FAULTS: dict[str, tuple[str, AttentionEngine, tuple[str, str], str]] = {
    "a length shrinks for the warp of values": ("ragged", MMA, SEEN_BY_VALUES, "values"),
    "a length shrinks for a CTA of a cluster": ("clusters, spans", TMA, SEEN_BY_SECOND, ""),
    "a length grows for a CTA of a cluster": ("clusters, spans", TMA, GROWN_FOR_SECOND, ""),
    "a stage is not handed back": ("tiles left over", TMA, NO_STAGE_BACK, "a free stage of its ring"),
    "a stage is not handed back, mma": ("tiles left over", MMA, NO_STAGE_BACK, "a free stage of its ring"),
    "sums are not left": ("ragged", TMA, NO_SUMS, "the sums of its warps"),
    "sums are not read": ("ragged", TMA, NO_SUMS_READ, "its sums to be read"),
    "a task's room is not handed back": ("tiles left over", TMA, NO_TASK_BACK, "room for its next task"),
    "a share is not sent": ("clusters", TMA, NO_SHARE, "the sums of its cluster"),
}


def launched(
    name: str, engine: AttentionEngine, changes: tuple[tuple[str, str], ...], *, times: int = 1, once: bool = False
) -> tuple[EmulatedAttention, list[np.ndarray[Any, Any]]]:
    """Launches behind each other on one workspace, whatever becomes of them; their results."""
    case = CASES[name]
    op = DecodeAttention(**case.op)
    tiling, form = tiling_of(case, op, engine), form_of(case, op)
    run = EmulatedAttention(op=op, lengths=case.lengths, form=form)
    library = attention_library(tiling, op, changes, form, lengths_once=once)
    plan = plan_of(case, op, contiguous=False)
    limit = SPIN_LIMIT_CYCLES
    outs = [run.run(library, plan, tiling, speculative=case.speculative, spin_limit_cycles=limit) for _ in range(times)]
    return run, [from_bits(out, op.dtype) for out in outs]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wait_that_never_ends_is_given_up_and_told_and_all_behind_it_is_nan(fault: str) -> None:
    name, engine, change, waited = FAULTS[fault]
    run, (first, second) = launched(name, engine, (change,), times=2)
    record = str(aborted_launch(run.refused.tolist()))
    assert waited in record
    assert "gave up waiting for" in record or "arrivals of spans" in record
    assert np.isnan(first).any()
    assert np.isnan(second).all(), "nobody has cleared the record"


def test_values_that_nobody_multiplies_hang_nobody() -> None:
    run, (out,) = launched("ragged", MMA, (SEEN_BY_KEYS,))
    assert aborted_launch(run.refused.tolist()) is None
    assert not np.isnan(out).any(), "all is of the shorter lengths"


@pytest.mark.parametrize("engine", AttentionEngine)
@pytest.mark.parametrize("name", ["ragged", "tiles left over", "by length"])
def test_a_launch_that_gives_up_nothing_tells_nothing(name: str, engine: AttentionEngine) -> None:
    run, outs = launched(name, engine, (), times=2)
    assert aborted_launch(run.refused.tolist()) is None
    assert not any(np.isnan(out).any() for out in outs)


@pytest.mark.parametrize("name", ["ragged", "tiles left over", "by length", "pages of 16", "window"])
def test_lengths_that_one_warp_reads_give_the_same_bits(name: str) -> None:
    outs = [launched(name, MMA, (), once=once)[1][0] for once in (False, True)]
    np.testing.assert_array_equal(*outs)


def test_a_cta_that_reads_lengths_once_cannot_see_two() -> None:
    run, (out,) = launched("ragged", MMA, (SEEN_BY_VALUES,), once=True)
    assert aborted_launch(run.refused.tolist()) is None
    assert not np.isnan(out).any()
