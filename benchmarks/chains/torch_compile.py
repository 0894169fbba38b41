"""What torch.compile takes for the same chains, in rounds with the library: `torch_compile_us` of chains.json.

python -m benchmarks.chains.torch_compile [--row llama3-8b/m16] [--seconds 480] [--of FILE]

Takes the rows that this commit and kernel have measured, or those of another file of the same model of card: about a
half a minute each. Where torch.compile is ahead of the library, the row's verdict is against it. `search` has it in its
jobs' finals: this adds it to rows that were searched without.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chains.merge import merged
from benchmarks.chains.results import Results
from benchmarks.chains.rows import ChainRow, choose_rows
from benchmarks.common.finals import torch_figures
from benchmarks.common.report import commit, machine_of, results_file
from benchmarks.common.workbench import BUILD_CACHE, Watch, Workbench, open_workbench
from tuner.core.schedule.candidate import LIBRARY
from tuner.errors import InvalidInput

NUM_ROUNDS = 20


def add_torch(bench: Workbench, rows: Sequence[ChainRow], results: Results, seconds: float) -> None:
    """Adds torch.compile's time to each row that was measured and has none."""
    total = Watch()
    for row in rows:
        found = results.get(row)
        if found is None or found.get("torch_compile_us") is not None:
            continue
        if total.seconds > seconds:
            print(f"the time is up: {row.name} and those behind it are left", flush=True)
            break
        figures = compiled_figures(bench, row, found["verdict_speedup"])
        results.put(row, found | figures)
        print(f"{row.name}: {figures}", flush=True)


def compiled_figures(bench: Workbench, row: ChainRow, verdict_speedup: float) -> dict[str, Any]:
    """The median time, and the verdict over the faster of both; null with the reason where there is none."""
    torch = bench.evaluator.finals(row.problem, (LIBRARY,), num_rounds=NUM_ROUNDS, torch_compile=True).torch
    assert torch is not None
    if torch.library_speedup is None:
        return torch_figures(torch)
    against_both = round(verdict_speedup * min(1.0, torch.library_speedup), 4)
    return torch_figures(torch) | {"torch_commit": commit(), "verdict_speedup": against_both}


def _rows_of(file: Path, machine: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file, each with the run that measured it.

    Raises:
        InvalidInput: they are of another model of card.
    """
    report = merged([json.loads(file.read_text())])
    if report["meta"]["gpu"] != machine["gpu"]:
        raise InvalidInput("of", f"{file.name} has rows of {report['meta']['gpu']}", f"name one of {machine['gpu']}")
    return list(report["rows"])


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], help="a row, a chain or m16")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--of", type=Path, help="a file with rows of other runs, each of which says its own")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/chains.json")
    arguments = parser.parse_args()
    with open_workbench(arguments.gpu, BUILD_CACHE) as bench:
        path = arguments.out or results_file(bench.evaluator.target.id, "chains")
        machine = machine_of(bench.evaluator.environment())
        results = Results(path, machine, _rows_of(arguments.of, machine) if arguments.of else ())
        add_torch(bench, choose_rows(arguments.row), results, arguments.seconds)


if __name__ == "__main__":
    main()
