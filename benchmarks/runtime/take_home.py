"""What a pack and the runtime keep and cost on a card, each with its bar.

python -m benchmarks.runtime.take_home [--gpu auto] [--quick] [--out benchmarks/results/<gpu>/take_home.json]

About eight minutes on an H200. It takes the winners of `tuner/winners/<gpu>.json`: programmatic ones with up to 64 rows
for the costs, and all of one pair for the ladder. Times are taken in graphs of many launches over copies of the weights
that no L2 holds. Each check is written when it is done. A check that raises does not hold. A model's decode step is
another program, examples/llama_decode.py; `--decode rows.json` takes its rows in. A simulated GPU has neither host time
nor guard, so it is refused.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import failed_row, machine_of, merge_report, results_file
from benchmarks.runtime.chosen import Chosen, ladder, winners
from benchmarks.runtime.costs import guard_rows, host_rows, load_rows, loaded, torch_rows
from benchmarks.runtime.ladder import ladder_rows
from benchmarks.runtime.safety import checks
from tests.support.packs_on_card import kernel_on_card
from tuner.core.problem.workload import Dtype
from tuner.packs.contents import Kernel
from tuner.runtime import Pack
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

NUM_WINNERS, NUM_QUICK_WINNERS = 8, 2
#: d_in, d_hidden and d_out of Llama-3-8B.
PAIR = (4096, 14336, 4096)

Row = dict[str, Any]
Take = Callable[[], list[Row]]


def all_checks(
    builder: Builder, supervisor: GpuSupervisor, folder: Path, asked: Sequence[Chosen]
) -> Iterator[tuple[str, Take]]:
    """Every check with its name, what is wrong and unsafe first."""
    gpu, target_id = supervisor.target.gpu, supervisor.target.id

    def kernel(chosen: Chosen) -> Kernel:
        return kernel_on_card(builder, gpu, chosen.workload, chosen.candidate)

    def with_pack(chosen: Chosen, take: Callable[[Pack, Chosen], list[Row]]) -> list[Row]:
        with loaded(folder, kernel(chosen)) as pack:
            return take(pack, chosen)

    rungs = ladder(target_id, PAIR, Dtype.FP16)
    yield from checks(builder, gpu, folder, rungs)
    first = asked[0]
    yield "host time", lambda: with_pack(first, lambda pack, chosen: host_rows(pack, chosen, folder))
    yield "host time of torch.ops.tuner.ffn", lambda: with_pack(first, torch_rows)
    yield "loading", lambda: load_rows(folder, kernel(first))
    for chosen in asked:
        yield f"guard: {chosen.name}", partial(with_pack, chosen, guard_rows)
    for dtype in Dtype:
        of_type = ladder(target_id, PAIR, dtype)
        yield f"ladder, {dtype}", partial(ladder_rows, supervisor, builder, folder, of_type)


def take(name: str, check: Take) -> list[Row]:
    """The rows of a check; one that says why where it raises."""
    print(name, flush=True)
    try:
        rows = check()
    except Exception as error:
        rows = [failed_row(name, f"{type(error).__name__}: {error}")]
    print(*rows, sep="\n", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU")
    parser.add_argument("--quick", action="store_true", help="fewer winners: whether it runs, not what it finds")
    parser.add_argument("--only", default="", help="checks whose name begins so")
    parser.add_argument("--decode", type=Path, help="rows that examples/llama_decode.py --json has written")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.gpu != "auto":
        raise SystemExit("only a card has a host's time and a guard's cost: give --gpu auto")
    card = usable_gpus()[0]
    with tempfile.TemporaryDirectory() as name, closing(GpuSupervisor(card, Path(name))) as supervisor:
        machine, target_id = machine_of(supervisor.environment()), supervisor.target.id
        out = options.out or results_file(target_id, "take_home")
        if options.decode is not None:
            merge_report(out, json.loads(options.decode.read_text()), machine)
            return
        asked = winners(target_id, NUM_QUICK_WINNERS if options.quick else NUM_WINNERS)
        with closing(Builder(Path(name), num_processes=4)) as builder:
            for check, make in all_checks(builder, supervisor, Path(name), asked):
                if check.startswith(options.only):
                    merge_report(out, take(check, make), machine)


if __name__ == "__main__":
    main()
