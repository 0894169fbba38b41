"""The runtime, compiled once, over the recorder of driver calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.native.recorder import Recorder
from tests.unit.runtime.torch_ffn import compiled, on_card, op, pack

__all__ = ["compiled", "on_card", "op", "pack"]


@pytest.fixture(scope="session")
def _recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("runtime"))


@pytest.fixture
def recorder(_recorder: Recorder) -> Iterator[Recorder]:
    _recorder.clear()
    yield _recorder
    _recorder.clear()
