"""Times of libraries for pairs of convolutions: benchmarks/results/<gpu>/conv_library.json.

python -m benchmarks.conv.library [--row r50-s1-1x1-3x3/b1 ...] [--seconds 110] [--residual] [--compile] [--out FILE]

fp16, channels last, bias and ReLU after each layer; cuDNN with its benchmark mode on. Cold: the launches of a graph
alternate among six images and enough sets of weights to exceed an L2. Warm: one set. All libraries of a row are timed
in the same interleaved rounds, and a delay before each sample hides the host's launch time. Each row of the file is one
way to run a pair: medians, quartiles of the cold samples, and the error against fp32 sums. If a library refuses a row,
its line has the reason. `--residual` adds an image before the last ReLU, `--compile` includes `torch.compile` (about 20
seconds per row). Rows that the file has from this commit and card are skipped. About two seconds per row on an H200.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.timing import captured, machine, sample_us
from benchmarks.common.called import called
from benchmarks.common.program import in_time, parser_of
from benchmarks.common.report import rows_of_this_build, write_report
from tuner.ops.gemm.card.cublaslt import CublasLt

from .rows import Row, rows
from .sides import Inputs, Side, sides

Json = dict[str, Any]

#: Bytes of weights that launches alternate among, and the minimum number of sets.
_COLD_BYTES, _LEAST_SETS = 190e6, 20
#: Launches of a graph, and rounds.
_LAUNCHES, _ROUNDS = 20, 25
#: Maximum relative error of a correct result: two roundings to fp16, and sums in a different order.
_MOST_ERROR = 2e-3


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures rows until the time limit; the file is written after each."""
    parser = parser_of(__doc__, "row", seconds=110, out=Path("benchmarks/results/h200/conv_library.json"))
    parser.add_argument("--residual", action="store_true", help="add an image before the last ReLU")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside them")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0  # 0: all of its plans
    torch.backends.cudnn.allow_tf32 = False
    torch.ones(1, device="cuda")
    done, lt = rows_of_this_build(options.out, machine()), CublasLt()
    found = {(one["pair"], one["batch"], one["residual"]) for one in done}
    wanted = [row for row in called(rows(), options.row) if (row.pair.name, row.batch, options.residual) not in found]
    for row in in_time(wanted, options.seconds):
        torch.cuda.empty_cache()  # memory of the previous row
        done += measure_row(row, lt, residual=options.residual, compiled=options.compile)
        write_report(options.out, done, machine())


def measure_row(row: Row, lt: CublasLt, *, residual: bool, compiled: bool) -> list[Json]:
    """A line for each library."""
    num_sets = max(_LEAST_SETS, int(_COLD_BYTES // (2 * row.pair.num_weights)) + 1)
    inputs = Inputs(row=row, num_sets=num_sets, residual=residual)
    expected = inputs.expected()
    lines, ready = list[Json](), dict[str, Side]()
    for number, make in enumerate(sides(inputs, lt, compiled=compiled)):
        line = _line(row, residual=residual)
        try:
            side = make()
            error = float((inputs.run(0, side.convolve).float() - expected).norm() / expected.norm())
            if not error <= _MOST_ERROR:
                raise ArithmeticError(f"{side.name}: relative error {error:.3g} against fp32 sums")
            ready[side.name] = side
            lines.append(line | {"library": side.name, "chosen": side.chosen, "rel_error": round(error, 6)})
        except Exception as refusal:  # the refusal of one library; the others may accept the row
            refused = f"{type(refusal).__name__}: {refusal}"[:300]
            lines.append(line | {"library": f"number {number}", "refused": refused})
    cold, warm = _samples(inputs, ready, range(num_sets)), _samples(inputs, ready, [0] * _LAUNCHES)
    for line in lines:
        if samples := cold.get(line["library"]):
            low, us, high = statistics.quantiles(samples, n=4)
            line |= {"cold_us": round(us, 3), "low_us": round(low, 3), "high_us": round(high, 3)}
            line |= {"warm_us": round(statistics.median(warm[line["library"]]), 3), "sets": num_sets}
            line["over_floor"] = round(us / row.floor_us, 3)
        print(" ".join(f"{name}={value}" for name, value in line.items() if name != "chosen"), flush=True)
    return lines


def _samples(inputs: Inputs, ready: dict[str, Side], numbers: Sequence[int]) -> dict[str, list[float]]:
    """Microseconds per pair for each library, when launches use the sets of weights in `numbers`; each sample uses the
    next few. For a graph of all sets, the host would need longer than the delay before a sample. No library reads what
    another one has just read."""
    runs = [numbers[first : first + _LAUNCHES] for first in range(0, len(numbers) - _LAUNCHES + 1, _LAUNCHES)]
    graphs = {
        name: [captured([partial(inputs.run, number, side.convolve) for number in run]) for run in runs]
        for name, side in ready.items()
    }
    samples = {name: list[float]() for name in graphs}
    for turn in range(_ROUNDS + 2):
        for place, (name, some) in enumerate(graphs.items()):
            apart = place * (len(some) // len(graphs))
            taken_us = sample_us(some[(turn + apart) % len(some)])
            samples[name] += [taken_us / _LAUNCHES] if turn >= 2 else []
    return samples


def _line(row: Row, *, residual: bool) -> Json:
    return {"pair": row.pair.name, "batch": row.batch, "residual": residual, "floor_us": round(row.floor_us, 3)}


if __name__ == "__main__":
    main()
