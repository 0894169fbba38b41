"""When a loaded model's steps are split by the pack's last row, over the stub of vLLM's plugin interface."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.errors import InvalidInput

pytest.importorskip("torch")
from tests.unit.vllm.test_plugin import config, loaded, operator, registered

__all__ = ["operator", "registered"]


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str]]:
    """The configs and packs whose ranges are split."""
    found = list[tuple[Any, str]]()
    loader = importlib.import_module("tuner.vllm.loader")
    monkeypatch.setattr(loader, "split", lambda config, path: found.append((config, path.name)))
    return found


def asked(**changes: Any) -> Any:
    found = config(**changes)
    found.compilation_config = SimpleNamespace()
    return found


def test_it_is_on_by_default_and_a_setting_disables_it(split: Any) -> None:
    on, off = asked(), asked()
    loaded(on, "tuner")
    loaded(off, "tuner", ranges=False)
    assert split == [(on.compilation_config, "model.tunerpack")]
    with pytest.raises(InvalidInput, match=r"model_loader_extra_config.ranges: is 'no'; use true or false"):
        loaded(asked(), "tuner", ranges="no")


def test_a_model_without_operators_is_not_compiled_twice(split: Any) -> None:
    loaded(asked(mlp_bias=True), "tuner")
    assert split == []


def test_the_compile_cache_knows_the_setting_and_the_code_that_rewrites(
    split: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = list[Any]()
    for extra in ({}, {"ranges": False}, {}):
        loaded(one := asked(), "tuner", **extra)
        keys.append(one.additional_config)
        (tmp_path / "ranges.py").write_text("another version")
        monkeypatch.setattr("tuner.vllm.ranges.__file__", str(tmp_path / "ranges.py"))
    assert [sorted(one) for one in keys] == [
        ["tuner_pack", "tuner_ranges"],
        ["tuner_pack"],
        ["tuner_pack", "tuner_ranges"],
    ]
    assert keys[0] != keys[2]
