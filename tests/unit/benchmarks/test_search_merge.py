"""Jobs of several runs of the search benchmark are merged into one file."""

from __future__ import annotations

from typing import Any

from benchmarks.search.merge import merged
from benchmarks.search.tasks import BURST

MACHINE = {"gpu": "a card", "driver": "1", "cuda": "13.0"}


def report(commit: str, kernel_version: str, **job_s: float) -> dict[str, Any]:
    meta = MACHINE | {"commit": commit, "kernel_version": kernel_version, "date": "today"}
    meta["command"] = f"python -m program --samples /a/machine/samples.gz --out /a/machine/{commit}.json"
    jobs = [{"job": f"burst/{BURST[int(name[1:])]}", "job_s": seconds} for name, seconds in job_s.items()]
    return {"meta": meta, "jobs": jobs}


def test_the_last_file_wins_and_each_job_says_its_kernels() -> None:
    both = merged([report("first", "k1", j0=30.0, j1=10.0), report("second", "k2", j0=12.0)])
    assert [(job["job_s"], job["kernel_version"]) for job in both["jobs"]] == [(12.0, "k2"), (10.0, "k1")]
    seconds = next(row for row in both["rows"] if row["check"] == "burst_job_s")
    assert (seconds["worst"], seconds["of"], seconds["holds"]) == (12.0, 2, False), "six are missing"


def test_what_met_the_kernels_of_another_ladder_goes_with_it() -> None:
    def of(commit: str, *names: str) -> dict[str, Any]:
        jobs = [{"job": name, "batch_s": float(len(commit)), "loss": 0.0} for name in names]
        return report(commit, "k") | {"jobs": jobs}

    first = of("first", "ladder", "own/1", "own/64")
    assert [job["job"] for job in merged([first, of("second", "ladder", "own/64")])["jobs"]] == ["ladder", "own/64"]
    assert [job["job"] for job in merged([first, of("second", "own/64")])["jobs"]] == ["ladder", "own/1", "own/64"]


def test_a_run_that_goes_on_from_the_same_ladder_adds_to_what_met_it() -> None:
    def of(commit: str, batch_s: float, *names: str) -> dict[str, Any]:
        jobs = [{"job": "ladder", "batch_s": batch_s}, *({"job": name, "loss": 0.0} for name in names)]
        return report(commit, "k") | {"jobs": jobs}

    first, more, other = of("first", 1.0, "own/1"), of("second", 1.0, "own/64"), of("third", 2.0, "own/64")
    assert [job["job"] for job in merged([first, more])["jobs"]] == ["ladder", "own/1", "own/64"]
    assert [job["job"] for job in merged([first, other])["jobs"]] == ["ladder", "own/64"]


def test_each_run_is_named_once_without_folders_of_its_machine() -> None:
    both = merged([report("first", "k", j0=1.0), report("second", "k", j1=1.0)])
    again = merged([both, report("third", "k", j1=2.0)])
    assert [run["commit"] for run in again["meta"]["runs"]] == ["first", "second", "third"]
    assert again["meta"]["runs"][0]["command"] == "python -m program --samples samples.gz --out first.json"
    assert [job["job_s"] for job in again["jobs"]] == [1.0, 2.0]


def test_a_loss_beside_nothing_that_was_known_is_none() -> None:
    losses = {BURST[0]: (0.02, 4), BURST[1]: (0.0, 0)}
    meta = MACHINE | {"commit": "one", "kernel_version": "k", "date": "today", "command": "it"}
    jobs = [{"job": f"burst/{name}", "loss": loss, "num_kept": kept} for name, (loss, kept) in losses.items()]
    worst = next(row for row in merged([{"meta": meta, "jobs": jobs}])["rows"] if row["check"] == "loss_worst")
    assert (worst["each"], worst["of"], worst["holds"]) == ({f"burst/{BURST[0]}": 0.02}, 1, False)
