"""A proxy that returns another job's digest with a valid signature: nothing is written, and the exit code is 6."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.client.conftest import Run
from tests.service.client.test_cli import PAIR
from tests.support.hostile import Rewrite, hostile_proxy
from tests.support.lanes import one_in
from tests.support.serving import Server, body
from tuner import tune
from tuner.client import Client, ExitCode
from tuner.client.delivery.output import plain_console
from tuner.client.errors import Refused
from tuner.client.follow.batch import follow
from tuner.packs.signing import signing_key

pytestmark = pytest.mark.slow

FETCH = ["fetch", "best", "--even-if-slower"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A separate server, so that its results are not reused by other tests."""
    with Server(tmp_path_factory.mktemp("hostile") / "data", "--gpu", "simulated:h200") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def job_id(client: Client) -> str:
    return finished(client)


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def key(server: Server) -> str:
    """The public key of the service."""
    return signing_key(server.log.with_suffix("")).public


def finished(client: Client, **changes: Any) -> str:
    job = client.submit(body(**changes))
    assert list(client.events(job["id"], timeout_s=120))[-1]["data"]["state"] == "succeeded"
    return str(job["id"])


@pytest.fixture(scope="module")
def other_id(client: Client) -> str:
    """The id of a job with a different number of rows."""
    return finished(client, pair={**body()["pair"], "m": 32})


def with_artifact(stranger: Any) -> Rewrite:
    """Returns the artifact of another job's result under the requested job's name."""

    def rewrite(method: str, path: str, found: Any) -> Any:
        if path.startswith("/best"):
            return {**found, "best": {**found["best"], "artifact": stranger["artifact"]}}
        return {**found, "artifact": stranger["artifact"]} if path.endswith("/best") else found

    return rewrite


def with_result(stranger: Any, **kept: Any) -> Rewrite:
    """Returns the whole of another job's result, except for the fields in `kept`."""

    def rewrite(method: str, path: str, found: Any) -> Any:
        if path.startswith("/best"):
            return {**found, "best": {**stranger, **kept}}
        return {**stranger, **kept} if path.endswith("/best") else found

    return rewrite


@pytest.mark.parametrize("format", one_in(4, ["zip", "manifest", "cu", "json"]))
def test_another_jobs_kernel_is_not_written(
    run: Run, client: Client, server: Server, job_id: str, other_id: str, key: str, tmp_path: Path, format: str
) -> None:
    stranger, output = client.best(other_id), tmp_path / "out"
    best = client.best(job_id)
    lies = [
        with_artifact(stranger),
        with_result(stranger, job_id=job_id),
        with_result(stranger, job_id=job_id, workload=best["workload"]),
        with_result(stranger),
    ]
    for question in (["--job", job_id], [*PAIR, "--target", "simulated:h200"]):
        for lie in lies:
            with hostile_proxy(server.url, lie) as url:
                more = ["--format", format, "--key", key, "-o", str(output)]
                refused = run(*FETCH, *question, *more, url=url)
            assert refused.exit_code == ExitCode.REFUSED, refused.output
            assert "is not the requested one" in refused.stderr
            assert not output.exists()
    with hostile_proxy(server.url, lambda method, path, found: found) as url:
        assert run(*FETCH, "--job", job_id, "--format", format, "--key", key, "-o", str(output), url=url).exit_code == 0


def test_a_kernel_of_another_objective_target_or_kind_is_not_written(
    run: Run, client: Client, server: Server, job_id: str, key: str, tmp_path: Path
) -> None:
    warm = client.best(finished(client, objective={"l2": "warm"}))
    output = tmp_path / "out"
    more = ["--key", key, "-o", str(output)]
    with hostile_proxy(server.url, with_result(warm)) as url:
        refused = run(*FETCH, *PAIR, "--target", "simulated:h200", *more, url=url)
    assert (refused.exit_code, "objective.l2" in refused.stderr) == (ExitCode.REFUSED, True), refused.output
    best = client.best(job_id)
    for lie in ({"target": "simulated:h100"}, {"winner": "two_streams", "verdict": "do not fuse"}):
        with hostile_proxy(server.url, with_result(best, **lie)) as url:
            refused = run(*FETCH, "--job", job_id, *more, url=url)
        assert (refused.exit_code, output.exists()) == (ExitCode.REFUSED, False), refused.output


def test_another_orders_pack_is_neither_written_nor_locked(
    run: Run, client: Client, server: Server, job_id: str, other_id: str, key: str, tmp_path: Path
) -> None:
    def ordered(*jobs: str, **changes: Any) -> Any:
        shapes: list[dict[str, Any]] = [
            {**client.job(job)["pair"], "rows": [client.job(job)["pair"]["m"]]} for job in jobs
        ]
        rows = [row for shape in shapes for row in shape["rows"]]
        shape = {name: value for name, value in shapes[0].items() if name not in ("kind", "m", "rows")}
        order = {"shapes": [{**shape, "rows": rows}], "target": "simulated:h200", "l2": "cold", **changes}
        return client.make_pack(order)

    output, lock = tmp_path / "model.tunerpack", tmp_path / "tuner.lock"
    packing = ["pack", "--job", job_id, "-o", str(output), "--lock", str(lock), "--key", key]
    strangers = [ordered(other_id), ordered(job_id, other_id), ordered(job_id, min_gain=1.5)]
    for stranger in strangers:
        with hostile_proxy(server.url, lambda method, path, found: stranger if path == "/packs" else found) as url:  # noqa: B023
            refused = run(*packing, url=url)
        assert refused.exit_code == ExitCode.REFUSED, refused.output
        assert "the pack is not the requested one" in refused.stderr
        assert not output.exists()
        assert not lock.exists()
    assert run(*packing).exit_code == 0
    before = lock.read_bytes()
    with hostile_proxy(server.url, lambda method, path, found: strangers[0] if path == "/packs" else found) as url:
        refused = run("update", "--lock", str(lock), url=url)
    assert (refused.exit_code, lock.read_bytes()) == (ExitCode.REFUSED, before)


def test_a_job_that_is_told_as_another_one_makes_no_pack(
    run: Run, client: Client, server: Server, job_id: str, other_id: str, key: str, tmp_path: Path
) -> None:
    asked, stranger, output = client.job(job_id), client.job(other_id), tmp_path / "model.tunerpack"
    lies: list[Any] = [
        stranger,
        {**asked, "pair": stranger["pair"]},
        {**asked, "objective": {"l2": "warm", "regime": "burst"}},
    ]
    for lie in lies:
        document = {**lie, "id": job_id}
        with hostile_proxy(
            server.url,
            lambda method, path, found: dict(document) if path == f"/jobs/{job_id}" else found,  # noqa: B023
        ) as url:
            for keyed in (["--key", key], []):
                refused = run("pack", "--job", job_id, "-o", str(output), *keyed, url=url)
                assert refused.exit_code != 0, refused.output
                assert not output.exists()
    assert run("pack", "--job", job_id, "-o", str(output), "--key", key).exit_code == 0


def test_another_job_under_the_asked_id_is_refused(
    run: Run, client: Client, server: Server, job_id: str, other_id: str
) -> None:
    stranger = client.job(other_id)
    with hostile_proxy(server.url, lambda method, path, found: dict(stranger)) as url:
        refused = run("status", job_id, url=url)
    assert (refused.exit_code, other_id in refused.stderr) == (ExitCode.REFUSED, True), refused.output


def test_tune_refuses_another_jobs_kernel(client: Client, server: Server, other_id: str) -> None:
    stranger = client.best(other_id)
    with hostile_proxy(server.url, with_artifact(stranger)) as url, pytest.raises(Refused, match="its job is"):
        tune(body()["pair"], target="simulated:h200", trials=3, reuse=True, url=url, progress=False)


@pytest.mark.parametrize("asked", [{"l2": "warm"}, {"regime": "sustained"}], ids=str)
def test_tune_refuses_a_job_of_another_objective(
    client: Client, server: Server, job_id: str, asked: dict[str, Any]
) -> None:
    answered = {"links": {}, **client.job(job_id)}

    def rewrite(method: str, path: str, found: Any) -> Any:
        return answered if method == "POST" and path == "/jobs" else found

    with hostile_proxy(server.url, rewrite) as url, pytest.raises(Refused, match="is not the requested one"):
        tune(body()["pair"], target="simulated:h200", trials=3, url=url, progress=False, **asked)


# In CI, tests/unit/client/test_tune_model.py does so without a server.
@pytest.mark.soak
def test_another_models_jobs_make_no_pack(run: Run, client: Client, server: Server, key: str, tmp_path: Path) -> None:
    config, output = tmp_path / "config.json", tmp_path / "model.tunerpack"
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 2}
    config.write_text(json.dumps({"model_type": "llama", "hidden_act": "silu", **sizes}))
    asked = [
        "--m",
        "16",
        "--dtype",
        "fp16",
        "--no-between",
        "--trials",
        "3",
        "--target",
        "simulated:h200",
        "--key",
        key,
    ]
    tuning = ["tune-model", str(config), *asked, "-o", str(output)]

    def another(shape: Any) -> Any:
        """The jobs of a batch with this shape, after all of them have ended."""
        batch = client.submit_batch({"shapes": [{"m": [16], **shape}], "budget": {"trials": 3}})
        follow(client, batch, plain_console(quiet=True), timeout_s=120)
        return {"items": list(client.batch_jobs(batch["id"])), "next_cursor": None}

    lies = [
        another({"d_in": 512, "d_hidden": 1024, "d_out": 512, "activation": "relu"}),
        {"items": [], "next_cursor": None},
    ]
    for lie in lies:
        with hostile_proxy(server.url, lambda method, path, found: lie if "/jobs?" in path else found) as url:  # noqa: B023
            refused = run(*tuning, url=url)
        assert (refused.exit_code, output.exists()) == (ExitCode.REFUSED, False), refused.output
        assert "is not the requested one" in refused.stderr
    assert run(*tuning).exit_code == 0


# In CI, the kernels of jobs and of `tune` are refused so.
@pytest.mark.soak
def test_a_batch_refuses_another_jobs_kernel(
    run: Run, client: Client, server: Server, other_id: str, key: str, tmp_path: Path
) -> None:
    shape = {"d_in": 4096, "d_hidden": 14336, "d_out": 4096, "activation": "relu", "m": [8, 16]}
    batch = client.submit_batch({"shapes": [shape], "budget": {"trials": 12}})
    follow(client, batch, plain_console(quiet=True), timeout_s=120)
    [ladder] = client.batch_best(batch["id"])["ladders"]
    assert ladder["kernels"], ladder
    stranger = client.best(other_id)["artifact"]

    def rewrite(method: str, path: str, found: Any) -> Any:
        for ladder in found["ladders"] if path.endswith("/best") else ():
            ladder["kernels"][-1]["artifact"] = stranger
        return found

    with hostile_proxy(server.url, rewrite) as url:
        refused = run("fetch", "best", "--batch", batch["id"], "--key", key, "-o", str(tmp_path / "out"), url=url)
    assert (refused.exit_code, "its job is" in refused.stderr) == (ExitCode.REFUSED, True), refused.output
    assert not (tmp_path / "out").exists()
