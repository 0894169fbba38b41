"""The rates of a GPU: the catalogue's estimates, and fits to measured trials."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import date

import pytest

from tuner.core.model.rates import CATALOGUE_RATES, Fit, Rates, fit_of, rates_of, source_of_rates
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.tiling import Engine

#: No GPU of the catalogue, since any of them may get a fit.
WITHOUT_FIT = replace(CATALOGUE["h200"], id="h201", name="H201")


def test_rates_survive_json() -> None:
    assert Rates.from_json(json.loads(json.dumps(CATALOGUE_RATES.to_json()))) == CATALOGUE_RATES
    fit = Fit(rates=CATALOGUE_RATES, gpu="x", gpu_name="X", date="2026-11-21", commit="abc", num_trials=3)
    assert Fit.from_json(json.loads(json.dumps(fit.to_json()))) == fit


def test_a_gpu_without_trials_has_the_catalogues() -> None:
    assert fit_of(WITHOUT_FIT.id) is None
    assert rates_of(WITHOUT_FIT) is CATALOGUE_RATES


def test_the_fit_of_the_h200_says_where_it_comes_from() -> None:
    fit = fit_of("h200")
    assert fit is not None
    assert fit.gpu == "h200"
    assert "H200" in fit.gpu_name
    assert date.fromisoformat(fit.date)
    assert fit.num_trials >= 8 * 150
    assert rates_of(CATALOGUE["h200"]) == fit.rates


@pytest.mark.parametrize("gpu", CATALOGUE.values(), ids=lambda gpu: gpu.id)
def test_nothing_attains_more_than_its_data_sheet(gpu: object) -> None:
    rates = rates_of(gpu)  # type: ignore[arg-type]
    for engine in Engine:
        assert all(getattr(rates.of(engine), f.name) > 0 for f in fields(rates.of(engine)))
        assert max(rates.of(engine).tensor_share, rates.of(engine).port_share, rates.of(engine).smem_share) <= 1
    assert max(rates.dram_share, rates.l2_share, rates.l2_capacity_share) <= 1


def test_a_sentence_says_what_forecasts_are_made_of() -> None:
    assert source_of_rates(CATALOGUE["h200"]).startswith("Forecasts: fitted to 1555 measured trials on an NVIDIA H200")
    assert source_of_rates(WITHOUT_FIT).startswith("Forecasts: by the data sheet of the H201; no trials")
