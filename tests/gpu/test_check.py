"""The check of a second launch: our kernel must give the same bits, a library only a correct result."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.conformance.launching import OnCard
from tests.support.on_card import problem, schedule
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.protocol.messages import Work

cupy = pytest.importorskip("cupy")

WORKLOAD = ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256)
OURS = fused(schedule(((16, 64, 64), (16, 64, 64))))


class Restless:
    """Runs the library, and changes the last bits of its output in each second launch."""

    def __init__(self, prepared: Any, changed_bits: int) -> None:
        self._prepared, self._changed_bits, self._num_runs = prepared, changed_bits, 0

    def __call__(self, ops: Any) -> str | None:
        record: str | None = self._prepared.run_once(self._prepared.library, ops)
        self._num_runs += 1
        if self._num_runs % 2 == 0:
            self._prepared.data.written("down", 0)[3, 5] ^= self._changed_bits
        return record


def checked(on_card: OnCard, candidate: Any, changed_bits: int) -> float:
    from tuner.workers.gpu.tensors.check import check_numbers

    prepared = on_card.session._prepare(problem(WORKLOAD))
    work = Work(plan_kind=PlanKind.LIBRARY) if candidate == LIBRARY else on_card.ready(WORKLOAD, candidate).work
    return check_numbers(prepared.data, prepared.comparer, Restless(prepared, changed_bits), work)


def test_a_library_whose_second_launch_has_other_bits_that_are_right_is_right(on_card: OnCard) -> None:
    assert 0 < checked(on_card, LIBRARY, 1) < 1e-2


def test_a_library_whose_second_launch_is_wrong_is_found_out(on_card: OnCard) -> None:
    from tuner.workers.gpu.tensors.check import WrongNumbers

    with pytest.raises(WrongNumbers, match=r"1 of 4096 elements of down are wrong, the first at \[3, 5\]"):
        checked(on_card, LIBRARY, 0x4000)


def test_ours_must_give_the_same_bits(on_card: OnCard) -> None:
    from tuner.workers.gpu.tensors.check import WrongNumbers

    with pytest.raises(WrongNumbers, match="a second launch of down computed different bits"):
        checked(on_card, OURS, 1)
