"""Waits of attention's device code that would never end: each launch ends, says who waited for what, and leaves NaN."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from tests.support.attention_cases import CASES, form_of, plan_of, tiling_of
from tests.support.attention_faults import ENDED_MEANWHILE, FAULTS, SEEN_BY_KEYS, SEEN_BY_VALUES
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import from_bits
from tuner.core.problem.attention import DecodeAttention
from tuner.core.schedule.attention import AttentionEngine
from tuner.workers.source.attention import aborted_launch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: Rounds of all threads; a copy takes 40 at most.
SPIN_LIMIT_CYCLES = 1200
MMA = AttentionEngine.MMA


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
@pytest.mark.parametrize("name", ["ragged", "by length", "pages of 16", "tiles left over"])
def test_a_sequence_that_ends_between_two_lanes_hangs_nobody(name: str, engine: AttentionEngine) -> None:
    """Nor are there rows that nobody has written, but where the launch says that it gave up."""
    run, (out,) = launched(name, engine, (ENDED_MEANWHILE,))
    assert aborted_launch(run.refused.tolist()) is not None or not np.isnan(out).any()


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
