"""A whole ResNet-50 with a pack of its parts: benchmarks/results/<gpu>/conv_network.json.

python -m benchmarks.conv.network [--images 1] [--trials 60] [--seconds 280] [--no-compile] [--out FILE]

A separate service tunes the ten kinds of parts (the first convolution with its pool, eight kinds of blocks, the average
pool with the classifier) in short bursts, a pack is made of them, and examples/resnet.py runs it in a CUDA graph,
compared with cuDNN's fused convolutions and torch.compile: the whole network, and what each part adds to it. An
existing pack is reused, as are finished jobs of an interrupted run, whose data is next to the packs. The searches get
the part of `--seconds` that the finals and the example leave. If `torch.compile` does not end in time, the row is
without it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention.timing import machine
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file, rows_of_this_build, write_report
from benchmarks.runtime.model import Steps, service
from tests.support.repository import ROOT

Json = dict[str, Any]

NETWORK = "resnet50"
#: Kinds of parts, and seconds for starting the service, for the finals of a part, for the example, and for
#: `torch.compile`.
NUM_PARTS, START_S, FINALS_S, EXAMPLE_S, COMPILE_S = 10, 6.0, 3.0, 25.0, 120.0
#: Minimum seconds of a part's search: its first kernels are built by then, and eight are timed.
LEAST_S = 5.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Tunes if there is no pack, then runs."""
    parser = parser_of(__doc__, "trials", "out", seconds=280)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="no torch.compile")
    parser.add_argument("--packs", type=Path, default=Path("build/conv-packs"))
    options = parser.parse_args(arguments)
    steps, pack = Steps(options.seconds), options.packs / f"{NETWORK}-{options.images}.tunerpack"
    with tempfile.TemporaryDirectory() as name:
        if not pack.exists():
            pack.parent.mkdir(parents=True, exist_ok=True)
            with service(options.packs, "auto") as url:
                example_s = EXAMPLE_S + COMPILE_S * (not options.no_compile)
                tune(steps, url, pack, options.images, options.trials, example_s)
        found, asked = Path(name) / "found.json", ["--pack", str(pack), "--images", str(options.images)]
        asked += ["--json", str(found), *(["--no-compile"] if options.no_compile else [])]
        try:
            steps.run(str(ROOT / "examples" / "resnet.py"), *asked)
        except RuntimeError as error:
            if not found.exists():
                raise
            print(f"without torch.compile: {error}", flush=True)
        row = {"network": NETWORK, "trials": options.trials, **json.loads(found.read_text())}
    out = options.out or results_file("h200", "conv_network")
    others = [one for one in rows_of_this_build(out, machine()) if one["images"] != options.images]
    write_report(out, [*others, row], machine())


def tune(steps: Steps, url: str, pack: Path, images: int, trials: int, example_s: float) -> None:
    """Makes the pack of all parts; each search gets an equal share of the time that the other steps leave."""
    search_s = max(LEAST_S, (steps.left_s - START_S - example_s) / NUM_PARTS - FINALS_S)
    budget = ("--trials", str(trials), "--seconds", f"{search_s:.1f}", "--regime", "burst")
    network, asked = ROOT / "examples" / f"{NETWORK}.json", ("--m", str(images), *budget)
    steps.run("-m", "tuner.client.cli", "tune-model", str(network), *asked, "-o", str(pack), TUNER_URL=url)


if __name__ == "__main__":
    main()
