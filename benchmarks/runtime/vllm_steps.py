"""A decode step inside vLLM, alone and with a pack's kernels: arms take turns, each in a process of its own.

python -m benchmarks.runtime.vllm_steps --model DIR --pack PACK [--python PYTHON] [--batches 1,8,32,64,128]
    [--arms stock,mlps,layers] [--repeats 3] [--seconds 540] [--settings JSON] [--out FILE]

DIR has the config.json of a model; its weights are random. `mlps` takes PACK's MLPs alone, `layers` its layers too.
PYTHON is one that has vLLM and our wheel. Each arm has a compile cache of its own. A run of an arm takes 100 s on an
H200 and is kept when it ends, so that the next call goes on: `--seconds` begins none that would not end. A row has the
medians of an arm at a batch size. Its gain is over stock, run by run. Greedy tokens must be stock's, but where the two
most likely ones are closer than `MARGIN` in log-probability."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.report import write_report

ARMS = ("stock", "mlps", "layers")
#: As a server has them by default.
SETTINGS = '{"max_model_len": 8192, "max_num_seqs": 1024, "dtype": "bfloat16"}'
#: What an arm needs, until the first has told.
ARM_S = 120.0
#: Of log-probabilities in bf16.
MARGIN = 0.05

Json = dict[str, Any]


def kept(path: Path) -> list[Json]:
    """The runs that have ended, in their order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_arm(runs: Sequence[Mapping[str, Any]], repeats: int, arms: Sequence[str] = ARMS) -> str | None:
    """That has the fewest runs, the first of equals; None where all have theirs."""
    counts = {arm: sum(run["arm"] == arm for run in runs) for arm in arms}
    arm = min(arms, key=lambda one: counts[one])
    return arm if counts[arm] < repeats else None


def run_arm(arm: str, options: argparse.Namespace) -> Json:
    """Runs it in a process of its own.

    Raises:
        SystemExit: it failed; the message has the end of what it printed.
    """
    program = Path(__file__).with_name("vllm_arm.py")
    # -P: modules beside the program are called like packages that vLLM asks for (`kernels`).
    command = [options.python, "-P", str(program), arm, "--model", str(options.model), "--batches", options.batches]
    command += ["--settings", options.settings]
    caches = {"VLLM_CACHE_ROOT": str(options.state.with_suffix(f".{arm}.cache")), "TUNER_PACK": str(options.pack)}
    done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("ARM ")), None)
    if done.returncode != 0 or line is None:
        raise SystemExit(f"{arm} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    said = [line.partition("tuner: ")[2] for line in (done.stdout + done.stderr).splitlines() if "tuner: " in line]
    return {**json.loads(line.removeprefix("ARM ")), "said": list(dict.fromkeys(said))}


def rows_of(model: str, runs: Sequence[Json]) -> list[Json]:
    """A row for each arm and batch size, of those runs that have a partner of stock's."""
    by_arm = {arm: [run for run in runs if run["arm"] == arm] for arm in ARMS}
    return [
        _row(model, batch, arm, by_arm[arm], by_arm["stock"])
        for batch in (by_arm["stock"][0]["batches"] if by_arm["stock"] else ())
        for arm in ARMS
        if by_arm[arm]
    ]


def _row(
    model: str, batch: str, arm: str, runs: Sequence[Mapping[str, Any]], stock: Sequence[Mapping[str, Any]]
) -> Json:
    ms = [run["batches"][batch]["ms_step"] for run in runs]
    theirs = [run["batches"][batch]["ms_step"] for run in stock]
    gains = [before / after for before, after in zip(theirs, ms, strict=False)]
    gpu = [busy for run in runs if (busy := run["batches"][batch]["gpu_ms"]) is not None]
    gpu_ms = round(median(gpu), 4) if gpu else None
    return {
        "model": model,
        "batch": int(batch),
        "arm": arm,
        "ms_step": round(median(ms), 4),
        "gpu_ms": gpu_ms,
        "host_ms": None if gpu_ms is None else round(median(ms) - gpu_ms, 4),
        "gain": round(median(gains), 4),
        "gains": [round(gain, 4) for gain in gains],
        "logits_ok": all(
            agree(run["batches"][batch]["outputs"], stock[0]["batches"][batch]["outputs"]) for run in runs
        ),
        "launches": runs[-1].get("calls", {}),
        "start_s": round(median(run["start_s"] for run in runs), 1),
        "first_token_ms": round(median(run["first_token_ms"] for run in runs), 3),
    }


def agree(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether tokens are the same up to the first whose choice was a matter of rounding."""
    return len(ours) == len(theirs) and all(map(_agrees, ours, theirs))


def _agrees(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    for one, other, (first, second) in zip(ours["tokens"], theirs["tokens"], theirs["logprobs"], strict=True):
        if one != other:
            return bool(first - second < MARGIN)
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures until the time is over, and writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="one that has vLLM and our wheel")
    parser.add_argument("--batches", default="1,8,32,64,128", help="with commas")
    parser.add_argument("--arms", default=",".join(ARMS), help="with commas; stock among them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--settings", default=SETTINGS, help="of vllm.LLM, as JSON")
    parser.add_argument("--state", type=Path, default=Path("build/bench-vllm.jsonl"), help="runs that have ended")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/vllm.json"))
    options = parser.parse_args(arguments)
    options.state.parent.mkdir(parents=True, exist_ok=True)
    options.pack = options.pack.resolve()
    begin, longest = time.perf_counter(), 0.0
    arms = options.arms.split(",")
    while (arm := next_arm(runs := kept(options.state), options.repeats, arms)) is not None:
        since = time.perf_counter() - begin
        if since + (longest or ARM_S) > options.seconds:
            print(f"{arm} is next: call it again")
            break
        print(f"{arm}, run {1 + sum(run['arm'] == arm for run in runs)}", flush=True)
        run = run_arm(arm, options)
        with options.state.open("a") as file:
            file.write(json.dumps(run) + "\n")
        longest = max(longest, time.perf_counter() - begin - since)
    if runs := kept(options.state):
        rows = rows_of(options.model.resolve().name, runs)
        print(*rows, sep="\n")
        write_report(options.out, rows, runs[-1]["machine"])


if __name__ == "__main__":
    main()
