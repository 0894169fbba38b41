"""Bad input gives a problem document that names the field and the remedy; never a 500 or a half-created job."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.api.conftest import Api
from tests.support.bad_chains import BAD_CHAINS, BAD_FORMS
from tests.support.serving import SMALL_PAIR, body
from tuner.api.http.guard import MAX_BODY_BYTES
from tuner.wire.requests.problems import MEDIA_TYPE

TARGET = "simulated:h200"


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    document: dict[str, Any] = response.json()
    assert (document["status"], document["type"]) == (status, "about:blank")
    assert document["title"]
    assert document["detail"]
    for error in document["errors"]:
        assert error["field"] and error["problem"] and error["remedy"], error  # noqa: PT018
    return document


def pair(**changes: Any) -> dict[str, Any]:
    return {**SMALL_PAIR, **changes}


BAD_BODIES = {
    "m of 0": (body(pair=pair(m=0)), "pair.m"),
    "a negative size": (body(pair=pair(d_out=-4)), "pair.d_out"),
    "a size beyond 32 bits": (body(pair=pair(m=2**31)), "pair.m"),
    "a matrix beyond 32 bits": (body(pair=pair(d_in=2**16, d_hidden=2**16)), "pair"),
    "a number of a thousand digits": (body(pair=pair(m=10**1000)), "pair.m"),
    "a size in quotes": (body(pair=pair(m="16")), "pair.m"),
    "half a row": (body(pair=pair(m=16.5)), "pair.m"),
    "true for a size": (body(pair=pair(m=True)), "pair.m"),
    "a missing size": (body(pair={k: v for k, v in SMALL_PAIR.items() if k != "d_hidden"}), "pair.d_hidden"),
    "an unknown dtype": (body(pair=pair(dtype="fp8")), "pair.dtype"),
    "an unknown activation": (body(pair=pair(activation="tanh")), "pair.activation"),
    "an unknown kind": (body(pair=pair(kind="triple")), "pair.kind"),
    "no kind": (body(pair={k: v for k, v in SMALL_PAIR.items() if k != "kind"}), "pair.kind"),
    "a misspelt field": (body(pair=pair(batch=3)), "pair.batch"),
    "a field of a different kind": (body(pair={**pair(kind="independent")}), "pair.first"),
    "no pair": ({}, "pair"),
    "a list": ([], "body"),
    "null": (None, "body"),
    "an unknown GPU": (body(target="h9000"), "target"),
    "an unknown simulated GPU": (body(target="simulated:"), "target"),
    "a GPU that does not exist": (body(target="a100"), "target"),
    "an empty target": (body(target=""), "target"),
    "a target that no encoding supports": (body(target="\ud800"), "target"),
    "no trials": (body(budget={"trials": 0}), "budget.trials"),
    "too many trials": (body(budget={"trials": 10**9}), "budget.trials"),
    "no seconds": (body(budget={"seconds": 0}), "budget.seconds"),
    "seconds without end": (body(budget={"seconds": float("inf")}), "budget.seconds"),
    "seconds that are not a number": (body(budget={"seconds": float("nan")}), "budget.seconds"),
    "a negative seed": (body(seed=-1), "seed"),
    "an unknown regime": (body(objective={"regime": "turbo"}), "objective.regime"),
    "an unknown field": (body(colour="red"), "colour"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_body_is_refused_with_its_field_and_leaves_no_job(api: Api, case: str) -> None:
    content, field = BAD_BODIES[case]
    before = api.get("/jobs")
    response = api.http.post("/jobs", content=json.dumps(content), headers={"content-type": "application/json"})
    document = refused(response, 422)
    assert field in [error["field"] for error in document["errors"]]
    assert api.get("/jobs") == before


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_CHAINS | BAD_FORMS)
def test_a_chain_that_is_none_is_refused_with_field_and_remedy_and_leaves_no_job(api: Api, case: str) -> None:
    bad = (BAD_CHAINS | BAD_FORMS)[case]
    before = api.get("/jobs")
    [error] = refused(api.http.post("/jobs", json=body(pair=bad.pair)), 422)["errors"]
    assert error["field"] == bad.field
    assert bad.problem in error["problem"]
    assert bad.remedy in error["remedy"]
    assert api.get("/jobs") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "body: is missing; add it"),
        (b"{", "the body is not valid JSON: Expecting property name"),
        (b"{'pair': 1}", "the body is not valid JSON: Expecting property name"),
        (b'{"pair": "\xff"}', "the body is not UTF-8 at byte 10; send it as UTF-8"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b"1" * 10_000, "the body has a number with too many digits"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(api: Api, content: bytes, words: str) -> None:
    response = api.http.post("/jobs", content=content, headers={"content-type": "application/json"})
    assert refused(response, 422 if content == b"" else 400)["detail"].startswith(words)


@pytest.mark.parametrize("path", ["/jobs", "/batches", "/packs", "/imports"])
def test_a_body_that_gives_a_field_twice_is_refused_by_the_path_of_the_field(api: Api, path: str) -> None:
    before = api.get("/jobs")
    content = json.dumps(body(pair=pair(m=16))).replace('"m": 16', '"m": 16, "m": 1')
    response = api.http.post(path, content=content, headers={"content-type": "application/json"})
    [error] = refused(response, 422)["errors"]
    assert (error["field"], error["problem"]) == ("pair.m", "is given twice in one object")
    assert api.get("/jobs") == before


def test_a_field_of_several_types_is_refused_once_by_its_name(api: Api) -> None:
    [error] = refused(api.http.get("/best?m=x&d_in=1&d_hidden=1&d_out=1"), 422)["errors"]
    assert (error["field"], error["problem"]) == ("m", "should be an integer, got 'x'")
    long = refused(api.http.post("/jobs", json=body(schedules=[{"schedule": "a" * 100_000}])), 422)["errors"]
    assert {error["field"] for error in long} == {"schedules.0.schedule"}
    [error] = refused(api.http.post("/jobs", json=body(schedules=[{"schedule": {}}])), 422)["errors"]
    assert error["problem"] == "is not valid: it lacks 'tiling'"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_a_wrong_content_type_is_refused(api: Api, content_type: str) -> None:
    response = api.http.post("/jobs", content=json.dumps(body()), headers={"content-type": content_type})
    assert "application/json" in refused(response, 415)["detail"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity", "x"])
def test_an_encoded_body_is_refused_and_not_read_as_it_is(api: Api, encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    response = api.http.post("/jobs", content=json.dumps(body()), headers=headers)
    assert "send it unencoded" in refused(response, 415)["detail"]
    plain = api.http.post("/jobs", content=json.dumps(body()), headers=headers | {"content-encoding": "Identity"})
    assert plain.is_success


def test_a_charset_is_no_wrong_content_type(api: Api) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert api.http.post("/jobs", content=json.dumps(body(reuse=True)), headers=headers).status_code == 200


def test_a_body_of_10_mb_is_refused(api: Api) -> None:
    response = api.http.post("/jobs", content=b" " * 10**7, headers={"content-type": "application/json"})
    assert str(MAX_BODY_BYTES) in refused(response, 413)["detail"]


@pytest.mark.slow
def test_a_client_that_sends_all_before_it_reads_gets_the_answer(api: Api) -> None:
    request = urllib.request.Request(
        f"{api.http.base_url}/jobs", data=b" " * 10**7, headers={"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=120)
    with refusal.value as response:
        assert (response.status, json.load(response)["status"]) == (413, 413)


def test_a_body_without_a_length_is_refused_at_the_limit(api: Api) -> None:
    def chunks() -> Any:
        for _ in range(10):
            yield b" " * 10**6

    response = api.http.post("/jobs", content=chunks(), headers={"content-type": "application/json"})
    refused(response, 413)


def test_a_body_that_is_too_large_is_refused_before_it_arrives(api: Api) -> None:
    began = time.monotonic()
    with socket.create_connection((api.http.base_url.host, api.http.base_url.port or 80), timeout=120) as connection:
        connection.sendall(
            b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 10000000\r\n\r\n{"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert time.monotonic() - began < 25


BAD_PATHS = {
    "/jobs/job-000000000000": (404, None),
    "/jobs/%00": (404, None),
    "/jobs/" + "x" * 200: (422, "job_id"),
    "/jobs/job-000000000000/trials": (404, None),
    "/jobs/job-000000000000/events": (404, None),
    "/jobs/job-000000000000/best": (404, None),
    "/jobs?limit=0": (422, "limit"),
    "/jobs?limit=501": (422, "limit"),
    "/jobs?state=sleeping": (422, "state"),
    "/jobs?cursor=nonsense": (422, "cursor"),
    "/jobs?cursor=%F0%9F%92%A5": (422, "cursor"),
    "/artifacts/no-digest": (422, "digest"),
    "/artifacts/" + "A" * 64: (422, "digest"),
    "/artifacts/" + "0" * 64: (404, None),
    "/best": (422, "m"),
    "/best?m=16": (422, "d_in"),
    "/best?kind=independent&first=1,2,3": (422, "second"),
    "/best?kind=independent&first=1,2&second=1,2,3": (422, "first"),
    "/best?kind=independent&first=0,2,3&second=1,2,3": (422, "first"),
    "/best?kind=independent&first=1,2,3&second=1,2,3&bias=true": (422, "bias"),
    "/best?m=1&d_in=1&d_hidden=1&d_out=1&first=1,2,3": (422, "first"),
    "/best?m=1&d_in=65536&d_hidden=65536&d_out=1": (422, "pair"),
    "/best?m=1&d_in=1&d_hidden=1&d_out=1&match=vague": (422, "match"),
    "/best?m=1&d_in=1&d_hidden=1&d_out=1&colour=red": (422, "colour"),
    "/best?m=1&d_in=1&d_hidden=1&d_out=1": (404, None),
    "/nowhere": (404, None),
    "/static/nothing.css": (404, None),
    "/ui/jobs/job-000000000000.json": (404, None),
}


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_bad_address_is_a_problem_document(api: Api, path: str) -> None:
    status, field = BAD_PATHS[path]
    document = refused(api.http.get(path), status)
    assert field is None or field in [error["field"] for error in document["errors"]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("outcome=lost", "outcome"),
        ("plan_kind=magic", "plan_kind"),
        ("reason=boredom", "reason"),
        ("sort=colour", "sort"),
        ("limit=x", "limit"),
    ],
)
def test_a_bad_filter_of_trials_is_refused(api: Api, query: str, field: str) -> None:
    document = refused(api.http.get(f"/jobs/{api.job_id}/trials?{query}"), 422)
    assert [error["field"] for error in document["errors"]] == [field]


def test_a_cursor_of_another_listing_is_refused(api: Api) -> None:
    cursor = api.get(f"/jobs/{api.job_id}/trials?limit=1")["next_cursor"]
    for path in (f"/jobs/{api.job_id}/trials?sort=time", "/jobs?"):
        refused(api.http.get(f"{path}&cursor={cursor}"), 422)


def test_a_method_that_a_path_does_not_know_is_refused(api: Api) -> None:
    known = {"/jobs": "GET, HEAD, POST", f"/jobs/{api.job_id}": "DELETE, GET, HEAD", "/packs": "POST"}
    for path, allowed in known.items():
        response = api.http.put(path)
        assert f"it supports {allowed}" in refused(response, 405)["detail"]
        assert response.headers["allow"] == allowed


@pytest.mark.parametrize("event_id", ["x", "-1", str(2**70)])
def test_a_last_event_id_that_is_none_is_refused(api: Api, event_id: str) -> None:
    refused(api.http.get(f"/jobs/{api.job_id}/events", headers={"Last-Event-ID": event_id}), 422)


def test_a_fault_of_ours_is_a_problem_document_that_gives_nothing_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(_job_id: str) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(api.service, "job", break_down)
    document, page = api.http.get("/jobs/x"), api.http.get("/ui/jobs/x", headers={"accept": "text/html"})
    assert "secret" not in json.dumps(refused(document, 500)) + page.text
    for response in (document, page):
        assert (response.status_code, response.headers["connection"]) == (500, "close"), "the server closes it"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
#: Bodies that are valid except for a few values.
NEARLY_RIGHT = st.fixed_dictionaries(
    {"pair": st.fixed_dictionaries({}, optional={name: ANY_JSON | st.just(v) for name, v in SMALL_PAIR.items()})},
    optional=dict.fromkeys(("target", "objective", "budget", "seed", "priors", "reuse", "more"), ANY_JSON),
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ANY_JSON | NEARLY_RIGHT, key=st.none() | st.text("abc", max_size=2))
def test_no_body_is_answered_with_a_500(idle_api: Api, content: Any, key: str | None) -> None:
    headers = {"content-type": "application/json"} | ({} if key is None else {"idempotency-key": key})
    response = idle_api.http.post("/jobs", content=json.dumps(content), headers=headers)
    refused(response, 422)
    assert idle_api.get("/jobs")["items"] == []


@pytest.mark.parametrize(("field", "value"), [("labels", ["a\x00b"]), ("labels", ["a\nb"]), ("project", "a\x00b")])
def test_words_with_control_characters_are_refused_since_no_other_database_takes_them(
    api: Api, field: str, value: object
) -> None:
    refused = api.http.post("/jobs", json=body(**{field: value}))
    assert (refused.status_code, refused.json()["errors"][0]["field"].split(".")[0]) == (422, field)
