"""Rows of several runs of the chain benchmark are merged into one file, and their winners into another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chains import merge


def report(name: str, *rows: dict[str, Any], gpu: str = "NVIDIA H100") -> dict[str, Any]:
    """The report of a run with commit `name`; runs are a minute apart, in alphabetical order."""
    meta = {"gpu": gpu, "command": f"python -m search --out /tmp/{name}", "commit": name, "date": date_of(name)}
    return {"meta": meta | {"kernel_version": name, "complete": False, "chains": {}}, "rows": list(rows)}


def date_of(name: str) -> str:
    return f"2026-11-24T08:{ord(name[0]) - ord('a'):02}:00+00:00"


def row(m: int, speedup: float, **more: Any) -> dict[str, Any]:
    times = {"library": 130.0, "runs": round(130 / speedup, 1), "fused": 129.0}
    return {"chain": "llama3-8b", "m": m, "verdict_speedup": speedup, "kind_us": times, "trials": 60, **more}


def test_a_row_of_a_later_run_replaces_it_and_each_says_its_run(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    files[0].write_text(json.dumps(report("a", row(16, 1.1), row(1, 1.2))))
    files[1].write_text(json.dumps(report("b", row(16, 1.3, commit="own"))))
    out, shipped, winners = tmp_path / "chains.json", tmp_path / "h100.json", tmp_path / "winners.json"
    shipped.write_text(json.dumps({"a": {"trials": 1, "winners": {}}, "b": {"trials": 2, "winners": {}}}))
    winners.write_text(json.dumps({"b": {"trials": 3, "winners": {"fused": [{"time_us": 1.0}]}}}))
    asked = [*map(str, files), "--out", str(out), "--winners", str(winners), "--shipped", str(shipped)]
    merge.main(asked)
    written = json.loads(out.read_text())
    assert [(one["m"], one["verdict_speedup"], one["commit"]) for one in written["rows"]] == [
        (1, 1.2, "a"),
        (16, 1.3, "own"),
    ]
    assert written["meta"]["chains"]["llama3-8b"]["least"] == 1.2
    assert written["meta"]["command"] == "python -m search --out a; python -m search --out b"
    kept = json.loads(shipped.read_text())
    assert {name: one["trials"] for name, one in kept.items()} == {"a": 1, "b": 3}
    assert kept["b"]["winners"]["fused"] == [{"time_us": 1.0}]


def test_a_row_is_of_the_job_that_was_measured_last_whatever_it_found_and_has_all_jobs() -> None:
    first, second, third = report("a", row(16, 1.3)), report("b", row(16, 1.1)), report("c", row(16, 1.2))
    (found,) = merge.merged([third, first, second])["rows"]
    assert found["torch_compile_us"] is None, "values of kinds that were not tried are null"
    assert (found["verdict_speedup"], found["commit"]) == (1.2, "c")
    assert [(job["commit"], job["over_vendor_library"], job["fastest_us"]) for job in found["jobs"]] == [
        ("a", 1.3, 100.0),
        ("b", 1.1, 118.2),
        ("c", 1.2, 108.3),
    ]
    assert found["jobs"][0] == {
        "date": date_of("a"), "commit": "a", "trials": 60, "fastest_us": 100.0, "over_vendor_library": 1.3,
        "torch_over_library": None,
    }  # fmt: skip
    again = merge.merged([merge.merged([second, third]), merge.merged([first])])
    assert again["rows"] == [found], "merged files keep all of their jobs"


def test_jobs_are_compared_by_the_vendors_library_also_where_torch_was_ahead() -> None:
    in_job = row(1, 1.08, torch_compile_us=117.0, torch_over_library=0.9, torch_is_library=True)
    behind = row(16, 1.2, torch_compile_us=140.0, torch_over_library=1.08, torch_is_library=False)
    first, second = merge.merged([report("a", in_job, behind), report("b", row(1, 1.3))])["rows"]
    assert [job["over_vendor_library"] for job in first["jobs"]] == [1.2, 1.3]
    assert first["verdict_speedup"] == pytest.approx(1.3 * 0.9)
    assert [job["over_vendor_library"] for job in second["jobs"]] == [1.2]
    assert [job["torch_over_library"] for job in first["jobs"]] == [0.9, None]
    assert first["torch_beside"] == date_of("a")
    (again,) = merge.merged([merge.merged([report("a", in_job), report("b", row(1, 1.3))]), report("c", row(1, 1.25))])[
        "rows"
    ]
    assert [job["torch_over_library"] for job in again["jobs"]] == [0.9, None, None], (
        "carried values belong to no job of this file"
    )
    assert (again["torch_beside"], again["verdict_speedup"]) == (date_of("a"), pytest.approx(1.25 * 0.9))


def test_rows_of_two_models_of_card_are_not_merged() -> None:
    with pytest.raises(ValueError, match="one model of card"):
        merge.merged([report("a", row(1, 1.0)), report("b", row(1, 1.0), gpu="NVIDIA H200")])


def test_what_torch_took_stays_with_a_row_that_is_searched_again() -> None:
    torch = {"torch_compile_us": 90.0, "torch_over_library": 0.9, "torch_commit": "a"}
    again = merge.merged([report("a", row(1, 1.08, **torch), row(16, 1.1, torch_compile_us=None))])
    again = merge.merged([again, report("b", row(1, 1.3), row(16, 1.2))])
    (first, second) = again["rows"]
    assert {name: first[name] for name in torch} == torch
    assert first["verdict_speedup"] == pytest.approx(1.3 * 0.9)
    assert (second["verdict_speedup"], second.get("torch_compile_us")) == (1.2, None)
    newer = merge.merged([again, report("c", row(1, 1.2, torch_compile_us=80.0, torch_over_library=0.8))])
    assert newer["rows"][0]["verdict_speedup"] == 1.2, "it was measured again, and the verdict changed with it"
    without = merge.merged([newer, report("d", row(1, 1.5))])["rows"][0]
    assert (without["torch_compile_us"], without["verdict_speedup"]) == (80.0, pytest.approx(1.2)), (
        "as a search left it"
    )


def test_a_library_that_is_ahead_of_torch_stays_what_the_verdict_is_against() -> None:
    torch = {"torch_compile_us": 110.0, "torch_over_library": 1.1, "torch_commit": "a"}
    (found,) = merge.merged([report("a", row(1, 1.2, **torch)), report("b", row(1, 1.3))])["rows"]
    assert (found["verdict_speedup"], found["torch_compile_us"]) == (1.3, 110.0)


def test_means_are_also_told_over_the_fastest_that_torch_was_beside_any_job() -> None:
    ahead = {"torch_compile_us": 117.0, "torch_over_library": 0.9, "torch_is_library": True}
    behind = {"torch_compile_us": 132.0, "torch_over_library": 1.01, "torch_is_library": False}
    found = merge.merged([report("a", row(1, 1.08, **ahead)), report("b", row(1, 1.21, **behind))])
    summary = found["meta"]["chains"]["llama3-8b"]
    assert (summary["mean"], summary["mean_over_fastest_torch"]) == (1.21, pytest.approx(1.21 * 0.9))
