"""`tuner fit`: trials of a service that measured a GPU's schedules become a set of rates for it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks.common.rows import choose_rows
from benchmarks.simulator.judge import data_file
from benchmarks.simulator.trials import read
from tests.support import builders
from tuner.cli import main
from tuner.commands import fit as fit_cli
from tuner.core.model import own_fit, rates
from tuner.core.model.fit import Trial
from tuner.core.model.rates import CATALOGUE_RATES, FITS_VARIABLE, Fit, Rates, fit_of, rates_of, use_fits
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import CacheState
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import JobState, Objective
from tuner.errors import InvalidInput
from tuner.python.here import service_here
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials

H200 = CATALOGUE["h200"]
PAIRS = ("decode-plain/llama3-8b/m16", "decode-plain/llama3-8b/m64", "decode-swiglu/llama3-70b-tp8/m16")
#: Rates that no card has: a launch without cost, and a DRAM as slow as on a very old GPU.
BAD = replace(CATALOGUE_RATES, launch_us=0.01, dram_share=0.01, poll_us=20.0)
#: A card whose SMs get a ninth of the L2 rate of the card that ran these trials.
SLOW = replace(CATALOGUE_RATES, wgmma=replace(CATALOGUE_RATES.wgmma, port_share=0.1))


@pytest.fixture(autouse=True)
def no_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FITS_VARIABLE, "removed after the test, like all variables that commands set")
    monkeypatch.delenv(FITS_VARIABLE)


def service_of(folder: Path, num_trials: int, objective: Objective | None = None) -> None:
    """Fills a data folder with `num_trials` measured trials of each pair on an H200."""
    data, store = read(data_file("h200")), Store.open(folder)
    with store.write() as session:
        for pair in PAIRS:
            (row,) = choose_rows((), (pair,))
            asked = builders.spec(target_id="h200", trials=num_trials)
            job = jobs.insert(session, replace(asked, workload=row.workload, objective=objective or Objective()), 1.0)
            jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
            measured = data.of(pair)
            for number, one in enumerate(measured[:: len(measured) // num_trials][:num_trials]):
                candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=Schedule.from_json(one["schedule"]))
                trials.record(session, job.id, builders.tried(number, candidate, one["time_us"]), 0.1)
    store.close()


def fitted(folder: Path, gpu: str = "h200") -> Result:
    return CliRunner().invoke(main, ["fit", gpu, "--data", str(folder)])


def put(folder: Path, text: str, gpu: str = "h200") -> Path:
    (folder / "fits").mkdir(exist_ok=True)
    path = folder / "fits" / f"{gpu}.json"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_a_fit_is_kept_if_it_ranks_better_than_the_rates_of_its_start_and_else_an_earlier_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Rates] = []
    ranks = iter((0.5, 0.9))

    class Known(own_fit.OwnFit):
        """A fit whose result is given."""

        @classmethod
        def to(cls, shown: Sequence[Trial], start: Rates, pool: object) -> Known:
            begun.append(start)
            return cls(trials=shown, linear=None)  # type: ignore[arg-type]

        def fitted(self, width: float = 0.0) -> Rates:
            return SLOW

        def evaluated(self, width: float = 0.0) -> list[own_fit.Evaluated]:
            after = next(ranks)
            return [own_fit.Evaluated(workload=name, num_trials=20, before=0.5, after=after) for name in PAIRS]

        def changes(self, rates: Rates) -> list[own_fit.Changed]:
            return []

    monkeypatch.setattr(own_fit, "OwnFit", Known)
    shipped = Fit(rates=BAD, gpu="h200", gpu_name="H200", date="2026-01-01", commit="x", num_trials=1)
    monkeypatch.setattr(rates, "shipped_fit", lambda gpu_id: shipped)
    monkeypatch.setattr(fit_cli, "MIN_TRIALS", 60)
    service_of(tmp_path, 20)
    path = put(tmp_path, json.dumps(shipped.to_json()))
    refused = fitted(tmp_path)
    assert (refused.exit_code, json.loads(path.read_text())) == (1, shipped.to_json())
    assert "not kept: the fit to 60 trials ranks no better than the shipped rates; " in refused.output
    back = "from an earlier fit, stays in use: `tuner fit h200 --remove` returns to the shipped rates"
    assert f"{path}, {back}" in refused.output
    better = fitted(tmp_path)
    kept = Fit.from_json(json.loads(path.read_text()))
    assert (better.exit_code, kept.rates, kept.num_trials) == (0, SLOW, 60), better.output
    assert "0.500 -> 0.900  mean of 3 workloads" in better.output
    assert begun == [BAD, BAD]


# In CI, the test above keeps a fit, and tests/unit/core/model/test_own_fit.py makes one.
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_fit_to_measured_trials_is_kept_if_left_out_workloads_rank_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_cli, "NUM_SHOWN", 8)
    service_of(tmp_path, 70)
    path = tmp_path / "fits" / "h200.json"
    shipped = Fit(rates=SLOW, gpu="h200", gpu_name="H200", date="2026-01-01", commit="x", num_trials=1)
    monkeypatch.setattr(rates, "shipped_fit", lambda gpu_id: shipped)
    result = fitted(tmp_path)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.replace(str(path), "").splitlines())) <= 80
    assert "Fitted, from the shipped rates:\n" in result.output
    assert float(re.findall(r"wgmma.port_share +0.1 -> (\S+)", result.output)[0]) > 0.15
    assert "of which no trial depends on." in result.output
    assert result.output.count(" (8)  ffn fp16") == 3
    before, after = map(float, re.findall(r"(\d\.\d+) -> (\d\.\d+)  mean of 3 workloads", result.output)[0])
    assert before + own_fit.MIN_GAIN <= after
    use_fits(tmp_path / "fits")
    own = fit_of("h200")
    assert own is not None
    assert own.num_trials == 24
    assert rates_of(H200) == own.rates


# In CI, the first test names an earlier one.
@pytest.mark.soak
def test_a_fit_that_ranks_no_better_is_not_kept_and_an_earlier_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_cli, "NUM_SHOWN", 1)  # which cannot be ranked
    service_of(tmp_path, 70)
    earlier = Fit(rates=BAD, gpu="h200", gpu_name="H200", date="2026-01-01", commit="x", num_trials=1)
    path = put(tmp_path, json.dumps(earlier.to_json()))
    result = fitted(tmp_path)
    assert result.exit_code == 1
    assert "not kept: the fit to 3 trials ranks no better than the shipped rates; " in result.output
    assert (
        f"{path}, from an earlier fit, stays in use: `tuner fit h200 --remove` returns to the shipped rates"
        in result.output
    )
    assert json.loads(path.read_text()) == earlier.to_json()


@pytest.mark.parametrize("gpu", ["h200", "a-card-that-is-gone"])
def test_a_stored_fit_is_removed_by_the_command_even_if_it_is_invalid(tmp_path: Path, gpu: str) -> None:
    path, other = put(tmp_path, "{", gpu), put(tmp_path, "{}", "h100")
    arguments = ["fit", gpu, "--remove", "--data", str(tmp_path)]
    removed = CliRunner().invoke(main, arguments)
    assert (removed.exit_code, path.exists(), other.exists()) == (0, False, True), removed.output
    assert f"{path} is removed; restart a running server" in removed.output
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1
    assert f"has no fit of '{gpu}'; there are fits of h100" in again.output


def test_a_fit_that_cannot_be_stored_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fits").write_text("not a folder")
    with pytest.raises(click.ClickException, match=r"fits/h200\.json cannot be written: File exists; put the fit"):
        fit_cli._keep(tmp_path / "fits" / "h200.json", H200, BAD, 7)
    assert Fit.from_json(json.loads(capsys.readouterr().out)).rates == BAD


@pytest.mark.slow
def test_too_few_trials_are_counted_and_what_was_timed_warm_is_none(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    service_of(tmp_path / "few", 25)
    result = fitted(tmp_path / "few")
    assert result.exit_code == 1
    assert "only 75 usable trials over 3 workloads on h200; a fit needs at least 200 over 3" in result.output
    (tmp_path / "warm").mkdir()
    service_of(tmp_path / "warm", 25, Objective(l2=CacheState.WARM))
    assert "only 0 usable trials over 0 workloads" in fitted(tmp_path / "warm").output


@pytest.mark.parametrize(
    ("gpu", "words"),
    [("simulated:h200", "the simulator; choose"), ("abacus", "there is no GPU called 'abacus': use one of a100")],
)
def test_what_is_no_measured_gpu_is_refused(tmp_path: Path, gpu: str, words: str) -> None:
    Store.open(tmp_path).close()
    result = fitted(tmp_path, gpu)
    assert (result.exit_code, words in result.output) == (1, True), result.output


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", json.dumps({"rates": 5}), "[" * 100_000,
     json.dumps(Fit(rates=replace(BAD, poll_us=10**400), gpu="h200", gpu_name="", date="", commit="",
                    num_trials=1).to_json()),
     json.dumps(Fit(rates=replace(BAD, poll_us=-1.0), gpu="h200", gpu_name="", date="", commit="",
                    num_trials=1).to_json())],
)  # fmt: skip
def test_a_file_that_is_no_fit_is_named_before_anything_begins(tmp_path: Path, text: str) -> None:
    Store.open(tmp_path).close()
    path = put(tmp_path, text)
    result = fitted(tmp_path)
    assert (result.exit_code, f"{path}: is not a valid fit" in result.output) == (1, True), result.output
    assert FITS_VARIABLE not in os.environ


def test_a_fit_under_another_gpus_name_is_refused(tmp_path: Path) -> None:
    fit = Fit(rates=BAD, gpu="h100", gpu_name="H100", date="", commit="", num_trials=1)
    put(tmp_path, json.dumps(fit.to_json()), "a100")
    with pytest.raises(InvalidInput, match=r"rename it to h100\.json"):
        use_fits(tmp_path / "fits")


def test_explain_takes_the_fits_of_the_folder_for_a_file_too(tmp_path: Path) -> None:
    own = Fit(rates=BAD, gpu="h200", gpu_name="H200 of mine", date="2026-11-29", commit="x", num_trials=7)
    put(tmp_path, json.dumps(own.to_json()))
    asked = {"workload": builders.workload().to_json(), "gpu": "h200", "schedule": builders.schedule().to_json()}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    result = CliRunner().invoke(main, ["explain", str(tmp_path / "asked.json"), "--data", str(tmp_path)])
    assert "fitted to 7 measured trials on an H200 of mine" in result.output


def test_a_service_in_a_program_of_ones_own_takes_the_fits_of_its_folder(tmp_path: Path) -> None:
    path = put(tmp_path, "{")
    with pytest.raises(InvalidInput, match="is not a valid fit"), service_here(tmp_path, "simulated:h200", None):
        pass
    path.write_text(json.dumps(Fit(rates=BAD, gpu="h200", gpu_name="H200", date="", commit="", num_trials=7).to_json()))
    with service_here(tmp_path, "simulated:h200", None):
        assert rates_of(H200) == BAD
