"""Chains of every engine run on the CPU from their device code: outputs against float64, starting from empty
buffers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.support.chains import block
from tests.support.emulated.cases import CASES, SMALL, Emulated
from tests.support.emulated.chain import (
    ABORT_OFFSET,
    GUARD_OFFSET,
    NUM_LAUNCHES,
    Array,
    EmulatedChain,
    aligned,
    from_bits,
    plans_of,
)
from tests.support.lanes import each_value_once, one_in, soak_unless
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.proof.verify import VerifiedPlan
from tuner.workers.source.launch_args import REFUSED_OFFSET_BYTES, mailbox_bytes, workspace_layout
from tuner.workers.source.refused import REFUSED_WORDS, refused_launch
from tuner.workers.source.variants import Variant

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: Tolerance per row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}
#: tests/soak/emulated.py has the others.
FEW = ("mma, parts", "swapped, shared k", "in band, parts, tickets", "turned, three tokens", "pages, simt")


#: The code that clears the finished elements in the other half of a mailbox.
TAKEN_AWAY = ("*reinterpret_cast<Elements*>(norm.next_mailbox + first) = Elements{};", "")
#: The code that clears the mailbox's rows that the launch does not have.
ROWS_TAKEN_AWAY = ("clear_rows_beyond<kOp>(args.ops[kOp], task.tile_n, norm.next_mailbox);", "")
#: The line at which a warp that reads in band begins to wait for slots of the ring, and the number of polls by which
#: one warp is delayed there.
WALKS = "    fill_stages(args, shared, slot, epoch, input,"
LATE = (
    WALKS,
    "    for (int i = 0; slot.index < 4 && i < 1000; ++i) load_relaxed_gpu(&args.base.workspace->abort.raised);\n"
    + WALKS,
)
#: A ring in which a stage is full once its producer warp has arrived, without waiting for the others.
FILLED_BY_ONE = (
    ("2 + kReaderWarps : 1", "2 : 1"),
    ("mbarrier_arrive(ring.full(place));  // other warps", "// other warps"),
    (
        "if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.inputs",
        "if (reads && step % kReaderWarps == reader && threadIdx.x % 32 == 0) mbarrier_arrive(shared.inputs",
    ),
)


def mailboxes_of(plan: VerifiedPlan) -> tuple[int, int]:
    """The byte offsets in the workspace at which the mailboxes begin and end."""
    end = workspace_layout(plan)["slots"]
    return end - mailbox_bytes(plan.graph.workload), end


def halves_from(begin: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
    """The start and number of bytes of each half of mailboxes of these `sizes`; the same halves of all mailboxes are
    contiguous."""
    for size in sizes:
        for _ in range(2):
            yield begin, size
            begin += -(-size // 256) * 256


def left_in_mailboxes(
    case: Emulated, rows: tuple[int, ...], *changes: tuple[str, str]
) -> tuple[list[Array], list[Array]]:
    """The words left in the first and second halves of the mailboxes after an even number of runs with these row
    counts."""
    chain = EmulatedChain(case.workload)
    (plan,) = plans_of(case.workload, case.tiling, case.ordering, is_fused=True)
    chain.run(case.tiling, [plan], changes, rows=rows)
    begin, end = mailboxes_of(plan)
    sizes = [case.workload.tile_ops[0].m * op.n * 2 for op in case.workload.tile_ops[:-1]]
    assert begin + 2 * sum(-(-size // 256) * 256 for size in sizes) == end
    halves = [chain.workspaces[0][at : at + size].view(np.uint32) for at, size in halves_from(begin, sizes)]
    return halves[::2], halves[1::2]


def worst_row(case: Emulated, *changes: tuple[str, str]) -> float:
    chain = EmulatedChain(case.workload, is_odd=case.is_odd)
    plans = plans_of(case.workload, case.tiling, case.ordering, is_fused=case.is_fused)
    return chain.worst_row(chain.run(case.tiling, plans, changes))


@pytest.mark.parametrize("name", FEW)
def test_a_chain_leaves_the_right_numbers(name: str) -> None:
    assert worst_row(CASES[name]) < MOST[CASES[name].workload.dtype]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    one_in(
        2,
        [
            ("parts, fused", "mbarrier_wait(shared.beside.ready(feed), feed.parity());", ""),
            ("parts, fused", "sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2)", "sum"),
        ],
    ),
)
def test_a_broken_norm_shows(name: str, before: str, after: str) -> None:
    assert not worst_row(CASES[name], (before, after)) < MOST[CASES[name].workload.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, ["pages, mma, parts, fused", "pages, simt", "pages, swapped, shared k"]))
def test_lines_and_pages_with_gaps_are_written_in_their_places(name: str) -> None:
    """Keys and values of a token are adjacent, as servers pack them; nothing else is written."""
    case = CASES[name]
    chain = EmulatedChain(case.workload, is_packed=True)
    plans = plans_of(case.workload, case.tiling, case.ordering, is_fused=case.is_fused)
    assert chain.worst_row(chain.run(case.tiling, plans)) < MOST[case.workload.dtype]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "after"),
    soak_unless(
        lambda place, _: place == 3,
        [
            ("turned, swapped, shared k", "x = old_x * turn.cosine - y", "x = old_x * turn.cosine + y"),
            ("turned, three tokens", "args.lengths[sequence]", "args.lengths[0]"),
            ("turned, three tokens", "is_value ? args.values : args.keys", "is_value ? args.keys : args.values"),
            ("pages, three tokens", "(sequence) * pages.max_pages", "(0) * pages.max_pages"),
            ("pages, three tokens", "token.position / kPageTokens]", "0]"),
            ("pages, three tokens", "token.position % kPageTokens;", "0;"),
        ],
    ),
)
def test_a_wrong_turn_or_place_shows(name: str, before: str, after: str) -> None:
    """The fault shows in the values, or because another part of the cache was written."""
    try:
        is_right = worst_row(CASES[name], (before, after)) < MOST[CASES[name].workload.dtype]
    except AssertionError:
        is_right = False
    assert not is_right


def test_a_slot_without_a_sequence_writes_to_no_cache() -> None:
    case = CASES["turned, three tokens"]
    assert 0 in EmulatedChain(case.workload).caches["qkv"].lengths
    with pytest.raises(AssertionError, match="written outside its new tokens"):
        worst_row(case, ("return position >= 0 && position", "return position"))


def refused_of(chain: EmulatedChain, case: Emulated, *changes: tuple[str, str]) -> str:
    """The abort record of the launch whose op is rotated, after a check that the values are right and nothing else was
    written."""
    plans = plans_of(case.workload, case.tiling, case.ordering, is_fused=case.is_fused)
    assert chain.worst_row(chain.run(case.tiling, plans, changes)) < MOST[case.workload.dtype]
    words = chain.workspaces[-1][REFUSED_OFFSET_BYTES:][: 4 * REFUSED_WORDS].view(np.uint32)
    return str(refused_launch(words.tolist()) or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(2, ["pages, three tokens", "turned"]))
def test_a_length_that_has_no_room_is_told(name: str) -> None:
    """The cache has no space for the last token of this sequence."""
    chain = EmulatedChain(CASES[name].workload)
    cache = chain.caches["qkv"]
    longest = cache.rotary.max_length
    assert cache.lengths[0] == longest + 1
    assert refused_of(chain, CASES[name]) == f"sequence 0 has the length {longest + 1}: use 0 to {longest}"
    np.minimum(cache.lengths, longest, out=cache.lengths)
    assert refused_of(chain, CASES[name]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("is_behind", [True, False])
@pytest.mark.parametrize("name", one_in(3, ["pages, three tokens", "pages, mma, parts, fused", "pages, simt"]))
def test_a_page_that_is_not_in_the_cache_is_told_and_not_written(name: str, is_behind: bool) -> None:
    chain = EmulatedChain(CASES[name].workload)
    cache = chain.caches["qkv"]
    np.minimum(cache.lengths, cache.rotary.max_length, out=cache.lengths)
    page = cache.num_pages if is_behind else -1
    cache.pages[0, -1] = page
    assert cache.is_kept().sum() < (cache.positions() >= 0).sum()
    assert refused_of(chain, CASES[name]) == f"sequence 0 has the page {page}: use 0 to {cache.num_pages - 1}"
    if is_behind and name == "pages, simt":  # the faults are in code that all engines share
        with pytest.raises(AssertionError, match="written outside its new tokens"):
            refused_of(chain, CASES[name], ("token.page >= num_pages", "token.page > num_pages"))


#: With more columns of queries than there are pairs in all heads, and with fewer.
GROUPED = Rotary(heads=8, kv_heads=1, head_dim=64, max_length=37)
APART = Rotary(heads=3, kv_heads=3, head_dim=64, max_length=37)


@pytest.mark.slow
@pytest.mark.parametrize("rotary", [GROUPED, APART], ids=["grouped", "a head each"])
@pytest.mark.parametrize("name", one_in(3, ["turned", "turned, mma, parts, fused", "turned, simt"]))
def test_an_aborted_launch_leaves_nan_in_all_queries_and_nothing_behind_them(name: str, rotary: Rotary) -> None:
    """The memory after the queries belongs to other tensors. In the cache, only the lines of new tokens change."""
    case = CASES[name]
    chain = EmulatedChain(block(case.workload.tile_ops[0].m, **SMALL, rotary=rotary))
    queries = chain._tensors["qkv"]
    held = aligned(2 * queries.nbytes, 0xA5)
    chain._tensors["qkv"] = held[: queries.nbytes].view(np.uint16).reshape(queries.shape)
    plans = plans_of(chain.workload, case.tiling, case.ordering, is_fused=True)
    chain.run(case.tiling, plans, is_aborted=True)
    left = from_bits(chain._tensors["qkv"], chain.workload.dtype)
    assert np.isnan(left).all()
    assert (held[queries.nbytes :] == 0xA5).all()


# In CI, the next test has launches of all rows and of few.
@pytest.mark.soak
@pytest.mark.parametrize(("change", "leaves_zeros"), [((), True), ((TAKEN_AWAY,), False)])
def test_a_launch_leaves_zeros_where_the_next_one_writes(
    change: tuple[tuple[str, str], ...], leaves_zeros: bool
) -> None:
    """Each of the two launches of a run writes one half of each mailbox; the second leaves the state that the first
    began with."""
    for of_first, of_second in zip(*left_in_mailboxes(CASES["in band"], (5, 5), *change), strict=True):
        assert of_second.all(), "all elements of the last launch have arrived"
        assert bool(of_first.any()) != leaves_zeros


@pytest.mark.parametrize("name", one_in(3, ["in band, parts, tickets", "in band", "in band, swapped, shared k"]))
def test_a_launch_of_few_rows_leaves_zeros_in_all_rows_where_the_next_one_writes(name: str) -> None:
    case = CASES[name]
    most = case.workload.tile_ops[0].m
    for of_first, of_second in zip(*left_in_mailboxes(case, (most, 2)), strict=True):
        assert not of_first.any()
        assert of_second.reshape(most, -1).all(axis=1).tolist() == [row < 2 for row in range(most)]
    kept, _ = left_in_mailboxes(case, (most, 2), ROWS_TAKEN_AWAY)
    assert all(of_first.any() for of_first in kept)


# In CI, tests/compile/test_protocol.py has slow tiles and removed waits.
@pytest.mark.soak
def test_a_warp_that_comes_late_holds_the_ring_up() -> None:
    """Otherwise, the slots would advance without this warp, and it would mistake the parity of a later phase for its
    own."""
    case = CASES["in band"]
    short = replace(case, tiling=replace(case.tiling, num_stages=2, input_stages=2))
    assert worst_row(short, LATE) < MOST["fp16"]
    assert worst_row(short, *FILLED_BY_ONE) < MOST["fp16"], "where nobody is late"
    with pytest.raises(AssertionError, match="wait for ever"):
        worst_row(short, LATE, *FILLED_BY_ONE)


@pytest.mark.parametrize(
    ("before", "after"),
    one_in(
        2,
        [
            ("return eight.x != 0 && eight.y != 0 && eight.z != 0 && eight.w != 0;", "return true;"),
            ("unit = across(number) % 8 ^ row % 8;", "unit = across(number) % 8;"),
        ],
    ),
)
def test_a_broken_reader_in_band_shows(before: str, after: str) -> None:
    assert not worst_row(CASES["in band"], (before, after)) < MOST["fp16"]


@pytest.mark.parametrize(("name", "num_strangers"), each_value_once(["mma, parts", "parts, fused"], [0, 1]))
def test_a_guarded_build_counts_its_ctas_and_reports_one_of_another_launch(name: str, num_strangers: int) -> None:
    case = CASES[name]
    chain = EmulatedChain(case.workload, is_odd=case.is_odd)
    plans = plans_of(case.workload, case.tiling, case.ordering, is_fused=case.is_fused)
    found = chain.run(case.tiling, plans, variant=Variant.GUARDED, num_strangers=num_strangers)
    for plan, workspace in zip(plans, chain.workspaces, strict=True):
        num_ctas = NUM_LAUNCHES * plan.plan.num_ctas * case.tiling.cluster_size
        (counted,) = workspace[GUARD_OFFSET : GUARD_OFFSET + 8].view(np.uint64)
        assert int(counted) == (num_ctas << 16) + num_strangers, "as many CTAs have ended as have started"
        raised, task, *_ = workspace[ABORT_OFFSET : ABORT_OFFSET + 24].view(np.int32)
        assert (raised, task) == ((1, -2) if num_strangers else (0, 0))
    assert (chain.worst_row(found) < MOST[case.workload.dtype]) == (num_strangers == 0)
