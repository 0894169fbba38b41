"""The pair attention -> projection in one launch, beside two programmatic ones and the library: an experiment.

Some CTAs or warps of the launch attend, the others project, each by the device code of its own launch. Who has stored
the result of a KV head posts a signal. The projection's inputs wait for the signals, head by head before the k-steps
that read them, or for those of all heads. Its weights come meanwhile. All CTAs are resident at once. Numbers are
checked, and the bits of launches that overlap, before anything is timed.

About 20 seconds a row.

python -m benchmarks.attention.one_launch [--row llama3-8b/1/512 ...] [--seconds 200] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.report import rows_of_this_build, write_report
from tuner.core.problem.gpu import Gpu
from tuner.core.trial.stats import median
from tuner.errors import TunerError
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.gpu.cublaslt import CublasLt

from .measure import bandwidth_here, gpu_here, machine_here
from .on_card import make_current
from .one_launch_kernel import Made, make
from .one_launch_on_card import OneLaunch
from .one_launch_variants import OneVariant, one_variants
from .pair_on_card import LibraryPair, PairTensors, Workshop
from .pair_rows import floor_us, pair_variants
from .pairs import _libraries, _ours
from .rows import Row, rows
from .timing import samples_us

#: What a launch can gain most on stands first.
ROWS = (
    "llama3-8b/1/512",
    "llama3-70b-tp8/16/2048",
    "llama3-8b/16/512",
    "llama3-70b-tp8/1/512",
    "llama3-8b/1/2048",
    "llama3-70b-tp8/16/512",
    "llama3-70b-tp8/64/512",
    "llama3-70b-tp8/16/1-4096",
    "llama3-70b-tp8/1/2048",
    "llama3-8b/16/2048",
)
_ROUNDS, _FINAL_ROUNDS, _FINALISTS = 6, 40, 4
_BUILDS_AT_ONCE = 14


def main(arguments: Sequence[str] | None = None) -> None:
    """Rows until the time is over; what is there is written after each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append", help="model/batch/context; all without it")
    parser.add_argument("--seconds", type=float, default=200)
    pairs = [Path(f"benchmarks/results/{gpu}/attention_pairs.json") for gpu in ("h100", "h200")]
    parser.add_argument("--known", type=Path, nargs="*", default=pairs, help="the fastest two launches of each row")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100/attention_one_launch.json"))
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    make_current()
    torch.manual_seed(0)
    gpu, lt, machine = gpu_here(), CublasLt(), machine_here()
    done = rows_of_this_build(options.out, machine)
    bytes_per_s = bandwidth_here()
    known = _known(options.known)
    by_name = {row.name: row for row in rows()}
    with contextlib.closing(Workshop(gpu, _BUILDS_AT_ONCE)) as workshop:
        for name in options.row or ROWS:
            if name in {one["row"] for one in done}:
                continue
            if time.monotonic() - begin > options.seconds:
                break
            try:
                done.append({"row": name, **measure_row(by_name[name], workshop, lt, known[name], bytes_per_s)})
            except Exception as error:  # the rows behind it may be right
                print(f"== {name}: {error!r}", flush=True)
                traceback.print_exc()
                continue
            _print(done[-1], time.monotonic() - begin)
            write_report(options.out, done, {**machine, "bytes_per_s": bytes_per_s, "cublaslt": lt.version})


def _known(paths: Sequence[Path]) -> dict[str, list[str]]:
    """Of each row the names of the fastest two programmatic launches, by each file."""
    known: dict[str, list[str]] = {}
    for path in paths:
        for found in json.loads(path.read_text())["rows"]:
            known.setdefault(found["row"], []).append(found["best"]["two_launches_pdl"])
    return known


def _print(row: dict[str, Any], seconds: float) -> None:
    figures = {name: value for name, value in row.items() if name.endswith("_us") and not isinstance(value, dict)}
    print(f"== {row['row']}: {figures}, at {seconds:.0f} s", flush=True)
    for name, us in [*row["finals_us"].items(), *list(row["variants_us"].items())[:12]]:
        print(f"   {us:8} {name}")
    for name, reason in list(row["failed"].items())[:5]:
        print(f"   failed: {name}: {reason}", flush=True)


def measure_row(row: Row, workshop: Workshop, lt: CublasLt, known: list[str], bytes_per_s: float) -> dict[str, Any]:
    """The library, the fastest two launches that are known, and all variants of one launch, in turns.

    Raises:
        TunerError: nothing of it came through.
    """
    tensors, failed = PairTensors(row), dict[str, str]()
    library = LibraryPair(tensors, lt)
    library_graphs, _ = _libraries(library, failed)
    two = [one for one in pair_variants(row, workshop.gpu) if str(one) in known]
    pairs, pair_graphs, _ = _ours(tensors, two, workshop, failed)
    ones, graphs, errors = _launches(tensors, one_variants(row, workshop.gpu), workshop.gpu, failed)
    if not ones or not pairs:
        raise TunerError(f"nothing to compare: {failed}")
    tried = {name: median(us) for name, us in samples_us(graphs, tensors.num_pairs, _ROUNDS).items()}
    ranked = sorted(tried, key=lambda name: tried[name])
    finalists = ranked[:_FINALISTS]
    for name in finalists:
        _check_bits(tensors, ones[name], graphs[name])
    best, no_tokens = ones[finalists[0]], torch.zeros_like(tensors.lengths)
    best_pair = next(iter(pairs.values()))
    free = best.without_waits()
    again = {
        **library_graphs,
        **pair_graphs,
        **{name: graphs[name] for name in finalists},
        "one launch without waits": tensors.graph_of(free.launch),
        "one launch without tokens": tensors.graph_of(lambda slot: best.launch(slot, no_tokens)),
        "two launches without tokens": tensors.graph_of(lambda slot: best_pair.launch(slot, no_tokens)),
    }
    us = {name: median(found) for name, found in samples_us(again, tensors.num_pairs, _FINAL_ROUNDS).items()}
    return {
        "library_us": round(min(us[name] for name in library_graphs), 2),
        "two_launches_pdl_us": round(min(us[name] for name in pair_graphs), 2),
        "one_launch_us": round(min(us[name] for name in finalists), 2),
        "floor_us": round(floor_us(row, bytes_per_s), 2),
        "best": {
            "two_launches_pdl": min(pair_graphs, key=lambda name: us[name]),
            "one_launch": min(finalists, key=lambda name: us[name]),
        },
        "rel_error": max(errors[name] for name in finalists),
        "finals_us": {name: round(value, 2) for name, value in us.items()},
        "variants_us": {name: round(tried[name], 2) for name in ranked},
        "failed": failed,
    }


def _launches(
    tensors: PairTensors, variants: list[OneVariant], gpu: Gpu, failed: dict[str, str]
) -> tuple[dict[str, OneLaunch], dict[str, torch.cuda.CUDAGraph], dict[str, float]]:
    """Launches, their graphs and errors; failures are added to."""
    launches, graphs, errors = dict[str, OneLaunch](), dict[str, torch.cuda.CUDAGraph](), dict[str, float]()
    made: dict[OneVariant, Made] = {}
    for variant in variants:
        try:
            made[variant] = make(tensors.row, variant, gpu)
        except TunerError as error:
            failed[str(variant)] = repr(error)[:300]
    with ThreadPoolExecutor(_BUILDS_AT_ONCE) as threads:
        list(threads.map(_try_compile, {one.source for one in made.values()}))
    for variant, one in made.items():
        name = str(variant)
        try:
            launch = OneLaunch(tensors, variant, one, _compiled(one.source), gpu)
            graph = tensors.graph_of(launch.launch)
            tensors.poison()
            graph.replay()
            torch.cuda.synchronize()
            launch.check()
            off = tensors.error()
            if not off < 0.02:
                raise TunerError(f"wrong numbers: the relative error is {off}")
            launches[name], graphs[name], errors[name] = launch, graph, off
        except (TunerError, RuntimeError) as error:
            failed[name] = repr(error)[:300]
    return launches, graphs, errors


@functools.cache
def _compiled(source: str) -> bytes:
    """A cubin.

    Raises:
        TunerError: it spills, or does not compile.
    """
    cubin, log = compile_source(source, "sm_90a")
    if spilled := parse_log(log).spill_bytes:
        raise TunerError(f"it spills {spilled} bytes")
    return cubin


def _try_compile(source: str) -> None:
    """So that it is at hand; one that does not compile is compiled again where it is asked for, and says why."""
    with contextlib.suppress(TunerError, RuntimeError):
        _compiled(source)


def _check_bits(tensors: PairTensors, one: OneLaunch, graph: torch.cuda.CUDAGraph) -> None:
    """That launches which overlap leave the bits that they leave one by one: no launch reads or writes too early.

    Raises:
        TunerError: they do not.
    """
    expected = one.bits_one_by_one()
    for _ in range(10):
        tensors.poison()
        graph.replay()
    torch.cuda.synchronize()
    for slot, (given, wanted) in enumerate(zip(tensors.results, expected, strict=True)):
        if not torch.equal(given.view(torch.int16), wanted.view(torch.int16)):
            raise TunerError(f"{one.variant}: slot {slot} has other bits where launches overlap")


if __name__ == "__main__":
    main()
