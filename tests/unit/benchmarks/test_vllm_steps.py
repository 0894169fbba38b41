"""Arms inside vLLM alternate, are stored, and become rows next to stock vLLM's."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runtime.vllm_arm import longest, shares_ns, union_ns
from benchmarks.runtime.vllm_steps import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    NARROW,
    Model,
    kept,
    logits_ok,
    main,
    next_turn,
    ratios_of_rounds,
    rows_of,
    take_rounds,
)
from tuner.core.trial.stats import ratio_ci95

ARMS = "stock,mlps,layers"
#: Replaces `vllm_arm.py`, with the same answers; exits at a batch size of 99.
ANSWERS = """
import json, sys
name, machine = sys.argv[3], {"gpu": "none", "driver": "", "cuda": ""}
if name == "mlps":
    sys.exit("no such pack")
memory = sys.argv[sys.argv.index("--memory-gib") + 1] if "--memory-gib" in sys.argv else "any"
print("tuner: memory of", name, memory, flush=True)
print("tuner: said by", name, "with", sys.argv[sys.argv.index("--settings") + 1], flush=True)
print("ARM", json.dumps({"start_s": 80.0, "calls": {"layers": 2}, "machine": machine}), flush=True)
arms = {"stock": {"rms": 0.2, "other_top": 0}, "layers": {"rms": 0.1, "other_top": 1}}
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("batch") == 99 or asked.get("batch") == 98 and name == "stock":
        sys.exit("a launch hangs")
    if ("batch" in asked) == (asked["ask"] in ("first_token", "reference")):
        sys.exit("no such arguments")
    found = {
        "step": {"ms_step": 5.0 if name == "stock" else 4.0},
        "trace": {"gpu_ms": 3.0, "first_gpu_ms": 5.5, "mixed_gpu_ms": 90.0, "launches_step": 6.0},
        "first_token": {"first_token_ms": [9.0, 9.0, 30.0] if name == "stock" else [8.0]},
        "mixed": {"mixed_ms": 400.0},
        "logits": {"problem": "different tokens"} if asked.get("batch") == 97 else {},
        "reference": {"arms": arms},
    }
    print("ARM", json.dumps(asked | found[asked["ask"]]), flush=True)
"""


def turn(batch: int, *, is_first: bool = False, **ms: float) -> dict[str, Any]:
    first = (
        {"gpu_ms": 3.5, "launches_step": 64.0, "first_token_ms": [[9.0, 8.0]], "mixed_ms": [[4.0]]} if is_first else {}
    )
    arms = {arm: {"ms_step": one, "start_s": 80.0, "calls": {"layers": 64}, **first} for arm, one in ms.items()}
    logits = {"logits": {arm: {"rms": 0.1, "other_top": 0} for arm in ms}} if is_first else {}
    return {"model": "llama", "batch": batch, "arms": arms, **logits}


def test_each_batch_size_has_its_turns_the_one_with_the_fewest_first() -> None:
    model = Model(folder=Path("of/llama"), pack=Path("x"), batches=(1, 8), arms=("stock",))
    turns: list[dict[str, Any]] = []
    order = []
    while (place := next_turn(turns, [model], 2)) is not None:
        order.append(place)
        turns.append(turn(place[1]))
    assert order == [("llama", 1), ("llama", 8), ("llama", 1), ("llama", 8)]


def test_a_row_has_medians_and_gains_turn_by_turn() -> None:
    turns = [turn(8, is_first=True, stock=5.0, layers=4.0), turn(8, stock=6.0, layers=5.0)]
    stock, ours = rows_of(turns)
    assert (stock["gain"], stock["arm"]) == (1.0, "stock")
    assert (ours["ms_step"], ours["gpu_ms"], ours["host_ms"]) == (4.5, 3.5, 0.5)
    assert ours["gains"] == [1.25, 1.2]
    assert (ours["gain"], ours["launches_step"], ours["launches"]) == (1.225, 64.0, {"layers": 64})
    assert (ours["model"], ours["batch"], ours["logits_ok"], ours["first_token_ms"]) == ("llama", 8, True, 8.0)


class Drifting:
    """An arm on a host that becomes slower with each run, and whose runs scatter."""

    def __init__(self, name: str, ms: float, clock: list[int], scatter: float) -> None:
        self.name, self._ms, self._clock, self._scatter = name, ms, clock, scatter
        self._random = random.Random(name)

    def ask(self, what: str, **_: Any) -> dict[str, Any]:
        self._clock.append(1)
        ms = self._ms * (1 + 0.01 * len(self._clock)) * (1 + self._scatter * self._random.uniform(-1, 1))
        return {f"{what}_ms": [ms, 2 * ms] if what == "first_token" else ms}


@pytest.mark.parametrize(("scatter", "least", "most"), [(0.002, LEAST_ROUNDS, 20), (0.2, MOST_ROUNDS, MOST_ROUNDS)])
def test_rounds_go_on_until_the_interval_is_narrow_and_drift_does_not_count(
    scatter: float, least: int, most: int
) -> None:
    """From each run to the next, the host slows by more than the interval's width."""
    clock: list[int] = []
    arms: list[Any] = [Drifting("mlps", 5.0, clock, scatter), Drifting("stock", 5.25, clock, scatter)]
    found = take_rounds(arms, 8, has_first_tokens=True)
    for ask in ("first_token", "mixed"):
        of_arms = [found[name][f"{ask}_ms"] for name in ("stock", "mlps")]
        assert least <= len(of_arms[0]) == len(of_arms[1]) <= most
        low, high = ratio_ci95(ratios_of_rounds(*of_arms))
        assert low - 0.005 <= 1.05 <= high + 0.005
        assert (high - low <= 2 * NARROW) == (scatter < 0.1)
    assert "first_token_ms" not in take_rounds(arms, 8, has_first_tokens=False)["mlps"]


def test_logits_are_right_where_they_lie_no_farther_and_decide_alike() -> None:
    stock = {"rms": 0.2, "other_top": 0}
    assert logits_ok(stock, stock)
    assert not logits_ok({"rms": 0.21, "other_top": 0}, stock)
    assert not logits_ok({"rms": 0.1, "other_top": 1}, stock)


def test_kernels_that_overlap_are_counted_once() -> None:
    assert union_ns([(100, 50), (0, 10), (120, 100), (130, 5)]) == 130


def test_a_kernel_adds_what_lies_behind_the_ends_of_others() -> None:
    kernels = [("attention", 0, 10), ("product", 5, 15), ("within", 12, 3), ("product", 30, 4)]
    assert shares_ns(kernels) == {"attention": 10, "within": 5, "product": 5 + 4, "idle": 10}


def test_kernels_are_listed_by_their_time() -> None:
    us = {f"kernel{number}": number + 0.04 for number in range(30)}
    listed = longest(us)
    assert [*listed.items()][:2] == [("kernel29", 29.0), ("kernel28", 28.0)]
    assert len(listed) == 16


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python that replaces any program."""
    path = tmp_path / "python"
    path.write_text(f"#!/usr/bin/env python3\n{ANSWERS}")
    path.chmod(0o755)
    return str(path)


def test_arms_are_asked_by_turns_and_what_ended_is_kept(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_COMMIT", "0123456789")
    state, out = tmp_path / "turns.jsonl", tmp_path / "vllm.json"
    command = ["--python", python, "--state", str(state), "--out", str(out)]
    main([*command, "--memory-gib", "30", "--model", str(tmp_path), "x", "1,8,99", ARMS, "--repeats", "1"])
    printed = capsys.readouterr().out
    assert "mlps ended with 1:\nno such pack" in printed
    assert "layers started in 80.0 s: memory of layers 30.0; said by layers with {" in printed
    assert "a launch hangs" in printed
    assert [one["batch"] for one in kept(state)] == [1, 8]
    main([*command, "--model", str(tmp_path), "x", "1,8", ARMS, "--repeats", "2"])
    assert [one["batch"] for one in kept(state)] == [1, 8, 1, 8]
    rows = json.loads(out.read_text())["rows"]
    assert [(row["batch"], row["arm"], row["gains"]) for row in rows if row["arm"] == "layers"] == [
        (1, "layers", [1.25, 1.25]),
        (8, "layers", [1.25, 1.25]),
    ]
    assert [(row["first_gpu_ms"], row["mixed_gpu_ms"]) for row in rows] == [(5.5, 90.0)] * len(rows)
    first = next(row for row in rows if row["arm"] == "layers" and row["batch"] == 1)
    assert (first["first_token_ms"], first["first_token_gain"]) == (8.0, 1.125)
    assert (first["first_token_ci95"], first["first_token_rounds"]) == ([1.125, 1.125], LEAST_ROUNDS)
    assert "first_token_ms" not in rows[-1], "they do not depend on the batch size"
    assert (rows[-1]["mixed_ms"], rows[-1]["mixed_gain"], rows[-1]["mixed_ci95"]) == (400.0, 1.0, [1.0, 1.0])
    assert (rows[-1]["logits_ok"], rows[-1]["logits"]) == (False, {"rms": 0.1, "other_top": 1})


def test_an_arm_that_ends_leaves_the_others_to_go_on(
    tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state, out = tmp_path / "turns.jsonl", tmp_path / "vllm.json"
    command = ["--python", python, "--state", str(state), "--out", str(out), "--repeats", "1"]
    first, second = tmp_path / "first", tmp_path / "second"
    models = ("--model", str(first), "x", "98,8", "stock,layers", "--model", str(second), "x", "1", "stock")
    settings = ("--settings-of", "second", '{"its": "own"}', "--settings-of", "layers", '{"of": "layers"}')
    main([*command, *models, *settings])
    found = [(one["batch"], [*one["arms"]]) for one in kept(state)]
    assert found == [(98, ["layers"]), (8, ["layers"]), (1, ["stock"])]
    printed = capsys.readouterr().out
    assert "stock ended with 1" in printed
    assert 'second, stock started in 80.0 s: memory of stock any; said by stock with {"its": "own"}' in printed
    assert printed.count("own") == 1, "the settings of a single model"


def test_logits_that_cannot_be_compared_are_said_and_the_times_are_kept(
    tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state, out = tmp_path / "turns.jsonl", tmp_path / "vllm.json"
    command = ["--python", python, "--state", str(state), "--out", str(out), "--repeats", "1"]
    main([*command, "--model", str(tmp_path), "x", "97", "stock,layers"])
    assert "no logits: {'stock': 'different tokens', 'layers': 'different tokens'}" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert [(row["gain"], row["logits_ok"], row["logits"]) for row in rows] == [(1.0, None, None), (1.25, None, None)]


def test_no_turn_begins_behind_its_time(tmp_path: Path, python: str) -> None:
    state = tmp_path / "turns.jsonl"
    main(["--model", str(tmp_path), "x", "1", ARMS, "--python", python, "--state", str(state), "--seconds", "0"])
    assert kept(state) == []


def test_an_arm_finds_no_package_among_the_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers checks whether a package named `kernels` exists."""
    stub = tmp_path / "vllm.py"
    stub.write_text("import importlib.util, sys\nsys.exit(f'kernels: {importlib.util.find_spec(\"kernels\")}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no arm has started"):
        main(["--model", str(tmp_path), "x", "1", ARMS, "--state", str(tmp_path / "turns")])
    assert capsys.readouterr().out.count("kernels: None") == 3
