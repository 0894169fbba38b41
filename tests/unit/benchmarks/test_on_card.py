"""Benchmarks that take samples themselves, where there is no card."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.common import on_card
from benchmarks.common.workbench import open_workbench
from benchmarks.trust import alone, carry_over, swing


@pytest.mark.parametrize("benchmark", [alone, carry_over, swing], ids=lambda module: module.__name__)
def test_a_simulated_card_is_refused(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_card, "open_workbench", lambda _, cache: open_workbench("simulated:h100", cache))
    with pytest.raises(SystemExit, match="a card is needed"):
        benchmark.main(["--out", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()
