"""Reports of the compiler are those that were recorded for the same inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import reports
from tests.support.compiled import compile_source
from tests.support.reports import RECORDS, inputs_digest, report_of
from tuner.workers.builder.nvrtc import parse_log

SOURCE = 'extern "C" __global__ void copied(int* to) { to[threadIdx.x] = 41; } // said'


OTHER = SOURCE.replace("41", "42")


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty record."""
    monkeypatch.setattr(reports, "FILE", tmp_path / "reports.json")
    monkeypatch.delenv(RECORDS, raising=False)
    monkeypatch.setattr(reports, "_recorded", dict)
    return tmp_path / "reports.json"


def test_a_recorded_report_is_that_of_the_compiler_and_is_asked_for_once(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    monkeypatch.setenv(RECORDS, str(folder))
    compiled = report_of(SOURCE, "sm_80")
    assert compiled.resources == parse_log(compile_source(SOURCE, "sm_80")[1])
    assert reports.write(folder) == 1
    monkeypatch.undo()
    monkeypatch.setattr(reports, "FILE", record)
    reports._recorded.cache_clear()
    monkeypatch.setattr(reports, "compile_source", lambda *_: pytest.fail("compiled again"))
    assert report_of(SOURCE.replace("said", "said otherwise"), "sm_80") == compiled
    reports._recorded.cache_clear()


def test_what_is_not_recorded_is_compiled(record: Path) -> None:
    first, other = report_of(SOURCE, "sm_80"), report_of(OTHER, "sm_80")
    assert first.resources.registers_per_thread > 0
    assert first.code != other.code


def test_another_source_or_architecture_has_other_inputs() -> None:
    assert len({inputs_digest(SOURCE, "sm_80"), inputs_digest(SOURCE, "sm_90"), inputs_digest(OTHER, "sm_80")}) == 3
