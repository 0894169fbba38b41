"""The costs of a pack and the runtime on a card, each with its target.

python -m benchmarks.runtime.take_home [--gpu auto] [--quick] [--out benchmarks/results/<gpu>/take_home.json]

About four minutes on an H200. It uses the winners of `tuner/winners/<gpu>.json`: programmatic ones with up to 64 rows
for the costs, and all of one pair for the ladder. Comparisons alternate in the rounds of the finals, cold and in burst.
Each check is written when it is done. A check that raises has failed. Decode steps of models are in another
program, `benchmarks.runtime.model`. Simulated GPUs have neither host time nor a guard, so they are refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, merge_report, results_file, taken
from benchmarks.runtime.chosen import Chosen, ladder, winners
from benchmarks.runtime.costs import guard_rows, host_rows, load_rows, loaded, operators, torch_rows
from benchmarks.runtime.kernels import Kernels
from benchmarks.runtime.ladder import ladder_rows
from benchmarks.runtime.rounds import Rounds
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import Target
from tuner.runtime import Pack
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.places import places_here
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.source.tools import tools_source

NUM_WINNERS, NUM_QUICK_WINNERS = 8, 2
#: d_in, d_hidden and d_out of Llama-3-8B.
PAIR = (4096, 14336, 4096)

Row = dict[str, Any]
Take = Callable[[], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The tools of the checks."""

    target: Target
    kernels: Kernels
    #: Folder of packs, builds and the compiled runtime.
    folder: Path
    rounds: Rounds
    #: An empty operator of PyTorch, while it is being built.
    empty: Future[Any]

    def wait(self) -> None:
        """Waits until nothing is being built: a busy thread would delay the one that enqueues."""
        self.kernels.wait()
        self.empty.exception()


def all_checks(bench: Bench, asked: Sequence[Chosen]) -> Iterator[tuple[str, Take]]:
    """Every check with its name, when all builds are done."""
    kernels, folder = bench.kernels, bench.folder
    ladders = {dtype: ladder(bench.target.id, PAIR, dtype) for dtype in UNSCALED}

    def with_pack(chosen: Chosen, take: Callable[[Pack, Chosen], list[Row]]) -> list[Row]:
        with loaded(folder, kernels.get(chosen)) as pack:
            return take(pack, chosen)

    def in_torch(pack: Pack, chosen: Chosen) -> list[Row]:
        return torch_rows(pack, chosen, bench.empty.result())

    bench.wait()
    for chosen in asked:
        yield f"guard: {chosen.name}", partial(with_pack, chosen, partial(guard_rows, bench.rounds))
    for dtype, rungs in ladders.items():
        yield f"ladder, {dtype}", partial(ladder_rows, bench.rounds, kernels, folder, rungs)
    yield "host time", partial(with_pack, asked[0], partial(host_rows, folder))
    yield "host time of torch.ops.tuner.ffn", partial(with_pack, asked[0], in_torch)
    yield "loading", lambda: load_rows(folder, kernels.get(asked[0]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes."""
    parser = parser_of(__doc__, "gpu", "out")
    parser.add_argument("--quick", action="store_true", help="use fewer winners, only to check that the program works")
    parser.add_argument("--only", default="", help="only checks whose names begin with this")
    options = parser.parse_args(arguments)
    if options.gpu != "auto":
        raise SystemExit("host time and the cost of the guard need a real card: use --gpu auto")
    card = usable_gpus()[0]
    with tempfile.TemporaryDirectory() as name:
        with closing(GpuSupervisor(card, Path(name))) as supervisor:
            machine, target = machine_of(supervisor.environment()), supervisor.target
        out = options.out or results_file(target.id, "take_home")
        asked = winners(target.id, NUM_QUICK_WINNERS if options.quick else NUM_WINNERS)
        with closing(Builder(Path(name), num_processes=places_here())) as builder:
            for check, make in measure(builder, target, Path(name), asked, ahead=not options.only):
                if check.startswith(options.only):
                    merge_report(out, taken(check, make), machine)


def measure(
    builder: Builder, target: Target, folder: Path, asked: Sequence[Chosen], *, ahead: bool
) -> Iterator[tuple[str, Take]]:
    """Yields the checks; with `ahead`, everything that they need is built meanwhile."""
    tools = builder.build(tools_source(target.gpu.arch), target.gpu.arch)
    with closing(Kernels(builder, target.gpu)) as kernels, ThreadPoolExecutor(1) as pool:
        if ahead:
            kernels.begin([*asked, *(one for dtype in UNSCALED for one in ladder(target.id, PAIR, dtype))])
        empty, rounds = pool.submit(operators, folder), Rounds(tools.cubin)
        yield from all_checks(Bench(target=target, kernels=kernels, folder=folder, rounds=rounds, empty=empty), asked)


if __name__ == "__main__":
    main()
