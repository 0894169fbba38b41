"""A server without an op kind, and one with a kind from another package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import toys
from tests.support.attentions import alone, attention
from tests.support.builders import BEST, spec
from tests.support.repository import ROOT
from tests.support.serving import SMALL_PAIR, listening, running_service
from tests.support.subtracted import without_kind
from tests.support.waiting import wait_until
from tuner.core.schedule.candidate import Candidate, apart_kind
from tuner.core.trial.job import JobState
from tuner.core.trial.records import FinalRow
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.results import bests

BUDGET = {"trials": 4, "seconds": 600}
Ask = Callable[..., tuple[int, Any]]
ROW = FinalRow(
    candidate=Candidate(plan_kind=apart_kind(2), schedule=alone()),
    trial_number=1,
    time_us=80.0,
    spread=0.01,
    speedup=1.25,
    speedup_ci95=(1.2, 1.3),
)


@contextmanager
def server(folder: Path, *, tree: Path = ROOT, sites: tuple[Path, ...] = ()) -> Iterator[Ask]:
    """A server in a separate process, run from `tree` and with the packages in the folders `sites`."""
    paths = os.pathsep.join([*map(str, sites), str(tree), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.service.answering", str(folder)],
        cwd=tree,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"

        def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            line = f"{method} {path}" + ("" if body is None else f" {json.dumps(body)}")
            print(line, file=process.stdin, flush=True)
            status, text = json.loads(process.stdout.readline())
            return status, json.loads(text) if text.startswith(("{", "[")) else text

        yield ask
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def ended(ask: Ask, job_id: str) -> tuple[str, str]:
    """The job's last state and its reason."""
    wait_until(lambda: ask("GET", f"/jobs/{job_id}")[1]["state"] in ("succeeded", "failed"), pause_s=0.2)
    _, job = ask("GET", f"/jobs/{job_id}")
    return job["state"], job["reason"]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, str, str]:
    """Creates a folder with a database that has an attention's result and a waiting attention job; returns their
    ids."""
    store = Store.open(tmp_path / "data")
    asked = replace(spec(16), workload=attention())
    with store.write() as session:
        done = jobs.insert(session, asked, 1.0)
        for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
            jobs.set_state(session, done.id, state, 2.0)
        bests.insert(session, replace(BEST, job_id=done.id, finals=(ROW,), winner=ROW.candidate.plan_kind))
        waiting = jobs.insert(session, replace(asked, seed=1), 3.0)
    store.close()
    return tmp_path / "data", done.id, waiting.id


@pytest.mark.slow
def test_without_the_folder_of_a_kind_old_rows_say_so_and_products_are_tuned(
    kept: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, done, waiting = kept
    with server(folder, tree=without_kind("attention", tmp_path / "tree")) as ask:
        status, job = ask("GET", f"/jobs/{done}")
        assert (status, job["state"], job["pair"]["kind"]) == (200, "succeeded", "unknown")
        assert job["pair"]["unknown_kinds"] == ["attention"]
        assert job["pair"]["ops"][0]["op"] == "attention", "the request is kept"
        assert "an op of the unknown kind attention" in job["workload"]
        for path in ("/jobs", "/", f"/ui/jobs/{done}", f"/ui/jobs/{waiting}", "/ui/results", f"/jobs/{done}/best"):
            status, found = ask("GET", path)
            assert (path, status) == (path, 200)
            assert "unknown kind" in (found if isinstance(found, str) else json.dumps(found)) or "best" in path
        wait_until(lambda: ask("GET", f"/jobs/{waiting}")[1]["reason"])
        _, job = ask("GET", f"/jobs/{waiting}")
        assert job["state"] == "queued"
        assert job["reason"] == (
            "it has an op of the unknown kind attention: install the package that provides it, or cancel it"
        )
        status, refused = ask("POST", "/jobs", {"pair": {"kind": "chain", "m": 4, "ops": [{"op": "attention"}]}})
        assert (status, refused["errors"][0]["field"]) == (422, "pair.ops.0.op")
        status, job = ask("POST", "/jobs", {"pair": SMALL_PAIR, "budget": BUDGET})
        assert status == 202
        assert ended(ask, job["id"]) == ("succeeded", ""), "later jobs do not wait for it"
    with running_service(folder, target=None) as service, listening(service) as url:
        pair = httpx.get(f"{url}/jobs/{done}").json()["pair"]
    assert (pair["kind"], pair["ops"][0]["op"]) == ("chain", "attention"), "nothing was lost"


GATHER = {"op": "gather", "name": "embed", "n": 512, "table_rows": 4096}
UP = {"name": "up", "source": "embed", "n": 256, "k": 512}


# In CI, test_toys.py does so with other ops, and tests/unit/client/test_submit_kinds.py has the kind's requests.
@pytest.mark.soak
@pytest.mark.slow
def test_a_kind_of_another_package_goes_from_a_request_to_a_result(tmp_path: Path) -> None:
    site = toys.install("gather", tmp_path / "site")
    with server(tmp_path / "data", sites=(site,)) as ask:
        _, schema = ask("GET", "/openapi.json")
        fields = schema["components"]["schemas"]["ChainGather"]
        assert fields["properties"]["table_rows"] == {
            "description": "rows of the table",
            "type": "integer",
            "minimum": 1,
            "maximum": 2**20,
            "title": "Table Rows",
        }
        assert fields["required"] == ["op", "name", "n", "table_rows"]
        for changed, field in (({"table_rows": 0}, "table_rows"), ({"wide": 1}, "wide"), ({"n": 12}, None)):
            pair = {"kind": "chain", "m": 16, "ops": [GATHER | changed], "dtype": "bf16"}
            status, refused = ask("POST", "/jobs", {"pair": pair})
            where = f"pair.ops.0.{field}" if field else "pair.embed.n"
            assert (status, refused["errors"][0]["field"]) == (422, where)
        pair = {"kind": "chain", "m": 16, "ops": [GATHER, UP], "dtype": "bf16"}
        status, job = ask("POST", "/jobs", {"pair": pair, "budget": BUDGET})
        assert (status, job.get("workload")) == (202, "gather bf16 gather of 16 from 4096 x 512 -> 256")
        assert ended(ask, job["id"]) == ("succeeded", "")
        _, page = ask("GET", f"/ui/jobs/{job['id']}.json")
        assert [(row["name"], row["reads"], row["reads_ops"]) for row in page["ops"]] == [
            ("embed", "x", {}),
            ("up", "embed", {"source": "embed"}),
        ]
        assert [row["launch"] for row in page["ops"]] == [1, 2]
        number = page["best"]["finals"][-1]["trial_number"]
        assert "Gather embed: CTAs of " in ask("GET", f"/ui/jobs/{job['id']}/trials/{number}")[1]
        assert "the library (index_select and an addition and cuBLASLt in a graph)" in json.dumps(page["best"])
        for path in ("", f"/trials/{number}", f"/trials/{number}/source", f"/trials/{number}/timeline"):
            status, _ = ask("GET", f"/ui/jobs/{job['id']}{path}")
            assert (path, status) == (path, 200)
        _, source = ask("GET", f"/ui/jobs/{job['id']}/trials/{number}/source.json")
        assert "GatherArgs args)" in json.dumps(source)
        _, batch = ask("POST", "/batches", {"pairs": [pair | {"m": 32}, pair | {"m": 64}], "budget": BUDGET})
        _, members = ask("GET", f"/batches/{batch['id']}/jobs")
        assert [ended(ask, one["job"]["id"]) for one in members["items"]] == [("succeeded", "")] * 2
        wait_until(lambda: ask("GET", f"/batches/{batch['id']}/best")[0] == 200, pause_s=0.2)
        _, best = ask("GET", f"/batches/{batch['id']}/best")
        (ladder,) = best["ladders"]
        served = {(rung["m_lo"], rung["m_hi"]) for rung in ladder["rungs"] if rung["kernel"] is not None}
        assert (ladder["reason"], served <= {(32, 32), (64, 64)}) == ("", True), "a gather's kernel has its own rows"
        alone = {"kind": "gather", "m": 8, "n": 512, "table_rows": 4096}
        status, job = ask("POST", "/jobs", {"pair": alone, "budget": BUDGET})
        assert (status, job["pair"]["kind"]) == (202, "chain"), "as a preset is"
        assert ended(ask, job["id"]) == ("succeeded", "")
        _, found = ask("GET", "/best?target=simulated:h200&kind=gather&m=8&n=512&table_rows=4096")
        assert (found["match"], found["best"]["job_id"]) == ("exact", job["id"])
        _, page = ask("GET", "/ui/submit.json?what=gather&m=8&n=512&table_rows=4096")
        assert page["body"]["pair"] == {**alone, "dtype": "fp16"}


EXPLAINED = """
from toy_gather.schedule import GatherSchedule
from tuner.core.insight.explain import explain
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
op = {"op": "gather", "name": "embed", "m": 16, "n": 512, "table_rows": 4096}
alone = Workload.from_json({"kind": "chain", "ops": [op], "dtype": "bf16"})
print(any_space_of(alone, CATALOGUE["h200"]).num_schedules)
print(*explain(alone, CATALOGUE["h200"], Schedule(ops=(GatherSchedule(rows_per_cta=4),))), sep="\\n")
"""


def test_a_schedule_of_a_kind_of_another_package_is_explained(tmp_path: Path) -> None:
    count, heading, fitted, bounds, tasks, *others = toys.run(EXPLAINED, toys.install("gather", tmp_path)).splitlines()
    assert (count, heading.partition(" on ")[0]) == ("12", "gather bf16 gather of 16 from 4096 x 512")
    assert fitted.startswith("Forecasts: ")
    assert re.fullmatch(r"Bounds: DRAM \d+\.\d us; tensor cores 0\.0 us\.", bounds), bounds
    assert tasks == "Tasks: embed has 16 rows in 4 CTAs on 132 SMs."
    assert others[0].startswith("Forecast: embed ")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_tests_of_products_pass_without_the_folder_of_a_kind(tmp_path: Path) -> None:
    """Covers plans and their rules, search spaces, sources and packs; `make test-without` runs all others."""
    chosen = [
        "tests/unit/core/plan/test_build.py",
        "tests/unit/core/legal/test_simt.py",
        "tests/unit/core/space/test_space.py",
        "tests/unit/core/problem/test_workload.py",
        "tests/unit/packs/test_packs.py",
        "tests/unit/workers/source",
    ]
    tree = without_kind("attention", tmp_path)
    assert [name for name in chosen if not (tree / name).exists()] == []
    quietly = ["-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not slow and not soak"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *quietly, *chosen],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
