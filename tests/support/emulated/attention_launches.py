"""Launches of attention's device code on the CPU: the worst error, and the record for out-of-range values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.attention_cases import CASES, Case, form_of, plan_of, tiling_of
from tests.support.emulated.attention import EmulatedAttention, attention_library
from tests.support.emulated.chain import from_bits
from tuner.ops.attention.plans import check_attention
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.workers.source.refused import refused_launch


def worst(case: Case, *changes: tuple[str, str], seed: int = 0, engine: AttentionEngine = AttentionEngine.TMA) -> float:
    """The worst error over two plans, each launched twice on the same counters; the bits must not differ."""
    op = DecodeAttention(**case.op)
    tiling = tiling_of(case, op, engine)
    form = form_of(case, op)
    library = attention_library(tiling, op, changes, form)
    run = EmulatedAttention(op=op, lengths=case.lengths, form=form, seed=seed)
    found = []
    for contiguous in (False, True):
        plan = plan_of(case, op, contiguous=contiguous)
        check_attention(plan, tile_tokens=tiling.tile_tokens)
        found += [run.run(library, plan, tiling, speculative=case.speculative) for _ in range(2)]
    if any((bits != found[0]).any() for bits in found) or refused_launch(run.refused.tolist()):
        return np.inf
    expected = run.expected()
    errors = np.abs(from_bits(found[0], op.dtype) - expected) / np.sqrt((expected**2).mean())
    return float(errors.max())


def run_out_of_range(
    engine: AttentionEngine, lengths: tuple[int, ...], page: int, *changes: tuple[str, str]
) -> tuple[str, np.ndarray[Any, Any]]:
    """The abort record for an invalid length or page number, and the launch's result."""
    case = CASES["pages of 16"]
    op, form = DecodeAttention(**case.op), form_of(case, DecodeAttention(**case.op))
    tiling, plan = tiling_of(case, op, engine), plan_of(case, op, contiguous=False)
    run = EmulatedAttention(op=op, lengths=case.lengths, form=form)
    run.lengths = lengths
    if page:
        run.pages[2, 8] = page
    if lengths[1] > 0:
        run.pages[1] = run.pages[0]
    out = run.run(attention_library(tiling, op, changes, form), plan, tiling, speculative=False)
    return str(refused_launch(run.refused.tolist())), from_bits(out, op.dtype)
