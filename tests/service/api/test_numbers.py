"""Invalid and overlarge numbers in every numeric field of every route never cause a 500."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.api.conftest import Api
from tests.support.lanes import one_in
from tests.support.serving import SMALL_PAIR
from tuner.wire.requests.batches import EXAMPLES as BATCHES
from tuner.wire.requests.requests import EXAMPLES as JOBS

#: Numbers as written in JSON; Python's parser accepts the first three, although JSON has no such numbers.
WORDS = (
    "Infinity", "-Infinity", "NaN", "1e308", "-1e308", "1e999", "5e-324", "0.5", "-1", "0", "true",
    "9223372036854775808", "1" + "0" * 400, "1" + "0" * 5000, '"Infinity"', "-0.0", "[]", "{}",
)  # fmt: skip
IN_QUERIES = (*WORDS[:14], "nan", "inf", "1_000", "٣", "0x10", " 1")
_MARK = 918_273_645


def places(value: Any, inside: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each number."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*inside, key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield inside


def changed(body: Any, place: tuple[Any, ...], word: str) -> str:
    """The body as text, with `word` in place of a number."""
    copied = copy.deepcopy(body)
    where = copied
    for step in place[:-1]:
        where = where[step]
    where[place[-1]] = _MARK
    return json.dumps(copied).replace(str(_MARK), word)


def bodies(api: Api) -> Iterator[tuple[str, Any]]:
    """Each route that takes a body, with all numeric fields filled."""
    trials = api.get(f"/jobs/{api.job_id}/trials")["items"]
    ours = [one for one in trials if one["outcome"]["kind"] == "measured" and one["candidate"]["schedule"]]
    winners = [
        {"plan_kind": one["candidate"]["plan_kind"], "schedule": one["candidate"]["schedule"], "time_us": 5.0,
         "speedup": 1.5}
        for one in ours[:1]
    ]  # fmt: skip
    yield "/imports", {"target": "simulated:h200", "pair": SMALL_PAIR, "source": "x", "winners": winners}
    budget = {"trials": 1, "seconds": 10, "patience": 1}
    for example in JOBS.values():
        yield "/jobs", {"priority": 0, "deadline_s": 100, "seed": 1, **example["value"], "budget": budget}
    for example in BATCHES.values():
        yield "/batches", example["value"]
    shape = {name: size for name, size in SMALL_PAIR.items() if name not in ("kind", "m")}
    yield "/packs", {"shapes": [{"m": [16, 32], **shape}], "min_gain": 0.01}


#: Of this many shares of the words, CI tries one in each field, another one in the next field.
NUM_SHARES = 12
shares = pytest.mark.parametrize("share", one_in(NUM_SHARES, range(NUM_SHARES)))


@pytest.mark.slow
@shares
def test_no_number_of_a_body_is_a_fault_of_the_server(api: Api, share: int) -> None:
    faults, tried = [], set()
    for path, body in bodies(api):
        kind = body.get("pair", {}).get("kind")
        for place in places(body):
            field = (path, kind, *(step for step in place if isinstance(step, str)))
            if field in tried:
                continue  # from another example, or from another item of a list
            tried.add(field)
            for word in WORDS[(len(tried) + share) % NUM_SHARES :: NUM_SHARES]:
                sent = changed(body, place, word)
                answer = api.http.post(path, content=sent, headers={"content-type": "application/json"})
                if answer.status_code >= 500:
                    faults.append((path, place, word[:20], answer.text[:100]))
                if word in WORDS[:3] and answer.status_code not in (400, 422):
                    faults.append((path, place, word, f"{answer.status_code}: that is not a JSON number"))
    assert not faults, f"{len(faults)}: {faults[:10]}"


@pytest.mark.slow
@shares
def test_no_number_of_a_query_is_a_fault_of_the_server(api: Api, share: int) -> None:
    document = api.get("/openapi.json")
    faults, num_fields = [], 0
    for path, operations in document["paths"].items():
        if "events" in path or "get" not in operations:
            continue
        for parameter in operations["get"].get("parameters", ()):
            kinds = json.dumps(parameter["schema"])
            if parameter["in"] not in ("query", "path") or not ('"integer"' in kinds or '"number"' in kinds):
                continue
            num_fields += 1
            for word in IN_QUERIES[(num_fields + share) % NUM_SHARES :: NUM_SHARES]:
                ask = {parameter["name"]: word} if parameter["in"] == "query" else {}
                if path == "/best":
                    ask = {"kind": "attention", "sequences": "1", "max_length": "64", "heads": "8", "kv_heads": "8",
                           "head_dim": "64", **ask}  # fmt: skip
                url = path.replace("{job_id}", api.job_id).replace("{number}", "1" if ask else word)
                answer = api.http.get(url, params=ask)
                if answer.status_code >= 500:
                    faults.append((path, parameter["name"], word[:20], answer.text[:100]))
    assert not faults, f"{len(faults)}: {faults[:10]}"
    assert num_fields > 25


@pytest.mark.parametrize("name", ["scale", "soft_cap", "max_distance"])
@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e999"])
def test_a_figure_of_a_question_is_a_number(api: Api, name: str, word: str) -> None:
    asked = {"kind": "attention", "sequences": 1, "max_length": 64, "heads": 8, "kv_heads": 8, "head_dim": 64}
    answer = api.http.get("/best", params={**asked, name: word})
    assert answer.status_code == 422
    assert name in answer.json()["detail"]
