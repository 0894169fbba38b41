"""The examples that run an artifact from its zip alone: how they judge errors. tests/gpu runs them on a GPU."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest

from tests.support.on_card import EXAMPLE


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("run_artifact", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("errors", [[math.nan, 0.001], [0.001, math.nan], [0.5, math.nan, 0.001]])
def test_a_nan_is_the_worst_whatever_comes_behind_it(example: Any, errors: list[float]) -> None:
    assert math.isnan(example.worst_of(errors))


def test_the_worst_is_the_greatest(example: Any) -> None:
    assert example.worst_of([0.001, 0.5, 0.002]) == 0.5
    assert example.worst_of([]) == 0.0


def test_what_is_not_there_is_asked_for_in_a_sentence(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run_artifact.py", "no-such.zip"])
    with pytest.raises(SystemExit, match="pass the zip of an artifact, or the folder of its files"):
        example.main()
