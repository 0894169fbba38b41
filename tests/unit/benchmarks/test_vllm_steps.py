"""Arms inside vLLM take turns, are kept, and become rows beside stock's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runtime.vllm_steps import agree, kept, main, next_turn, rows_of

#: Stands in for `vllm_arm.py`: it answers as that does, and at a batch size of 99 it ends.
ANSWERS = """
import json, sys
name, machine = sys.argv[3], {"gpu": "none", "driver": "", "cuda": ""}
if name == "mlps":
    sys.exit("no such pack")
print("tuner: said by", name, flush=True)
print("ARM", json.dumps({"start_s": 80.0, "calls": {"layers": 2}, "machine": machine}), flush=True)
outputs = [{"tokens": [1], "logprobs": [[-0.1, -2.0]]}]
arms = {"stock": {"other_top": 0}, "layers": {"other_top": 1}}
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("batch") == 99:
        sys.exit("a launch hangs")
    found = {
        "step": {"ms_step": 5.0 if name == "stock" else 4.0},
        "trace": {"gpu_ms": 3.0, "launches_step": 6.0},
        "tokens": {"outputs": outputs},
        "first_token": {"first_token_ms": 9.0},
        "logits": {},
        "reference": {"arms": arms},
    }
    print("ARM", json.dumps(asked | found[asked["ask"]]), flush=True)
"""


def turn(batch: int, *, is_first: bool = False, tokens: tuple[int, ...] = (1, 2), **ms: float) -> dict[str, Any]:
    outputs = [{"tokens": list(tokens), "logprobs": [[-0.1, -2.0], [-0.6, -0.62]]}]
    first = {"outputs": outputs, "gpu_ms": 3.5, "launches_step": 64.0} if is_first else {}
    arms = {arm: {"ms_step": one, "start_s": 80.0, "calls": {"layers": 64}, **first} for arm, one in ms.items()}
    return {"batch": batch, "arms": arms}


def test_each_batch_size_has_its_turns_the_one_with_the_fewest_first() -> None:
    turns: list[dict[str, Any]] = []
    order = []
    while (batch := next_turn(turns, (1, 8), 2)) is not None:
        order.append(batch)
        turns.append(turn(batch))
    assert order == [1, 8, 1, 8]


def test_a_row_has_medians_and_gains_turn_by_turn() -> None:
    turns = [turn(8, is_first=True, stock=5.0, layers=4.0), turn(8, stock=6.0, layers=5.0)]
    stock, ours = rows_of("llama", turns, {"layers": 9.0}, {"batch": 8, "arms": {"layers": {"rms": 0.1}}})
    assert (stock["gain"], stock["arm"], stock["logits"]) == (1.0, "stock", None)
    assert (ours["ms_step"], ours["gpu_ms"], ours["host_ms"]) == (4.5, 3.5, 1.0)
    assert ours["gains"] == [1.25, 1.2]
    assert (ours["gain"], ours["launches_step"], ours["launches"]) == (1.225, 64.0, {"layers": 64})
    assert (ours["model"], ours["batch"], ours["logits_ok"], ours["first_token_ms"]) == ("llama", 8, True, 9.0)
    assert ours["logits"] == {"rms": 0.1}


@pytest.mark.parametrize(
    ("tokens", "is_right"),
    [((1, 2), True), ((1, 3), True), ((3, 2), False)],  # the second choice was a matter of rounding
)
def test_tokens_may_differ_where_two_were_as_likely(tokens: tuple[int, ...], is_right: bool) -> None:
    theirs, ours = (turn(8, is_first=True, tokens=one, stock=5.0)["arms"]["stock"] for one in ((1, 2), tokens))
    assert agree(ours["outputs"], theirs["outputs"]) is is_right
    assert not agree([], theirs["outputs"])


@pytest.fixture
def python(tmp_path: Path) -> str:
    """One that answers in the place of any program."""
    path = tmp_path / "python"
    path.write_text(f"#!/usr/bin/env python3\n{ANSWERS}")
    path.chmod(0o755)
    return str(path)


def test_arms_are_asked_by_turns_and_what_ended_is_kept(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_COMMIT", "0123456789")
    state, out = tmp_path / "turns.jsonl", tmp_path / "vllm.json"
    command = ["--model", str(tmp_path), "--pack", "x", "--python", python, "--state", str(state), "--out", str(out)]
    main([*command, "--batches", "1,8,99", "--repeats", "1"])
    printed = capsys.readouterr().out
    assert "mlps ended with 1:\nno such pack" in printed
    assert "layers started in 80.0 s: said by layers" in printed
    assert "stock ended with 1:\ntuner: said by stock\na launch hangs" in printed
    assert [one["batch"] for one in kept(state)] == [1, 8]
    main([*command, "--batches", "1,8", "--repeats", "2", "--logits", "8"])
    assert [one["batch"] for one in kept(state)] == [1, 8, 1, 8]
    rows = json.loads(out.read_text())["rows"]
    assert [(row["batch"], row["arm"], row["gains"]) for row in rows if row["arm"] == "layers"] == [
        (1, "layers", [1.25, 1.25]),
        (8, "layers", [1.25, 1.25]),
    ]
    assert rows[-1]["logits"] == {"other_top": 1}


def test_no_turn_begins_behind_its_time(tmp_path: Path, python: str) -> None:
    state = tmp_path / "turns.jsonl"
    main(["--model", str(tmp_path), "--pack", "x", "--python", python, "--state", str(state), "--seconds", "0"])
    assert kept(state) == []


def test_an_arm_finds_no_package_among_the_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers asks whether there is one that is called `kernels`."""
    stub = tmp_path / "vllm.py"
    stub.write_text("import importlib.util, sys\nsys.exit(f'kernels: {importlib.util.find_spec(\"kernels\")}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no arm has started"):
        main(["--model", str(tmp_path), "--pack", "x", "--state", str(tmp_path / "turns"), "--batches", "1"])
    assert capsys.readouterr().out.count("kernels: None") == 3
