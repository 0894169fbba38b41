from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.cases import decoder_block as small_block
from tuner.core.problem.presets import decoder_block
from tuner.errors import InvalidInput
from tuner.wire.chains import Chain
from tuner.wire.problems import of_validation
from tuner.wire.requests import TuneRequest, workload_of

A, B = {"name": "a", "source": "x", "n": 64, "k": 32}, {"name": "b", "source": "a", "n": 32, "k": 64}


def chain(*ops: dict[str, Any], m: int = 16) -> dict[str, Any]:
    return {"pair": {"kind": "chain", "m": m, "ops": list(ops)}}


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


@pytest.mark.parametrize(
    ("body", "field", "problem", "remedy"),
    [
        (chain({**A, "source": "b"}, B), "pair.ops", "a cycle: a, which reads b, which reads a", "break it"),
        (chain(B, A), "pair.ops", "b reads a, which a later op writes", "topological order"),
        (chain(A, A), "pair.ops", "the name 'a' is used twice", "its own name"),
        (chain(A, {**B, "k": 32}), "pair.b.k", "reads a as [16, 32], but it is [16, 64]", "the producer's m and n"),
        (chain(A, {**B, "source": "y", "k": 32, "norm": "a"}), "pair.b.norm", "no op writes whole", "norm what"),
        (chain(A, {**B, "residual": "a"}), "pair.b.residual_source", "adds a as [16, 32]", "own m and n"),
        (chain(*({**A, "name": f"a{i}"} for i in range(9))), "pair.ops", "9 ops", "at most 8"),
        (chain(A, {**B, "eps": 1e-3}), "pair.b.eps", "belongs to a norm", "leave it out"),
    ],
)  # fmt: skip
def test_a_chain_that_is_none_is_refused_by_its_field(
    body: dict[str, Any], field: str, problem: str, remedy: str
) -> None:
    error = refusal(body)
    assert error.field == field
    assert problem in error.problem
    assert remedy in error.remedy


def test_a_field_of_an_op_is_named_by_its_number() -> None:
    with pytest.raises(ValidationError) as error:
        TuneRequest.model_validate(chain(A, {**B, "n": 0}))
    found = of_validation(error.value.errors()[0])  # type: ignore[arg-type]
    assert (found.field, found.remedy) == ("pair.ops.1.n", "give at least 1")


def test_a_chain_that_is_one_is_not_accepted_as_long_as_no_search_knows_it() -> None:
    error = refusal(chain(A, B))
    assert error.field == "pair.kind"
    assert "(a, b) is well formed, but this version searches pairs only" in error.problem
    assert "pairs of kind ffn" in error.remedy


def test_a_decoder_block_is_made_of_a_models_sizes() -> None:
    block = {"kind": "decoder-block", "model": "llama3-8b", "m": 16}
    asked = TuneRequest.model_validate({"pair": block})
    assert workload_of(asked.pair) == decoder_block("llama3-8b", m=16)
    assert refusal({"pair": {**block, "model": "gpt-2"}}).field == "pair.model"
    error = refusal({"pair": {**block, "tp": 8}})
    assert error.field == "pair.run"
    assert "at tp 8 an all-reduce stands behind o_proj and behind down" in error.problem
    assert "o_proj, mlp or qkv" in error.remedy
