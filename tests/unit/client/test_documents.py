"""The client's typed documents are what the API takes and answers, key by key."""

from __future__ import annotations

import types
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from pydantic import BaseModel

from tuner.client import batch_documents, documents
from tuner.wire.batches import BatchBestView, BatchJobView, BatchView
from tuner.wire.job_detail import JobDetail
from tuner.wire.job_view import JobView
from tuner.wire.requests import FfnPair, IndependentPair
from tuner.wire.responses import BestView, TrialView

PAIRS = [
    (JobView, documents.Job),
    (JobDetail, documents.JobDetail),
    (TrialView, documents.Trial),
    (BestView, documents.Best),
    (FfnPair, documents.FfnPair),
    (IndependentPair, documents.IndependentPair),
    (BatchView, batch_documents.Batch),
    (BatchJobView, batch_documents.BatchJob),
    (BatchBestView, batch_documents.BatchBest),
]


def in_json(annotation: Any) -> Any:
    """What a type of the wire is once it is JSON; models and typed dicts are their fields."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, NotRequired):
        return in_json(inside[0])
    if origin in (Union, types.UnionType):
        return frozenset(map(in_json, inside)) if len(inside) > 1 else in_json(inside[0])
    if origin is Literal:
        return ("one of", inside)
    if origin in (list, tuple):
        return (list, in_json(inside[0]))
    if origin is dict:
        return (dict, *map(in_json, inside))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return tuple(sorted((name, in_json(field.annotation)) for name, field in annotation.model_fields.items()))
    if is_typeddict(annotation):
        return tuple(sorted((name, in_json(one)) for name, one in get_type_hints(annotation).items()))
    return str if isinstance(annotation, type) and issubclass(annotation, StrEnum | datetime) else annotation


@pytest.mark.parametrize(("model", "document"), PAIRS, ids=lambda one: one.__name__)
def test_a_document_has_the_keys_and_types_of_its_model(model: type[BaseModel], document: type) -> None:
    expected, found = dict(in_json(model)), dict(in_json(document))
    assert found.keys() == expected.keys()
    assert {name: one for name, one in found.items() if one != expected[name]} == {}


@pytest.mark.parametrize("pair", [FfnPair, IndependentPair])
def test_what_a_pair_need_not_have_is_what_the_api_has_a_default_for(pair: type[BaseModel]) -> None:
    document = getattr(documents, pair.__name__)
    hints = get_type_hints(document, include_extras=True)
    needed = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
    assert needed == {name for name, field in pair.model_fields.items() if field.is_required()}
