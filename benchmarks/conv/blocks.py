"""Our kernels for whole blocks of ResNet, by jobs of the service: benchmarks/results/<gpu>/conv_blocks.json.

python -m benchmarks.conv.blocks [--row resnet50-s1-block ...] [--images 1] [--trials 32] [--seconds 100] [--out FILE]

A row is a block: its convolutions with the added image, as a chain. `back` is the last two of a bottleneck. The library
is cuDNN's best plans. `joined_gain` is the time of the fastest other kernel of ours over that of the plan kind
`joined`; null if that kind is not legal, as with the filters of later stages. Existing rows of this commit and card are
skipped, and each row is written at once. About ten seconds per row on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.finals import figures_of
from benchmarks.common.found import Found
from benchmarks.common.jobs import Ended, open_jobs, run_jobs, spec_of
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.conv.asked import NetworkConvs
from tuner.ops.conv.networks import FIRST_BLOCKS, Run
from tuner.winners import ShippedWinners

Json = dict[str, Any]

#: The network that has the run, or None if both do.
_RUNS = {Run.BACK: "resnet50", Run.BLOCK: None, Run.FIRST: None}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A run of convolutions of a network's stage."""

    network: str
    stage: int
    run: Run
    images: int

    @property
    def name(self) -> str:
        """The name on the command line; `images` are an option of their own."""
        return f"{self.network}-s{self.stage}-{self.run}/b{self.images}"

    def workload(self) -> NetworkConvs:
        """As clients request it."""
        return NetworkConvs(network=self.network, stage=self.stage, run=self.run, images=self.images)


def blocks(images: int) -> list[Block]:
    """All blocks; early stages, whose filters fit into an SM, come first."""
    return [
        Block(network=network, stage=stage, run=run, images=images)
        for stage in range(1, 5)
        for run, only in _RUNS.items()
        for network in FIRST_BLOCKS
        if only in (None, network)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs rows until the time limit."""
    parser = parser_of(__doc__, "gpu", "row", "out", trials=32, seconds=100)
    parser.add_argument("--images", type=int, default=1)
    options = parser.parse_args(arguments)
    with open_jobs(options.gpu, winners=ShippedWinners()) as jobs:
        found = Found(jobs, options.out or results_file(jobs.target_id, "conv_blocks"))
        rows = found.missing(blocks(options.images), options.row)
        specs = [(row, spec_of(row.workload().to_workload(), jobs.target_id, options.trials)) for row in rows]
        said = ("kind_us", "verdict", "verdict_speedup", "joined_gain", "rel_error")
        run_jobs(jobs, specs, lambda row, end: found.add(line_of(row, end), said), seconds=options.seconds)


def line_of(row: Block, ended: Ended) -> Json:
    """The row's figures."""
    figures = figures_of(ended)
    times = {PlanKind(kind): us for kind, us in figures["kind_us"].items()}
    joined = times.get(PlanKind.JOINED)
    others = min(us for kind, us in times.items() if kind.is_ours and not kind.is_joined)
    return {"row": row.name, **figures, "joined_gain": joined and round(others / joined, 4)}


if __name__ == "__main__":
    main()
