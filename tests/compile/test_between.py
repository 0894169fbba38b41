"""An attention between products on the CPU: launches in order give correct results, and stale inputs are detected."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.emulated.attention import WAITS_LAST
from tests.support.emulated.between import EmulatedBetween
from tests.support.lanes import one_in, soaked

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: The longest sequence, one token, an empty sequence, one that ends within a tile.
LENGTHS = (200, 1, 0, 131)


#: The heads that each op rotates, and where it writes.
WAYS: dict[str, dict[str, Any]] = {
    "turned": {},
    "turned, pages of 16": {"pages": {"page_tokens": 16}},
    "rotary, pages of 64, tokens first": {"pages": {"page_tokens": 64, "heads_first": False}},
    "queries alone": {"rotary": False},
}


@pytest.fixture(params=one_in(4, WAYS), scope="module")
def made(request: pytest.FixtureRequest) -> EmulatedBetween:
    workload = between(**WAYS[request.param], norm=False, sizes={"max_length": 200})
    return EmulatedBetween(workload, candidate_of(workload), LENGTHS)


@pytest.mark.slow
def test_launches_in_order_are_right_run_after_run(made: EmulatedBetween) -> None:
    for seed in range(2):
        made.draw(seed)
        made.poison()
        made.launch(made.order)
        assert made.wrong() == []


# In CI, test_append.py and test_emulated.py write to caches, and other tests of this file read them.
@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in WAYS if "pages" in name])
def test_a_cache_that_packs_keys_and_values_is_written_and_read_alike(name: str) -> None:
    """Keys and values are interleaved in a line, and there are gaps after pages."""
    workload = between(**WAYS[name], norm=False, sizes={"max_length": 200})
    made = EmulatedBetween(workload, candidate_of(workload), LENGTHS, is_packed=True)
    made.draw(1)
    made.poison()
    made.launch(made.order)
    assert made.wrong() == []


# In CI, new rows of the run before are found out.
@pytest.mark.soak
def test_queries_of_the_run_before_are_found_out(made: EmulatedBetween) -> None:
    made.draw(0)
    made.launch(made.order)
    made.draw(1)
    front, attention, behind = made.order
    made.launch((attention, front, behind))
    assert made.wrong() == ["attention"]


@pytest.mark.slow
def test_what_is_read_before_it_is_written_is_found_out(made: EmulatedBetween) -> None:
    made.poison()
    front, attention, behind = made.order
    made.launch((attention, front, behind))
    assert made.wrong() == ["attention", "o_proj"]


@pytest.mark.slow
def test_results_that_are_read_too_early_are_found_out(made: EmulatedBetween) -> None:
    made.poison()
    front, attention, behind = made.order
    made.launch((front, behind, attention))
    assert made.wrong() == ["o_proj"]


def test_pages_of_new_tokens_that_are_requested_before_the_wait_are_found_out() -> None:
    workload = between(**WAYS["turned, pages of 16"], norm=False, sizes={"max_length": 200})
    made = EmulatedBetween(workload, candidate_of(workload), LENGTHS, WAITS_LAST)
    with pytest.raises(AssertionError, match="previous launches may still write"):
        made.launch(made.order)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["turned", *soaked("turned, pages of 16")])
def test_new_rows_of_the_run_before_are_found_out(name: str) -> None:
    workload = between(**WAYS[name], norm=False, sizes={"max_length": 200})
    made = EmulatedBetween(workload, candidate_of(workload), LENGTHS)
    made.draw(0)
    made.launch(made.order)
    front, attention, behind = made.order
    stale, cache = made.attention.k.copy(), made.attention.k
    made.draw(1)
    made.launch((front,))
    made.attention.k = stale
    made.launch((attention,))
    made.attention.k = cache
    made.launch((behind,))
    assert made.wrong() == ["attention"]
