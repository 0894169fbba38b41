"""`tuner token`, and its effect on a running server and on the addresses that it may listen on."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.support.serving import Server
from tuner.cli import main
from tuner.client.cli import main as client_main
from tuner.client.connection.credentials import credentials_path
from tuner.client.exits import ExitCode


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def make(data: Path, role: str = "submit", owner: str = "alice", *options: str) -> str:
    data.mkdir(exist_ok=True)
    result = run("token", "create", "--owner", owner, "--role", role, "--data", str(data), *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def test_a_token_is_shown_once_and_listed_without_its_secret(tmp_path: Path) -> None:
    secret = make(tmp_path, "submit", "alice", "--note", "laptop", "--days", "30")
    assert secret.startswith("tuner_")
    assert len(secret) == len("tuner_") + 43
    listed = run("token", "list", "--data", str(tmp_path))
    assert ("alice" in listed.stdout, "laptop" in listed.stdout, secret in listed.stdout) == (True, True, False)
    [found] = [json.loads(line) for line in run("token", "list", "--json", "--data", str(tmp_path)).stdout.splitlines()]
    assert found["expires_at"] - found["created_at"] == pytest.approx(30 * 24 * 3600)
    assert run("token", "revoke", found["id"], "--data", str(tmp_path)).exit_code == 0
    log = [json.loads(line)["action"] for line in run("audit", "--json", "--data", str(tmp_path)).stdout.splitlines()]
    assert log == ["token.revoke", "token.create"]
    heading, newest, _ = run("audit", "--data", str(tmp_path)).stdout.splitlines()
    assert heading.split() == ["when", "owner", "action", "subject"]
    assert f"{datetime.now(UTC):%Y-%m-%d}" in newest
    assert newest.endswith(f"token.revoke  {found['id']}")


@pytest.mark.parametrize("owner", ["", " alice", "a\nb", "x" * 65])
def test_an_owner_that_is_no_name_is_refused(tmp_path: Path, owner: str) -> None:
    result = run("token", "create", "--owner", owner, "--role", "read", "--data", str(tmp_path))
    assert (result.exit_code, "owner" in result.stderr) == (1, True)
    assert run("token", "revoke", "tok-0", "--data", str(tmp_path)).exit_code == 1


def test_a_token_is_made_in_the_default_folder_or_in_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creating = ["token", "create", "--owner", "alice", "--role", "read"]
    monkeypatch.chdir(tmp_path)
    refused = run(*creating, "--data", "misspelled")
    assert (refused.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "there is no folder misspelled; pass a service's data folder as --data, or create" in refused.stderr
    assert run(*creating).exit_code == 0
    assert (tmp_path / "tuner-data/tuner.db").is_file()
    (tmp_path / "other").mkdir()
    assert run(*creating, "--data", "other").exit_code == 0


def test_beyond_loopback_a_server_wants_tokens_or_to_be_told_plainly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused = run("serve", "--host", "0.0.0.0", "--port", "0", "--gpu", "none", "--data", str(data))
    assert refused.exit_code == 1
    assert "tuner token create" in refused.stderr
    assert "--insecure" in refused.stderr
    secret = make(data)
    with Server(data, "--host", "0.0.0.0", "--gpu", "none") as server:
        url = f"http://127.0.0.1:{server.port}/jobs"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": f"Bearer {secret}"}).status_code == 200


@pytest.mark.slow
def test_tokens_are_made_and_revoked_beside_a_running_server_and_the_client_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TUNER_TOKEN", raising=False)
    with Server(tmp_path / "data", "--gpu", "none") as server:

        def client(*arguments: str, **options: str) -> Result:
            return CliRunner().invoke(client_main, ["--url", server.url, *arguments], **options)

        assert client("jobs").exit_code == ExitCode.OK
        secret = make(tmp_path / "data")
        time.sleep(1.1)
        lost = client("jobs")
        assert (lost.exit_code, f"tuner-client --url {server.url} login" in lost.stderr) == (ExitCode.NO_TOKEN, True)
        assert client("login", input="tuner_wrong\n").exit_code == ExitCode.NO_TOKEN
        assert not credentials_path().exists()
        assert "alice, role submit" in client("login", input=f"{secret}\n").stderr
        assert credentials_path().stat().st_mode & 0o777 == 0o600
        assert client("jobs").exit_code == ExitCode.OK
        monkeypatch.setenv("TUNER_TOKEN", "tuner_other")
        assert client("jobs").exit_code == ExitCode.NO_TOKEN
        monkeypatch.delenv("TUNER_TOKEN")
        token_id = json.loads(run("token", "list", "--json", "--data", str(tmp_path / "data")).stdout)["id"]
        assert run("token", "revoke", token_id, "--data", str(tmp_path / "data")).exit_code == 0
        time.sleep(1.1)
        assert client("jobs").exit_code == ExitCode.NO_TOKEN
        assert client("logout").exit_code == ExitCode.OK
        assert json.loads(credentials_path().read_text()) == {}


@pytest.mark.slow
def test_a_proxy_is_believed_only_where_it_is_named(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-For": "192.0.2.9", "X-Forwarded-Proto": "https"}
    for trusted, seen in (("", "127.0.0.1"), ("127.0.0.1", "192.0.2.9")):
        data = tmp_path / f"data{bool(trusted)}"
        secret, admin = make(data), make(data, "admin", "root")
        with Server(data, "--gpu", "none", TUNER_TRUSTED_PROXIES=trusted) as server:
            answer = httpx.post(f"{server.url}/login", data={"token": secret}, headers=forwarded)
            assert ("secure" in answer.headers["set-cookie"].lower()) == bool(trusted)
            log = httpx.get(f"{server.url}/audit", headers={"Authorization": f"Bearer {admin}"}).json()["items"]
            assert (log[0]["action"], log[0]["address"]) == ("session.begin", seen)


def test_a_connection_beyond_the_limit_takes_the_place_of_one_that_asks_nothing(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--gpu", "none", TUNER_MAX_CONNECTIONS="3") as server:
        held = [httpx.Client() for _ in range(4)]
        statuses = [client.get(f"{server.url}/livez").status_code for client in held]
        for client in held:
            client.close()
        assert statuses == [200] * 4
