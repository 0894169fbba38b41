"""The client's typed documents match the API's requests and responses, key by key: they are generated from the
definitions."""

from __future__ import annotations

from typing import NotRequired, get_origin, get_type_hints

import pytest

from tests.house import documents
from tuner.client.documents import asked
from tuner.core.problem.asked import asked_workloads
from tuner.wire.requests.pairs import model_of


def test_each_file_is_what_its_program_writes() -> None:
    for path, text in documents.drawn():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m tests.house.documents"


@pytest.mark.parametrize(
    "kind", ["ffn", "independent", "decoder-block", "attention", "decoder-attention", "decoder-layer"]
)
def test_what_a_pair_need_not_have_is_what_the_api_has_a_default_for(kind: str) -> None:
    model = model_of(asked_workloads()[kind])
    hints = get_type_hints(getattr(asked, model.__name__), include_extras=True)
    needed = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
    assert needed == {name for name, field in model.model_fields.items() if field.is_required()}
    assert hints.keys() == model.model_fields.keys()
