"""`tuner-client show` and `diff` read packs without asking a service."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.packs import ffn, ladder, make
from tuner.client import ExitCode
from tuner.client.cli import main
from tuner.packs.contents import Entry
from tuner.packs.write import pack_bytes


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    """Two shapes, each with a kernel and the library above it."""
    found = []
    for d_out, winner in ((128, "library"), (192, "fused")):
        ours, library = ladder(make(workload=ffn(d_out=d_out)).kernel).rungs
        measured = {"gpu": "NVIDIA H200", "driver": "580.1", "job": "job-1"}
        rungs = (
            replace(ours, provenance={**measured, "time_us": 40.0, "winner": "fused"}),
            replace(library, speedup=0.5, provenance={**measured, "time_us": 90.0, "winner": winner}),
        )
        found.append(replace(ladder(make(workload=ffn(d_out=d_out)).kernel), rungs=rungs))
    return found


def write(path: Path, entries: list[Entry], **about: Any) -> str:
    path.write_bytes(pack_bytes(entries, provenance={"target": "h200", "l2": "cold", "min_gain": 1.02, **about}))
    return str(path)


def asked(*command: str) -> Result:
    return CliRunner().invoke(main, ["--url", "http://127.0.0.1:9", *command])


def test_a_pack_is_shown_with_its_kernels_reasons_and_the_librarys_times(tmp_path: Path, entries: list[Entry]) -> None:
    found = asked("show", write(tmp_path / "a.tunerpack", entries))
    assert found.exit_code == 0, found.output
    for words in ("2 kernels, sha256", "target: h200", "measured on: NVIDIA H200, driver 580.1", "signed by: nobody"):
        assert words in found.stdout
    assert "library: ours is slower" in found.stdout
    assert "library: tuner's kernel gains 0.500x, below --min-gain 1.02" in found.stdout
    assert "50.0 µs" in found.stdout, "40 µs, 1.25 times as fast"


def test_for_programs_a_pack_is_a_document_for_each_range(tmp_path: Path, entries: list[Entry]) -> None:
    found = asked("show", "--json", write(tmp_path / "a.tunerpack", entries))
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(one["rows"], one["runs"], one["time_us"], one["library_us"], one["speedup"]) for one in lines[:2]] == [
        ("1–16", "fused", 40.0, 50.0, 1.25),
        ("17–4096", "library: ours is slower", None, 45.0, None),
    ]
    assert [bool(one["kernel"]) for one in lines] == [True, False, True, False]


def test_what_differs_between_two_packs_is_said_as_a_whole_and_range_by_range(
    tmp_path: Path, entries: list[Entry]
) -> None:
    faster = replace(entries[0], rungs=(replace(entries[0].rungs[0], speedup=1.5), entries[0].rungs[1]))
    before, after = write(tmp_path / "a", entries), write(tmp_path / "b", [faster], l2="warm")
    found = asked("diff", before, after)
    assert found.exit_code == 0, found.output
    assert "L2: cold before, warm after" in found.stdout
    assert "kernels: 1 in both, 1 only before, 0 only after" in found.stdout
    assert "fused 1.25x" in found.stdout
    assert "fused 1.50x" in found.stdout
    assert "target" not in found.stdout, "it is the same"
    document = json.loads(asked("diff", "--json", before, after).stdout)
    assert document["changed"] == {"L2": ["cold", "warm"]}
    assert document["kernels"] == {"both": 1, "alone": [1, 0]}
    assert document["ranges"][0] == {
        "shape": str(entries[0].shape),
        "rows": "1–16",
        "before": "fused 1.25x",
        "after": "fused 1.50x",
    }


def test_figures_of_a_simulated_pack_are_marked_as_such_on_their_side(tmp_path: Path, entries: list[Entry]) -> None:
    faster = [replace(entries[0], rungs=(replace(entries[0].rungs[0], speedup=1.5), entries[0].rungs[1]))]
    real, simulated = write(tmp_path / "a", entries), write(tmp_path / "b", faster, target="simulated:h200")
    found = asked("diff", real, simulated).stdout
    assert "target: h200 before, simulated:h200 after" in found
    assert ("after (simulated)" in found, "before (simulated)" in found) == (True, False)
    assert json.loads(asked("diff", "--json", simulated, real).stdout)["simulated"] == [True, False]
    for path, is_simulated in ((real, False), (simulated, True)):
        lines = asked("show", "--json", path).stdout.splitlines()
        assert {json.loads(line)["simulated"] for line in lines} == {is_simulated}
        checked = asked("verify", path, "--bytes-only")
        assert (checked.exit_code, f"{path} is simulated: it never ran on a card" in checked.stderr) == (
            0,
            is_simulated,
        )


def test_the_same_packs_do_not_differ(tmp_path: Path, entries: list[Entry]) -> None:
    before, after = write(tmp_path / "a", entries), write(tmp_path / "b", entries)
    assert asked("diff", before, after).stdout == "the packs are identical, byte for byte\n"
    other = write(tmp_path / "b", entries, min_gain=1.1)
    assert "least gain: 1.02 before, 1.1 after" in asked("diff", before, other).stdout
    assert "the kernels and gains of every range of rows are the same" in asked("diff", before, other).stdout


@pytest.mark.parametrize("command", ["show", "diff"])
def test_what_is_no_pack_is_refused_by_its_name(tmp_path: Path, entries: list[Entry], command: str) -> None:
    good, bad = write(tmp_path / "good", entries), tmp_path / "bad"
    bad.write_bytes(Path(good).read_bytes()[:-1])
    found = asked(command, *([good] if command == "diff" else []), str(bad))
    assert found.exit_code == ExitCode.REFUSED
    assert f"{bad} is not an intact pack" in found.stderr
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", "{}")
    found = asked(command, *([good] if command == "diff" else []), str(bad))
    assert found.exit_code == ExitCode.REFUSED
    assert (
        f"{bad} is an artifact, as `tuner-client fetch best` writes, not a pack; make a pack of its job" in found.stderr
    )
