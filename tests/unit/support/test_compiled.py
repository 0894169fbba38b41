"""The cache of cubins between test runs: equal sources are compiled once, and broken entries again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests import conftest
from tests.support import compiled, kept_tilings
from tuner.errors import BuildError
from tuner.workers.builder import nvrtc

SOURCE = 'extern "C" __global__ void f(int* x) { x[0] = 1; }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "FOLDER", tmp_path / "cubins")
    return tmp_path / "cubins"


def test_a_source_is_compiled_once_whatever_its_comments_say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled.compile_source(SOURCE, "sm_80")
    assert first[0] == nvrtc.compile_source(SOURCE, "sm_80")[0]
    assert nvrtc.parse_log(first[1]).registers_per_thread > 0
    monkeypatch.setattr(nvrtc, "compile_source", lambda *_: pytest.fail("compiled again"))
    assert compiled.compile_source("// A word.\n" + SOURCE, "sm_80") == first
    assert len(list(folder.iterdir())) == 1


def test_another_source_or_architecture_is_another_build(folder: Path) -> None:
    builds = {
        compiled.compile_source(source, arch)[0]
        for source in (SOURCE, SOURCE.replace("= 1", "= 2"))
        for arch in ("sm_80", "sm_90a")
    }
    assert len(builds) == len(list(folder.iterdir())) == 4


def test_half_a_file_is_compiled_again(folder: Path) -> None:
    first = compiled.compile_source(SOURCE, "sm_80")
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes()[:-20])
    assert compiled.compile_source(SOURCE, "sm_80")[0] == first[0]


def test_what_does_not_compile_is_not_kept(folder: Path) -> None:
    with pytest.raises(BuildError, match="undefined"):
        compiled.compile_source("__global__ void f() { g(); }", "sm_80")
    assert not folder.exists()


def test_a_cold_run_begins_with_nothing_and_its_processes_share_what_they_compile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.compile_source(SOURCE, "sm_80")
    monkeypatch.setenv(kept_tilings.FOLDER, "")  # it is as before when the test ends
    ends: list[Callable[[], None]] = []
    cold = SimpleNamespace(getoption=lambda *_: True, add_cleanup=ends.append)
    conftest.pytest_configure(cast(pytest.Config, cold))
    shared = compiled.FOLDER
    assert shared != folder
    assert not list(shared.iterdir())
    node = SimpleNamespace(workerinput={})
    conftest.pytest_configure_node(node)
    monkeypatch.setattr(compiled, "FOLDER", folder)
    conftest.pytest_configure(
        cast(pytest.Config, SimpleNamespace(getoption=lambda *_: True, workerinput=node.workerinput))
    )
    assert shared == compiled.FOLDER
    for end in ends:
        end()
    assert not shared.exists()
    assert len(list(folder.iterdir())) == 1
