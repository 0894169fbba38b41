"""Public kernels for pairs with weights of few bits: benchmarks/results/<gpu>/few_bits_peers.json.

python -m benchmarks.few_bits.peers [--row tensor/4096-14336/m16 ...] [--seconds 180] [--out FILE]

SwiGLU pairs of decoder layers, cold: the launches of a graph alternate among enough sets of weights to exceed an L2.
All peers of a row are timed in the same interleaved rounds. A delay before each sample hides the host's launch time. A
row of the file is a peer: its median, the quartiles of its samples, and its error against the unquantised fp32 result.
If a peer refuses a row, the file has the reason. Quantisation done in advance (weights, X) is not timed; a model's
operations between the two products are. About two seconds per row for cuBLASLt on an H200. Humming compiles its
kernels: about 20 seconds per row with tuning, and 3 without (TUNER_PEERS_TRIED=0).

The figures are those of libraries, so rows of other commits are kept, each with its commit. A row is measured as long
as the file of this card and driver lacks one of its installed peers: running the same command again continues.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.timing import captured, machine, samples_us
from benchmarks.common.called import called
from benchmarks.common.program import in_time, parser_of
from benchmarks.common.report import commit, write_report
from tuner.ops.gemm.card.cublaslt import CublasLt

from .peer import Inputs, Peer
from .peers_of import PEERS_OF
from .quantised import random_weights, reference, relative_error
from .rows import Row, rows

Json = dict[str, Any]

#: Bytes of weights that launches alternate among, minimum number of sets, and minimum launches of a graph.
_COLD_BYTES, _LEAST_SETS, _LEAST_LAUNCHES = 260e6, 3, 8
_ROUNDS = 30
#: Maximum relative error of a correct result against unquantised operands: that of 4 bits.
_MOST_ERROR = 0.3


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures rows until the time limit; the results are written after each."""
    options = parser_of(
        __doc__, "row", seconds=180, out=Path("benchmarks/results/h200/few_bits_peers.json")
    ).parse_args(arguments)
    torch.manual_seed(0)
    torch.ones(1, device="cuda")
    found = machine()
    done, lt = rows_of_this_card(options.out, found), CublasLt()
    wanted = [row for row in called(rows(), options.row) if missing_peers(row, done)]
    for row in in_time(wanted, options.seconds):
        torch.cuda.empty_cache()  # memory of the previous row
        lines = [line | {"commit": commit()} for line in measure_row(row, lt)]
        done = [line for line in done if line["row"] != row.name or not _is_of(line, lines)] + lines
        write_report(options.out, done, found)


def rows_of_this_card(path: Path, found: Json) -> list[Json]:
    """The file's rows of this card and driver, each with its commit."""
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    if any(before["meta"].get(name) != found.get(name) for name in ("gpu", "driver")):
        return []
    return [{"commit": before["meta"]["commit"], **line} for line in before["rows"]]


def missing_peers(row: Row, done: Sequence[Json]) -> set[str]:
    """Installed peers without a line for a row."""
    nothing: Any = None
    makers = PEERS_OF[row.scheme.name](Inputs(row=row, x=nothing, weights=(), lt=nothing))
    return set(makers) - {str(line["peer"]) for line in done if line["row"] == row.name}


def _is_of(line: Json, lines: Sequence[Json]) -> bool:
    """Whether a peer was measured again."""
    return any(one["peer"] == line["peer"] for one in lines)


def measure_row(row: Row, lt: CublasLt) -> list[Json]:
    """A line for each peer."""
    sets = max(_LEAST_SETS, int(_COLD_BYTES // row.scheme.num_bytes(row.pair)) + 1)
    weights = random_weights(row.pair, sets)
    x = torch.randn(row.m, row.pair.d, device="cuda", dtype=torch.bfloat16)
    inputs = Inputs(row=row, x=x, weights=weights, lt=lt)
    expected = reference(x, weights[0])
    # A peer owns the memory that its graph reads, so it must live as long as the graph.
    lines, peers, graphs = list[Json](), list[Peer](), dict[str, torch.cuda.CUDAGraph]()
    turns = max(1, -(-_LEAST_LAUNCHES // sets))
    for name, make in PEERS_OF[row.scheme.name](inputs).items():
        try:
            peer = make()
            peer.launches[0]()
            error = relative_error(peer.result(), expected)
            if not error <= _MOST_ERROR:
                raise ArithmeticError(f"relative error {error:.3g} against the unquantised result")
            graphs[name] = captured(list(peer.launches) * turns)
        except Exception as refusal:  # only this peer failed; the others may support the row
            lines.append(_line(row, name) | {"refused": f"{type(refusal).__name__}: {refusal}"[:300]})
            continue
        peers.append(peer)
        lines.append(_line(row, name) | {"chosen": peer.chosen, "rel_error": round(error, 5)})
    samples = samples_us(graphs, sets * turns, _ROUNDS) if graphs else {}
    for line in lines:
        if found := samples.get(line["peer"]):
            low, us, high = statistics.quantiles(found, n=4)
            line |= {"us": round(us, 3), "low_us": round(low, 3), "high_us": round(high, 3)}
            line["over_floor"] = round(us / row.floor_us, 3)
        print(" ".join(f"{name}={value}" for name, value in line.items() if name != "chosen"), flush=True)
    return lines


def _line(row: Row, peer: str) -> Json:
    found = {"row": row.name, "scheme": row.scheme.name, "pair": row.pair.name, "m": row.m, "peer": peer}
    return found | {"floor_us": round(row.floor_us, 3)}


if __name__ == "__main__":
    main()
