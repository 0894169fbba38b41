"""Settings of the server take effect where they should."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest

from tuner.commands.options import settings_of
from tuner.core.problem.objective import FinalsProcedure, Regime
from tuner.core.trial.limits import Limits
from tuner.settings import Retention, Settings


def test_the_defaults_are_those_of_the_domain() -> None:
    assert Settings().limits == Limits()
    assert Settings().finals == FinalsProcedure()
    assert [Settings().finals.rounds_in(regime) for regime in (Regime.BURST, Regime.SUSTAINED)] == [20, 5]


def test_every_limit_is_a_setting_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, field in enumerate(fields(Limits), start=7):
        monkeypatch.setenv(f"TUNER_{field.name.upper()}", str(number))
    limits = Settings().limits
    assert [getattr(limits, field.name) for field in fields(Limits)] == list(range(7, 7 + len(fields(Limits))))


def test_rounds_and_tie_band_of_the_finals_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_FINALS_ROUNDS", "5")
    monkeypatch.setenv("TUNER_TIE_BAND", "0.03")
    assert Settings().finals == FinalsProcedure(num_rounds=5, min_tie_band=0.03)
    assert [Settings().finals.rounds_in(regime) for regime in (Regime.BURST, Regime.SUSTAINED)] == [5, 2]


def test_which_jobs_are_kept_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().retention == Retention(days=None, num_jobs=None, keeps_best=True)
    for name, value in (("TUNER_KEEP_DAYS", "2.5"), ("TUNER_KEEP_JOBS", "0"), ("TUNER_KEEP_BEST", "false")):
        monkeypatch.setenv(name, value)
    assert Settings().retention == Retention(days=2.5, num_jobs=0, keeps_best=False)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TUNER_EVALUATE_DEADLINE_S", "0", "evaluate_deadline_s: must be a number above 0, got 0; the default is 20"),
        ("TUNER_SPIN_LIMIT_CYCLES", "-1", "spin_limit_cycles: must be a number above 0, got -1"),
        ("TUNER_FINALS_ROUNDS", "0", "finals_rounds: must be at least 1, got 0; 20 is a reasonable value"),
        ("TUNER_TIE_BAND", "1", "tie_band: must be at least 0 and below 1, got 1; 0.01 is one percent"),
        ("TUNER_PORT", "abc", "port: should be an integer, got 'abc'; use an integer"),
        ("TUNER_KEEP_DAYS", "-1", "keep_days: should be greater than 0, got '-1'; use more than 0"),
        ("TUNER_WEBHOOK_HOSTS", "ci.example", "webhook_hosts needs a webhook_secret of at least 16 characters"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(click.UsageError, match="^" + message.replace(".", r"\.")):
        settings_of({})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TUNER_KEEP_JOB", "KEEP_JOBS"),
        ("TUNER_TIEBAND", "TIE_BAND"),
        ("TUNER_LOGLEVEL", "LOG_LEVEL"),
        ("TUNER_PORTS", "PORT"),
        ("TUNER_ULR", "URL"),
    ],
)
def test_a_misspelt_setting_of_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(click.UsageError, match=f"^{variable}: is not a setting; did you mean TUNER_{meant}"):
        settings_of({})


@pytest.mark.parametrize("variable", ["TUNER_URL", "TUNER_TOKEN", "TUNER_PACK", "TUNER_NO_PDL", "TUNER_SERVICE_HOST"])
def test_variables_of_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "3")
    settings_of({})
