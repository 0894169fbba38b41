"""The program that measures searches reports its requirements."""

from __future__ import annotations

import pytest

from benchmarks.search import cards
from benchmarks.search.measure import main
from tuner.errors import WorkerError


def test_without_a_card_it_says_so_and_lists_its_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise WorkerError("there is no card")

    monkeypatch.setattr(cards, "usable_gpus", none)
    main(["--list", "--task", "ladder"])
    assert capsys.readouterr().out.startswith("ladder: ")
    with pytest.raises(SystemExit, match=r"--gpu auto: there is no card; .* --gpu simulated:h200"):
        main([])
    with pytest.raises(SystemExit, match=r"--gpu: .*there is no GPU called 'sim'"):
        main(["--gpu", "sim", "--list"])
