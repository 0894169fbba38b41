from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.bad_chains import BAD_CHAINS, BAD_FORMS, A, B, chain
from tests.support.cases import decoder_block as small_block
from tests.support.presets import decoder_block
from tuner.errors import InvalidInput
from tuner.wire.requests.best_query import BestQuery
from tuner.wire.requests.pairs import Chain, pair_of, workload_of
from tuner.wire.requests.problems import of_validation
from tuner.wire.requests.requests import TuneRequest


def refusal(body: dict[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        TuneRequest.model_validate(body).to_spec("simulated:h200")
    return error.value


def test_a_chain_survives_its_json() -> None:
    workload = small_block(16, 64, 32, 32)
    given = Chain.from_workload(workload)
    assert given.to_workload() == workload
    body = {"pair": json.loads(given.model_dump_json())}
    assert workload_of(TuneRequest.model_validate(body).pair) == workload


@pytest.mark.parametrize("case", BAD_CHAINS)
def test_a_chain_that_is_none_is_refused_by_its_field(case: str) -> None:
    bad = BAD_CHAINS[case]
    error = refusal({"pair": bad.pair})
    assert error.field == bad.field
    assert bad.problem in error.problem
    assert bad.remedy in error.remedy


@pytest.mark.parametrize("case", BAD_FORMS)
def test_a_field_of_an_op_is_named_by_its_number(case: str) -> None:
    bad = BAD_FORMS[case]
    with pytest.raises(ValidationError) as error:
        TuneRequest.model_validate({"pair": bad.pair})
    found = of_validation(error.value.errors()[0])  # type: ignore[arg-type]
    assert found.field == bad.field
    assert bad.problem in found.problem
    assert bad.remedy in found.remedy


def test_a_chain_becomes_a_job_and_comes_back_as_it_was_asked() -> None:
    asked = TuneRequest.model_validate({"pair": chain(A, B)})
    assert asked.to_spec("simulated:h200").workload == workload_of(asked.pair)
    assert pair_of(workload_of(asked.pair)) == asked.pair


@pytest.mark.parametrize(
    ("first", "source"),
    [
        ({"name": "gate"}, "gated_input"),
        ({"name": "gate", "is_output": True}, "gaet"),
        ({"name": "gate", "n": 96}, "gaet"),
        ({"name": "conv1"}, "conv0"),
        ({"name": "a"}, "b1"),
        ({"name": "a"}, "c"),
    ],
    ids=["another word", "an output", "another shape", "another number", "a letter more", "one letter"],
)
def test_an_input_may_have_a_name_like_an_ops_where_no_slip_explains_it(first: dict[str, Any], source: str) -> None:
    asked = TuneRequest.model_validate({"pair": chain({**A, **first}, {**B, "source": source})})
    assert source in {read.tensor for op in asked.to_spec("simulated:h200").workload.ops for read in op.reads}


def test_an_input_like_an_op_that_another_reads_is_accepted() -> None:
    ops = ({**A, "name": "gate"}, {**B, "source": "gate"}, {**B, "name": "c", "source": "gaet"})
    assert len(TuneRequest.model_validate({"pair": chain(*ops)}).to_spec("simulated:h200").workload.ops) == 3


def test_a_preset_comes_back_as_its_chain() -> None:
    block = decoder_block("llama3-8b", m=16)
    assert pair_of(block) == Chain.from_workload(block)
    query = BestQuery.model_validate({"kind": "decoder-block", "model": "llama3-8b", "m": 16})
    assert query.to_workload() == block


@pytest.mark.parametrize(
    ("query", "field", "problem"),
    [
        ({"kind": "decoder-block", "m": 16}, "model", "is missing"),
        ({"kind": "decoder-block", "model": "llama3-8b", "m": 16, "d_in": 4}, "d_in", "is not a"),
        ({"m": 16, "d_in": 4, "d_hidden": 4, "d_out": 4, "tp": 2}, "tp", "is not a parameter for a pair of kind ffn"),
        ({"kind": "decoder-block", "model": "llama3-8b", "m": 16, "tp": 3}, "pair.tp", "3 ranks cannot share"),
    ],
)
def test_a_query_for_a_block_is_refused_by_its_field(query: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as error:
        BestQuery.model_validate(query).to_workload()
    assert error.value.field == field
    assert problem in error.value.problem


def test_a_decoder_block_is_made_of_a_models_sizes() -> None:
    block = {"kind": "decoder-block", "model": "llama3-8b", "m": 16}
    asked = TuneRequest.model_validate({"pair": block})
    assert workload_of(asked.pair) == decoder_block("llama3-8b", m=16)
    assert refusal({"pair": {**block, "model": "gpt-2"}}).field == "pair.model"
    error = refusal({"pair": {**block, "tp": 8}})
    assert error.field == "pair.run"
    assert "at tp 8 there is an all-reduce after o_proj and after down" in error.problem
    assert "o_proj, mlp or qkv" in error.remedy
