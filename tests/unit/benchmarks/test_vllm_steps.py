"""Arms inside vLLM take turns, are kept, and become rows beside stock's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runtime import vllm_steps
from benchmarks.runtime.vllm_steps import agree, kept, next_arm, rows_of


def run(arm: str, ms: float, tokens: tuple[int, ...] = (1, 2), gpu_ms: float | None = None) -> dict[str, Any]:
    outputs = [{"tokens": list(tokens), "logprobs": [[-0.1, -2.0], [-0.6, -0.62]]}]
    return {
        "arm": arm,
        "start_s": 80.0,
        "first_token_ms": 9.0,
        "batches": {"8": {"ms_step": ms, "gpu_ms": gpu_ms, "outputs": outputs}},
        "machine": {"gpu": "none", "driver": "", "cuda": ""},
        **({} if arm == "stock" else {"calls": {"kernel": 64}}),
    }


def test_arms_take_turns_until_each_has_its_repeats() -> None:
    runs: list[dict[str, Any]] = []
    order = []
    while (arm := next_arm(runs, 2, ("stock", "mlps"))) is not None:
        order.append(arm)
        runs.append(run(arm, 5.0))
    assert order == ["stock", "mlps", "stock", "mlps"]
    assert next_arm(runs, 2) == "layers"


def test_a_row_has_medians_and_gains_run_by_run() -> None:
    runs = [run("stock", 5.0, gpu_ms=4.0), run("mlps", 4.0, gpu_ms=3.5), run("stock", 6.0), run("mlps", 5.0)]
    stock, ours = rows_of("llama", runs)
    assert (stock["gain"], stock["arm"], stock["launches"]) == (1.0, "stock", {})
    assert (ours["ms_step"], ours["gpu_ms"], ours["host_ms"]) == (4.5, 3.5, 1.0)
    assert ours["gains"] == [1.25, 1.2]
    assert ours["gain"] == 1.225
    assert (ours["model"], ours["batch"], ours["logits_ok"], ours["launches"]) == ("llama", 8, True, {"kernel": 64})


@pytest.mark.parametrize(
    ("tokens", "is_right"),
    [((1, 2), True), ((1, 3), True), ((3, 2), False)],  # the second choice was a matter of rounding
)
def test_tokens_may_differ_where_two_were_as_likely(tokens: tuple[int, ...], is_right: bool) -> None:
    theirs = run("stock", 5.0)["batches"]["8"]["outputs"]
    assert agree(run("mlps", 5.0, tokens)["batches"]["8"]["outputs"], theirs) is is_right
    assert not agree([], theirs)


def test_runs_that_have_ended_are_kept_and_none_is_begun_that_would_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_COMMIT", "0123456789")
    monkeypatch.setattr(vllm_steps, "run_arm", lambda arm, options: run(arm, 5.0))
    state, out = tmp_path / "runs.jsonl", tmp_path / "vllm.json"
    command = ["--model", str(tmp_path), "--pack", "x", "--state", str(state), "--out", str(out), "--repeats", "2"]
    vllm_steps.main([*command, "--seconds", "1"])
    assert "stock is next: call it again" in capsys.readouterr().out
    assert kept(state) == []
    assert not out.exists()
    vllm_steps.main(command)
    assert [one["arm"] for one in kept(state)] == 2 * ["stock", "mlps", "layers"]
    assert {row["arm"] for row in json.loads(out.read_text())["rows"]} == {"stock", "mlps", "layers"}


def test_an_arm_finds_no_package_among_the_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks whether there is one that is called `kernels`."""
    stub = tmp_path / "vllm.py"
    stub.write_text("import importlib.util, sys\nsys.exit(f'kernels: {importlib.util.find_spec(\"kernels\")}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="kernels: None"):
        vllm_steps.main(["--model", str(tmp_path), "--pack", "x", "--state", str(tmp_path / "runs"), "--batches", "1"])


def test_an_arm_that_fails_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"stock ended with 1:\n[\s\S]*(vllm|No module)"):
        vllm_steps.main(["--model", str(tmp_path), "--pack", "x", "--state", str(tmp_path / "runs"), "--batches", "1"])
