"""Valid and broken requests drawn from the OpenAPI document: no response is a 500 or undocumented.

python -m tests.soak.answers [--seed 1]

Every operation is called with a token and without one. In half of the cases, paths name a job that has succeeded, or an
open one. What JSON Schema cannot express is not checked; it is listed in `UNCHECKED`.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from tests.soak.program import Program, Row, Step, main, total
from tests.support.serving import body, listening, running_service, wait_until_final, wait_until_inspected
from tuner.core.access.caller import Role
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.store import Store
from tuner.store.access import tokens

if TYPE_CHECKING:  # takes a second to import, and only this program needs it
    from schemathesis import Case, GenerationMode

#: Number of examples per operation in each of two modes, both with a token and without one.
SIZE = 100

#: The operations that are called.
OPERATIONS = slice(None)

#: What is not checked, and why.
UNCHECKED = {
    "positive_data_acceptance": "a request of the right form may ask for what is not there, is too large in its "
    "product of sizes, or needs another role: a schema states each field alone",
    "negative_data_rejection": "unknown query parameters are ignored, as usual on the web",
    "ensure_resource_availability": "needs a sequence of requests; tests/service/api/test_jobs.py has them",
    "use_after_free": "needs a sequence of requests; tests/service/api/test_deletion.py has them",
    "object_level_authorization": "needs two owners; tests/service/api/test_access.py has them",
}


@dataclass(frozen=True, kw_only=True)
class Stand:
    """A server and the ids that exist on it."""

    url: str
    secret: str
    #: The ids of a job that has succeeded, and of one that is open but not run.
    finished_id: str
    open_id: str
    digest: str


@contextmanager
def stand(path: Path) -> Iterator[Stand]:
    """A service that accepts jobs and runs none, with one that has succeeded."""
    with running_service(path) as service, listening(service) as url:
        finished = httpx.post(f"{url}/jobs", json=body()).json()["id"]
        wait_until_final(service, finished)
        wait_until_inspected(service, finished)
        digest = httpx.get(f"{url}/jobs/{finished}/best").json()["artifact"]["digest"]
    service = Service(Store.open(path), LocalDispatcher([]), leads=lambda: False)
    try:
        with service._store.write() as session:
            _, secret = tokens.create(session, "fuzz", Role.ADMIN, time.time())
        with listening(service, requests_per_s=0.0) as url:
            asked = body(target="simulated:h200", seed=1)
            headers = {"Authorization": f"Bearer {secret}"}
            open_id = httpx.post(f"{url}/jobs", json=asked, headers=headers).json()["id"]
            yield Stand(url=url, secret=secret, finished_id=finished, open_id=open_id, digest=digest)
    finally:
        service.close()


def _names(case: Case, there: Stand) -> None:
    """Replaces the path parameters with existing ids in every second case."""
    found = case.path_parameters
    if not found or len(repr(found)) % 2:
        return
    if "job_id" in found:
        found["job_id"] = there.finished_id if case.method.upper() == "GET" else there.open_id
    if "number" in found and isinstance(found["number"], int):
        found["number"] %= 8
    if "digest" in found:
        found["digest"] = there.digest


def _ask(operation: Any, mode: GenerationMode, count: int, number: int, ask: Callable[[Case], None]) -> None:
    """Sends `count` cases of an operation; the same `number` gives the same cases."""
    limits = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for strategies that generate examples slowly
        seed(number)(limits(given(case=operation.as_strategy(generation_mode=mode))(ask)))()


def work(step: Step) -> list[Row]:
    """A row for each operation, with its failures."""
    import schemathesis
    from schemathesis import GenerationMode

    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, stand(Path(folder) / "data") as there:
        schema = schemathesis.openapi.from_dict(httpx.get(f"{there.url}/openapi.json", timeout=120).json())
        for found in [*schema.get_all_operations()][OPERATIONS]:
            operation = found.ok()
            row: Row = {"operation": operation.label, "requests": 0, "server_errors": 0, "wrong": []}
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                with suppress(Unsatisfiable):  # nothing can be drawn, e.g. if nothing can be invalid
                    _ask(operation, mode, step.count, step.seed, _asker(there, row))
            rows.append(row)
    return rows


def _asker(there: Stand, row: Row) -> Callable[[Case], None]:
    """Returns a function that sends a case without a token and with one, and records the outcomes in `row`."""
    from schemathesis.checks import CHECKS
    from schemathesis.core.failures import Failure, FailureGroup

    names = set(CHECKS.get_all_names())
    assert UNCHECKED.keys() < names, "a check has another name"
    checks = [CHECKS.get_one(name) for name in sorted(names - UNCHECKED.keys())]

    def ask(case: Case) -> None:
        _names(case, there)
        for headers in ({}, {"Authorization": f"Bearer {there.secret}"}):
            response = case.call(base_url=there.url, headers=headers, timeout=60)
            row["requests"] += 1
            row["server_errors"] += response.status_code >= 500
            try:
                case.validate_response(response, checks=checks, headers=headers)
            except (Failure, FailureGroup) as error:
                row["wrong"].append(f"{type(error).__name__}: {error}"[:2000])

    return ask


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that every response is documented, and none is a server error."""
    wrong = [f"{row['operation']}: {one}" for row in rows for one in row["wrong"]]
    counted = [{**row, "wrong": len(row["wrong"])} for row in rows]
    return total(counted, "operation"), wrong


PROGRAM = Program(
    name="answers", unit="cases of each operation, valid and broken, with and without a token", size=SIZE, step=1,
    work=work, judge=judge,
)  # fmt: skip

if __name__ == "__main__":
    main(PROGRAM)
