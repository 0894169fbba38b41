from __future__ import annotations

import pytest

from tests.support.builders import measured, spec, trial
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import Metric
from tuner.core.trial.records import Inspection, InspectionKind, InspectionState
from tuner.core.trial.reports.inspection import Counter, CounterReport, EnergyReport, OpShares, TaskSpan, Trace
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import inspections, trials

COUNTERS, ENERGY, TRACE = InspectionKind.COUNTERS, InspectionKind.ENERGY, InspectionKind.TRACE
WEIGHED = EnergyReport(run_mj=40.5, power_w=600.0, window_s=1.1)

REPORT = CounterReport(
    counters=(Counter(name="dram__bytes_read.sum", unit="bytes", description="Bytes read.", value=1.5),),
    num_passes=2,
    absent={"sm__nothing.sum": "this GPU lacks it"},
)


def span(task: int) -> TaskSpan:
    times = {name: 100 * task + step for step, name in enumerate(("taken_ns", "ready_ns", "loaded_ns"))}
    return TaskSpan(
        launch=0, task=task, op=0, tile_m=task, tile_n=0, cta=task, sm=task, computed_ns=900, stored_ns=999, **times
    )


def chart(num_tasks: int) -> Trace:
    return Trace(
        spans=tuple(span(task) for task in range(num_tasks)),
        op_names=("up", "down"),
        makespan_ns=999,
        shares=(OpShares(op="up", wait=0.1, load=0.2, compute=0.3, store=0.4),),
        tail=0.25,
        simulated=True,
    )


@pytest.fixture
def job_id(store: Store) -> str:
    """The id of a running job with three trials."""
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number in range(3):
            trials.record(session, job.id, trial(number, measured(5.0, rounds=())), 1.0)
    return job.id


def ask(
    store: Store,
    job_id: str,
    number: int = 0,
    kind: InspectionKind = COUNTERS,
    metrics: tuple[str, ...] | None = None,
    *,
    is_urgent: bool = True,
    now: float = 10.0,
) -> Inspection:
    with store.write() as session:
        return inspections.ask(session, job_id, number, kind, metrics, is_urgent=is_urgent, now=now)[0]


def following(store: Store, target_id: str = "simulated:h200", *, urgent_only: bool = False) -> Inspection | None:
    with store.read() as session:
        return inspections.next_pending(session, target_id, urgent_only=urgent_only)


def finish(
    store: Store, inspection: Inspection, result: CounterReport | EnergyReport | Trace, *figures: Metric
) -> None:
    with store.write() as session:
        inspections.finish(session, inspection.seq, result, figures, 20.0)


@pytest.mark.parametrize(("kind", "result"), [(COUNTERS, REPORT), (ENERGY, WEIGHED), (TRACE, chart(3))])
def test_a_result_comes_back_as_it_was(
    store: Store, job_id: str, kind: InspectionKind, result: CounterReport | EnergyReport | Trace
) -> None:
    inspection = ask(store, job_id, kind=kind)
    finish(store, inspection, result, Metric(tag="tail_share", unit="", value=0.25))
    with store.read() as session:
        found = inspections.newest(session, job_id, 0, kind)
    assert found is not None
    assert (found.state, found.result, found.finished_at) == (InspectionState.DONE, result, 20.0)
    assert found.figures == (Metric(tag="tail_share", unit="", value=0.25),)


@pytest.mark.slow
def test_a_trace_of_ten_thousand_tasks_takes_less_than_a_megabyte(store: Store, job_id: str) -> None:
    finish(store, ask(store, job_id, kind=TRACE), chart(10_000))
    with store.write() as session:
        jobs.set_state(session, job_id, JobState.CANCELLED, 30.0)
    assert 10_000 < store.collect_garbage(0).freed_bytes < 1_000_000


def test_the_same_question_has_one_row_and_the_answer_asked_for_last_is_reported(store: Store, job_id: str) -> None:
    base, named = ask(store, job_id, now=10.0), ask(store, job_id, metrics=("a", "b"), now=11.0)
    assert named.seq != base.seq
    assert ask(store, job_id, metrics=("a", "b"), now=12.0).seq == named.seq
    with store.read() as session:
        newest = inspections.newest(session, job_id, 0, COUNTERS)
    assert newest is not None
    assert newest.metrics == ("a", "b")
    assert ask(store, job_id, now=13.0).seq == base.seq
    with store.read() as session:
        newest = inspections.newest(session, job_id, 0, COUNTERS)
        assert inspections.newest(session, job_id, 1, COUNTERS) is None
    assert newest is not None
    assert newest.metrics is None


def test_what_clients_asked_comes_first_then_the_oldest_and_last_what_was_begun(store: Store, job_id: str) -> None:
    own, first, second = ask(store, job_id, is_urgent=False), ask(store, job_id, 1), ask(store, job_id, 2)
    assert following(store, "h200") is None
    order = []
    for inspection in (first, second, first, own):
        found = following(store)
        assert found is not None
        order.append(found.seq == inspection.seq)
        with store.write() as session:
            inspections.begin(session, found.seq)
            if found.num_attempts or found.seq == second.seq:
                inspections.fail(session, found.seq, "it died", 20.0)
    assert order == [True, True, True, True]
    assert following(store, urgent_only=True) is None


def test_an_own_inspection_that_a_client_asks_for_becomes_urgent(store: Store, job_id: str) -> None:
    own = ask(store, job_id, is_urgent=False)
    assert following(store, urgent_only=True) is None
    assert ask(store, job_id).seq == own.seq
    assert following(store, urgent_only=True) is not None


def test_asking_again_tries_anew_only_what_came_to_nothing(store: Store, job_id: str) -> None:
    inspection = ask(store, job_id)
    with store.write() as session:
        inspections.begin(session, inspection.seq)
    assert ask(store, job_id).num_attempts == 1, "repeated requests must not renew the attempts"
    for end in ("fail", "refuse", "empty"):
        with store.write() as session:
            match end:
                case "fail":
                    inspections.fail(session, inspection.seq, "it died", 20.0)
                case "refuse":
                    inspections.refuse(session, inspection.seq, ("metrics", "is unknown", "use another"), 20.0)
                case _:
                    empty = CounterReport(counters=(), num_passes=0, reason="no permission")
                    inspections.finish(session, inspection.seq, empty, (), 20.0)
        again = ask(store, job_id)
        assert (again.seq, again.state, again.num_attempts) == (inspection.seq, InspectionState.PENDING, 0), end
        assert (again.reason, again.refusal, again.finished_at) == ("", None, None)
    finish(store, inspection, REPORT)
    assert ask(store, job_id).state is InspectionState.DONE


def test_inspections_of_ended_jobs_go_when_the_disk_is_full_and_others_stay(store: Store, job_id: str) -> None:
    finish(store, ask(store, job_id), REPORT)
    ask(store, job_id, 1)
    assert store.collect_garbage(0).num_inspections == 0, "the job is open"
    with store.write() as session:
        jobs.set_state(session, job_id, JobState.CANCELLED, 30.0)
    freed = store.collect_garbage(0)
    assert (freed.num_inspections, freed.kept_bytes) == (1, 0)
    assert freed.freed_bytes > 50
    with store.read() as session:
        assert inspections.newest(session, job_id, 0, COUNTERS) is None
        assert inspections.newest(session, job_id, 1, COUNTERS) is not None, "it is still to come"


@pytest.mark.slow
def test_a_database_of_the_first_version_gets_the_table_and_keeps_its_rows(store: Store, job_id: str) -> None:
    from tuner.store.admin import migrate

    migrate.downgrade(store.engine, "0001")
    migrate.upgrade(store.engine)
    with store.read() as session:
        assert len(trials.history(session, job_id)) == 3
    assert ask(store, job_id).state is InspectionState.PENDING
