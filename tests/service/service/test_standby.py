"""Several servers over one database: one runs the jobs, and another takes over if it is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from tests.support.builders import spec
from tests.support.lanes import soak_unless
from tests.support.postgres import PostgreSQL, postgresql
from tests.support.serving import Server, body
from tests.support.waiting import wait_until
from tuner.cli import main
from tuner.dispatch.late import LateDispatcher
from tuner.errors import NotFound, StoreError, StoreUnavailable
from tuner.server.standby import Standby
from tuner.store import Store, database
from tuner.store.admin import leadership, migrate
from tuner.store.admin.leadership import Leadership
from tuner.store.engine.directory import make_folder
from tuner.store.engine.engines import LEADER_LOCK, make_engine
from tuner.store.jobs import jobs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else request.getfixturevalue("server").database()


def wait_for(url: str, condition: Any) -> Any:
    found: Any = None

    def is_so() -> bool:
        nonlocal found
        found = http.get(url).json()
        return bool(condition(found))

    with httpx.Client(timeout=120) as http:
        wait_until(is_so, pause_s=0.1)
    return found


def recorded(trial: dict[str, Any]) -> tuple[object, ...]:
    """The part of the record that is written once; inspections are added later."""
    outcome = trial["outcome"]
    return (trial["number"], trial["candidate"], outcome["kind"], outcome.get("samples_us"), trial["finished_at"])


#: The next test is of both databases in CI.
@pytest.mark.slow
@pytest.mark.parametrize(
    "database_url", soak_unless(lambda _, one: one == "postgresql", ["sqlite", "postgresql"]), indirect=True
)
def test_when_the_server_that_runs_the_jobs_is_killed_another_takes_over_and_no_trial_is_lost(
    tmp_path: Path, database_url: str | None
) -> None:
    options = ["--standby", "--gpu", "simulated:h200"]
    if database_url:
        options += ["--database-url", database_url]
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(Server(tmp_path / "data", *options, TUNER_SIMULATED_LATENCY_S="0.2")) for _ in range(2)
        )
        leader = wait_for(f"{one.url}/targets", bool) and one
        assert httpx.get(f"{other.url}/targets", timeout=120).json() == []
        posted = httpx.post(
            f"{other.url}/jobs", json=body(target="simulated:h200", budget={"trials": 16, "seconds": 600}), timeout=120
        )
        assert posted.status_code == 202, posted.text
        job = f"/jobs/{posted.json()['id']}"
        seen = wait_for(other.url + job, lambda found: found["num_trials"] >= 3)["num_trials"]
        before = httpx.get(f"{other.url}{job}/trials?limit=500", timeout=120).json()["items"]
        leader.process.send_signal(signal.SIGKILL)
        ended = wait_for(other.url + job, lambda found: found["state"] in ("succeeded", "failed"))
        after = httpx.get(f"{other.url}{job}/trials?limit=500", timeout=120).json()["items"]
    assert (ended["state"], ended["num_trials"]) == ("succeeded", 16), ended
    assert [trial["number"] for trial in after] == list(range(16))
    assert len(before) >= seen
    assert [recorded(trial) for trial in after[: len(before)]] == [recorded(trial) for trial in before]


# In CI, tests/unit/service/test_server.py has targets of the leader, and the test above posts to who stands by.
@pytest.mark.soak
@pytest.mark.parametrize(
    "database_url", soak_unless(lambda _, one: one == "postgresql", ["sqlite", "postgresql"]), indirect=True
)
def test_a_server_that_stands_by_takes_the_jobs_that_the_leader_takes(tmp_path: Path, database_url: str | None) -> None:
    options = ["--standby", "--gpu", "simulated:h200"]
    if database_url:
        options += ["--database-url", database_url]
    with ExitStack() as stack:
        leader = stack.enter_context(Server(tmp_path / "data", *options))
        wait_for(f"{leader.url}/targets", bool)
        other = stack.enter_context(Server(tmp_path / "data", *options))

        def posted(server: Server, path: str = "/jobs", **fields: Any) -> httpx.Response:
            asked = body(**fields)
            if path == "/batches":
                asked["pairs"] = [asked.pop("pair")]
            return httpx.post(server.url + path, json=asked, timeout=120)

        for path in ("/jobs", "/batches"):
            taken = posted(other, path)
            assert (taken.status_code, taken.json()["target"]) == (202, "simulated:h200"), taken.text
            of_leader, of_other = (posted(server, path, target="h200") for server in (leader, other))
            assert (of_leader.status_code, of_other.status_code) == (422, 422)
            assert "no worker of this server measures on h200" in of_leader.text
            assert "no worker of the server that runs the jobs measures on h200" in of_other.text
            assert of_other.json()["errors"][0]["field"] == "target"
            assert of_other.json()["errors"][0]["remedy"] == "use one of simulated:h200"


def test_only_one_has_the_lock_and_it_is_free_when_its_store_is_closed(
    tmp_path: Path, database_url: str | None
) -> None:
    one, other = (Store.open(tmp_path / "data", database_url, shared=True) for _ in range(2))
    one.leadership.take()
    with pytest.raises(StoreError, match="in use by another server"):
        other.leadership.take()
    with pytest.raises(StoreError, match="in use by another server"):
        Store.open(tmp_path / "data", database_url)
    if database_url:
        elsewhere = Leadership(tmp_path, other.engine)
        with pytest.raises(StoreError, match="in use by another server; stop that one, or add --standby"):
            elsewhere.take()
    assert (one.leadership.is_held(), other.leadership.is_held()) == (True, False)
    one.close()
    other.leadership.take()
    assert other.leadership.is_held()
    other.close()


def test_servers_that_are_started_at_once_over_a_new_database_wait_for_the_one_that_makes_its_tables(
    tmp_path: Path, database_url: str | None
) -> None:
    directory = tmp_path / "data"
    make_folder(directory, holds_database=database_url is None)
    engine = make_engine(directory, database_url, lock_patience_s=5.0)
    maker = Leadership(directory, engine)
    maker.take()
    with ThreadPoolExecutor(2) as threads:
        opening = [threads.submit(Store.open, directory, database_url, shared=True) for _ in range(2)]
        with pytest.raises(FutureTimeout):
            opening[0].result(0.5)
        migrate.upgrade(engine)
        stores = [one.result(60) for one in opening]
    for store in stores:
        store.ping()
        store.close()
    maker.release()
    engine.dispose()


def test_a_server_does_not_wait_for_ever_for_the_tables_of_another_version(
    tmp_path: Path, database_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Store.open(tmp_path / "data", database_url, shared=True)
    one.leadership.take()
    migrate.downgrade(one.engine, "0024")
    monkeypatch.setattr(database, "UPGRADE_PATIENCE_S", 0.3)
    with pytest.raises(StoreError, match="are at revision 0024, not at this version's, and another server uses them"):
        Store.open(tmp_path / "data", database_url, shared=True)
    one.close()


def test_a_shared_store_notices_what_others_write(tmp_path: Path, database_url: str | None) -> None:
    one, other = (Store.open(tmp_path / "data", database_url, shared=True) for _ in range(2))
    seen = one.commits.num_writes
    while (now := one.commits.wait_for_write(seen, 0.5)) != seen:  # the other server also wrote when it opened
        seen = now
    with other.write() as session:
        jobs.insert(session, spec(), 1.0)
    assert one.commits.wait_for_write(seen, 60) > seen
    one.close()
    other.close()


def test_who_listens_at_a_shared_store_is_woken_by_what_others_write(tmp_path: Path, database_url: str | None) -> None:
    one, other = (Store.open(tmp_path / "data", database_url, shared=True) for _ in range(2))
    own, deaf = threading.Event(), threading.Event()
    with one.commits.listening(["job-a"], own):
        own.clear()
        with other.write() as session:
            jobs.insert(session, spec(), 1.0)
        assert own.wait(60)
    with one.commits.listening(["job-a"], deaf):
        pass
    wait_until(lambda: one.commits._watcher is None)
    one.close()
    other.close()


def drop_lock(store: Store) -> None:
    """Closes the leader's connection, as a restart of the database would."""
    held = text("select pid from pg_locks where locktype = 'advisory' and objid = :lock and granted")
    with store.engine.connect() as connection:
        pid = connection.execute(held, {"lock": LEADER_LOCK}).scalar_one()
        connection.execute(text("select pg_terminate_backend(:pid)"), {"pid": pid})

    def is_gone() -> bool:
        with store.engine.connect() as connection:  # a transaction would see the sessions as of its first statement
            found = connection.execute(text("select count(*) from pg_stat_activity where pid = :pid"), {"pid": pid})
            return found.scalar() == 0

    wait_until(is_gone)


def test_a_server_alone_takes_its_dropped_lock_back(tmp_path: Path, server: PostgreSQL) -> None:
    store = Store.open(tmp_path / "data", server.database())
    drop_lock(store)
    wait_until(lambda: not store.leadership.is_held())
    assert store.leadership.regain()
    assert store.leadership.is_held()
    store.close()


def test_a_lock_that_another_server_had_meanwhile_is_not_taken_back(tmp_path: Path, server: PostgreSQL) -> None:
    url = server.database()
    store = Store.open(tmp_path / "data", url)
    drop_lock(store)
    wait_until(lambda: not store.leadership.is_held())
    Store.open(tmp_path / "elsewhere", url).close()
    with pytest.raises(StoreError, match="another server has run the jobs in the meantime"):
        store.leadership.regain()
    store.close()


def test_a_lock_is_free_before_the_connection_of_the_one_that_had_it_is_closed(
    tmp_path: Path, server: PostgreSQL
) -> None:
    url = server.database()
    one, other = (Leadership(tmp_path / name, make_engine(tmp_path, url, lock_patience_s=5.0)) for name in "ab")
    for leader in (one, other):
        leader.directory.mkdir()
    free_when_closing = []

    @event.listens_for(one._engine, "close_detached")
    def note(_connection: Any) -> None:
        other.take()
        free_when_closing.append(other.is_held())

    one.take()
    one.release()
    assert free_when_closing == [True]
    other.release()


def test_a_server_that_only_the_network_has_cut_off_ends_its_own_session_and_has_its_lock_again(
    tmp_path: Path, server: PostgreSQL
) -> None:
    store = Store.open(tmp_path / "data", server.database())
    lock = store.leadership
    stranded, lock._connection = lock._connection, None
    assert stranded is not None
    assert not lock.is_held()
    assert lock.regain(), "the session that still had the lock was its own"
    assert lock.is_held()
    with pytest.raises(DBAPIError):
        stranded.execute(text("select 1"))
    stranded.close()
    store.close()


def test_who_is_started_just_after_a_server_was_killed_waits_for_the_lock_of_its_session(
    tmp_path: Path, server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RESTART_PATIENCE_S", 60.0)
    url = server.database()
    killed = Leadership(tmp_path, make_engine(tmp_path, url, lock_patience_s=5.0))
    killed.take()
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(Store.open, tmp_path / "data", url)
        with pytest.raises(FutureTimeout):
            opening.result(0.3)
        killed.release()
        store = opening.result(60)
    assert store.leadership.is_held()
    store.close()


def test_who_cannot_ask_for_the_lock_leaves_no_connection(
    tmp_path: Path, server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tmp_path, server.database(), lock_patience_s=5.0)
    monkeypatch.setattr(leadership, "LEADER_LOCK", "no number")
    with pytest.raises(StoreUnavailable, match="cannot be used") as refused:
        Leadership(tmp_path, engine).take()
    assert engine.pool.checkedout() == 0, "though the error is kept"  # type: ignore[attr-defined]
    assert refused.value.__cause__ is not None
    engine.dispose()


def test_a_server_whose_lock_the_database_drops_gives_up(tmp_path: Path, server: PostgreSQL) -> None:
    store = Store.open(tmp_path / "data", server.database())
    events: list[str] = []
    standby = Standby(store.leadership, lambda: events.append("leads"), lambda: events.append("ends"), 0.05)
    standby.start()
    wait_until(lambda: standby.leads)
    drop_lock(store)
    wait_until(lambda: "ends" in events)
    standby.stop()
    assert events == ["leads", "ends"]
    store.close()


@contextmanager
def next_in_line(store: Store) -> Iterator[None]:
    """Another connection waits for the lock, and gets the lock as soon as it is released."""
    waiting = text("select count(*) from pg_locks where locktype = 'advisory' and objid = :lock and not granted")
    with store.engine.connect() as other, store.engine.connect() as watching:
        taken = threading.Thread(target=other.execute, args=(text(f"select pg_advisory_lock({LEADER_LOCK})"),))
        other.execute(text("set lock_timeout = 0"))
        taken.start()
        wait_until(lambda: watching.execute(waiting, {"lock": LEADER_LOCK}).scalar() == 1, pause_s=0.1)
        yield
        taken.join()


def test_a_server_that_has_lost_its_lock_ends_and_records_no_further_trial(tmp_path: Path, server: PostgreSQL) -> None:
    url = server.database()
    options = ["--gpu", "simulated:h200", "--database-url", url]
    with Server(tmp_path / "data", *options, TUNER_SIMULATED_LATENCY_S="6.0") as running:
        store = Store.open(tmp_path / "data", url, shared=True)
        with next_in_line(store):
            job = httpx.post(f"{running.url}/jobs", json=body(), timeout=120).json()
            wait_for(f"{running.url}/jobs/{job['id']}", lambda found: found["num_trials"] == 1)
            drop_lock(store)
            assert running.process.wait(90) == 0
        with store.read() as session:
            assert jobs.get(session, job["id"]).num_trials == 1
        store.close()


# In CI, tests/unit/service/test_server.py refuses such a server without tokens.
@pytest.mark.soak
def test_a_server_that_stands_by_asks_for_tokens_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--standby", "--gpu", "none", "--data", str(data)]
    refused = CliRunner().invoke(main, ["serve", "--host", "0.0.0.0", "--port", "0", *options])
    assert (refused.exit_code, "tuner token create" in refused.stderr) == (1, True)
    made = CliRunner().invoke(main, ["token", "create", "--owner", "alice", "--role", "read", "--data", str(data)])
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(data, "--host", "0.0.0.0", *options[:3])) for _ in range(2)]
        for running in servers:
            address = f"http://127.0.0.1:{running.port}/jobs"
            assert httpx.get(address).status_code == 401
            assert httpx.get(address, headers=headers).status_code == 200
        assert [running.stop() for running in servers] == [0, 0]


def test_a_dispatcher_that_is_filled_late_has_no_workers_before() -> None:
    late = LateDispatcher()
    assert (late.targets, late.num_workers("h200"), late.quarantine("h200")) == ((), 0, None)
    with pytest.raises(NotFound, match="this server is a standby"):
        late.lane("h200")
    late.close()


# In CI, tests/unit/service/test_server.py has a silent leader, and the first test a takeover.
@pytest.mark.soak
def test_who_stands_by_says_what_to_do_about_a_leader_that_was_stopped(tmp_path: Path) -> None:
    options = ["--standby", "--gpu", "simulated:h200"]
    with ExitStack() as stack:
        leader = stack.enter_context(Server(tmp_path / "data", *options))
        wait_for(f"{leader.url}/targets", bool)
        other = stack.enter_context(Server(tmp_path / "data", *options))
        assert httpx.get(f"{other.url}/readyz", timeout=120).status_code == 200
        pid = leader.process.pid
        leader.process.send_signal(signal.SIGSTOP)
        said = wait_for(f"{other.url}/readyz", lambda found: found["status"] == 503)
        assert f"`kill -9 {pid}` this server takes over" in said["detail"]
        assert said["detail"] in other.log.read_text()
        leader.process.send_signal(signal.SIGCONT)
        wait_for(f"{other.url}/readyz", lambda found: found["status"] == "ok")
        leader.process.send_signal(signal.SIGSTOP)
        wait_for(f"{other.url}/readyz", lambda found: found["status"] == 503)
        leader.process.send_signal(signal.SIGKILL)
        wait_for(f"{other.url}/targets", bool)
        assert httpx.get(f"{other.url}/readyz", timeout=120).status_code == 200
