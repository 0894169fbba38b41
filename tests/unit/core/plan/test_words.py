from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import ordered_graphs, ordering, small_gpu, tiling
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.header import HEADER_WORDS, MAGIC
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.ordering import Assignment, Ordering
from tuner.errors import PlanError, WordError
from tuner.ops.gemm.pairs import ffn_pair

PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
WORDS = make_plan(PAIR, ordering(assignment=Assignment.STATIC), small_gpu(3)).words


@pytest.mark.slow
@given(ordered_graphs())
def test_words_round_trip(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, gpu = case
    plan = make_plan(graph, order, gpu)
    back = Plan.from_words(plan.words)
    for field in ("tasks", "waits", "queues"):
        assert getattr(back, field).tolist() == getattr(plan, field).tolist()
    numbers = ("num_signals", "num_ctas", "assignment", "num_first_tasks", "held_stages")
    for number in (*numbers, "strided_parts", "num_split_tiles"):
        assert getattr(back, number) == getattr(plan, number)
    assert back.words.tobytes() == plan.words.tobytes()


def test_words_start_as_the_kernel_expects_and_are_aligned_for_vector_loads() -> None:
    assert WORDS.dtype == np.int32
    assert WORDS[:6].tolist() == [MAGIC, 5, 8, 2, 3, 0]
    queue_offset, task_offset, wait_offset, num_waits = WORDS[6:10].tolist()
    assert queue_offset == HEADER_WORDS
    assert task_offset % 8 == wait_offset % 8 == 0
    assert wait_offset + 8 * num_waits == WORDS.size


def test_a_task_of_a_part_says_in_its_words_which_k_steps_it_has() -> None:
    """Part 2 of 3 of op 1: 33,069 k-steps starting at 7,000, more than a signed 16-bit word holds."""
    plan = make_plan(PAIR, ordering(), small_gpu(3))
    task = [1, 5, 6, 0, 1, -1, 2, 3, 4, 7000, 33069]
    words = replace(plan, tasks=np.array([task], dtype=np.int32)).words
    first = int(words[7])
    assert words[first : first + 8].view(np.uint32).tolist() == [
        1 | 2 << 16 | 3 << 24,
        5,
        6,
        0,
        1,
        2**32 - 1,
        7000 | 33069 << 16,
        4,
    ]


def arrays_of(plan: Plan) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [plan.words, plan.tasks, plan.waits, plan.queues]


@pytest.mark.parametrize("copied", [False, True])
def test_the_words_of_a_plan_cannot_be_written_nor_made_writable(copied: bool) -> None:
    plan = Plan.from_words(WORDS)
    if copied:  # as on the way to the process that launches it
        plan = pickle.loads(pickle.dumps(plan))
    for array in arrays_of(plan):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            array.setflags(write=True)
        while (array := array.base) is not None:  # nor through the array that it is a view of
            assert isinstance(array, bytes) or not array.flags.writeable
            if isinstance(array, bytes):
                break
    assert plan.table == WORDS.tobytes()


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (0, 7, "must start with"),
        (1, 1, "must start with"),
        (2, -1, "num_tasks is -1; it must be 0 to 16777216"),
        (2, 10**6, "wait_offset is 88; it must be 8000024"),
        (4, 0, "num_ctas is 0; it must be 1 to 16777216"),
        (5, 2, "assignment is 2; it must be 0, 1 or 3"),
        (5, 3, "num_first_tasks is 0; it must be the 3 CTAs, of 8 tasks: a first wave has a task for each CTA"),
        (5, 4, "assignment is 4; it must be 0 to 3"),
        (7, 3, "task_offset is 3; it must be 16 to"),
        (7, 25, "task_offset is 25; it must be 24"),
        (9, 10**6, "the table has 104 words; according to its header it must have 8000088"),
        (10, 1, "num_first_tasks is 1; it must be 0"),
        (11, 1, "word 11 is 1; it must be 0"),
        (12, -1, "held_stages is -1"),
        (13, 2, "strided_parts is 2; it must be 0 to 1"),
        (15, 256, "in_band_ops is 256; it must be 0 to 255"),
        (HEADER_WORDS + 1, -1, "queue word 1 is -1; it must be 0 to 8"),
        (HEADER_WORDS + 2, 0, "do not cover each task once"),
        (HEADER_WORDS + 5, 1, "filler is 1; it must be 0"),
        (int(WORDS[7]), 0x8001, "op of task 0 is -32767"),
        (int(WORDS[7]) + 1, -1, "tile_m of task 0 is -1"),
        (int(WORDS[7]) + 4, 99, "wait_end of task 0 is 99; it must be at most 2, the number of waits"),
        (int(WORDS[7]) + 5, 99, "post of task 0 is 99; it must be below 2, the number of signals"),
        (int(WORDS[7]) + 7, -1, "slot of task 0 is -1"),
        (int(WORDS[8]) + 1, 99, "signal_end of wait 0 is 99; it must be at most 2"),
        (int(WORDS[8]) + 9, 1, "signal_end of wait 1 is 1; it must be above signal_begin"),
        (int(WORDS[8]) + 10, -1, "threshold of wait 1 is -1; it must be 0 to 16777216"),
        (int(WORDS[8]) + 4, 2**26 + 1, "before_step of wait 0 is 67108865; it must be 0 to 67108864"),
        (int(WORDS[8]) + 5, 7, "word 5 of wait 0 is 7; it must be 0"),
    ],
)
def test_a_table_that_is_no_plan_is_refused(at: int, value: int, problem: str) -> None:
    words = WORDS.copy()
    words[at] = value
    with pytest.raises(WordError, match=problem):
        Plan.from_words(words)


def test_queues_that_rise_only_by_wrapping_are_refused() -> None:
    plan = make_plan(PAIR, ordering(assignment=Assignment.STATIC), small_gpu(4))
    queues = np.array([0, 2**31 - 1, -(2**31), -1, 8], dtype=np.int32)
    with pytest.raises(WordError, match="queue word 1 is 2147483647"):
        Plan.from_words(replace(plan, queues=queues).words)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, WORDS.size - 1), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=3))
def test_a_damaged_table_is_refused_or_read_but_never_crashes(damage: list[tuple[int, int]]) -> None:
    words = WORDS.copy()
    for at, value in damage:
        words[at] = value
    try:
        plan = Plan.from_words(words)
    except PlanError:
        return
    assert (plan.words == words).all()


def test_a_table_that_ends_early_is_refused() -> None:
    for size in range(0, WORDS.size, 5):
        with pytest.raises(PlanError, match="not a plan"):
            Plan.from_words(WORDS[:size])
