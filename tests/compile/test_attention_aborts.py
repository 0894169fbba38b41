"""Attention launches with a wait that would never end: each launch aborts, reports which wait failed, and fills its
output with NaN."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import numpy as np
import pytest

from tests.support.attention_cases import CASES, form_of, plan_of, tiling_of
from tests.support.attention_faults import BECOMES, FAULTS, MEANWHILE, SEEN_BY_KEYS, SEEN_BY_VALUES
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import from_bits
from tests.support.lanes import one_in, soak_unless
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import aborted_launch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: One cycle is a round of all threads; a copy takes at most 40.
SPIN_LIMIT_CYCLES = 1200
MMA = AttentionEngine.MMA
LAUNCHES = itertools.count()


#: A case, and how its lengths change while it runs.
CHANGED = [
    (n, becomes) for n in ("ragged", "by length", "new tokens", "pages of 16", "clusters") for becomes in BECOMES
]


#: Loads by warps take longer to emulate than those by the copy engine; the next tests have them.
QUICK_CHANGES = [
    (("ragged", "ends"), AttentionEngine.TMA),
]


def launched(
    name: str, engine: AttentionEngine, changes: tuple[tuple[str, str], ...], *, times: int = 1, once: bool = False
) -> tuple[EmulatedAttention, list[np.ndarray[Any, Any]]]:
    """The results of consecutive launches on one workspace, whether or not they abort."""
    case = CASES[name]
    op = DecodeAttention(**case.op)
    tiling, form = tiling_of(case, op, engine), form_of(case, op)
    run = EmulatedAttention(op=op, lengths=case.lengths, form=form)
    library = attention_library(tiling, op, changes, form, lengths_once=once)
    plan = plan_of(case, op, contiguous=False)
    limit = SPIN_LIMIT_CYCLES
    outs = [run.run(library, plan, tiling, speculative=case.speculative, spin_limit_cycles=limit) for _ in range(times)]
    return run, [from_bits(out, op.dtype) for out in outs]


@pytest.mark.slow
@pytest.mark.parametrize("fault", soak_unless(lambda _, one: one == "sums are not read", FAULTS))
def test_a_wait_that_never_ends_is_given_up_and_told_and_all_behind_it_is_nan(fault: str) -> None:
    name, engine, change, waited = FAULTS[fault]
    run, (first, second) = launched(name, engine, (change,), times=2)
    record = str(aborted_launch(run.refused.tolist()))
    assert waited in record
    assert np.isnan(first).any()
    assert np.isnan(second).all(), "the record was not cleared"


def test_values_that_nobody_multiplies_hang_nobody_and_are_told() -> None:
    run, (out,) = launched("ragged", MMA, (SEEN_BY_KEYS,))
    assert "CTAs have read different lengths" in str(aborted_launch(run.refused.tolist()))
    assert np.isnan(out).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "engine"),
    soak_unless(lambda _, one: one in QUICK_CHANGES, itertools.product(CHANGED, AttentionEngine)),
)
def test_a_length_that_changes_between_two_readers_is_told(
    change: tuple[str, str], engine: AttentionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, some rows would never be written, and the counters would be wrong for every later launch."""
    name, becomes = change
    case = CASES[name]
    if engine not in case.engines or (case.pages and becomes in ("gains a token", "fills the cache")):
        pytest.skip("nothing of this kind")
    op = DecodeAttention(**case.op)
    tiling, form, plan = tiling_of(case, op, engine), form_of(case, op), plan_of(case, op, contiguous=False)
    library = attention_library(tiling, op, (MEANWHILE,), form)
    monkeypatch.setenv("BECOMES", str([*BECOMES].index(becomes)))
    num_records = 0
    for right_reads in (5, 17, 33, 70):
        monkeypatch.setenv("LAUNCH", str(next(LAUNCHES)))
        monkeypatch.setenv("RIGHT_READS", str(right_reads))
        filled = case.lengths if case.pages else [op.max_length] * op.sequences
        run = EmulatedAttention(op=op, lengths=filled, form=form)
        run.lengths = case.lengths
        out = run.run(library, plan, tiling, speculative=case.speculative, spin_limit_cycles=SPIN_LIMIT_CYCLES)
        record = aborted_launch(run.refused.tolist())
        num_records += record is not None
        if record is None:
            assert not np.isnan(from_bits(out, op.dtype)).any(), right_reads
            assert not (run.arrivals % plan.arrivals_per_launch).any(), right_reads
            assert not run.refused.any(), right_reads
    assert num_records > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", soak_unless(lambda _, one: one is AttentionEngine.TMA, AttentionEngine))
@pytest.mark.parametrize("name", one_in(3, ["by length", "ragged", "tiles left over"]))
def test_a_launch_that_gives_up_nothing_tells_nothing(name: str, engine: AttentionEngine) -> None:
    run, outs = launched(name, engine, (), times=2)
    assert aborted_launch(run.refused.tolist()) is None
    assert not any(np.isnan(out).any() for out in outs)


# In CI, a CTA that reads lengths once cannot see two.
@pytest.mark.soak
@pytest.mark.parametrize("name", one_in(5, ["ragged", "tiles left over", "by length", "pages of 16", "window"]))
def test_lengths_that_one_warp_reads_give_the_same_bits(name: str) -> None:
    outs = [launched(name, MMA, (), once=once)[1][0] for once in (False, True)]
    np.testing.assert_array_equal(*outs)


def test_a_cta_that_reads_lengths_once_cannot_see_two() -> None:
    run, (out,) = launched("ragged", MMA, (SEEN_BY_VALUES,), once=True)
    assert aborted_launch(run.refused.tolist()) is None
    assert not np.isnan(out).any()
