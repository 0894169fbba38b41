from __future__ import annotations

import pytest

from tuner.workers.builder.places import BUILD_BYTES, num_places, places_here


@pytest.mark.parametrize(
    ("num_cores", "free_builds", "places"), [(16, 100, 15), (16, 4, 4), (2, 100, 1), (1, 100, 1), (16, 0, 1)]
)
def test_all_cores_but_one_build_and_no_more_than_the_memory_holds(
    num_cores: int, free_builds: int, places: int
) -> None:
    assert num_places(num_cores, free_builds * BUILD_BYTES) == places


def test_this_machine_has_a_place() -> None:
    assert places_here() >= 1
