"""Layers that begin with their own qkv, from a job to a running model, by the commands that a user types.

python -m benchmarks.runtime.layers_home [--gpu auto] [--trials 60] [--seconds 240] [--out .../layers_home.json]

A service of its own starts on this machine's card. `tuner-client submit --preset decoder-layer` tunes a whole layer of
Llama-3-8B from its qkv on, the same layer from its attention on, and what a rank of Llama-3-70B over eight runs
between two all-reduces. `pack` makes a pack of each, `verify` runs its kernels, and the examples of models run both
divisions of Llama-3-8B, which takes PyTorch and transformers. Rows go into layers_home.json as they come. The packs
stay in `--packs`, and what is there is not tuned again. Each step has what is left of `--seconds`. A simulated GPU
goes as far as the packs.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import at_least_row, check_row, figure_row, machine_of, merge_report, results_file, taken
from benchmarks.common.setting import twin_of
from benchmarks.common.workbench import Watch
from benchmarks.runtime.model import VERIFIED_BAR, Steps, service
from tests.support.repository import ROOT
from tuner.packs.contents import Rung
from tuner.packs.read import read_pack
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

EXAMPLES = ROOT / "examples"
#: Of the examples: a step, and how far the logits of some tokens are, at most.
_STEP = re.compile(r"([\d.]+) ms a step")
_LOGITS = re.compile(r"([\d.]+) from transformers' \(at most ([\d.]+)\)")

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What is tuned and taken home."""

    name: str
    sequences: int
    max_length: int
    #: Options of `submit`.
    options: tuple[str, ...]
    #: What runs a whole model with it, and its options; none where there is no such example.
    example: tuple[str, ...] = ()

    def pack(self, packs: Path) -> Path:
        """Where its pack lies."""
        return packs / f"{self.name}.tunerpack"


_8B, _70B = ("--model", "llama3-8b"), ("--model", "llama3-70b", "--tp", "8")
LAYERS = (
    Layer(name="8b-from-qkv", sequences=1, max_length=1024, options=(*_8B, "--run", "from_qkv"),
          example=("llama_from_qkv.py",)),
    Layer(name="8b-layer", sequences=1, max_length=1024, options=(*_8B, "--run", "layer"),
          example=("llama_layers.py", "--pack")),
    Layer(name="70b-tp8-qkv-attention", sequences=16, max_length=2048, options=(*_70B, "--run", "qkv_attention")),
)  # fmt: skip


def tune(steps: Steps, url: str, layer: Layer, packs: Path, trials: int) -> list[Row]:
    """The pack of a layer, whose table has a kernel."""
    watch, path = Watch(), layer.pack(packs)
    sizes = ("--sequences", str(layer.sequences), "--max-length", str(layer.max_length), "--dtype", "bf16")
    command = ("-m", "tuner.client.cli", "submit", "--preset", "decoder-layer", *layer.options, *sizes)
    job_id = steps.run(*command, "--trials", str(trials), TUNER_URL=url).strip()
    steps.run("-m", "tuner.client.cli", "watch", job_id, TUNER_URL=url)
    steps.run("-m", "tuner.client.cli", "pack", "--job", job_id, "-o", str(path), TUNER_URL=url)
    rung = rung_of(layer, packs)
    kind = rung.kernel.manifest["plan_kind"] if rung.kernel else "library"
    return [
        at_least_row(f"{layer.name}: speed-up over the library in the pack", rung.speedup or 0.0, 1.0,
                     interval=rung.interval, kind=kind, trials=trials, wall_s=watch.seconds)
    ]  # fmt: skip


def rung_of(layer: Layer, packs: Path) -> Rung:
    """The one line of the pack's one table."""
    (entry,) = read_pack(layer.pack(packs).read_bytes()).section("layers")
    (rung,) = entry.rungs
    return rung


def verify(steps: Steps, layer: Layer, packs: Path) -> list[Row]:
    """The kernel of a pack runs here, and gains what the pack says."""
    rung = rung_of(layer, packs)
    if rung.kernel is None or rung.speedup is None:
        return []
    found = json.loads(steps.run("-m", "tuner.client.cli", "verify", str(layer.pack(packs)), "--json"))
    raw = {"speedup": round(found["speedup"], 4), "time_us": round(found["time_us"], 3)}
    ratio = found["speedup"] / rung.speedup
    return [at_least_row(f"{layer.name}: verify, gain here over the gain in the pack", ratio, VERIFIED_BAR, **raw)]


def decode(steps: Steps, layer: Layer, packs: Path) -> list[Row]:
    """A whole model by the example: milliseconds per step, and its logits beside transformers'."""
    program, *more = layer.example
    sizes = ("--batch", str(layer.sequences), "--length", str(layer.max_length))
    printed = steps.run(str(EXAMPLES / program), *more, str(layer.pack(packs)), *sizes)
    step, logits = _STEP.search(printed), _LOGITS.search(printed)
    assert step is not None
    assert logits is not None
    return [
        figure_row(f"{layer.name}: a step of 32 layers, ms", float(step[1])),
        check_row(f"{layer.name}: logits from transformers'", float(logits[1]), float(logits[2])),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all steps, and writes each one's rows when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    parser.add_argument("--trials", type=int, default=60, help="of each job")
    parser.add_argument("--seconds", type=float, default=240.0, help="of all steps")
    parser.add_argument("--packs", type=Path, default=Path("build/layer-packs"), help="where packs go")
    parser.add_argument("--layer", choices=[layer.name for layer in LAYERS], action="append", help="these alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    steps, packs, twin = Steps(options.seconds), options.packs, twin_of(options.gpu)
    layers = [layer for layer in LAYERS if not options.layer or layer.name in options.layer]
    packs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        with closing(twin or GpuSupervisor(usable_gpus()[0], Path(name) / "builds")) as evaluator:
            machine, target_id = machine_of(evaluator.environment()), evaluator.target.id
        out = options.out or results_file(target_id, "layers_home")
        if missing := [layer for layer in layers if not layer.pack(packs).exists()]:
            with service(Path(name), options.gpu) as url:
                for layer in missing:
                    made = partial(tune, steps, url, layer, packs, options.trials)
                    merge_report(out, taken(f"{layer.name}: tune", made), machine)
    for layer in layers if twin is None else ():
        merge_report(out, taken(f"{layer.name}: verify", partial(verify, steps, layer, packs)), machine)
        if layer.example:
            merge_report(out, taken(f"{layer.name}: decode", partial(decode, steps, layer, packs)), machine)


if __name__ == "__main__":
    main()
