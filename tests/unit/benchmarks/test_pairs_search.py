"""The search of the pairs, by jobs of the service on the simulated GPU: its output, and the output of an interrupted
run."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.jobs import Ended, JobError, Jobs, jobs_over
from benchmarks.common.report import commit, machine_of
from benchmarks.common.rows import choose_rows
from benchmarks.common.setting import twin_of
from benchmarks.common.winners import NUM_KEPT, Winners, best_of
from benchmarks.common.workbench import Workbench
from benchmarks.pairs.results import Results, row_of
from benchmarks.pairs.search import Options, main, search_rows
from benchmarks.pairs.torch_check import check_rows
from tests.support.builders import BEST, measured, spec, trial
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, PriorsChoice
from tuner.core.trial.records import FinalRow, JobRecord, Verdict
from tuner.errors import TunerError
from tuner.winners import ShippedWinners

SMALL, OTHER = choose_rows(["independent"])[2], choose_rows(["independent"])[1]
KEYS = {
    "suite", "pair", "m", "regime", "kind_us", "fused_speedup", "fused_speedup_pdl", "ci95", "verdict", "winner",
    "verdict_speedup", "reference_us", "over_reference", "rel_error", "schedule", "wall_s", "trials", "priors",
}  # fmt: skip
EIGHT = Options(trials=8)


def opened(folder: Path) -> AbstractContextManager[Jobs]:
    twin = twin_of("simulated:h200")
    assert twin is not None
    return jobs_over(twin, winners=ShippedWinners(folder), num_rounds=3, data=folder / "data")


def search(jobs: Jobs, folder: Path, *rows: Any, options: Options = EIGHT) -> dict[str, str]:
    winners = Winners(ShippedWinners(folder).path(jobs.target_id))
    results = Results(folder / "pairs.json", machine_of(jobs.environment))
    return search_rows(jobs, rows, winners, results, options)


def written(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The winners by row, and the results by pair."""
    winners = json.loads((folder / "simulated-h200.json").read_text())
    return winners, {row["pair"]: row for row in json.loads((folder / "pairs.json").read_text())["rows"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a search of two rows."""
    folder = tmp_path_factory.mktemp("pairs")
    with opened(folder) as jobs:
        assert search(jobs, folder, SMALL, options=replace(EIGHT, energy=True)) == {}
        assert search(jobs, folder, OTHER) == {}
    return folder


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """A copy of that folder for a test that writes into it."""
    return shutil.copytree(folder, tmp_path / "pairs")


# In CI, tests/service/service/test_inspections.py takes the energies of finalists.
@pytest.mark.soak
def test_the_energy_of_all_finalists_is_measured_if_asked_for(folder: Path) -> None:
    _, rows = written(folder)
    assert "energy_mj" not in rows[OTHER.pair]
    assert set(rows[SMALL.pair]["energy_mj"]) == set(rows[SMALL.pair]["kind_us"])
    assert all(energy > 0 for energy in rows[SMALL.pair]["energy_mj"].values())


@pytest.mark.slow
def test_a_row_is_a_job_whose_finals_are_its_results_and_whose_best_are_winners_that_ship(folder: Path) -> None:
    winners, rows = written(folder)
    assert set(winners) == {SMALL.name, OTHER.name}
    for row in (SMALL, OTHER):
        assert set(rows[row.pair]) >= KEYS
        us = rows[row.pair]["kind_us"]
        assert {"library", "two_launches", "fused"} <= set(us)
        assert rows[row.pair]["fused_speedup"] == pytest.approx(us["library"] / us["fused"], rel=0.05)
        assert rows[row.pair]["ci95"][0] <= rows[row.pair]["fused_speedup"] <= rows[row.pair]["ci95"][1]
        entry = winners[row.name]
        assert (entry["trials"], Workload.from_json(entry["workload"])) == (8, row.workload)
        assert set(entry) >= {"commit", "date", "gpu", "kernel_version", "library_us", "objective", "seed"}
        assert all(1 <= len(found) <= NUM_KEPT[PlanKind(kind)] for kind, found in entry["winners"].items())
        assert entry["winners"]["fused"][0]["time_us"] == us["fused"], "the best of the finals comes first"
    found = ShippedWinners(folder).of("simulated:h200")
    assert {one.source for one in found} == {f"shipped {SMALL.name}", f"shipped {OTHER.name}"}


# In CI, a job that was cut goes on in another test.
@pytest.mark.soak
def test_a_row_that_was_searched_is_not_searched_again_and_a_longer_search_begins_with_its_winners(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--gpu", "simulated:h200", "--winners", str(own_folder), "--out", str(own_folder / "pairs.json")]
    base = ["search", *where, "--data", str(own_folder / "data"), "--row", SMALL.name, "--rounds", "3"]
    to_search = []
    for trials in ("8", "12"):
        monkeypatch.setattr("sys.argv", [*base, "--trials", trials])
        main()
        to_search.append(next(line for line in capsys.readouterr().out.splitlines() if "to search" in line))
    assert to_search == ["0 of 1 rows to search", "1 of 1 rows to search"]
    winners, rows = written(own_folder)
    assert (winners[SMALL.name]["trials"], winners[SMALL.name]["priors"]) == (12, 3)
    assert rows[SMALL.pair]["trials"] == 12
    assert winners[OTHER.name]["trials"] == 8


@pytest.mark.soak
def test_a_fair_search_leaves_the_winners_and_one_in_another_regime_leaves_no_results(own_folder: Path) -> None:
    before = written(own_folder)
    with opened(own_folder) as jobs:
        fair = replace(EIGHT, priors=PriorsChoice.NONE)
        assert search(jobs, own_folder, SMALL, options=fair) == {}
        assert written(own_folder)[0] == before[0]
        assert written(own_folder)[1][SMALL.pair]["priors"] == "none"
        assert search(jobs, own_folder, SMALL, options=replace(EIGHT, regime=Regime.SUSTAINED)) == {}
    winners, rows = written(own_folder)
    assert winners[SMALL.name]["objective"]["regime"] == "sustained"
    assert rows[SMALL.pair]["regime"] == "burst"


@pytest.mark.slow
def test_a_job_that_was_cut_goes_on_one_that_ended_is_taken_and_what_nobody_wants_is_dropped(tmp_path: Path) -> None:
    unwanted, wanted = EIGHT.spec(OTHER, "simulated:h200"), EIGHT.spec(SMALL, "simulated:h200")
    with opened(tmp_path) as jobs:
        first, second = jobs.begin(wanted), jobs.begin(unwanted)
    with opened(tmp_path) as jobs:
        jobs.drop_others([wanted])
        assert jobs.begin(wanted).id == first.id
        assert jobs.end(first).job.num_trials == 8
        assert jobs.begin(wanted).id == first.id
        assert jobs.begin(wanted, anew=True).id != first.id
        with pytest.raises(JobError, match=f"{second.id} ended cancelled"):
            jobs.end(second)


@pytest.mark.soak
def test_a_row_that_fails_is_reported_the_others_go_on_and_none_is_begun_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as jobs:
        end = jobs.end

        def fails_once(job: JobRecord) -> Ended:
            if job.spec.workload == OTHER.workload:
                raise KeyError("m")
            return end(job)

        monkeypatch.setattr(jobs, "end", fails_once)
        assert search(jobs, tmp_path, OTHER, SMALL) == {OTHER.name: "KeyError: 'm'"}
        assert set(written(tmp_path)[0]) == {SMALL.name}
        late = replace(EIGHT, limit_s=-1.0, force=True)
        assert search(jobs, tmp_path, OTHER, SMALL, options=late) == {}


@pytest.mark.slow
def test_rows_of_another_commit_go(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pairs.json"
    machine = {"gpu": "a card"}
    row = written(folder)[1][SMALL.pair]
    for other in ("aaaaaaaa", "bbbbbbbb"):
        monkeypatch.setenv("TUNER_COMMIT", other)
        assert Results(path, machine).num_trials(SMALL.name, row["priors"]) == 0
        Results(path, machine).put(SMALL.name, row)
        assert Results(path, machine).num_trials(SMALL.name, row["priors"]) == row["trials"]
        assert Results(path, machine).num_trials(SMALL.name, "other") == 0


def test_pytorch_is_a_cross_check_that_says_why_it_is_missing(bench: Workbench, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    measured = written(folder)[1][SMALL.pair]
    before = {"meta": {"commit": "an older one"}, "rows": [measured]}
    path.write_text(json.dumps(before))
    check_rows(bench, [SMALL, OTHER], path)
    after = json.loads(path.read_text())
    [row] = after["rows"]
    assert (row["torch_us"], row["torch_reason"]) == (None, "a simulated GPU has no PyTorch")
    assert row["torch_run"]["commit"] == commit()
    assert after["meta"] == before["meta"]
    assert {name: row[name] for name in measured if not name.startswith("torch_")} == {
        name: value for name, value in measured.items() if not name.startswith("torch_")
    }


def ended(*kinds: PlanKind, **times: float | None) -> Ended:
    """A job with one finalist for each of `kinds`; a kind without a time failed in the finals."""
    finals, trials = [], []
    for number, kind in enumerate(kinds):
        time_us = times.get(str(kind), 50.0)
        trials.append(trial(number, measured(50.0 + number, rel_error=1e-4 * number), kind, stages=2 + number))
        finals.append(
            FinalRow(
                candidate=trials[-1].candidate,
                trial_number=number,
                time_us=time_us,
                spread=0.01,
                speedup=time_us and 100 / time_us,
                speedup_ci95=None if time_us is None else (100 / time_us - 0.1, 100 / time_us + 0.1),
                reason="" if time_us else "it hung",
                energy_mj=20.0 if time_us else None,
                num_rounds=6,
            )
        )
    job = JobRecord(
        id="job-1", spec=spec(), state=JobState.SUCCEEDED, reason="", created_at=0.0, started_at=1.0, finished_at=3.5,
        num_measured=len(kinds), num_rejected=0, num_failed=0, best_us=1.0, library_us=1.0, search_s=2.0,
    )  # fmt: skip
    best = replace(BEST, finals=tuple(finals), winner=PlanKind.FUSED, verdict=Verdict.FUSED_WINS)
    return Ended(job=job, best=best, trials=trials)


def test_a_rows_figures_are_those_of_the_finals() -> None:
    figures = row_of(SMALL, ended(PlanKind.LIBRARY, PlanKind.FUSED, PlanKind.FUSED_PDL, library=100.0, fused_pdl=None))
    assert figures["kind_us"] == {"library": 100.0, "fused": 50.0}
    assert (figures["winner"], figures["verdict_speedup"], figures["fused_speedup"]) == (PlanKind.FUSED, 2.0, 2.0)
    assert figures["energy_mj"] == {"library": 20.0, "fused": 20.0}
    assert figures["reasons"] == ["it hung"]
    assert (figures["wall_s"], figures["search_s"], figures["rel_error"]) == (2.5, 2.0, 1e-4)
    assert "fused_speedup_pdl" not in figures
    with pytest.raises(TunerError, match="neither the library nor a fused launch was measured"):
        row_of(SMALL, ended(PlanKind.LIBRARY, PlanKind.TWO_LAUNCHES, library=100.0))


def test_winners_of_a_kind_are_first_those_of_the_finals_and_none_that_failed_there() -> None:
    one = ended(PlanKind.LIBRARY, PlanKind.FUSED, PlanKind.FUSED, PlanKind.FUSED_PDL, fused_pdl=None)
    slow = replace(one.best.finals[1], time_us=60.0, speedup=1.6)
    finals = (one.best.finals[0], slow, *one.best.finals[2:])
    quick = trial(4, measured(10.0), PlanKind.FUSED, stages=8)
    found = best_of(replace(one, best=replace(one.best, finals=finals), trials=[*one.trials, quick]))
    texts = [str(candidate.schedule) for candidate in (finals[2].candidate, slow.candidate, quick.candidate)]
    assert [entry["text"] for entry in found[PlanKind.FUSED]] == texts
    assert PlanKind.FUSED_PDL not in found
    assert Candidate(plan_kind=PlanKind.LIBRARY) == finals[0].candidate
