"""From a model's config to a faster decode step, by the commands that a user types.

python -m benchmarks.runtime.model [--model NAME] [--gpu auto] [--trials 24] [--seconds 300] [--out .../take_home.json]

A separate service starts on this machine's card. `tuner-client tune-model` makes a pack for Llama-3-8B, and one for one
of eight ranks of Llama-3-70B, at 1, 16 and 64 rows in bf16. `tuner-client verify` runs their kernels. Then
`examples/llama_decode.py` runs both models, which needs PyTorch and transformers; the operator is compiled meanwhile.
The third model is Llama-3-8B with its attentions, too, at 1 and 16 sequences, by `examples/llama_attention.py`.
Rows are written to take_home.json one by one. The packs stay in `--packs`, and existing ones are not tuned again. Each
step has the rest of `--seconds`. About five minutes on an H200. A simulated GPU only makes the packs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.program import Watch, parser_of
from benchmarks.common.report import at_least_row, machine_of, merge_report, results_file, taken
from benchmarks.common.setting import twin_of
from tests.support.repository import ROOT
from tuner.core.trial.stats import median
from tuner.packs.read import read_pack
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

CONFIGS, EXAMPLES = ROOT / "tests" / "unit" / "client" / "configs", ROOT / "examples"
ROWS = (1, 16, 64)
#: Minimum of a kernel's gain when it is verified, divided by that in the pack: the same card, at a different time.
VERIFIED_BAR = 0.97

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model whose feed-forward blocks, and attentions if it has a context, are tuned and run."""

    name: str
    config: Path
    #: Tensor-parallel ranks.
    ranks: int
    #: Options of the example.
    options: tuple[str, ...]
    #: Numbers of rows or sequences that are tuned.
    rows: tuple[int, ...] = ROWS
    #: Tokens of the cache; 0 if the attentions are not tuned.
    context: int = 0

    @property
    def example(self) -> Path:
        """The program that runs it."""
        return EXAMPLES / ("llama_attention.py" if self.context else "llama_decode.py")

    def pack(self, packs: Path) -> Path:
        """The path of the model's pack."""
        return packs / f"{self.name}.tunerpack"


LLAMA = CONFIGS / "llama_3_8b.json"
MODELS = (
    Model(name="llama-3-8b", config=LLAMA, ranks=1, options=("--compiled", "1")),
    Model(name="llama-3-70b-tp8", config=CONFIGS / "llama_3_70b.json", ranks=8, options=("--shard",)),
    Model(name="llama-3-8b-attention", config=LLAMA, ranks=1, options=("--batch", "1,16"), rows=(1, 16), context=1024),
)


def environment() -> dict[str, str]:
    """This process's environment, extended so that programs in other folders find this checkout."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


class Steps:
    """Runs commands, each limited to the remaining time."""

    def __init__(self, seconds: float) -> None:
        self._watch, self._seconds = Watch(), seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(1.0, self._seconds - self._watch.seconds)

    def run(self, *command: str, **variables: str) -> str:
        """Runs a command and returns its output, which is also printed; its stderr is that of this program.

        Raises:
            RuntimeError: the command failed, or took too long.
        """
        print("+", *command, flush=True)
        env = environment() | variables
        try:
            done = subprocess.run(
                [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=env, timeout=self.left_s
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{' '.join(command)} was not done in {error.timeout:.0f} s") from error
        print(done.stdout, flush=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
        return done.stdout


@contextmanager
def service(folder: Path, gpu: str) -> Iterator[str]:
    """Starts a service with its data in `folder`; yields its address."""
    command = [sys.executable, "-m", "tuner.cli", "serve", "--data", str(folder / "data"), "--port", "0", "--gpu", gpu]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def tune(steps: Steps, url: str, target_id: str, model: Model, packs: Path, trials: int) -> list[Row]:
    """Makes a model's pack for a target; the row has the number of row counts at which a kernel gains enough to be
    kept."""
    watch, path = Watch(), model.pack(packs)
    asked = (
        "--tp",
        str(model.ranks),
        "--dtype",
        "bf16",
        "--m",
        ",".join(map(str, model.rows)),
        "--no-between",
        "--trials",
        str(trials),
        "--target",
        target_id,
        *(("--context", str(model.context)) if model.context else ()),
    )
    written = ("-o", str(path), "--lock", str(packs / "tuner.lock"))
    steps.run("-m", "tuner.client.cli", "tune-model", str(model.config), *asked, *written, TUNER_URL=url)
    asked_for = list(product(read_pack(path.read_bytes()).entries, model.rows))
    served = [(entry, m, rung) for entry, m in asked_for if (rung := entry.at(m)) is not None and rung.kernel]
    raw = {"speedup": {f"{entry.shape}, {m}": round(rung.speedup or 0.0, 4) for entry, m, rung in served}}
    name = f"tune-model, {model.name}: row counts that a kernel serves"
    return [at_least_row(name, len(served), len(asked_for), **raw, trials=trials, wall_s=watch.seconds)]


def verify(steps: Steps, model: Model, packs: Path) -> list[Row]:
    """Checks that the kernels of a pack run here, with the gains that the pack states."""
    name = f"verify, {model.name}: gain here over the gain in the pack"
    found = steps.run("-m", "tuner.client.cli", "verify", str(model.pack(packs)), "--json")
    gains = {one["kernel"]: one["speedup"] for one in map(json.loads, found.splitlines())}
    rungs = [rung for entry in read_pack(model.pack(packs).read_bytes()).entries for rung in entry.rungs]
    ratios = {
        rung.m_hi: round(gains[rung.kernel.digest] / rung.speedup, 4)
        for rung in rungs
        if rung.kernel and rung.speedup and rung.interval  # measured with these rows
    }
    return [at_least_row(name, median(list(ratios.values())), VERIFIED_BAR, by_m=ratios)]


def decode(steps: Steps, model: Model, packs: Path) -> list[Row]:
    """Runs the example and returns its rows; the example exits with 1 if a row fails, but the rows are written
    anyway."""
    path = packs / f"{model.name}.rows.json"
    path.unlink(missing_ok=True)
    try:
        steps.run(str(model.example), str(model.pack(packs)), "--json", str(path), *model.options)
    except RuntimeError:
        if not path.exists():
            raise
    rows: list[Row] = json.loads(path.read_text())
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all steps, and writes each one's rows when it is done."""
    parser = parser_of(__doc__, "gpu", "out", trials=24, seconds=300.0)
    parser.add_argument("--packs", type=Path, default=Path("build/model-packs"), help="folder of packs and their lock")
    names = [model.name for model in MODELS]
    parser.add_argument("--model", action="append", choices=names, help="only this model; may be repeated")
    options = parser.parse_args(arguments)
    models = [model for model in MODELS if model.name in (options.model or names)]
    steps, packs, twin = Steps(options.seconds), options.packs, twin_of(options.gpu)
    packs.mkdir(parents=True, exist_ok=True)
    compiling = [sys.executable, "-m", "tuner.runtime.torch_compiled"]
    operator = subprocess.Popen(compiling, env=environment()) if twin is None else None
    with tempfile.TemporaryDirectory() as name:
        with closing(twin or GpuSupervisor(usable_gpus()[0], Path(name) / "builds")) as evaluator:
            machine, target_id = machine_of(evaluator.environment()), evaluator.target.id
        out = options.out or results_file(target_id, "take_home")
        if missing := [model for model in models if not model.pack(packs).exists()]:
            with service(Path(name), options.gpu) as url:
                for model in missing:
                    rows = taken(
                        f"tune-model, {model.name}", partial(tune, steps, url, target_id, model, packs, options.trials)
                    )
                    merge_report(out, rows, machine)
    if operator is not None:
        operator.wait()
    for take, model in product((decode, verify), models if twin is None else ()):
        merge_report(out, taken(f"{take.__name__}, {model.name}", partial(take, steps, model, packs)), machine)


if __name__ == "__main__":
    main()
