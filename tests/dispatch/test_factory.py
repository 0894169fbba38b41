from __future__ import annotations

from pathlib import Path

import pytest

from tuner.dispatch import make_evaluators
from tuner.errors import InvalidInput, WorkerError


def test_a_simulated_gpu_is_taken_at_its_word(tmp_path: Path) -> None:
    (evaluator,), why = make_evaluators("simulated:a40", build_cache=tmp_path)
    assert evaluator.target.id == "simulated:a40"
    assert "no figure here is a measurement" in why


def test_none_is_none(tmp_path: Path) -> None:
    assert make_evaluators("none", build_cache=tmp_path)[0] == []


def test_auto_falls_back_to_a_simulated_h200_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[object]:
        raise WorkerError("no NVIDIA driver answers")

    monkeypatch.setattr("workers.cards.usable_gpus", refuse)
    (evaluator,), why = make_evaluators("auto", build_cache=tmp_path)
    assert (evaluator.target.id, evaluator.environment().simulated) == ("simulated:h200", True)
    assert why == "Simulating an H200 (simulated:h200), since no NVIDIA driver answers."


@pytest.mark.parametrize("gpu", ["", "h200", "simulated:", "simulated:z80", "AUTO"])
def test_any_other_word_is_refused(tmp_path: Path, gpu: str) -> None:
    with pytest.raises(InvalidInput):
        make_evaluators(gpu, build_cache=tmp_path)
