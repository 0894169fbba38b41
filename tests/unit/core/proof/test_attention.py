"""Plans of decode attention: what the proof refuses, and a launch's results in any order and at any lengths."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.support.attention import Array, Arrivals, Interpreter
from tests.support.attentions import alone
from tests.support.attentions import attention as attention_op
from tests.support.cases import H200
from tests.support.task_machine import is_left
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.proof.run_time import check_reach
from tuner.errors import CoverageError, InvalidInput, PlanError, ResourceError, WordError
from tuner.ops.attention.plans import check_attention, check_made_for, digest_of
from tuner.ops.attention.plans import plan_of as attention_plan
from tuner.ops.attention.plans.tasks import AttentionPlan, assign, num_attention_clusters
from tuner.ops.attention.reference import attention
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention

OP = DecodeAttention(sequences=3, kv_heads=2, query_heads=3, head_dim=64, max_length=50, new_tokens=4)
TILE = 8
#: With one more span, a length exceeds 31 bits.
LONGEST = replace(OP, sequences=1, kv_heads=1, max_length=2**31 - 2**21)
#: A queue of all its tasks has 2^31 tiles.
MANY_TILES = replace(OP, sequences=1, kv_heads=1, query_heads=16, new_tokens=8, max_length=2**30)


def plan_of(
    op: DecodeAttention = OP,
    *,
    span: int = 16,
    ctas: int = 5,
    contiguous: bool = False,
    cluster: int = 1,
    form: AttentionForm = PLAIN,
    by_length: bool = False,
) -> AttentionPlan:
    return assign(
        op, span_tokens=span, columns=8, num_queues=ctas, contiguous=contiguous, cluster=cluster, form=form,
        by_length=by_length,
    )  # fmt: skip


def tensors_of(op: DecodeAttention, seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    cache = (op.sequences, op.kv_heads, op.max_length, op.head_dim)
    q = rng.standard_normal((op.sequences, op.new_tokens, op.kv_heads * op.query_heads, op.head_dim))
    return q, rng.standard_normal(cache), rng.standard_normal(cache)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("ctas", [1, 5, 160])
def test_what_assign_makes_is_proven(ctas: int, contiguous: bool) -> None:
    plan = plan_of(ctas=ctas, contiguous=contiguous)
    check_attention(plan, tile_tokens=TILE)
    assert plan.num_ctas == min(ctas, 3 * 2 * 2 * 4)


def test_clusters_that_ask_early_fill_the_card_and_have_no_tasks() -> None:
    op = attention_op(sequences=1).launch_ops[0]
    late, early = (
        attention_plan(op, alone(cluster=8, span_tokens=1024, next_percent=50, next_early=one).launch_ops[0], H200)
        for one in (False, True)
    )
    assert (late.num_ctas, late.num_asking) == (late.num_queues * 8, 0)
    assert early.num_queues == late.num_queues
    assert early.num_ctas == num_attention_clusters(H200, 8) * 8


def changed(plan: AttentionPlan, change: Callable[[Any], None]) -> AttentionPlan:
    tasks = plan.tasks.copy()
    change(tasks)
    return replace(plan, tasks=tasks)


@pytest.mark.parametrize(
    ("broken", "refused", "says"),
    [
        (replace(plan_of(), tasks=plan_of().tasks[:-1]), WordError, "queues must hold all tasks"),
        (changed(plan_of(), lambda t: t.__setitem__(7, t[8])), CoverageError, "is the task of 0"),
        (changed(plan_of(), lambda t: t.__setitem__((7, 1), 99)), WordError, "range: 99, of 4"),
        (
            changed(plan_of(), lambda t: t.__setitem__((7, 1), 2 << 24)),
            WordError,
            "block that is out of range: 2, of 2",
        ),
        (
            changed(plan_of(), lambda t: t.__setitem__((7, 0), 3 << 16)),
            WordError,
            "sequence that is out of range: 3, of 3",
        ),
        (changed(plan_of(), lambda t: t.__setitem__((7, 0), 2)), WordError, "KV head that is out of range: 2, of 2"),
        (replace(plan_of(), queues=np.array([0, 9, 9, 48], np.int32)), WordError, "queue 1 has none"),
        (replace(plan_of(), queues=np.array([3, 9, 48], np.int32)), WordError, "queues must hold all tasks"),
        (replace(plan_of(), span_tokens=12), WordError, "12 tokens in tiles of 8"),
        (replace(plan_of(), columns=32), WordError, "8 or 16 columns"),
        (plan_of(replace(OP, sequences=30), ctas=161), ResourceError, "161 queues"),
        (replace(plan_of(), num_asking=-4), WordError, "-4; it must be 0 to 155"),
        (replace(plan_of(), num_asking=156), WordError, "156; it must be 0 to 155"),
        (replace(plan_of(), num_asking=0.5), WordError, "0.5; it must be"),
        (replace(plan_of(), by_length=2), WordError, "by_length must be true or false"),
        (replace(plan_of(), span_tokens=0), WordError, "0 tokens in tiles of 8, 8 of them"),
        (replace(plan_of(), span_tokens=-16), WordError, "-16 tokens in tiles of 8"),
        (replace(plan_of(), tasks=plan_of().tasks.astype(np.int64)), WordError, "words of 32 bits"),
        (replace(plan_of(), queues=plan_of().queues.astype(np.float64)), WordError, "words of 32 bits"),
        (
            plan_of(LONGEST, span=2**22),
            ResourceError,
            "cannot count the tokens: up to 2149581328; the maximum is 2147483647",
        ),
        (plan_of(form=AttentionForm(window=2**31 - 1)), ResourceError, "cannot count the tokens of a window"),
        (plan_of(MANY_TILES, span=2**29, ctas=1), ResourceError, "cannot count the tiles of a CTA"),
    ],
)
def test_a_broken_plan_is_refused_with_a_witness(broken: AttentionPlan, refused: type[PlanError], says: str) -> None:
    with pytest.raises(refused, match=says):
        check_attention(broken, tile_tokens=TILE)


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("first_count", [0, 2**32 - 8])
@pytest.mark.parametrize("span", [8, 16, 24, 56])
def test_every_order_gives_softmax_at_every_length(span: int, first_count: int, by_length: bool) -> None:
    rng = random.Random(span)
    edges = (0, 1, span - 1, span, span + 1, OP.max_length - 1, OP.max_length)
    run = Interpreter(plan_of(span=span, by_length=by_length), first_count)
    tensors = tensors_of(OP, span)
    for _ in range(4):  # launch after launch, on the same counters
        lengths = [min(rng.choice(edges), OP.max_length) for _ in range(OP.sequences)]
        out = run.launch(tensors, lengths, rng)
        np.testing.assert_allclose(out, attention(OP, *tensors, lengths, np), atol=1e-12)


@pytest.mark.parametrize(
    ("lengths", "window"), [((50, 17, 0), None), ((0, 0, 0), None), ((50, 50, 50), 9), ((1, 33, 8), 9)]
)
@pytest.mark.parametrize("ctas", [1, 5, 160])
def test_what_a_launch_assigns_is_each_live_task_once_and_evenly(
    ctas: int, lengths: tuple[int, ...], window: int | None
) -> None:
    plan = plan_of(ctas=ctas, by_length=True, form=AttentionForm(window=window))
    check_attention(plan, tile_tokens=TILE)
    tasks, queues = plan.run_at(lengths)
    wanted = {
        (sequence << 16 | head, block << 24 | span)
        for sequence, length in enumerate(lengths)
        for span in plan.live_spans(length)
        for head in range(OP.kv_heads)
        for block in range(plan.num_blocks)
    }
    assert sorted(map(tuple, tasks.tolist())) == sorted(wanted)
    assert len(queues) == plan.num_queues + 1
    assert np.ptp(np.diff(queues)) <= 1
    assert (queues[0], queues[-1]) == (0, len(tasks))


@pytest.mark.parametrize("span", [64, 128, 512])
def test_what_a_launch_assigns_is_about_the_same_to_each_cluster(span: int) -> None:
    """16 sequences of 1 to 512 tokens, 8 heads, 66 clusters: tokens of the busiest cluster, over the mean."""
    op, rng = replace(OP, sequences=16, kv_heads=8, query_heads=1, new_tokens=1, max_length=512), random.Random(span)
    plan = plan_of(op, span=span, ctas=66, by_length=True)
    shares = []
    for _ in range(20):
        lengths = [rng.randint(1, 512) for _ in range(16)]
        tasks, queues = plan.run_at(lengths)
        tokens = [min(lengths[head >> 16] - (word & 0xFFFFFF) * span, span) for head, word in tasks.tolist()]
        share = np.add.reduceat(tokens, queues[:-1])
        shares.append(share.max() * 66 / share.sum())
    assert max(shares) < 1.45
    assert np.mean(shares) < 1.25


def test_rests_come_behind_whole_spans_the_longest_first() -> None:
    plan = plan_of(replace(OP, sequences=4, kv_heads=1, query_heads=1), ctas=1, by_length=True)
    tasks, _ = plan.run_at((33, 7, 48, 0))
    assert [(head >> 16, word) for head, word in tasks.tolist()] == [
        (0, 0), (0, 1), (2, 0), (2, 1), (2, 2), (1, 0), (0, 2), (3, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("window", [1, 7, 16, 30, 60])
@pytest.mark.parametrize("span", [8, 24])
def test_every_order_gives_softmax_over_a_window(span: int, window: int, by_length: bool) -> None:
    rng, tensors, form = random.Random(span), tensors_of(OP, span), AttentionForm(window=window)
    run = Interpreter(plan_of(span=span, form=form, by_length=by_length))
    for lengths in ([50, 0, 1], [33, 49, min(window, 50)], [min(window + 4, 50), 17, 50]):
        out = run.launch(tensors, lengths, rng)
        np.testing.assert_allclose(out, attention(OP, *tensors, lengths, np, form), atol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 7, 30])
@pytest.mark.parametrize(("span", "cluster"), [(16, 1), (16, 2), (64, 4)])
def test_tiles_of_all_ctas_hold_what_is_seen_once(span: int, cluster: int, window: int | None) -> None:
    plan = plan_of(span=span, cluster=cluster, form=AttentionForm(window=window))
    check_attention(plan, tile_tokens=TILE)
    for length in range(OP.max_length + 1):
        times = np.zeros(2 * OP.max_length, int)
        for number in plan.live_spans(length):
            for rank in range(cluster):
                for tile in plan.own_tiles(number, length, TILE, rank):
                    begin = number * span + tile * TILE
                    times[begin : begin + TILE] += 1
        first = plan.form.first_seen(OP, length)
        assert (times[first:length] == 1).all()
        assert times.max() <= 1
        assert times.sum() <= max(length - first, 0) + 2 * TILE - 2


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (lambda: AttentionForm(window=0), "window: 0 hides a query from itself"),
        (lambda: AttentionForm(soft_cap=-1.0), "soft_cap: -1.0 is not a valid cap"),
        (lambda: PagedCache(num_pages=0, page_tokens=16), "num_pages: 0 pages have no room"),
        (lambda: PagedCache(num_pages=4, page_tokens=24), "page_tokens: 24 is not"),
        (
            lambda: check_attention(
                plan_of(form=AttentionForm(paged=PagedCache(num_pages=2**26, page_tokens=16))), tile_tokens=TILE
            ),
            "num_pages: .* at most 2147483647 rows",
        ),
    ],
)
def test_a_form_that_cannot_be_is_refused(form: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        form()


@pytest.mark.parametrize("window", [None, 9])
def test_a_slot_gets_the_same_arrivals_at_every_length(window: int | None) -> None:
    for span in (8, 16, 24, 56):
        plan = plan_of(span=span, form=AttentionForm(window=window))
        for length in range(OP.max_length + 1):
            arrivals = [plan.arrivals(number, length) for number in range(plan.num_spans)]
            assert sum(arrivals) == plan.arrivals_per_launch


def test_the_spans_that_a_launch_runs_are_the_tiles_of_which_something_is_left_at_its_lengths() -> None:
    """The first span always runs, because a sequence without tokens has an output, too."""
    for span in (8, 16, 24, 56):
        plan = plan_of(span=span)
        tiles = plan.tiles
        (context,) = (read.box for read in tiles.reads)
        check_reach(tiles)
        for length in range(OP.max_length + 1):
            values = {"lengths": [OP.max_length, length, 0]}
            left = [number for number in range(plan.num_spans) if is_left(tiles, context, (1, 0, 0, number), 0, values)]
            assert list(plan.live_spans(length)) == (left or [0])


def test_spans_that_end_before_the_longest_length_are_refused() -> None:
    plan = plan_of()
    longer = replace(plan.tiles.bounds[0], limit=replace(plan.lengths, most=OP.max_length + 1))
    with pytest.raises(CoverageError, match="boxes of context reach to 50 in dimension 2; lengths is 0 to 51"):
        check_reach(replace(plan.tiles, bounds=(longer,)))


def one_short(plan: AttentionPlan, span: int, length: int) -> int:
    return plan.arrivals(span, length) - (span == 0 and len(plan.live_spans(length)) < plan.num_spans)


def one_each(plan: AttentionPlan, span: int, length: int) -> int:
    return 1


def too_early(plan: AttentionPlan, span: int, length: int) -> int:
    return plan.arrivals_per_launch


def stale_length(plan: AttentionPlan, span: int, length: int) -> int:
    return plan.arrivals(span, plan.op.max_length)


@pytest.mark.parametrize("fault", [one_short, one_each, too_early, stale_length])
def test_arrivals_that_depend_on_lengths_show(fault: Arrivals) -> None:
    rng, tensors, lengths = random.Random(1), tensors_of(OP, 1), [50, 17, 0]
    run = Interpreter(plan_of())
    wrong = False
    for _ in range(2):
        out = run.launch(tensors, lengths, rng, arrivals=fault)
        wrong |= not np.allclose(out, attention(OP, *tensors, lengths, np))
    assert wrong


def test_a_span_that_nobody_runs_shows() -> None:
    tensors, lengths = tensors_of(OP, 1), [50, 17, 0]
    out = Interpreter(plan_of()).launch(tensors, lengths, random.Random(1), skipped=lambda place: place == 0)
    assert np.isnan(out).any()


def test_a_slot_that_the_next_launch_fills_too_early_shows() -> None:
    """A launch waits for the end of the previous one; this test shows the result if it does not."""
    rng, tensors, lengths = random.Random(1), tensors_of(OP, 1), [50, 17, 33]
    run, expected = Interpreter(plan_of()), attention(OP, *tensors, lengths, np)
    outs = [np.full_like(tensors[0], np.nan) for _ in range(2)]
    launches = [run.steps(out, tensors, lengths, rng) for out in outs]
    for _ in range(12):  # steps of the first launch
        next(launches[0])
    for launch in reversed(launches):
        for _ in launch:
            pass
    assert not all(np.allclose(out, expected) for out in outs)


#: Each field with a different value that a plan of `OP` could have.
OTHERS: dict[str, Any] = {
    "op": replace(OP, max_length=51),
    "span_tokens": 32,
    "columns": 16,
    "tasks": plan_of(contiguous=True).tasks,
    "queues": np.array([0, 9, 48], np.int32),
    "cluster": 2,
    "form": AttentionForm(window=9),
    "by_length": True,
    "num_asking": 3,
}


@pytest.mark.parametrize("name", [field.name for field in fields(AttentionPlan)])
def test_the_digest_tells_each_field_of_a_plan(name: str) -> None:
    schedule = alone().launch_ops[0]
    changed_plan = replace(plan_of(), **{name: OTHERS[name]})
    assert digest_of(changed_plan, schedule) != digest_of(plan_of(), schedule)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"by_length": True}, "the plan's by_length differs from the schedule's: True, not False"),
        ({"num_asking": 1}, "num_asking is 1; it must be 0"),
        ({"columns": 16}, "the plan's columns differs from the schedule's: 16, not 8"),
        ({"cluster": 2}, "the plan's cluster differs from the schedule's: 2, not 1"),
        ({"span_tokens": 2048}, "the plan's span_tokens differs from the schedule's: 2048"),
    ],
)
def test_a_plan_that_another_kernel_would_run_is_refused(change: dict[str, Any], says: str) -> None:
    op, schedule = attention_op(sequences=1).launch_ops[0], alone().launch_ops[0]
    plan = attention_plan(op, schedule, H200)
    check_made_for(plan, schedule)
    with pytest.raises(WordError, match=says):
        check_made_for(replace(plan, **change), schedule)
