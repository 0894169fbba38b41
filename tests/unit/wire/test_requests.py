"""Requests and the domain's values are equivalent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.trial.job import CacheState, JobSpec, Regime
from tuner.errors import InvalidInput
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.wire.requests.best_query import BestQuery
from tuner.wire.requests.pairs import pair_of, workload_of
from tuner.wire.requests.requests import EXAMPLES, TuneRequest

size = st.integers(1, 32_000)
mnk = st.tuples(size, size, size)
WORKLOADS = st.builds(
    ffn_pair,
    m=size,
    d_in=size,
    d_hidden=size,
    d_out=size,
    dtype=st.sampled_from(Dtype),
    activation=st.sampled_from(Activation),
    **{name: st.booleans() for name in ("bias", "gated", "residual", "row_scale")},
) | st.builds(independent_pair, mnk, mnk, dtype=st.sampled_from(Dtype))


@given(workload=WORKLOADS)
def test_a_workload_survives_the_way_there_and_back(workload: Workload) -> None:
    pair = pair_of(workload)
    assert workload_of(pair) == workload
    assert TuneRequest.model_validate({"pair": json.loads(pair.model_dump_json())}).pair == pair


@given(workload=WORKLOADS)
def test_a_query_spells_the_same_workload(workload: Workload) -> None:
    fields = json.loads(pair_of(workload).model_dump_json())
    query = {name: ",".join(str(v[i]) for i in "mnk") if isinstance(v, dict) else str(v) for name, v in fields.items()}
    assert BestQuery.model_validate(query).to_workload() == workload


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_a_job(example: str) -> None:
    spec = TuneRequest.model_validate(EXAMPLES[example]["value"]).to_spec("h200")
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_all_that_is_asked_for_reaches_the_job() -> None:
    body = {
        "pair": {"kind": "ffn", "m": 1, "d_in": 2, "d_hidden": 3, "d_out": 4},
        "target": "b200",
        "objective": {"l2": "warm", "regime": "sustained"},
        "budget": {"trials": 5, "seconds": 6},
        "seed": 7,
    }
    spec = TuneRequest.model_validate(body).to_spec("h200")
    assert (spec.target_id, spec.seed) == ("b200", 7)
    assert (spec.objective.l2, spec.objective.regime) == (CacheState.WARM, Regime.SUSTAINED)
    assert (spec.budget.trials, spec.budget.seconds) == (5, 6.0)
    assert spec.workload == ffn_pair(m=1, d_in=2, d_hidden=3, d_out=4)


def test_the_digest_is_of_what_is_asked_and_not_of_how_it_is_written() -> None:
    short = {"pair": EXAMPLES["smallest"]["value"]["pair"]}
    long = {
        "seed": 0,
        "budget": {"seconds": 600, "trials": 60, "patience": None},
        **short,
        "reuse": False,
        "priors": "nearest",
    }
    assert TuneRequest.model_validate(short).digest == TuneRequest.model_validate(long).digest
    for change in ({"seed": 1}, {"reuse": True}, {"priors": "none"}, {"target": "h200"}, {"budget": {"trials": 61}}):
        assert TuneRequest.model_validate({**short, **change}).digest != TuneRequest.model_validate(short).digest


def test_a_body_of_an_older_version_keeps_its_digest() -> None:
    before = "b5736b0fd9b22b6ddaa7613ab10a7f5d94f855f1090cec9f624805a8f7f3dbbb"
    assert TuneRequest.model_validate({"pair": EXAMPLES["smallest"]["value"]["pair"]}).digest == before


def test_the_domain_names_an_ops_matrix_and_the_wire_the_field() -> None:
    request = TuneRequest.model_validate(
        {"pair": {"kind": "ffn", "m": 1, "d_in": 1, "d_hidden": 2**16, "d_out": 2**16}}
    )
    with pytest.raises(InvalidInput) as refusal:
        request.to_spec("h200")
    assert refusal.value.field == "pair"
    assert "down.W" in refusal.value.problem


def test_a_model_cannot_be_changed() -> None:
    request = TuneRequest.model_validate(EXAMPLES["smallest"]["value"])
    with pytest.raises(ValidationError):
        request.seed = 3
