"""Which cards a service may use."""

from __future__ import annotations

import pytest

from tuner.workers.host.cards import Card, visible_of

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
        ("1,7,0", [1]),  # what names no card ends the list
        ("1,-1,0", [1]),
        ("1,1", [1]),
        ("MIG-aa10", []),
    ],
)
def test_visible_devices_are_named_as_in_cuda(chosen: str, numbers: list[int]) -> None:
    assert visible_of(CARDS, chosen) == [CARDS[number] for number in numbers]
