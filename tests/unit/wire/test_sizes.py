"""Requests that are too large to search are refused with the field and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import InvalidInput
from tuner.wire.requests.batches import BatchRequest
from tuner.wire.requests.requests import TuneRequest

FFN = {"kind": "ffn", "m": 16, "d_in": 64, "d_hidden": 64, "d_out": 64}
INDEPENDENT = {"kind": "independent", "first": {"m": 16, "n": 64, "k": 64}, "second": {"m": 16, "n": 64, "k": 64}}
OP = {"name": "a", "source": "x", "n": 64, "k": 64}
CHAIN = {"kind": "chain", "m": 16, "ops": [OP, {**OP, "name": "b", "source": "a"}]}
ATTENTION = {"kind": "attention", "sequences": 16, "max_length": 512, "heads": 8, "kv_heads": 8, "head_dim": 128}
LAYER = {"kind": "decoder-layer", "model": "llama3-8b", "sequences": 16, "max_length": 512}
WIDE = [{"name": f"op{i}", "source": f"x{i}", "n": 8192, "k": 64} for i in range(5)]
BEYOND = 2**20 + 1


@pytest.mark.parametrize(
    ("pair", "field", "words"),
    [
        ({**FFN, "m": 2**24}, "pair.m", "sizes above 1048576"),
        ({**FFN, "m": 1, "d_hidden": BEYOND}, "pair.d_hidden", "is 1048577"),
        ({**FFN, "m": 1, "d_in": BEYOND}, "pair.d_in", "is 1048577"),
        ({**FFN, "m": 1, "d_out": BEYOND}, "pair.d_out", "is 1048577"),
        ({**INDEPENDENT, "second": {"m": 1, "n": 1, "k": 2**30}}, "pair.second.k", "is 1073741824"),
        ({**CHAIN, "m": BEYOND}, "pair.m", "is 1048577"),
        ({**CHAIN, "ops": [OP, {**OP, "name": "b", "n": BEYOND}]}, "pair.ops.1.n", "is 1048577"),
        ({**ATTENTION, "sequences": 2, "d_out": BEYOND}, "pair.d_out", "is 1048577"),
        ({"kind": "chain", "m": 2**17, "ops": WIDE}, "pair", "has 327680 tiles of 128 x 128"),
        ({**ATTENTION, "sequences": 32767, "max_length": 1, "heads": 16, "kv_heads": 16}, "pair", "524272 tiles"),
        ({**ATTENTION, "sequences": 16384, "max_length": 8192}, "pair", "the H200 has 141.0 GiB"),
        ({**LAYER, "sequences": 1024, "max_length": 2**17}, "pair", "the H200 has 141.0 GiB"),
    ],
)
def test_a_pair_that_is_too_large_is_refused(pair: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        TuneRequest.model_validate({"pair": pair}).to_spec("simulated:h200")
    assert caught.value.field == field
    assert words in caught.value.problem
    assert caught.value.remedy
    with pytest.raises(InvalidInput) as caught:
        BatchRequest.model_validate({"pairs": [FFN, pair]}).to_specs("simulated:h200")
    assert caught.value.field == field.replace("pair", "pairs.1")


def test_a_row_count_of_a_ladder_that_is_too_large_is_named() -> None:
    shape = {name: size for name, size in FFN.items() if name not in ("kind", "m")}
    with pytest.raises(InvalidInput) as caught:
        BatchRequest.model_validate({"shapes": [{**shape, "m": [16, BEYOND]}]}).to_specs("h200")
    assert caught.value.field == "shapes.0.m.1"


@pytest.mark.parametrize(
    "pair",
    [
        {**FFN, "m": 131072, "d_in": 4096, "d_hidden": 14336, "d_out": 4096},
        {**FFN, "m": 2**20},
        {**FFN, "m": 8, "d_hidden": 128256},
        {**ATTENTION, "sequences": 1, "max_length": 2**20},
        {**LAYER, "sequences": 64, "max_length": 8192},
    ],
)
def test_what_is_large_and_asked_for_in_earnest_is_taken(pair: dict[str, Any]) -> None:
    assert TuneRequest.model_validate({"pair": pair}).to_spec("h200").workload


def test_a_smaller_card_holds_less() -> None:
    gemm = {"m": 65536, "n": 32000, "k": 16384}
    pair = {"kind": "independent", "first": gemm, "second": gemm}
    TuneRequest.model_validate({"pair": pair}).to_spec("h100")
    with pytest.raises(InvalidInput, match="RTX 3050 has 8"):
        TuneRequest.model_validate({"pair": pair, "target": "rtx3050"}).to_spec(None)
