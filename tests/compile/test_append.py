"""The kernel that appends to the cache before an attention: it compiles, and writes the correct values to the correct
addresses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulated.append import EmulatedAppend, append_library
from tests.support.emulated.chain import from_bits
from tests.support.lanes import one_in
from tests.support.reports import report_of
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.append import render_append
from tuner.ops.attention.shapes.shape import DecodeAttention

LLAMA = DecodeAttention(sequences=3, kv_heads=2, query_heads=4, head_dim=128, max_length=40)
SMALL = DecodeAttention(
    sequences=3, kv_heads=3, query_heads=1, head_dim=64, max_length=9000, new_tokens=2, dtype=Dtype.FP16
)
#: A sequence of one token, one that fills its cache, and others; a slot without a sequence, and one that is too long.
CASES = {"llama": (LLAMA, (1, 40, 17)), "two tokens": (SMALL, (2, 9000, 8765)), "padded": (LLAMA, (0, 23, 41))}
CASES["two places"] = (LLAMA, (38, 0, 23))


@pytest.mark.parametrize(
    ("op", "paged"),
    [(LLAMA, None), (SMALL, None), (LLAMA, PagedCache(num_pages=9, page_tokens=16, heads_first=False))],
    ids=["llama", "small", "pages"],
)
def test_it_compiles_without_spills_or_warnings(op: DecodeAttention, paged: PagedCache | None) -> None:
    resources = report_of(render_append(op, paged), "sm_90a").resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())
    assert resources.registers_per_thread <= 64, "its CTAs fit on the SMs together with those of the previous launch"


#: With a paged cache; the last page of a context is not full.
PAGES = {
    "heads first": PagedCache(num_pages=9, page_tokens=16),
    "tokens first": PagedCache(num_pages=9, page_tokens=16, heads_first=False),
}


def worst(name: str, *changes: tuple[str, str], paged: PagedCache | None = None, page: int | None = None) -> float:
    """The maximum error of queries, keys and values relative to the largest element; inf if anything else is written.
    `page`: the table's entry for the last token of the second sequence."""
    op, lengths = CASES[name]
    case = EmulatedAppend(op=op, lengths=lengths, paged=paged)
    if page is not None:
        assert paged is not None
        case.pages[1, (lengths[1] - 1) // paged.page_tokens] = page
    case.run(append_library(op, changes, paged))
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


@pytest.mark.parametrize("page", [None, -1, 9])
@pytest.mark.parametrize("paged", PAGES.values(), ids=PAGES)
def test_a_token_goes_to_its_page_and_to_none_that_is_not_there(paged: PagedCache, page: int | None) -> None:
    for name in ("llama", "two places", *(["padded"] if page is None else [])):
        assert worst(name, paged=paged, page=page) < 2**-8


@pytest.mark.parametrize(
    ("before", "after"),
    one_in(
        2,
        [
            ("page >= args.num_pages", "page > args.num_pages"),
            ("(sequence) * args.max_pages", "(0) * args.max_pages"),
            ("args.max_pages + position / kTokens]", "args.max_pages]"),
            ("(first + kv_head) * kTokens + position % kTokens", "(first + kv_head) * kTokens"),
        ],
    ),
)
def test_a_token_on_another_page_or_at_another_place_shows(before: str, after: str) -> None:
    found = [worst(name, (before, after), paged=PAGES["heads first"], page=9) for name in ("llama", "two places")]
    assert max(found) > 0.05


@pytest.mark.parametrize(
    ("before", "after"),
    one_in(
        4,
        [
            ("old_x * cosine - old_y * sine", "old_x * cosine + old_y * sine"),
            ("length - args.new_tokens + row % args.new_tokens", "length - args.new_tokens"),
            ("if (!is_value) rotate", "rotate"),
            ("(is_value ? args.values : args.keys)", "args.keys"),
            ("position < 0 || position >= args.max_length", "position < 0"),
            ("args.max_length + position;", "args.max_length + position + 1;"),
            ("sincosf(position * ", "sincosf((position + 1) * "),
        ],
    ),
)
def test_a_fault_in_the_device_code_shows(before: str, after: str) -> None:
    assert max(worst("two tokens", (before, after)), worst("padded", (before, after))) > 0.05
