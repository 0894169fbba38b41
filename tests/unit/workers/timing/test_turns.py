"""The order of samples in rounds: which comes first, which load precedes it, and which sample counts for two rounds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest

from tuner.workers.timing.turns import Turn, turns


def rounds(num_graphs: int, num_rounds: int, *, shares_first: bool = False) -> list[list[Turn]]:
    return [list(turns(num_graphs, number, shares_first=shares_first)) for number in range(num_rounds)]


def test_every_graph_has_one_turn_a_round_and_the_order_turns() -> None:
    found = [[turn.index for turn in one] for one in rounds(3, 7)]
    assert found == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1], [1, 0, 2], [2, 1, 0], [0, 1, 2]]
    assert [turn.index for turn in rounds(6, 1)[0]] == [0, 1, 5, 2, 4, 3]


@pytest.mark.parametrize("num_graphs", range(3, 12))
def test_each_graph_comes_right_behind_each_other_one_equally_often(num_graphs: int) -> None:
    times = 1 + num_graphs % 2
    found = [[turn.index for turn in one] for one in rounds(num_graphs, times * num_graphs)]
    assert all(sorted(one) == list(range(num_graphs)) for one in found)
    assert Counter(one[0] for one in found) == dict.fromkeys(range(num_graphs), times)
    assert Counter(pair for one in found for pair in pairwise(one)) == dict.fromkeys(
        permutations(range(num_graphs), 2), times
    )


def test_of_two_graphs_a_round_begins_with_the_one_that_is_loaded() -> None:
    first, *others = rounds(2, 4)
    assert not any(turn.is_loaded for turn in first)
    assert [[turn.is_loaded for turn in one] for one in others] == [[True, False]] * 3
    assert [one[0].index for one in others] == [1, 0, 1]


def test_of_more_graphs_none_is_loaded_and_none_shared() -> None:
    found = [turn for one in rounds(5, 6, shares_first=True) for turn in one]
    assert not any(turn.is_loaded or turn.is_shared for turn in found)


def test_the_first_graphs_sample_counts_for_two_rounds_where_it_is_shared_and_the_others_never() -> None:
    assert not any(turn.is_shared for one in rounds(2, 6) for turn in one)
    shared = [[(turn.index, turn.is_shared) for turn in one] for one in rounds(2, 5, shares_first=True)]
    assert shared == [
        [(0, False), (1, False)],
        [(1, False), (0, False)],
        [(0, True), (1, False)],
        [(1, False), (0, False)],
        [(0, True), (1, False)],
    ]


def test_one_graph_is_loaded_by_its_own_sample() -> None:
    assert [one[0].is_loaded for one in rounds(1, 3)] == [False, True, True]
    assert not any(one[0].is_shared for one in rounds(1, 3))
