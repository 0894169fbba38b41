"""A thread that waits for a commit is woken only by a commit that concerns it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.builders import measured, spec, trial
from tests.support.waiting import wait_until
from tuner.core.trial.job import JobState
from tuner.store import Store
from tuner.store.engine.commits import Commits
from tuner.store.jobs import jobs
from tuner.store.trials import trials

LONG_S = 120.0


@contextmanager
def waiting(commits: Commits, wait: Callable[[], object]) -> Iterator[threading.Event]:
    """The event on which a waiting thread waits; the thread has ended after the block."""
    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(commits._waiting))
    [[own]] = commits._waiting.values()
    yield own
    thread.join()
    assert commits._waiting == {}


def test_a_watcher_is_woken_by_events_of_its_own_job_alone() -> None:
    commits = Commits(None)
    own = threading.Event()
    with commits.listening(["job-a", "job-c"], own):
        commits.note(["job-b"], brings_work=True)
        assert not own.is_set()
        commits.note(["job-b", "job-a"], brings_work=False)
        assert own.is_set()
        own.clear()
        commits.note(["job-c"], brings_work=False)
        assert own.is_set()
    assert commits._waiting == {}


def test_a_runner_is_woken_by_what_may_bring_work_alone() -> None:
    commits = Commits(None)
    with waiting(commits, lambda: commits.wait_for_work(0, LONG_S)) as own:
        commits.note(["job-a"], brings_work=False)
        assert (own.is_set(), commits.num_writes, commits.num_works) == (False, 1, 0)
        commits.note([], brings_work=True)
        assert (own.is_set(), commits.num_works) == (True, 1)


def test_what_is_not_known_concerns_everybody() -> None:
    commits = Commits(None)
    own = threading.Event()
    with commits.listening(["job-a"], own):
        commits.note(None, brings_work=True)
        assert own.is_set()
    with waiting(commits, lambda: commits.wait_for_work(1, LONG_S)):
        commits.note(None, brings_work=True)


def test_what_came_before_one_waits_is_not_missed() -> None:
    commits = Commits(None)
    commits.note(["job-a"], brings_work=True)
    assert (commits.wait_for_write(0, LONG_S), commits.wait_for_work(0, LONG_S)) == (1, 1)
    assert commits.wait_for_write(1, 0.0) == 1, "the time was over, and there was no other one"


def test_a_recorded_trial_wakes_the_watchers_of_its_job(store: Store) -> None:
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
    own = threading.Event()
    with store.commits.listening([job.id], own):
        with store.write():
            pass
        assert not own.is_set()
        with store.write(brings_work=False) as session:
            trials.record(session, job.id, trial(0, measured(5.0)), 1.0)
        assert own.is_set()
