"""Whether torch.compile's time depends on what stands in its rounds: benchmarks/results/<gpu>/torch_rounds.json.

python -m benchmarks.chains.torch_rounds [--row llama3-8b/m1] [--turns 2] [--seconds 480] [--out FILE]

A row is timed with the library alone, as `torch_compile` does, and with the fused launch that ships for it beside, as a
job's finals do: each is compiled anew, in turns. `torch_over_library` is torch.compile's time over that of the
library in the same rounds. About half a minute a row and turn for each of both.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chains.instruction_fetch import candidate_of
from benchmarks.chains.rows import ChainRow, choose_rows
from benchmarks.chains.torch_compile import NUM_ROUNDS
from benchmarks.common.finals import torch_figures
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, Watch, Workbench, open_workbench
from tuner.core.schedule.candidate import LIBRARY, Candidate

ROW_NAMES = ("llama3-70b-tp8-synthetic/m1", "llama3-8b/m1", "qwen2.5-7b/m1")


def figures_of(bench: Workbench, row: ChainRow, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """torch.compile's figures in rounds with `candidates`, of which the library is the first, and their times."""
    finals = bench.evaluator.finals(row.problem, tuple(candidates), num_rounds=NUM_ROUNDS, torch_compile=True)
    assert finals.torch is not None
    return {"row": row.name, "beside": [str(one.plan_kind) for one in candidates]} | torch_figures(finals.torch)


def main() -> None:
    """Times what the command line names, and writes the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help=f"a row, a chain or m1; default: {ROW_NAMES}")
    parser.add_argument("--turns", type=int, default=2, help="of each row")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after so many")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--winners-of", help="the GPU whose winners are taken; default: the card's")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/torch_rounds.json")
    arguments = parser.parse_args()
    total, rows = Watch(), list[dict[str, Any]]()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        target_id = bench.evaluator.target.id
        path = arguments.out or results_file(target_id, "torch_rounds")
        machine = machine_of(bench.evaluator.environment())
        for row in choose_rows(arguments.row or ROW_NAMES):
            ours = candidate_of(row, arguments.winners_of or target_id)
            for candidates in ((LIBRARY,), (LIBRARY, ours)) * arguments.turns:
                if total.seconds > arguments.seconds:
                    print(f"the time is up: {row.name} and what is behind it are left", flush=True)
                    return
                rows.append(figures_of(bench, row, candidates))
                print(rows[-1], flush=True)
                write_report(path, rows, machine)


if __name__ == "__main__":
    main()
