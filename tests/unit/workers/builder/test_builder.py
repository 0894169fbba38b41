"""What a builder asks of its processes, and what becomes of their answers and of its end: none is started."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cases import H200
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.limits import Limits
from tuner.errors import WorkerError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder import nvrtc
from tuner.workers.builder.nvrtc import Builder, BuildTimeout
from tuner.workers.builder.prepare import PreparedKernel, try_prepare

PAIR = ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64)


class Pool:
    """Keeps what it is asked for, and answers with `future`."""

    def __init__(self, builder: Builder, monkeypatch: pytest.MonkeyPatch, future: Future[Any]) -> None:
        self.asked: list[tuple[str, float]] = []
        self.began = threading.Event()
        self._future = future
        monkeypatch.setattr(builder, "_schedule", self._schedule)

    def _schedule(self, function: Any, *, timeout: float = 0.0, **_: Any) -> Future[Any]:
        self.asked.append((function.__name__, timeout))
        self.began.set()
        return self._future


def answered(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    with closing(Builder(tmp_path, limits=Limits(build_deadline_s=5), num_processes=3)) as builder:
        yield builder


def test_a_short_call_waits_for_no_compile(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(builder, monkeypatch, answered(7))
    for _ in range(3):
        assert builder._free.acquire(blocking=False), "as many compiles as processes"
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(builder.run(len, "")), daemon=True)
    thread.start()
    thread.join(5)
    assert (found, pool.asked) == ([7], [("len", 5)])
    builder._free.release(3)


def test_on_few_cores_the_thread_that_asks_does_what_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Builder(tmp_path, num_processes=2, modules=["wave"])) as builder:
        pool = Pool(builder, monkeypatch, answered(0))
        assert builder.run(os.getpid) == os.getpid()
        assert pool.asked == []
        assert builder._make_pool.keywords["initargs"] == (os.getpid(), ()), "none is imported where nothing is called"


def test_processes_import_what_they_are_told_before_their_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Builder(tmp_path, num_processes=5, modules=["this_is_told"])) as builder:
        options = builder._make_pool.keywords
    assert options["max_workers"] == 5 + 2, "one for short calls beside every four compiles"
    (tmp_path / "this_is_told.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    parents = list[int]()
    monkeypatch.setattr(nvrtc, "die_with_parent", parents.append)
    options["initializer"](*options["initargs"])
    assert (sys.modules.pop("this_is_told", None) is not None, parents) == (True, [os.getpid()])


def test_a_compile_has_a_deadline_behind_which_it_is_killed(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: Future[Any] = Future()
    killed.set_exception(FutureTimeoutError())
    pool = Pool(builder, monkeypatch, killed)
    with pytest.raises(BuildTimeout, match="killed after 5 s"):
        builder.build("any", "sm_80")
    assert pool.asked == [("_compile_timed", 5)]


def test_the_last_user_ends_a_compile_that_another_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, errors = Builder(tmp_path, limits=Limits(build_deadline_s=60)), list[BaseException]()
    pool = Pool(builder, monkeypatch, Future())

    def wait() -> None:
        try:
            builder.build("any", "sm_80")
        except WorkerError as error:
            errors.append(error)

    builder.share()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert pool.began.wait(5)
    builder.close()
    thread.join(0.02)
    assert (thread.is_alive(), errors) == (True, []), "it has another user"
    builder.close()
    thread.join(5)
    assert [str(error) for error in errors] == ["the compilers were closed"]


def test_a_candidate_is_proven_and_tied_where_the_builder_says() -> None:
    ran = list[str]()
    proven = SimpleNamespace(stage_s={"verify": 1.0}, sources=("first", "second"), gpu=H200)

    def run(function: Any, *args: Any) -> Any:
        ran.append(function.__name__)
        return proven if len(ran) == 1 else args

    builder: Any = SimpleNamespace(run=run, build=lambda source, arch: (source, arch))
    candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=SimpleNamespace())  # type: ignore[arg-type]
    found: Any = try_prepare(PAIR, H200, candidate, builder)
    assert ran == ["_try_prove", "_try_tie"]
    given, builds, stage_s, _ = found
    assert (given, builds) == (proven, (("first", "sm_90a"), ("second", "sm_90a")))
    assert set(stage_s) == {"verify", "build"}
    assert isinstance(try_prepare(PAIR, H200, LIBRARY, builder), PreparedKernel)
    assert len(ran) == 2, "the library needs no process"
