"""Artifacts, packs and locks of every format can be read, and the current program writes the same contents."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.native.recorder import compile_recorder
from tests.unit.frozen.artifacts import (
    ARTIFACTS,
    FOLDER,
    PACKS,
    artifact_path,
    files_of,
    pack_path,
    read_pack_file,
    read_zip,
)
from tuner.client.delivery.artifact import open_artifact
from tuner.client.delivery.lock import read_lock
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.read import read_pack
from tuner.packs.recipes.own_launches import own_checks
from tuner.packs.records import VERSION, VERSION_OF_SECTION
from tuner.packs.write import pack_bytes
from tuner.runtime import RuntimeFailure, load_artifact
from tuner.versions import MANIFEST_FORMAT
from tuner.winners.shipped import found_in

MANIFEST = "manifest.json"
#: In the same formats, before attentions had a record of aborts, or pages had gaps.
OLDER = FOLDER.parent / "older"
#: Fields of a manifest with sentences for people, besides those that end in `_meaning`.
PROSE = {"meaning", "cache", "zero", "concurrency", "intermediates"}
FORMATS = range(1, MANIFEST_FORMAT + 1)
VERSIONS = range(1, VERSION + 1)
#: The message about an op whose kind is missing.
UNKNOWN = "of an unknown kind of op; install the package that provides it"


def missing_in(today: Any, frozen: Any, path: str = "") -> list[str]:
    """Where a frozen document differs from today's: fields may be added, but not removed or changed."""
    if isinstance(frozen, dict) and isinstance(today, dict):
        gone = [f"{path}.{key}" for key in frozen if key not in today]
        both = [key for key in frozen if key in today]
        return gone + [name for key in both for name in missing_in(today[key], frozen[key], f"{path}.{key}")]
    if isinstance(frozen, list) and isinstance(today, list) and len(frozen) == len(today):
        pairs = enumerate(zip(today, frozen, strict=True))
        return [name for number, (new, old) in pairs for name in missing_in(new, old, f"{path}[{number}]")]
    return [] if (type(today), today) == (type(frozen), frozen) else [path]


def without_prose(document: Any) -> Any:
    """A manifest without its sentences for readers, whose wording may change."""
    if isinstance(document, list):
        return [without_prose(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        key: without_prose(value)
        for key, value in document.items()
        if not (isinstance(value, str) and (key in PROSE or key.endswith("_meaning")))
    }


def _facts(manifest: bytes) -> str:
    return json.dumps(without_prose(json.loads(manifest)), sort_keys=True)


def in_kept_words(entries: list[Entry], frozen: dict[str, bytes]) -> list[Entry]:
    """Entries whose kernels have the frozen manifests, if these differ from today's only in wording."""
    kept = {_facts(data): data for path, data in frozen.items() if path.endswith(f"/{MANIFEST}")}

    def reworded(rung: Rung) -> Rung:
        if rung.kernel is None:
            return rung
        today = rung.kernel.files[MANIFEST]
        return replace(rung, kernel=Kernel(files={**rung.kernel.files, MANIFEST: kept.get(_facts(today), today)}))

    return [replace(entry, rungs=tuple(map(reworded, entry.rungs))) for entry in entries]


def needs_unknown(manifest: bytes) -> bool:
    """Whether a manifest has launches that only a missing kind can read."""
    try:
        own_checks(json.loads(manifest))
    except InvalidInput:
        return True
    return False


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_recorder(tmp_path_factory.mktemp("recorder"))


def test_every_format_and_every_version_lies_here() -> None:
    expected = [artifact_path(number) for number in FORMATS] + [pack_path(version) for version in VERSIONS]
    assert set(FOLDER.iterdir()) == {*expected, FOLDER / "tuner.lock", FOLDER / "winners.json"}


@pytest.mark.parametrize("number", FORMATS)
def test_an_artifact_of_every_format_is_opened_and_loaded(
    number: int, recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder))
    content = artifact_path(number).read_bytes()
    opened = open_artifact(content, hashlib.sha256(content).hexdigest())
    assert opened.manifest["format"] == number
    if needs_unknown(read_zip(content)[MANIFEST]):
        with pytest.raises(RuntimeFailure, match=UNKNOWN):
            load_artifact(artifact_path(number))
    elif opened.manifest["plan_kind"] == "two_streams":
        with pytest.raises(RuntimeFailure, match="runs on two streams"):
            load_artifact(artifact_path(number))
    else:
        assert load_artifact(artifact_path(number)).manifest == opened.manifest


@pytest.mark.parametrize("path", sorted(OLDER.iterdir()), ids=lambda path: path.name)
def test_what_was_written_in_an_older_form_of_a_format_is_read(
    path: Path, recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder))
    if path.suffix == ".zip":
        assert not load_artifact(path).aborted()
    else:
        assert read_pack(gzip.decompress(path.read_bytes())).section("attentions")


@pytest.mark.parametrize(("number", "made"), ARTIFACTS.items())
def test_an_artifact_is_written_as_it_was(number: int, made: Callable[[], Any]) -> None:
    frozen, today = read_zip(artifact_path(number).read_bytes()), files_of(made())
    manifests = [without_prose(json.loads(files.pop(MANIFEST))) for files in (today, frozen)]
    assert missing_in(*manifests) == []
    assert today == frozen


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pack_of_every_version_is_read(version: int) -> None:
    manifests = [data for path, data in read_zip(read_pack_file(version)).items() if path.endswith(f"/{MANIFEST}")]
    if any(map(needs_unknown, manifests)):
        with pytest.raises(InvalidInput, match=UNKNOWN):
            read_pack(read_pack_file(version))
        return
    pack = read_pack(read_pack_file(version))
    assert pack.document["format"] == version
    sections = [bool(pack.section(section)) for section in VERSION_OF_SECTION]
    assert sections == [since <= version for since in VERSION_OF_SECTION.values()]


@pytest.mark.parametrize(("version", "made"), PACKS.items())
def test_a_pack_is_written_as_it_was(version: int, made: Callable[[], list[Entry]]) -> None:
    frozen = read_zip(read_pack_file(version))
    today = read_zip(pack_bytes(in_kept_words(made(), frozen)))
    assert today["pack.bin"] == frozen["pack.bin"], (
        "the index of a pack is another: a program that finds it may not run"
    )
    assert today.keys() == frozen.keys()
    documents = [json.loads(files["pack.json"]) for files in (today, frozen)]
    for document in documents:
        del document["tuner_version"]
    assert missing_in(*documents) == []


def test_a_lock_is_read() -> None:
    lock = read_lock(FOLDER / "tuner.lock")
    assert lock.key == "a" * 64
    assert [(pack.path, pack.size_bytes) for pack in lock.packs] == [("a.tunerpack", 4), ("model.tunerpack", 3)]
    assert lock.to_bytes() == (FOLDER / "tuner.lock").read_bytes()


def test_winners_are_read_as_they_were_kept() -> None:
    rows: dict[str, Any] = json.loads((FOLDER / "winners.json").read_text())
    for name, row in rows.items():
        found = found_in(name, row)
        schedules = [one.candidate.schedule.to_json() for one in found if one.candidate.schedule]
        kept = [one["schedule"] for ranked in row["winners"].values() for one in ranked]
        if Workload.from_json(row["workload"]).unknown_kinds:
            kept = []
        assert json.loads(json.dumps(schedules)) == kept
        assert [one.workload.to_json() for one in found] == [row["workload"]] * len(kept)
