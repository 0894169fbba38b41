"""A decode step inside vLLM, alone and with a pack's kernels: arms take turns, each in a process of its own.

python -m benchmarks.runtime.vllm_steps --model DIR --pack PACK [--python PYTHON] [--batches 1,8,32,64,128]
    [--arms stock,mlps,layers] [--repeats 3] [--logits 8] [--seconds 540] [--settings JSON] [--out FILE]

DIR has the config.json of a model; its weights are random. `mlps` takes PACK's MLPs alone, `layers` its layers too.
PYTHON is one that has vLLM and our wheel. All arms start at once, each with a compile cache of its own, and stay on the
card side by side, so their memory is given by `--settings`; one measures at a time. A turn is all arms at a batch size,
and is kept when it ends: the next call goes on. `--seconds` begins none behind it. A row has the medians of an arm at a
batch size. Its gain is over stock, turn by turn. Greedy tokens must be stock's, but where the two most likely ones are
closer than `MARGIN` in log-probability. With `--logits` those of decode steps whose tokens are given are held against
fp32 at such a batch size."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.report import write_report

ARMS = ("stock", "mlps", "layers")
#: As a server has them by default, with room for three on a card of 140 GB.
SETTINGS = (
    '{"max_model_len": 8192, "max_num_seqs": 1024, "dtype": "bfloat16", "gpu_memory_utilization": 0.2, '
    '"kv_cache_memory_bytes": 12884901888}'
)
#: Of the wait for an arm: until it has started, and until it answers.
START_S, ANSWER_S = 300.0, 90.0
#: Of log-probabilities in bf16.
MARGIN = 0.05

Json = dict[str, Any]


class ArmEnded(Exception):
    """It gives no answer; its message is the end of what it printed."""


class Arm:
    """A process that has vLLM."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        program = Path(__file__).with_name("vllm_arm.py")
        # -P: modules beside the program are called like packages that vLLM asks for (`kernels`).
        command = [options.python, "-P", str(program), name, "--model", str(options.model)]
        command += ["--batches", options.batches, "--settings", options.settings]
        caches = {"VLLM_CACHE_ROOT": str(options.state.with_suffix(f".{name}.cache")), "TUNER_PACK": str(options.pack)}
        self.name, self._lines = name, list[str]()
        self._answers: queue.Queue[Json | None] = queue.Queue()
        self._process = subprocess.Popen(
            command, env=os.environ | caches, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.started: Json = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ARM "):
                self._answers.put(json.loads(line.removeprefix("ARM ")))
            else:
                self._lines.append(line)
        self._answers.put(None)

    @property
    def said(self) -> list[str]:
        """By the plugin, each sentence once."""
        return list(dict.fromkeys(line.strip().partition("tuner: ")[2] for line in self._lines if "tuner: " in line))

    def answer(self, seconds: float) -> Json:
        """The next one.

        Raises:
            ArmEnded: there is none, or not in time; then it is killed.
        """
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            found = None
        if found is None:
            self.end()
            code = self._process.returncode
            raise ArmEnded(f"{self.name} ended with {code}:\n{''.join(self._lines)[-4000:]}")
        return found

    def wait_until_started(self) -> None:
        """Keeps what it says of its start.

        Raises:
            ArmEnded: it did not start.
        """
        self.started = {**self.answer(START_S), "said": self.said}

    def ask(self, what: str, **more: Any) -> Json:
        """What it answers.

        Raises:
            ArmEnded: it does not.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            print(json.dumps({"ask": what, **more}), file=self._process.stdin, flush=True)
        return self.answer(ANSWER_S)

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._reader.join()
        with self._process, contextlib.suppress(BrokenPipeError):
            pass


def kept(path: Path) -> list[Json]:
    """The turns that have ended, in their order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_turn(turns: Sequence[Mapping[str, Any]], batches: Sequence[int], repeats: int) -> int | None:
    """The batch size that had the fewest turns, the first of equals; None where all have theirs."""
    counts = {batch: sum(turn["batch"] == batch for turn in turns) for batch in batches}
    batch = min(batches, key=lambda one: counts[one])
    return batch if counts[batch] < repeats else None


def take_turn(arms: Sequence[Arm], batch: int, *, is_first: bool) -> Json:
    """All arms at a batch size, one after the other; in the first, what one turn tells too."""
    found: Json = {"batch": batch, "arms": {}}
    for arm in arms:
        if is_first:
            arm.ask("step", batch=batch)  # with it the prefix cache has the prompts
        one = arm.ask("step", batch=batch)
        if is_first:
            one |= arm.ask("trace", batch=batch) | arm.ask("tokens", batch=batch)
        found["arms"][arm.name] = one | {"start_s": arm.started["start_s"], "calls": arm.started["calls"]}
        ms = {name: one[name] for name in ("ms_step", "gpu_ms", "launches_step") if name in one}
        print(f"batch {batch}, {arm.name}: {ms}", flush=True)
    return found


def rows_of(model: str, turns: Sequence[Json], firsts: Mapping[str, float], logits: Json | None = None) -> list[Json]:
    """A row for each arm and batch size."""
    batches = sorted({turn["batch"] for turn in turns})
    return [
        _row(model, batch, arm, [turn["arms"] for turn in turns if turn["batch"] == batch])
        | {"first_token_ms": firsts.get(arm)}
        | ({} if logits is None or logits["batch"] != batch else {"logits": logits["arms"].get(arm)})
        for batch in batches
        for arm in ARMS
        if all(arm in turn["arms"] for turn in turns if turn["batch"] == batch)
    ]


def _row(model: str, batch: int, arm: str, turns: Sequence[Mapping[str, Json]]) -> Json:
    own = [turn[arm] for turn in turns]
    ms = [one["ms_step"] for one in own]
    gains = [turn["stock"]["ms_step"] / turn[arm]["ms_step"] for turn in turns if "stock" in turn]
    (traced,) = (turn for turn in turns if "outputs" in turn[arm])
    gpu_ms = traced[arm]["gpu_ms"]
    return {
        "model": model,
        "batch": batch,
        "arm": arm,
        "ms_step": round(median(ms), 4),
        "gpu_ms": gpu_ms,
        "host_ms": None if gpu_ms is None else round(median(ms) - gpu_ms, 4),
        "gain": round(median(gains), 4) if gains else None,
        "gains": [round(gain, 4) for gain in gains],
        "logits_ok": agree(traced[arm]["outputs"], traced["stock"]["outputs"]) if "stock" in traced else None,
        "launches_step": traced[arm]["launches_step"],
        "launches": own[-1]["calls"],
        "start_s": own[-1]["start_s"],
    }


def agree(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether tokens are the same up to the first whose choice was a matter of rounding."""
    return len(ours) == len(theirs) and all(map(_agrees, ours, theirs))


def _agrees(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    for one, other, (first, second) in zip(ours["tokens"], theirs["tokens"], theirs["logprobs"], strict=True):
        if one != other:
            return bool(first - second < MARGIN)
    return True


def start(options: argparse.Namespace) -> list[Arm]:
    """The arms that have started; of the others it prints the end of what they printed."""
    arms, running = [Arm(name, options) for name in options.arms.split(",")], []
    for arm in arms:
        try:
            arm.wait_until_started()
        except ArmEnded as ended:
            print(ended, flush=True)
            continue
        running.append(arm)
        print(f"{arm.name} started in {arm.started['start_s']} s: {'; '.join(arm.started['said'])}", flush=True)
    return running


def held_against_fp32(arms: Sequence[Arm], batch: int, folder: Path) -> Json:
    """Logits of all arms beside those in fp32."""
    files = {arm.name: str(folder / f"{arm.name}.logits") for arm in arms}
    for arm in arms:
        arm.ask("logits", batch=batch, file=files[arm.name])
    (stock,) = (arm for arm in arms if arm.name == "stock")
    return {"batch": batch, **stock.ask("reference", files=files)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures until the time is over, and writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="one that has vLLM and our wheel")
    parser.add_argument("--batches", default="1,8,32,64,128", help="with commas")
    parser.add_argument("--arms", default=",".join(ARMS), help="with commas; stock among them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--logits", type=int, default=0, help="a batch size; 0 for none")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--settings", default=SETTINGS, help="of vllm.LLM, as JSON")
    parser.add_argument("--state", type=Path, default=Path("build/bench-vllm.jsonl"), help="turns that have ended")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/vllm.json"))
    options = parser.parse_args(arguments)
    options.state.parent.mkdir(parents=True, exist_ok=True)
    options.pack, options.state = options.pack.resolve(), options.state.resolve()
    begin = time.perf_counter()
    arms = start(options)
    try:
        if arms:
            _measure(arms, options, begin)
    finally:
        for arm in arms:
            arm.end()
    if not arms:
        raise SystemExit("no arm has started")


def _measure(arms: Sequence[Arm], options: argparse.Namespace, begin: float) -> None:
    batches = [int(batch) for batch in options.batches.split(",")]
    model, meta = options.model.resolve().name, arms[0].started["machine"]
    firsts: dict[str, float] = {}
    logits: Json | None = None

    def is_time() -> bool:
        return bool(time.perf_counter() - begin < options.seconds)

    def write() -> None:
        if turns := kept(options.state):
            write_report(options.out, rows_of(model, turns, firsts, logits), meta)

    try:
        while is_time() and (batch := next_turn(turns := kept(options.state), batches, options.repeats)) is not None:
            turn = take_turn(arms, batch, is_first=all(one["batch"] != batch for one in turns))
            with options.state.open("a") as file:
                file.write(json.dumps(turn) + "\n")
            write()
            if logits is None and options.logits and len(kept(options.state)) >= len(batches) and is_time():
                firsts = {arm.name: arm.ask("first_token")["first_token_ms"] for arm in arms}
                print(f"first token, ms: {firsts}", flush=True)
                logits = held_against_fp32(arms, options.logits, options.state.parent)
                print(f"logits: {logits}", flush=True)
                write()
    except ArmEnded as ended:
        print(ended, flush=True)
    print(*(rows_of(model, kept(options.state), firsts, logits)), sep="\n")


if __name__ == "__main__":
    main()
