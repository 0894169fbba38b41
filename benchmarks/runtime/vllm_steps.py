"""A decode step inside vLLM, alone and with a pack's kernels: arms alternate, each in its own process.

python -m benchmarks.runtime.vllm_steps --model DIR PACK 1,8,32,64,128 stock,mlps,layers [--model ...]
    [--python PYTHON] [--repeats 3] [--seconds 540] [--settings JSON] [--settings-of NAME JSON] [--memory-gib 30]
    [--prompt 128] [--out FILE]

DIR has the config.json of a model, whose weights are random; the numbers are batch sizes. `mlps` uses only PACK's MLPs,
`norms` also the norms around them, and `layers` its layers or their runs; `again` is `stock` in another process, whose
gain shows what a gain of 1 looks like. PYTHON is an interpreter with vLLM and our
wheel. All arms of all models start at once, each with its own compile cache, and stay on the card together, so
`--settings` and `--memory-gib` limit their memory; only one arm measures at a time. `--settings-of` replaces the
settings of one model, or adds to those of one arm: `again '{"attention_backend": "TRITON_ATTN"}'`. A turn is all
arms of a model at a batch size. It is stored when it ends, and the next call continues after it. After `--seconds`, no
turn starts. A row has the medians of an arm at a batch size. Its gain is relative to stock, turn by turn. First tokens,
which are measured once for a model, and runs that mix prompts with decode steps, are mostly the host's time, which
other work sometimes doubles, and which drifts. So before anything is traced, all arms take turns with short runs, on
one CPU. A gain is the median of the ratios to stock in the same rounds, with a 95 % interval; rounds end when it is
narrow for all arms. A time is the fastest tenth. `mixed_gpu_ms` is the GPU's share of one run.
`logits_ok` says whether the logits of decode steps with given tokens are no farther from fp32 than stock's, and have
the same top token except where rounding decides.
"""

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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.common.report import write_report
from tuner.core.trial.stats import median, paired_ratios, ratio_ci95

ARMS = ("stock", "again", "mlps", "norms", "layers")
#: A server's defaults, with room for three on a card of 140 GB.
SETTINGS = (
    '{"max_model_len": 8192, "max_num_seqs": 1024, "dtype": "bfloat16", "gpu_memory_utilization": 0.2, '
    '"kv_cache_memory_bytes": 12884901888}'
)
#: Maximum waits for an arm: until it has started, and until it responds.
START_S, ANSWER_S = 300.0, 90.0
#: Rounds of all arms for times that are mostly the host's. In a round, each arm runs twice, in opposite orders, so that
#: a steady drift cancels. They end when the intervals of all gains are at most this wide in each direction.
LEAST_ROUNDS, MOST_ROUNDS, NARROW = 8, 30, 0.004

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A measured model."""

    #: Folder with the model's config.json; the folder's name is the model's.
    folder: Path
    pack: Path
    #: Sequences of a step.
    batches: tuple[int, ...]
    #: Names of arms, from `ARMS`.
    arms: tuple[str, ...]

    @property
    def name(self) -> str:
        """The model's name in rows."""
        return self.folder.name


class ArmEnded(Exception):
    """An arm does not respond; the message is the end of its output."""

    def __init__(self, arm: Arm, message: str) -> None:
        super().__init__(message)
        self.arm = arm


class Arm:
    """A process with vLLM."""

    def __init__(self, name: str, model: Model, options: argparse.Namespace) -> None:
        program = Path(__file__).with_name("vllm_arm.py")
        # -P: modules next to the program have the names of packages that vLLM imports (`kernels`).
        command = [options.python, "-P", str(program), name, "--model", str(model.folder)]
        of_one = dict(options.settings_of)
        settings = json.dumps(json.loads(of_one.get(model.name, options.settings)) | json.loads(of_one.get(name, "{}")))
        command += ["--batches", ",".join(map(str, model.batches)), "--settings", settings]
        command += ["--prompt", str(options.prompt)] if options.prompt else []
        command += ["--memory-gib", str(options.memory_gib)] if options.memory_gib else []
        cache = options.state.with_suffix(f".{model.name}.{name}.cache")
        caches = {"VLLM_CACHE_ROOT": str(cache), "TUNER_PACK": str(model.pack)}
        self.name, self.model, self._lines = name, model.name, list[str]()
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
        """The plugin's messages, without duplicates."""
        return list(dict.fromkeys(line.strip().partition("tuner: ")[2] for line in self._lines if "tuner: " in line))

    def answer(self, seconds: float) -> Json:
        """The next answer.

        Raises:
            ArmEnded: there is no answer, or it is late; the arm is then killed.
        """
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            found = None
        if found is None:
            self.end()
            code = self._process.returncode
            raise ArmEnded(self, f"{self.model}, {self.name} ended with {code}:\n{''.join(self._lines)[-4000:]}")
        return found

    def wait_until_started(self) -> None:
        """Waits, keeping the messages of its start.

        Raises:
            ArmEnded: the arm did not start.
        """
        self.started = {**self.answer(START_S), "said": self.said}

    def ask(self, what: str, **more: Any) -> Json:
        """Sends a request, and returns the response.

        Raises:
            ArmEnded: there is no response.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reported by the missing response
            print(json.dumps({"ask": what, **more}), file=self._process.stdin, flush=True)
        return self.answer(ANSWER_S)

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._reader.join()
        with self._process, contextlib.suppress(BrokenPipeError):
            pass


def kept(path: Path) -> list[Json]:
    """The finished turns, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_turn(turns: Sequence[Json], models: Sequence[Model], repeats: int) -> tuple[str, int] | None:
    """Model and batch size with the fewest turns, the first among equals; None if all are complete."""
    wanted = [(model.name, batch) for model in models for batch in model.batches]
    counts = Counter((turn["model"], turn["batch"]) for turn in turns)
    found = min(wanted, key=lambda one: counts[one])
    return found if counts[found] < repeats else None


def take_turn(arms: Sequence[Arm], model: str, batch: int, folder: Path, *, is_first: bool, is_new: bool) -> Json:
    """Runs all arms at a batch size in sequence; in the first turn also the measurements that are taken once, and in
    that of a new model those of its first tokens."""
    found: Json = {"model": model, "batch": batch, "arms": {}}
    rounds = take_rounds(arms, batch, has_first_tokens=is_new) if is_first else {}
    for arm in arms:
        one = arm.ask("step", batch=batch) | rounds.get(arm.name, {})
        if is_first:
            one |= arm.ask("trace", batch=batch)
        found["arms"][arm.name] = one | {"start_s": arm.started["start_s"], "calls": arm.started["calls"]}
        known = ("ms_step", "gpu_ms", "first_gpu_ms", "mixed_gpu_ms", "launches_step")
        printed = {name: one[name] for name in known if name in one}
        printed |= {name: undisturbed(chain.from_iterable(ms)) for name, ms in rounds.get(arm.name, {}).items()}
        print(f"{model}, batch {batch}, {arm.name}: {printed}", flush=True)
    if is_first and (stock := next((arm for arm in arms if arm.name == "stock"), None)):
        files = {arm.name: str(folder / f"{model}.{arm.name}.logits") for arm in arms}
        answers = {arm.name: arm.ask("logits", batch=batch, file=files[arm.name]) for arm in arms}
        if problems := {name: one["problem"] for name, one in answers.items() if "problem" in one}:
            print(f"{model}, batch {batch}, no logits: {problems}", flush=True)
        else:
            found["logits"] = stock.ask("reference", files=files)["arms"]
            print(f"{model}, batch {batch}, logits: {found['logits']}", flush=True)
    return found


def take_rounds(arms: Sequence[Arm], batch: int, *, has_first_tokens: bool) -> Json:
    """Milliseconds of first tokens, and of runs that mix prompts with decode steps, by arm and round."""
    found: Json = {arm.name: {} for arm in arms}
    asks: list[tuple[str, Json]] = [("first_token", {})] if has_first_tokens else []
    for ask, more in [*asks, ("mixed", {"batch": batch})]:
        for arm in arms:  # warms up
            arm.ask(ask, **more)
        for number in range(1, MOST_ROUNDS + 1):
            for one in found.values():
                one.setdefault(f"{ask}_ms", []).append([])
            for arm in [*arms, *reversed(arms)]:
                ms = arm.ask(ask, **more)[f"{ask}_ms"]
                found[arm.name][f"{ask}_ms"][-1] += ms if isinstance(ms, list) else [ms]
            if number >= LEAST_ROUNDS and _are_narrow({name: one[f"{ask}_ms"] for name, one in found.items()}):
                break
    return found


def _are_narrow(rounds: Mapping[str, Sequence[Sequence[float]]]) -> bool:
    """Whether the intervals of all arms' ratios to stock, or without it to the first arm, are narrow."""
    stock = "stock" if "stock" in rounds else next(iter(rounds))
    others = (ms for name, ms in rounds.items() if name != stock)
    intervals = [ratio_ci95(ratios_of_rounds(rounds[stock], ms)) for ms in others]
    return all(high - low <= 2 * NARROW for low, high in intervals)


def ratios_of_rounds(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> list[float]:
    """How many times as fast an arm was as another one in the same rounds, by the medians of its runs."""
    return paired_ratios([*map(median, before)], [*map(median, after)])


def rows_of(turns: Sequence[Json]) -> list[Json]:
    """A row for each model, arm and batch size."""
    places = dict.fromkeys((turn["model"], turn["batch"]) for turn in turns)
    return [
        _row(arm, [turn for turn in turns if (turn["model"], turn["batch"]) == place])
        for place in places
        for arm in ARMS
        if all(arm in turn["arms"] for turn in turns if (turn["model"], turn["batch"]) == place)
    ]


def _row(arm: str, turns: Sequence[Json]) -> Json:
    own = [turn["arms"][arm] for turn in turns]
    ms, first = [one["ms_step"] for one in own], own[0]
    stock = [turn["arms"]["stock"]["ms_step"] for turn in turns if "stock" in turn["arms"]]
    gains = _ratios(stock, ms)
    before = turns[0]["arms"].get("stock", {})
    logits = turns[0].get("logits", {})
    return {
        "model": turns[0]["model"],
        "batch": turns[0]["batch"],
        "arm": arm,
        "ms_step": round(median(ms), 4),
        "gpu_ms": first["gpu_ms"],
        "first_gpu_ms": first.get("first_gpu_ms"),
        "mixed_gpu_ms": first.get("mixed_gpu_ms"),
        "host_ms": None if first["gpu_ms"] is None else round(first["ms_step"] - first["gpu_ms"], 4),
        "gain": round(median(gains), 4) if gains else None,
        "gains": [round(gain, 4) for gain in gains],
        "logits_ok": logits_ok(logits[arm], logits["stock"]) if arm in logits else None,
        "logits": logits.get(arm),
        "launches_step": first["launches_step"],
        "launches": first["calls"],
        "start_s": first["start_s"],
        **_of_rounds("first_token", first, before),
        **_of_rounds("mixed", first, before),
    }


def undisturbed(ms: Iterable[float]) -> float:
    """The fastest tenth, because disturbances of the host only slow it down."""
    ordered = sorted(ms)
    return ordered[len(ordered) // 10]


def _of_rounds(name: str, own: Mapping[str, Any], stock: Mapping[str, Any]) -> Json:
    """The time, and its gain over stock with a 95 % interval."""
    if (ms := own.get(f"{name}_ms")) is None:
        return {}
    found: Json = {f"{name}_ms": undisturbed(chain.from_iterable(ms)), f"{name}_rounds": len(ms)}
    if before := stock.get(f"{name}_ms"):
        ratios = ratios_of_rounds(before, ms)
        found[f"{name}_gain"] = round(median(ratios), 4)
        found[f"{name}_ci95"] = [round(one, 4) for one in ratio_ci95(ratios)]
    return found


def _ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(before, after, strict=False)]


def logits_ok(ours: Mapping[str, Any], stock: Mapping[str, Any]) -> bool:
    """Whether the logits are no farther from fp32, and have the same top token unless rounding decides it."""
    return bool(ours["rms"] <= stock["rms"] and not ours["other_top"])


def start(models: Sequence[Model], options: argparse.Namespace) -> list[Arm]:
    """Starts all arms; returns those that have started, and prints the end of the others' output."""
    arms = [Arm(name, model, options) for model in models for name in model.arms]
    running = []
    for arm in arms:
        try:
            arm.wait_until_started()
        except ArmEnded as ended:
            print(ended, flush=True)
            continue
        running.append(arm)
        said = "; ".join(arm.started["said"])
        print(f"{arm.model}, {arm.name} started in {arm.started['start_s']} s: {said}", flush=True)
    return running


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures until the time limit, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("DIR", "PACK", "BATCHES", "ARMS")
    parser.add_argument("--model", nargs=4, action="append", required=True, metavar=names, help="lists with commas")
    parser.add_argument("--python", default=sys.executable, help="a Python interpreter with vLLM and our wheel")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--settings", default=SETTINGS, help="of vllm.LLM, as JSON")
    its = ("NAME", "JSON")
    parser.add_argument(
        "--settings-of", nargs=2, action="append", default=[], metavar=its, help="those of one model or arm"
    )
    parser.add_argument("--memory-gib", type=float, help="of the card for each arm; by default without a limit")
    parser.add_argument("--prompt", type=int, help="tokens of a prompt, by default 128")
    parser.add_argument("--state", type=Path, default=Path("build/bench-vllm.jsonl"), help="turns that have ended")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/vllm.json"))
    options = parser.parse_args(arguments)
    models = [
        Model(
            folder=Path(folder).resolve(),
            pack=Path(pack).resolve(),
            batches=tuple(map(int, batches.split(","))),
            arms=tuple(arms.split(",")),
        )
        for folder, pack, batches, arms in options.model
    ]
    options.state.parent.mkdir(parents=True, exist_ok=True)
    options.state = options.state.resolve()
    begin = time.perf_counter()
    if not (arms := start(models, options)):
        raise SystemExit("no arm has started")
    try:
        _measure(arms, models, options, begin)
    finally:
        for arm in arms:
            arm.end()


def _measure(arms: list[Arm], models: Sequence[Model], options: argparse.Namespace, begin: float) -> None:
    machine = arms[0].started["machine"]
    while time.perf_counter() - begin < options.seconds:
        running = [model for model in models if any(arm.model == model.name for arm in arms)]
        turns = kept(options.state)
        if not running or (place := next_turn(turns, running, options.repeats)) is None:
            break
        is_first = all((one["model"], one["batch"]) != place for one in turns)
        is_new = all(one["model"] != place[0] for one in turns)
        own = [arm for arm in arms if arm.model == place[0]]
        try:
            turn = take_turn(own, *place, options.state.parent, is_first=is_first, is_new=is_new)
        except ArmEnded as ended:  # the others continue
            print(ended, flush=True)
            arms[:] = [arm for arm in arms if arm is not ended.arm]
            continue
        with options.state.open("a") as file:
            file.write(json.dumps(turn) + "\n")
    if turns := kept(options.state):
        write_report(options.out, rows := rows_of(turns), machine)
        print(*rows, sep="\n")


if __name__ == "__main__":
    main()
