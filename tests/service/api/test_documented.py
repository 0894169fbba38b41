"""docs/http-api.md lists exactly the routes, parameters and request fields of the API."""

from __future__ import annotations

import json
import re

import pytest

from tests.service.api.conftest import Api
from tests.support.repository import ROOT
from tuner.api.http.errors import STATUS
from tuner.settings import Settings
from tuner.wire.base.fields import PATTERNS_IN_WORDS
from tuner.wire.requests.best_query import BestQuery

PAGE = (ROOT / "docs/http-api.md").read_text()


def routes(api: Api) -> set[str]:
    """`METHOD path` of all routes."""
    paths = api.get("/openapi.json")["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


@pytest.mark.slow
def test_the_page_lists_exactly_the_routes(api: Api) -> None:
    assert set(re.findall(r"^\| `((?:DELETE|GET|POST|PUT) [^`]+)`", PAGE, re.MULTILINE)) == routes(api)


@pytest.mark.slow
def test_every_pattern_is_explained_in_words(api: Api) -> None:
    description = json.dumps(api.get("/openapi.json"))
    found = {json.loads(f'"{one}"') for one in re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', description)}
    assert found == set(PATTERNS_IN_WORDS)
    assert not [name for name, field in Settings.model_fields.items() if "pattern" in repr(field.metadata)]


@pytest.mark.slow
def test_every_reference_of_the_description_leads_somewhere_and_every_refusal_is_a_problem(api: Api) -> None:
    description = api.get("/openapi.json")
    for reference in re.findall(r'"\$ref": ?"#/([^"]*)"', json.dumps(description)):
        node = description
        for step in reference.split("/"):
            node = node[step]
    for path, methods in description["paths"].items():
        for route in methods.values():
            refusals = {code: r["content"] for code, r in route["responses"].items() if int(code) >= 400}
            forms = ["application/problem+json", *(["text/html"] if route["tags"] == ["dashboard"] else [])]
            assert all(list(content) == forms for content in refusals.values()), path


def test_every_parameter_of_a_route_is_named(api: Api) -> None:
    # GET /best has the fields of `pair` as parameters.
    named = set(re.findall(r"`(?:pair\.)?([\w-]+)(?:=[^`]*)?`", PAGE))
    for methods in api.get("/openapi.json")["paths"].values():
        for route in methods.values():
            names = {parameter["name"] for parameter in route.get("parameters", ()) if parameter["in"] == "query"}
            assert names - named == set()
    assert BestQuery.model_fields.keys() - named == {"kind"} - named


def test_every_field_of_a_request_has_its_row(api: Api) -> None:
    schemas = api.get("/openapi.json")["components"]["schemas"]
    fields = schemas["TuneRequest"]["properties"].keys() - {"pair", "objective", "budget"}
    for prefix, name in (
        ("pair", "FfnPair"),
        ("pair", "IndependentPair"),
        ("pair", "Chain"),
        ("pair", "DecoderBlock"),
        ("pair", "Attention"),
        ("pair", "DecoderAttention"),
        ("pair", "DecoderLayer"),
        ("objective", "ObjectiveRequest"),
        ("budget", "BudgetRequest"),
    ):
        fields |= {f"{prefix}.{field}" for field in schemas[name]["properties"]}
    _, _, table = PAGE.partition("| field |")
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[1:]]
    assert {word for row in rows for word in re.findall(r"`([^`]+)`", row)} == fields


def test_every_field_of_a_batch_has_its_row(api: Api) -> None:
    fields = api.get("/openapi.json")["components"]["schemas"]["BatchRequest"]["properties"].keys()
    _, _, table = PAGE.partition("| field of a batch |")
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[1:]]
    assert {word for row in rows for word in re.findall(r"`([^`]+)`", row)} == fields


def test_every_refusal_of_the_guards_is_in_the_description_of_each_route(api: Api) -> None:
    for path, methods in api.get("/openapi.json")["paths"].items():
        for method, route in methods.items():
            guards = {"400", "403", "405"} | (set() if route["security"] == [] else {"401", "429"})
            guards |= {"408", "413", "415"} if method in ("post", "delete") else set()
            assert guards - route["responses"].keys() == set(), (method, path)


_OF_ADMINS = {"token_id": "tok-0", "scope": "owner", "name": "alice"}


# In CI, test_bad_input.py has three paths.
@pytest.mark.soak
def test_allow_names_every_method_of_the_path_and_no_other(api: Api) -> None:
    paths = api.get("/openapi.json")["paths"]
    for path, methods in paths.items():
        # A path with a verb could also be that of a job or batch whose id ends like this.
        known = {method.upper() for method in {*methods, *paths.get(path.partition(":")[0], ())}}
        known |= {"HEAD"} if "GET" in known else set()
        address = path.format(job_id="job-0", batch_id="batch-0", number=0, digest="0" * 64, **_OF_ADMINS)
        for method in {"DELETE", "PUT", "PATCH", "OPTIONS"} - known:
            response = api.http.request(method, address)
            assert response.status_code == 405, path
            assert set(response.headers["allow"].split(", ")) == known, path
            assert f"; it supports {response.headers['allow']}" in response.text, path


@pytest.mark.parametrize("status", sorted({*STATUS.values(), 400, 401, 403, 405, 429, 408, 413, 415} - {500}))
def test_every_error_status_has_its_row(status: int) -> None:
    assert re.search(rf"^\| {status} \|", PAGE, re.MULTILINE)
