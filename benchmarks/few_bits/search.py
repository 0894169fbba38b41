"""Our kernels for pairs with weights of few bits, by jobs of the service: benchmarks/results/<gpu>/few_bits.json.

python -m benchmarks.few_bits.search [--row tensor/4096-14336/m16 ...] [--trials 60] [--seconds 100] [--out FILE]
python -m benchmarks.few_bits.search --ship [--gpu h200]    adds the file's schedules to tuner/winners/<gpu>.json

A row is a job, compared with cuBLASLt's best of eight with one kernel for factors, activation and rounding. Its peer is
the fastest in few_bits_peers.json of the same folder, if that has the row; the targets are relative to it. When all
jobs have ended, `behind_foreign_us` is the time that the winner's artifact adds after a foreign kernel, if PyTorch is
installed. Existing rows of this commit and card are skipped, and each row is written at once. It takes about 15 seconds
per row on an H200 with 16 cores.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.finals import figures_of
from benchmarks.common.found import Found
from benchmarks.common.jobs import Ended, open_jobs, run_jobs, spec_of
from benchmarks.common.program import parser_of
from benchmarks.common.report import results_file
from benchmarks.common.winners import ship_report
from benchmarks.common.workbench import message_of
from benchmarks.few_bits.rows import Row, rows
from tuner.core.problem.workload import Workload
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

Json = dict[str, Any]


def workload_of(row: Row) -> Workload:
    """The workload of a scheme that our kernels support."""
    pair, scheme = row.pair, Scheme(row.scheme.name)
    return QuantisedFfn(m=row.m, d_in=pair.d, d_hidden=pair.hidden, d_out=pair.d, scheme=scheme).to_workload()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs rows until the time limit."""
    parser = parser_of(__doc__, "gpu", "row", "out", "trials", seconds=100)
    parser.add_argument("--ship", action="store_true")
    options = parser.parse_args(arguments)
    if options.ship:
        ship("h200" if options.gpu == "auto" else options.gpu, FOLDER)
        return
    artifacts = dict[str, bytes]()
    with open_jobs(options.gpu, winners=ShippedWinners()) as jobs:
        found = Found(jobs, options.out or results_file(jobs.target_id, "few_bits"))

        def keep(row: Row, ended: Ended) -> None:
            said = ("kind_us", "verdict", "verdict_speedup", "over_reference", "over_peer", "rel_error", "wall_s")
            found.add(_line_of(row, ended, found.path), said)
            if ended.best.artifact_digest and not jobs.environment.simulated:
                artifacts[row.name] = jobs.service.artifact(ended.best.artifact_digest)

        ours = found.missing(_ours(), options.row)
        specs = [(row, spec_of(workload_of(row), jobs.target_id, options.trials)) for row in ours]
        run_jobs(jobs, specs, keep, seconds=options.seconds)
    if importlib.util.find_spec("torch"):  # the card has no other user now
        for line in found.lines:
            if line["row"] in artifacts:
                line |= _behind(artifacts[line["row"]])
                print(line["row"], line["behind_foreign_us"], line.get("behind_reason", ""), flush=True)
        found.write()


def ship(target_id: str, folder: Path) -> None:
    """Adds the fastest schedule of each plan kind of each row to the winners that ship with the program; those that
    the rules no longer allow are left out."""
    workloads = {row.name: workload_of(row) for row in _ours()}
    ship_report("few_bits", target_id, folder, "few-bits", workloads)


def _ours() -> list[Row]:
    """The rows whose scheme our kernels support."""
    return [row for row in rows() if row.scheme.name in set(Scheme)]


def _behind(artifact: bytes) -> Json:
    from benchmarks.few_bits.behind import behind_foreign_us

    try:
        return {"behind_foreign_us": round(behind_foreign_us(artifact), 3)}
    except Exception as error:  # an error of one row; its times remain valid
        return {"behind_foreign_us": None, "behind_reason": message_of(error)}


def _line_of(row: Row, ended: Ended, out: Path) -> Json:
    """The row's figures; ratios to the floor and to the peer are for our fastest kernel."""
    figures = figures_of(ended)
    best_us = min(us for kind, us in figures["kind_us"].items() if kind != "library")
    found = {"row": row.name, "scheme": row.scheme.name, "pair": row.pair.name, "m": row.m, **figures}
    found |= {"reference_us": round(row.floor_us, 3), "over_reference": round(best_us / row.floor_us, 3)}
    peers = out.with_name("few_bits_peers.json")
    lines = json.loads(peers.read_text())["rows"] if peers.exists() else []
    if timed := [one for one in lines if one["row"] == row.of_peers and "us" in one]:
        best = min(timed, key=lambda one: float(one["us"]))
        found |= {"best_peer": best["peer"], "peer_us": best["us"], "over_peer": round(best["us"] / best_us, 3)}
    return found


if __name__ == "__main__":
    main()
