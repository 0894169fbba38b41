"""What a search in another process is told, in which order, and which process it gets; nothing is started."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import measured
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Trial
from tuner.errors import SearchLost
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search import SearchOrder, SearchProcesses, processes

PAIR = ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64)
ORDER = SearchOrder(workload=PAIR, gpu=CATALOGUE["h200"], seed=3, num_trials=24)
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)
TRIAL = Trial(
    number=0, candidate=LIBRARY, outcome=measured(9.0), num_known=0, started_at=1.0, finished_at=2.0
)  # fmt: skip


class Noting:
    """A searcher that notes what it is told."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    @property
    def waits_for_all(self) -> bool:
        return "wind up" in self.noted

    def begin_with(self, priors: tuple[Candidate, ...]) -> None:
        self.noted.append(priors)

    def tell(self, trial: Trial) -> None:
        self.noted.append(trial)

    def wind_up(self) -> None:
        self.noted.append("wind up")

    def ask(self) -> Candidate | None:
        self.noted.append("ask")
        return LIBRARY

    def think_ahead(self) -> bool:
        self.noted.append("think ahead")
        raise ValueError("it has a fault")


class NoProcess:
    """Has the methods of a process of searches, which work here, with a searcher for each search."""

    def __init__(self) -> None:
        self.pid, self.num_searches, self.is_lost = id(self), 0, False
        self.searches: dict[int, Noting] = {}
        self.ended: list[int] = []
        self.orders: list[SearchOrder | None] = []

    def new_number(self) -> int:
        self.searches[len(self.searches) + 1] = Noting()
        return len(self.searches)

    def end(self, number: int) -> None:
        self.ended.append(number)

    def kill(self) -> None:
        self.is_lost = True

    def ask(self, number: int, order: SearchOrder | None, *more: Any) -> Any:
        self.orders.append(order)
        if self.is_lost:
            raise SearchLost("its process has died")
        noted = dict(zip(("trials", "is_winding_up", "method", "priors"), more, strict=True))
        request = processes._Request(number=number, ended=(), order=None, **noted)
        return processes._answer(self.searches, request)  # type: ignore[arg-type]


@pytest.fixture
def all_of_them(monkeypatch: pytest.MonkeyPatch) -> SearchProcesses:
    monkeypatch.setattr(processes, "_Process", NoProcess)
    return SearchProcesses(2)


def test_a_search_is_told_all_once_and_in_the_order_of_the_calls(all_of_them: SearchProcesses) -> None:
    with all_of_them.search(ORDER) as search:
        process: Any
        (process,) = all_of_them._processes
        search.begin_with([LIBRARY])
        assert (search.ask(), search.waits_for_all) == (LIBRARY, False)
        search.tell(TRIAL)
        search.tell(TRIAL)
        assert search.ask() == LIBRARY
        search.wind_up()
        assert (search.ask(), search.waits_for_all) == (LIBRARY, True)
        assert process.ended == []
    assert process.ended == [1]
    assert process.orders == [ORDER, None, None], "it has begun"
    assert process.searches[1].noted == [(LIBRARY,), "ask", TRIAL, TRIAL, "ask", "wind up", "ask"]


def test_a_fault_of_a_search_is_told_with_its_place_and_the_process_works_on(all_of_them: SearchProcesses) -> None:
    with all_of_them.search(ORDER) as search:
        with pytest.raises(ValueError, match="it has a fault") as noted:
            search.think_ahead()
        assert "in think_ahead" in "".join(noted.value.__notes__)
        assert search.ask() == LIBRARY


def test_a_search_has_a_process_of_its_own_up_to_the_most_and_a_lost_one_is_replaced(
    all_of_them: SearchProcesses,
) -> None:
    with all_of_them.search(ORDER), all_of_them.search(ORDER), all_of_them.search(ORDER):
        assert [process.num_searches for process in all_of_them._processes] == [2, 1]
    with all_of_them.search(ORDER) as search:
        one, other = all_of_them._processes
        assert (one.num_searches, other.num_searches) == (1, 0)
        one.kill()
        with pytest.raises(SearchLost):
            search.ask()
        assert all_of_them.pids == [other.pid]
    other.kill()
    with all_of_them.search(ORDER) as search:
        assert search.ask() == LIBRARY
        assert len(all_of_them.pids) == 1


def test_an_ended_search_is_asked_nothing_and_its_process_forgets_it() -> None:
    searches: dict[int, Any] = {1: Noting(), 2: Noting()}
    noted = {"order": None, "trials": (), "is_winding_up": False, "method": "ask", "priors": None}
    processes._answer(searches, processes._Request(number=2, ended=(1,), **noted))  # type: ignore[arg-type]
    assert searches.keys() == {2}
