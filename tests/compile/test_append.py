"""The kernel in front of an attention: it compiles, and leaves the right numbers in the right places."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulated.append import EmulatedAppend, append_library
from tests.support.emulated.chain import from_bits
from tuner.core.problem.attention import DecodeAttention
from tuner.core.problem.dtype import Dtype
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.source.append import render_append

LLAMA = DecodeAttention(sequences=3, kv_heads=2, query_heads=4, head_dim=128, max_length=40)
SMALL = DecodeAttention(
    sequences=3, kv_heads=3, query_heads=1, head_dim=64, max_length=9000, new_tokens=2, dtype=Dtype.FP16
)
#: A sequence of one token, one that fills its cache, and others; a slot without a sequence, and one that is too long.
CASES = {"llama": (LLAMA, (1, 40, 17)), "two tokens": (SMALL, (2, 9000, 8765)), "padded": (LLAMA, (0, 23, 41))}


@pytest.mark.parametrize("op", [LLAMA, SMALL], ids=["llama", "small"])
def test_it_compiles_without_spills_or_warnings(op: DecodeAttention) -> None:
    resources = parse_log(compile_source(render_append(op), "sm_90a")[1])
    assert (resources.spill_bytes, resources.warnings) == (0, ())
    assert resources.registers_per_thread <= 64, "its CTAs find room beside those of the launch before"


def worst(name: str, *changes: tuple[str, str]) -> float:
    """Of queries, keys and values, the greatest error over the largest element; inf where something else is written."""
    op, lengths = CASES[name]
    case = EmulatedAppend(op=op, lengths=lengths)
    case.run(append_library(op, changes))
    found = [from_bits(bits, op.dtype) for bits in (case.q, case.keys, case.values)]
    wanted = case.expected()
    if case.overruns() or any(
        (np.isnan(one) != np.isnan(other)).any() for one, other in zip(found[1:], wanted[1:], strict=True)
    ):
        return float("inf")
    errors = []
    for one, other in zip(found, wanted, strict=True):
        seen = ~np.isnan(other)
        errors.append(np.abs(one[seen] - other[seen]).max() / np.abs(other[seen]).max())
    return float(max(errors))


@pytest.mark.parametrize("name", CASES)
def test_queries_and_keys_are_turned_and_the_cache_is_appended_to(name: str) -> None:
    op, _ = CASES[name]
    assert worst(name) < {Dtype.BF16: 2**-8, Dtype.FP16: 2e-3}[op.dtype]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("old_x * cosine - old_y * sine", "old_x * cosine + old_y * sine"),
        ("length - args.new_tokens + row % args.new_tokens", "length - args.new_tokens"),
        ("if (!is_value) rotate", "rotate"),
        ("(is_value ? args.values : args.keys)", "args.keys"),
        ("position < 0 || position >= args.max_length", "position < 0"),
        ("args.max_length + position", "args.max_length + position + 1"),
        ("sincosf(position * ", "sincosf((position + 1) * "),
    ],
)
def test_a_fault_in_the_device_code_shows(before: str, after: str) -> None:
    assert max(worst("two tokens", (before, after)), worst("padded", (before, after))) > 0.05
