"""Packs over HTTP: signed, stored, and reproducible to the byte; or a problem document that names what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.api.conftest import Api
from tests.support.serving import SMALL_PAIR
from tuner.packs.read import read_pack
from tuner.packs.signing import verify

SHAPE = {name: value for name, value in SMALL_PAIR.items() if name not in ("kind", "m")}
ORDER: dict[str, Any] = {"shapes": [{**SHAPE, "rows": [16]}]}


def test_a_pack_is_made_of_finished_jobs_and_the_same_order_gives_the_same_bytes(api: Api) -> None:
    response = api.http.post("/packs", json=ORDER)
    assert response.status_code == 201, response.text
    made = response.json()
    assert response.headers["location"] == made["href"] == f"/artifacts/{made['digest']}"
    assert made["simulated"]
    content = api.http.get(made["href"]).content
    pack = read_pack(content)
    assert (pack.digest, len(content)) == (made["digest"], made["size_bytes"])
    verify(pack.sums, pack.signature, made["key"])
    again = api.http.post("/packs", json=ORDER).json()
    assert again == made


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"shapes": [{**SHAPE, "rows": [16, 17]}]}, 404, "there is no exact result for ffn fp16 M=17"),
        ({"l2": "warm"}, 404, "measured with a cold L2, not a warm one"),
        ({"shapes": []}, 422, "shapes"),
        ({"shapes": [{**SHAPE, "rows": []}]}, 422, "shapes.0.rows"),
        ({"shapes": [{**SHAPE, "rows": [16]}] * 2}, 422, "shapes.1: repeats the shape of shapes.0; list"),
        ({"shapes": [{**SHAPE, "rows": [16, 16]}]}, 422, "shapes.0.rows: repeats a number"),
        ({"shapes": [{**SHAPE, "d_in": 2**31, "rows": [16]}]}, 422, "shapes.0.d_in"),
        ({"shapes": [{**SHAPE, "m": 16, "rows": [16]}]}, 422, "shapes.0.m"),
        ({"min_gain": -1}, 422, "min_gain"),
    ],
)
def test_what_cannot_be_packed_is_a_problem_that_says_why(
    api: Api, changes: dict[str, Any], status: int, words: str
) -> None:
    response = api.http.post("/packs", json={**ORDER, **changes})
    assert response.status_code == status, response.text
    assert words in response.json()["detail"]
