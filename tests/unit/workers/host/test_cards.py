"""Which cards a service may use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.errors import WorkerError
from tuner.workers.host.cards import Card, choose, visible_of

CARDS = [
    Card(uuid=uuid, name="NVIDIA H200", compute_capability=(9, 0), driver="580")
    for uuid in ("GPU-aa10", "GPU-aa20", "GPU-bb30")
]


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-bb30", [2]),
        ("GPU-bb", [2]),
        ("GPU-aa20,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-aa", []),  # two cards begin so
        ("1,7,0", [1]),  # a name without a card ends the list
        ("1,-1,0", [1]),
        ("1,1", [1]),
        ("MIG-aa10", []),
    ],
)
def test_visible_devices_are_named_as_in_cuda(chosen: str, numbers: list[int]) -> None:
    assert visible_of(CARDS, chosen) == [CARDS[number] for number in numbers]


def test_a_sliced_card_is_left_out_and_said_not_to_be_measured() -> None:
    found = choose([CARDS[0], replace(CARDS[1], is_sliced=True), CARDS[2]], None)
    assert found.usable == (CARDS[0], CARDS[2])
    (reason,) = found.refused
    assert "GPU-aa20" in reason
    assert "slices are not measured" in reason


@pytest.mark.parametrize("chosen", [None, "0", "MIG-2f1c", "MIG-GPU-aa10/1/0"])
def test_where_there_are_slices_alone_that_is_the_reason(chosen: str | None) -> None:
    with pytest.raises(WorkerError, match="slices are not measured") as refused:
        choose([replace(CARDS[0], is_sliced=True)], chosen)
    assert "compute capability" not in str(refused.value)


def test_an_old_card_is_refused_for_its_age() -> None:
    with pytest.raises(WorkerError, match="no GPU of compute capability"):
        choose([replace(CARDS[0], compute_capability=(7, 5))], None)
