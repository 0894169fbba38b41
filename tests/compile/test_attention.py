"""Attention kernels compile for sm_90a without spills, and their device code computes softmax correctly on the CPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.support.attention_cases import CASES, ENGINES_OF_CASES, form_of, plan_of, tiling_of
from tests.support.attention_parameter import WeightsAt
from tests.support.cases import H200
from tests.support.emulated.attention import WAITS_LAST, EmulatedAttention, asked_of_l2, attention_library
from tests.support.emulated.attention_launches import run_out_of_range, worst
from tests.support.emulated.chain import from_bits
from tests.support.lanes import one_in, soak_unless, soaked
from tests.support.reports import report_of
from tuner.core.insight.traces.tracing import Stamped
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.resources import most_registers
from tuner.core.problem.workload import Dtype
from tuner.errors import IllegalSchedule
from tuner.ops.attention.rules import num_math_registers, num_summing_registers
from tuner.ops.attention.schedule import AttentionEngine, AttentionTiling
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import render_attention
from tuner.ops.attention.stamps import stamped_of
from tuner.workers.source.refused import refused_launch

TILINGS = [
    AttentionTiling(
        head_dim=head_dim,
        columns=columns,
        tile_tokens=tile,
        num_stages=max(2, 16 * warps // tile),
        math_warps=warps,
        finish_warps=4 if columns == 8 else 3,
        cluster=cluster,
    )
    for head_dim in (64, 128)
    for columns in (8, 16)
    for tile, warps, cluster in ((16, 4, 1), (16, 8, 2), (32, 4, 16), (64, 4, 4), (64, 8, 1), (128, 8, 1))
]
TILINGS = [tiling for tiling in TILINGS if num_math_registers(tiling) <= most_registers(tiling.num_threads, H200)]


@pytest.mark.parametrize(
    ("stages", "warps", "says"),
    [(3, 8, (r"must be a multiple of the number of teams \(2\)")), (2, 6, "cannot be split into teams")],
)
def test_teams_that_share_a_stage_are_refused(stages: int, warps: int, says: str) -> None:
    with pytest.raises(IllegalSchedule, match=says):
        AttentionTiling(head_dim=128, columns=8, tile_tokens=64, num_stages=stages, math_warps=warps)


FORMS = [
    AttentionForm(paged=PagedCache(num_pages=9, page_tokens=16, heads_first=False)),
    AttentionForm(paged=PagedCache(num_pages=9, page_tokens=32), window=100, soft_cap=30.0),
]
#: Stamps of a running clock.
CLOCKED = [("= read_clock();", "= ++stamped;"), ("read_globaltimer()", "++stamped")]
#: The cases of each engine in CI; other tests there have plans by length, clusters and pages.
QUICK_BY = {AttentionEngine.TMA: ("ragged", "new tokens"), AttentionEngine.MMA: ("ragged",)}


#: Head, columns, tokens per tile, warps that multiply and that finish tasks, cluster, loads in flight; these cases need
#: all available registers.
EDGE = [
    (128, 16, 64, 4, 4, 16, 8),
    (128, 16, 16, 4, 3, 4, 32),
    (128, 8, 64, 8, 4, 16, 16),
    (64, 16, 64, 8, 4, 4, 16),
    (128, 16, 16, 4, 0, 4, 16),
]


@pytest.mark.parametrize(
    ("edge", "form"),
    soak_unless(lambda place, _: place % 3 == 0, product(EDGE, (AttentionForm(), FORMS[1]))),
    ids=str,
)
def test_what_has_just_its_registers_compiles_without_spills(edge: tuple[int, ...], form: AttentionForm) -> None:
    head_dim, columns, tile, warps, finish, cluster, parts = edge
    tiling = AttentionTiling(
        head_dim=head_dim, columns=columns, tile_tokens=tile, num_stages=max(1, 16 * warps // tile), math_warps=warps,
        finish_warps=finish, cluster=cluster, parts_at_once=parts,
    )  # fmt: skip
    most = most_registers(tiling.num_threads, H200)
    needed = num_math_registers(tiling), num_summing_registers(tiling)
    assert max(needed) <= most
    assert most == 255 or most - max(needed) < 8, "it has more than it needs"
    assert report_of(render_attention(tiling, Dtype.FP16, form=form), "sm_90a").resources.spill_bytes == 0


def is_whole(_: int, tiling: AttentionTiling) -> bool:
    return tiling.tile_tokens == 64 and tiling.math_warps == 8


@pytest.mark.parametrize("tiling", soak_unless(is_whole, TILINGS), ids=str)
@pytest.mark.parametrize("traced_tasks", [*soaked(0), 4])
def test_a_kernel_compiles_without_spills_or_warnings(tiling: AttentionTiling, traced_tasks: int) -> None:
    resources = report_of(render_attention(tiling, Dtype.BF16, traced_tasks=traced_tasks), "sm_90a").resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())


WHOLE = [tiling for tiling in TILINGS if is_whole(0, tiling)]


@pytest.mark.parametrize(
    ("tiling", "form"),
    soak_unless(
        lambda _, one: one[0] in WHOLE and WHOLE.index(one[0]) % len(FORMS) == FORMS.index(one[1]),
        product([tiling for tiling in TILINGS if tiling.tile_tokens >= 32], FORMS),
    ),
    ids=str,
)
def test_a_kernel_of_each_form_compiles_without_spills(tiling: AttentionTiling, form: AttentionForm) -> None:
    resources = report_of(render_attention(tiling, Dtype.BF16, form=form), "sm_90a").resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("name", "engine"), soak_unless(lambda _, one: one[0] in QUICK_BY[one[1]], ENGINES_OF_CASES))
def test_attention_leaves_the_right_numbers(name: str, engine: AttentionEngine) -> None:
    assert worst(CASES[name], engine=engine) < CASES[name].most


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "before", "after"),
    one_in(
        27,
        [
            ("new tokens", "values[i] &= masks[i / 2]", "values[i] &= 0xFFFFFFFFu"),
            ("new tokens", "arrivals_per_launch - live.count() + 1", "arrivals_per_launch - live.count()"),
            ("new tokens", "most * scale_log2", "most"),
            ("new tokens", "if (is_masked) mask_scores", "if (false) mask_scores"),
            ("new tokens", "softmax.sums[group][step][half] *= kept", "softmax.sums[group][step][half] *= 1.0f"),
            ("tiles left over", "kTeams - place % kTeams", "kTeams"),
            ("clusters, spans", "cluster_rank() + tile * kCluster", "tile * kCluster"),
            ("clusters, spans", "cluster_rank() * kFromOneBytes", "0 * kFromOneBytes"),
            ("clusters, spans", "there + 16 * (item - share.first)", "there"),
            ("ragged", "load_length(args, queue.task.sequence())", "load_length(args, 0)"),
            ("pages of 16", "place, box, from", "place, 0, from"),
            ("pages of 16", "static_cast<long long>(hand.task.sequence()) * args.max_pages", "0"),
            ("pages of 16", "token < hand.length && token", "token"),
            ("many pages", "first + 32 + lane", "first + lane"),
            ("pages of 64, tokens before heads", "hand.task.head() * args.lines_per_head", "0"),
            ("pages of 64, tokens before heads", "token_of(args, hand, box) & ((1 << args.page_shift) - 1)", "0"),
            ("window", "token < seen - args.window", "token < seen - args.window - 1"),
            ("window", "hand.task.span() == live.first", "hand.task.span() == 0"),
            ("by length", "number / blocks", "number / (2 * blocks)"),
            ("by length", "place.end <= place.next", "place.end < place.next"),
            ("by length", "args.num_queues - place.step", "args.num_queues - place.step + 1"),
            ("by length", "(place.next - rests) / blocks", "(place.next - rests) / (2 * blocks)"),
            ("by length", "__popc(has_rest) * blocks", "__popc(has_rest)"),
            ("by length", "is_rest ? live.end - 1", "is_rest ? live.first"),
            ("by length, many sequences", "place.before = place.known", "place.before = 0"),
            ("by length, window, pages", "live.first + number", "number"),
            ("window", "first <= token && token < end", "token < end"),
            ("window", "skipped_tiles(args, task.span(), length) + cluster_rank()", "cluster_rank()"),
            ("window, clusters, pages of 32", "&& token + kBoxTokens > first_seen(args, hand.length)", ""),
            ("soft cap", "args.cap - 2 * args.cap", "args.cap - args.cap"),
        ],
    ),
)
def test_a_fault_in_the_device_code_shows(name: str, before: str, after: str) -> None:
    """Where a fault depends on which copy arrives first, the copies have varied delays."""
    case = CASES[name]
    assert any(not worst(case, (before, after), seed=seed) < case.most for seed in range(3))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("engine", "lengths", "page", "says"),
    soak_unless(
        lambda _, one: one[0] == "tma",
        [
            ("tma", (300, -1, 129, 17), 0, "sequence 1 has the length -1: use 0 to 300"),
            ("tma", (300, 301, 129, 17), 0, "sequence 1 has the length 301: use 0 to 300"),
            ("tma", (300, 0, 129, 17), -3, "sequence 2 has the page -3: use 0 to 32"),
            ("tma", (300, 0, 129, 17), 33, "sequence 2 has the page 33: use 0 to 32"),
            ("mma", (300, 301, 129, 17), 0, "sequence 1 has the length 301: use 0 to 300"),
            ("mma", (300, 0, 129, 17), 33, "sequence 2 has the page 33: use 0 to 32"),
        ],
    ),
)
def test_what_a_launch_cannot_use_is_told_and_not_read(
    engine: str, lengths: tuple[int, ...], page: int, says: str
) -> None:
    said, out = run_out_of_range(AttentionEngine(engine), lengths, page)
    assert said == says
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kind", [np.uint32, np.int32])
def test_what_was_refused_reads_the_same_signed_or_not(kind: type) -> None:
    words = np.array([2, 1, -3, 33], np.int32).view(kind)
    assert str(refused_launch(words.tolist())) == "sequence 1 has the page -3: use 0 to 32"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("forgets", [True, False])
def test_a_trace_has_no_stamp_of_a_launch_before(forgets: bool) -> None:
    """The CTA that adds up the spans writes this stamp. In the second launch each context has one span, so no CTA
    writes it."""
    case = CASES["new tokens"]
    op = DecodeAttention(**case.op)
    tiling, plan = tiling_of(case, op), plan_of(case, op, contiguous=False)
    changes = CLOCKED if forgets else [*CLOCKED, ("  forget_stamps(args);\n", "")]
    library = attention_library(tiling, op, changes, traced_tasks=plan.most_tasks)
    run = EmulatedAttention(op=op, lengths=case.lengths)
    seen = []
    for lengths in (case.lengths, [min(length, op.new_tokens) for length in case.lengths]):
        run.lengths = lengths
        run.run(library, plan, tiling, speculative=case.speculative)
        seen.append(bool(run.trace[:, 1:, 5].any()))
    assert seen == [True, not forgets]


def stamped_and_wanted(name: str, *changes: tuple[str, str]) -> tuple[Stamped, list[tuple[int, int]]]:
    """The stamps of a launch, and for each CTA of each cluster the sequence of each task that it should run."""
    case = CASES[name]
    op, form = DecodeAttention(**case.op), form_of(case, DecodeAttention(**case.op))
    tiling, plan = tiling_of(case, op), plan_of(case, op, contiguous=False)
    library = attention_library(tiling, op, [*CLOCKED, *changes], form, traced_tasks=plan.most_tasks)
    run = EmulatedAttention(op=op, lengths=case.lengths, form=form)
    run.run(library, plan, tiling, speculative=case.speculative)
    stamped = stamped_of(0, 1, plan, run.trace)
    (tasks, queues), live = plan.run_at(case.lengths), [plan.live_spans(length) for length in case.lengths]
    run_by = [
        (queue, place)
        for queue in range(plan.num_queues)
        for place in range(queues[queue], queues[queue + 1])
        if (place == queues[queue] and not plan.by_length) or tasks[place, 1] & 0xFFFFFF in live[tasks[place, 0] >> 16]
    ]
    of_cta = [(queue * plan.cluster + rank, place) for queue, place in run_by for rank in range(plan.cluster)]
    assert len(set(map(tuple, stamped.tasks.tolist()))) == len(run_by)
    assert len(stamped.ctas) == plan.num_queues * plan.cluster
    return stamped, [(cta, int(tasks[place, 0] >> 16)) for cta, place in of_cta]


def sequences_of_ctas(stamped: Stamped) -> list[tuple[int, int]]:
    ctas = stamped.table[: len(stamped.tasks), 5].tolist()
    return list(zip(ctas, stamped.tasks[:, 1].tolist(), strict=True))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "name",
    one_in(
        3,
        [
            "ragged",
            "clusters, spans",
            "empty",
            "by length",
            "by length, many sequences",
            "finished by the math warps",
        ],
    ),
)
def test_each_task_that_is_run_is_stamped_by_each_cta_of_its_cluster(name: str) -> None:
    stamped, wanted = stamped_and_wanted(name)
    assert sorted(sequences_of_ctas(stamped)) == sorted(wanted)
    assert (np.diff(stamped.table[: len(wanted), :5], axis=1) >= 0).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("before", "after"),
    one_in(2, [("other < lane", "other > lane"), ("2 * (args.num_queues - cluster) - 1", "args.num_queues")]),
)
def test_who_runs_what_is_as_the_plan_says(before: str, after: str) -> None:
    """Results are correct whichever CTA runs a task, but the work would be shared unevenly."""
    stamped, wanted = stamped_and_wanted("by length, many sequences", (before, after))
    assert sorted(sequences_of_ctas(stamped)) != sorted(wanted)


def rows_asked_for(*changes: tuple[str, str], early: bool = False, asking: int = 0) -> list[tuple[int, int, bool]]:
    """The rows prefetched from a weight matrix of 1,000 rows of 4,096 bytes at address 2^32, if 512 bytes of each row
    are requested and `asking` clusters have no other work."""
    case = CASES["clusters, spans"]
    op = DecodeAttention(**case.op)
    tiling = tiling_of(case, op)
    library = attention_library(tiling, op, changes)
    run = EmulatedAttention(op=op, lengths=case.lengths)
    weights = WeightsAt(address=2**32, num_rows=1000, row_bytes=4096, taken_bytes=512, early=early)
    before = len(asked_of_l2(library))
    plan = replace(plan_of(case, op, contiguous=False), num_asking=asking)
    out = run.run(library, plan, tiling, speculative=case.speculative, next_weights=weights)
    assert np.abs(from_bits(out, op.dtype) - run.expected()).max() < case.most
    return sorted(asked[:3] for asked in asked_of_l2(library)[before:])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("early", [*soaked(False), True])
def test_the_weights_behind_are_asked_for_once_and_before_the_wait_where_early(early: bool) -> None:
    wanted = [(2**32 + 4096 * row, 512, not early) for row in range(1000)]
    assert rows_asked_for(early=early) == wanted
    assert rows_asked_for(("lane * num_ctas", "lane"), early=early) != wanted


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("waits", [True, False])
def test_weights_that_are_not_asked_for_early_are_asked_for_when_a_ctas_tiles_are_there(waits: bool) -> None:
    case = CASES["ragged"]
    op = DecodeAttention(**case.op)
    tiling, plan = tiling_of(case, op), plan_of(replace(case, queues=1), op, contiguous=True)
    library = attention_library(
        tiling,
        op,
        [] if waits else [("if (last >= 0 && !wait_phase(args", "if (false && !wait_phase(args")],
    )
    weights = WeightsAt(address=2**32, num_rows=64, row_bytes=64, taken_bytes=64)
    least = []
    for seed in range(4):  # copies complete in varying order, and the last one requested may be the last
        before = len(asked_of_l2(library))
        run = EmulatedAttention(op=op, lengths=case.lengths, copy_rounds=400, seed=seed)
        run.run(library, plan, tiling, speculative=case.speculative, next_weights=weights)
        asked = asked_of_l2(library)[before:]
        assert len(asked) == weights.num_rows
        least.append(min(copies for *_, copies in asked))
    assert (min(least) == 0) == waits


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_clusters_without_tasks_ask_for_their_share_of_the_weights_alone() -> None:
    wanted = [(2**32 + 4096 * row, 512, False) for row in range(1000)]
    assert rows_asked_for(early=True, asking=5) == wanted
    assert (
        rows_asked_for(
            ("if (thread >= kRequester && brings_tasks()) prefetch", "if (false) prefetch"), early=True, asking=5
        )
        != wanted
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "engine"), [("pages of 16", "tma"), ("ragged", "mma"), *soaked(("ragged", "tma"), ("pages of 16", "mma"))]
)
def test_who_reads_before_the_launch_before_has_ended_is_caught(name: str, engine: str) -> None:
    """Covers queries, lengths, page numbers and the cache."""
    with pytest.raises(AssertionError, match="previous launches may still write"):
        worst(CASES[name], *WAITS_LAST, engine=AttentionEngine(engine))


@pytest.mark.parametrize(("row_bytes", "taken_bytes"), [(24, 16), (32, 8), (32, 48)])
def test_weights_that_the_copy_engine_cannot_take_are_refused(row_bytes: int, taken_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"multiples of 16|do not fit into a row"):
        WeightsAt(address=0, num_rows=1, row_bytes=row_bytes, taken_bytes=taken_bytes)
