from __future__ import annotations

import random
from itertools import pairwise, permutations, product

import pytest

from tuner.core.plan.order.exact_rasters import exact_orders, fewest_panels
from tuner.core.plan.order.panel_cache import CachePolicy, CacheStep, Piece, Tile, cache_steps, reads_of, traffic
from tuner.errors import InvalidInput


def pieces(text: str) -> list[list[Piece]]:
    """One tile per letter of the text, each reading one piece."""
    return [[Piece(letter, 0, 0)] for letter in text]


def misses(text: str, size: int, policy: CachePolicy) -> str:
    """The pieces read from memory, in order."""
    return "".join(piece.operand for step in cache_steps(pieces(text), size, policy) for piece in step.loads)


@pytest.mark.parametrize(
    ("policy", "loads"),
    [(CachePolicy.LRU, "ABCB"), (CachePolicy.FIFO, "ABCAB"), (CachePolicy.OPTIMAL, "ABCB")],
)
def test_each_policy_gives_up_another_piece(policy: CachePolicy, loads: str) -> None:
    assert misses("ABACAB", 2, policy) == loads


def test_the_optimal_policy_knows_the_rest_of_the_path() -> None:
    assert misses("ABCABD", 2, CachePolicy.LRU) == "ABCABD"
    assert misses("ABCABD", 2, CachePolicy.OPTIMAL) == "ABCBD"


@pytest.mark.parametrize("policy", CachePolicy)
def test_every_step_accounts_for_what_the_cache_holds(policy: CachePolicy) -> None:
    rng = random.Random(7)
    for _ in range(30):
        path = [(row, col) for row in range(4) for col in range(3)]
        rng.shuffle(path)
        num_steps, size = rng.randint(1, 3), rng.randint(2, 12)
        held: set[Piece] = set()
        total = 0
        for step in cache_steps([reads_of(0, tile, num_steps) for tile in path], size, policy):
            assert set(step.loads) == {piece for piece in step.reads if piece not in held} | (
                set(step.loads) & set(step.evicted)
            )
            held = (held | set(step.loads)) - (set(step.evicted) - set(step.held))
            assert held == set(step.held)
            assert len(step.held) <= size
            total += len(step.loads)
            assert step.total == total


def test_the_optimal_policy_never_loads_more_than_another() -> None:
    rng = random.Random(11)
    for _ in range(200):
        path = list(product(range(rng.randint(1, 5)), range(rng.randint(1, 5))))
        rng.shuffle(path)
        size, num_steps = rng.randint(2, 9), rng.randint(1, 3)
        loads = {policy: traffic(path, size, num_steps, policy) for policy in CachePolicy}
        assert loads[CachePolicy.OPTIMAL] <= min(loads.values())


def test_what_goes_next_stands_first() -> None:
    def first_gone(steps: list[CacheStep]) -> list[tuple[Piece, Piece]]:
        return [(before.held[0], after.evicted[0]) for before, after in pairwise(steps) if after.evicted]

    path: list[Tile] = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
    for policy in (CachePolicy.LRU, CachePolicy.FIFO):
        for expected, gone in first_gone(
            cache_steps([[piece] for tile in path for piece in reads_of(0, tile, 1)], 3, policy)
        ):
            assert expected == gone


@pytest.mark.parametrize("policy", [CachePolicy.LRU, CachePolicy.FIFO])
@pytest.mark.parametrize(("num_steps", "cache"), [(1, 2), (1, 3), (2, 3), (2, 5), (3, 4)])
def test_the_least_with_k_steps_is_that_of_trying_every_path(policy: CachePolicy, num_steps: int, cache: int) -> None:
    first, *others = product(range(2), range(3))
    costs = [traffic((first, *rest), cache, num_steps, policy) for rest in permutations(others)]
    orders = exact_orders(2, 3, cache, num_steps, policy)
    assert fewest_panels(2, 3, cache, num_steps, policy) == orders.least_panels == min(costs)
    # Renaming the other row and the two other columns gives the same path 2 times.
    assert orders.num_paths * 2 == costs.count(min(costs))
    assert all(traffic(path, cache, num_steps, policy) == min(costs) for path in orders.paths())


@pytest.mark.parametrize(
    ("num_steps", "policy", "sentence"),
    [
        (0, CachePolicy.LRU, "0 k-steps take too long; use 1 to 6"),
        (9, CachePolicy.LRU, "9 k-steps take too long; use 1 to 6, or a smaller grid"),
        (1, CachePolicy.OPTIMAL, "known only for lru and fifo"),
    ],
)
def test_what_is_not_known_is_refused(num_steps: int, policy: CachePolicy, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        fewest_panels(2, 2, 4, num_steps, policy)
