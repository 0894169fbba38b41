from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import ordered_graphs, ordering, small_gpu, tiling
from tuner.core.plan.build import make_plan
from tuner.core.plan.tile_graph import TileGraph, tile_graph
from tuner.core.plan.words import HEADER_WORDS, MAGIC, Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import ffn_pair
from tuner.core.schedule.ordering import Assignment, Ordering
from tuner.errors import PlanError

PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
WORDS = make_plan(PAIR, ordering(assignment=Assignment.STATIC), small_gpu(3)).words


@given(ordered_graphs())
def test_words_round_trip(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, gpu = case
    plan = make_plan(graph, order, gpu)
    back = Plan.from_words(plan.words)
    for field in ("tasks", "waits", "queues"):
        assert getattr(back, field).tolist() == getattr(plan, field).tolist()
    numbers = ("num_signals", "num_ctas", "assignment", "num_first_tasks", "num_first_ctas", "held_stages")
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
    """Part 2 of 3 of op 1: 33,069 k-steps from 7,000 on, more than a signed word of 16 bits holds."""
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


def test_words_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        WORDS[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        Plan.from_words(WORDS).tasks[0, 0] = 1


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (0, 7, "must start with"),
        (1, 1, "must start with"),
        (2, -1, "header field is out of range"),
        (2, 10**6, "lies outside the table"),
        (4, 0, "header field is out of range"),
        (5, 2, "the first list has 0 of 8 tasks, and 0 of 3 CTAs that begin there; both lists must have CTAs"),
        (5, 3, "a first wave of 0 of 8 tasks on 3 CTAs; it must have one for each"),
        (5, 4, "header field is out of range"),
        (7, 3, "lies outside the table"),
        (9, 10**6, "lies outside the table"),
        (12, -1, "header field is out of range"),
        (13, 2, "header field is out of range"),
        (HEADER_WORDS + 1, 100, "do not partition"),
        (int(WORDS[7]) + 4, 99, "wait range or posted signal"),
        (int(WORDS[7]) + 5, 99, "wait range or posted signal"),
        (int(WORDS[8]) + 1, 99, "signal range is empty or out of range"),
    ],
)
def test_a_table_that_is_no_plan_is_refused(at: int, value: int, problem: str) -> None:
    words = WORDS.copy()
    words[at] = value
    with pytest.raises(PlanError, match=problem):
        Plan.from_words(words)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, WORDS.size - 1), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=3))
def test_a_damaged_table_is_refused_or_read_but_never_crashes(damage: list[tuple[int, int]]) -> None:
    words = WORDS.copy()
    for at, value in damage:
        words[at] = value
    try:
        plan = Plan.from_words(words)
    except PlanError:
        return
    assert plan.num_tasks >= 0


def test_a_table_that_ends_early_is_refused() -> None:
    for size in range(0, WORDS.size, 5):
        with pytest.raises(PlanError, match="not a plan"):
            Plan.from_words(WORDS[:size])
