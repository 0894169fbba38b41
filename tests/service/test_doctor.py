"""`tuner doctor`: each finding has a remedy."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.serving import Server
from tuner.cli import main
from tuner.dispatch.diagnosis import Finding, judge_counters


def findings(data: Path) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the checks by name."""
    result = CliRunner().invoke(main, ["doctor", "--json", "--data", str(data)])
    checks = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, {check["name"]: check for check in checks}


def test_every_part_is_looked_at_and_what_is_not_well_has_a_remedy(tmp_path: Path) -> None:
    code, found = findings(tmp_path / "data")
    assert (code, list(found)) == (0, ["driver", "CuPy", "NVRTC", "CUPTI", "database", "network"])
    assert all((check["finding"] == "ok") == (check["remedy"] == "") for check in found.values())
    assert not (tmp_path / "data").exists()
    text = CliRunner().invoke(main, ["doctor", "--data", str(tmp_path / "data")]).stdout
    lines = text.splitlines()
    assert sum(line.startswith(("ok", "warn")) for line in lines) == len(found)
    remedies = [line for line in lines if "->" in line and "as for" not in line]
    assert len(remedies) == len(set(remedies)) > 0
    assert all(found["driver"]["remedy"] not in check["found"] for check in found.values())


def test_a_database_is_looked_at_beside_a_server_and_a_damaged_one_fails(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--gpu", "none") as server:
        code, found = findings(tmp_path / "data")
        assert "alembic" not in server.log.read_text(), "each migration of a new database has a line"
        assert (code, "accepts writes" in found["database"]["found"]) == (0, True)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tuner.db").write_bytes(b"no database at all, but long enough for one" * 100)
    code, found = findings(tmp_path / "broken")
    assert (code, found["database"]["finding"]) == (1, "fail")


def test_a_locked_database_fails_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LOCK_PATIENCE_S", "0.1")
    assert CliRunner().invoke(main, ["migrate", "--data", str(tmp_path)]).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "tuner.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        code, found = findings(tmp_path)
    assert (code, found["database"]["finding"]) == (1, "fail")
    assert found["database"]["remedy"]


@pytest.mark.parametrize(
    ("text", "is_admin", "finding"),
    [("RmProfilingAdminOnly: 1\n", False, Finding.WARN), ("RmProfilingAdminOnly: 1\n", True, Finding.OK),
     ("RmProfilingAdminOnly: 0\n", False, Finding.OK)],
)  # fmt: skip
def test_who_may_read_counters_is_what_the_driver_says(text: str, is_admin: bool, finding: Finding) -> None:
    check = judge_counters(text, is_admin=is_admin)
    assert (check.finding, bool(check.remedy)) == (finding, finding is Finding.WARN)
