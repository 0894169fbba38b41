"""The pair attention -> projection: our two launches beside the best pair of the library's, in turns, all cold.

The library is the better of PyTorch's flash and cuDNN attention, and the best of the algorithms that cuBLASLt offers.
Kinds: `library`, `two_launches`, and `two_launches_pdl`, of which each launch begins while the one before it ends.
Variants are tried first. Then the fastest of each kind are measured again, in rounds of their own.

A row takes about 8 s on an H200.

python -m benchmarks.attention.pairs [--row llama3-8b/1/512 ...] [--seconds 200] [--most 0] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.report import rows_of_this_build, write_report
from tuner.core.trial.stats import median, paired_ratios, ratio_ci95
from tuner.errors import TunerError
from tuner.ops.gemm.card.cublaslt import CublasLt

from .measure import bandwidth_here, gpu_here, machine_here
from .on_card import make_current
from .pair_on_card import LibraryPair, OurPair, PairTensors, Workshop
from .pair_rows import PairVariant, floor_us, pair_variants
from .rows import Row, rows
from .timing import samples_us

_ROUNDS, _FINAL_ROUNDS, _ALGORITHM_ROUNDS = 8, 40, 6
#: Measured again: algorithms of the library, programmatic variants, plain ones.
_ALGORITHMS, _FINALISTS, _PLAIN_FINALISTS = 2, 3, 1
#: Within this of the fastest kind, the simpler one is as good.
_TIE = 0.01
#: What a floor of so many microseconds may have on top, by the issue's bars; None: the library's time is the bar.
_BARS_US = ((8.0, 7.0), (40.0, 6.0))
_BUILDS_AT_ONCE = 16
_KINDS = ("library", "two_launches", "two_launches_pdl")


def main(arguments: Sequence[str] | None = None) -> None:
    """Rows until the time is over; what is there is written after each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append", help="model/batch/context; all without it")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--most", type=int, default=0, help="try only so many of a row's variants; 0 for all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/attention_pairs.json"))
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    make_current()
    torch.manual_seed(0)
    gpu, lt, machine = gpu_here(), CublasLt(), machine_here()
    done = rows_of_this_build(options.out, machine)
    bytes_per_s = bandwidth_here()
    with contextlib.closing(Workshop(gpu, _BUILDS_AT_ONCE)) as workshop:
        for row in rows():
            if (options.row and row.name not in options.row) or row.name in {one["row"] for one in done}:
                continue
            if time.monotonic() - begin > options.seconds:
                break
            found = {"row": row.name, "model": row.model, "batch": row.op.sequences, "context": row.op.max_length}
            try:
                done.append({**found, **measure_row(row, workshop, lt, options.most, bytes_per_s)})
            except Exception as error:  # the rows behind it may be right
                print(f"== {row.name}: {error!r}", flush=True)
                traceback.print_exc()
                continue
            _print(done[-1], time.monotonic() - begin)
            complete = {one["row"] for one in done} >= {one.name for one in rows()}
            figures = {"complete": complete, "cublaslt": lt.version, "bytes_per_s": bytes_per_s}
            write_report(options.out, done, {**machine, **figures})


def _print(row: dict[str, Any], seconds: float) -> None:
    kinds = ", ".join(f"{kind} {us}" for kind, us in row["kind_us"].items())
    print(
        f"== {row['row']}: {kinds}; verdict {row['verdict']} {row['verdict_speedup']}, floor {row['floor_us']}, "
        f"over it {row['over_floor_us']} (bar {row['bar_us']}), error {row['rel_error']:.1e}, at {seconds:.0f} s",
        flush=True,
    )
    for name, us in row["finals_us"].items():
        print(f"   {us:8} {name}")
    for name, us in list(row["variants_us"].items())[:8]:
        print(f"     {us:8} {name}")
    for name, phases in row["phases"].items():
        print(f"   phases of {name}: {phases}")
    for name, reason in row["failed"].items():
        print(f"   failed: {name}: {reason}", flush=True)


def measure_row(row: Row, workshop: Workshop, lt: CublasLt, most: int, bytes_per_s: float) -> dict[str, Any]:
    """Libraries and variants of one row: all once, then the fastest of each kind again.

    Raises:
        TunerError: no variant of ours, or no library, came through.
    """
    tensors, failed = PairTensors(row), dict[str, str]()
    library = LibraryPair(tensors, lt)
    library_graphs, library_errors = _libraries(library, failed)
    ours, graphs, errors = _ours(tensors, pair_variants(row, workshop.gpu)[: most or None], workshop, failed)
    if not ours or not library_graphs:
        raise TunerError(f"nothing to compare: {failed}")
    tried = {name: round(median(us), 2) for name, us in samples_us(graphs, tensors.num_pairs, _ROUNDS).items()}
    ranked = sorted(tried, key=lambda name: tried[name])
    finalists = [name for name in ranked if ours[name].variant.programmatic][:_FINALISTS]
    plain = [name for name in ranked if not ours[name].variant.programmatic][:_PLAIN_FINALISTS]
    best, no_tokens = ours[finalists[0]], torch.zeros_like(tensors.lengths)
    alone = {
        "our attention alone": tensors.graph_of(best.attend),
        "our projection alone": tensors.graph_of(best.project),
        "our pair without tokens": tensors.graph_of(lambda slot: best.launch(slot, no_tokens)),
    }
    again = {**library_graphs, **{name: graphs[name] for name in (*finalists, *plain)}, **alone}
    samples = samples_us(again, tensors.num_pairs, _FINAL_ROUNDS)
    _check_bits(tensors, {name: ours[name] for name in finalists}, graphs)
    members = dict(zip(_KINDS, (list(library_graphs), plain, finalists), strict=True))
    return {
        **_figures(floor_us(row, bytes_per_s), members, samples),
        "rel_error": max((errors[name] for name in (*finalists, *plain)), key=lambda error: (error != error, error)),
        "library_rel_error": max(library_errors.values()),
        "pairs": tensors.num_pairs,
        "slots": tensors.num_slots,
        "finals_us": {name: round(median(us), 2) for name, us in samples.items()},
        "variants_us": {name: tried[name] for name in ranked},
        "phases": {name: _phases(ours[name], workshop) for name in (finalists[0], *_with_default_carveout(ours))},
        "failed": failed,
    }


def _with_default_carveout(ours: dict[str, OurPair]) -> list[str]:
    return [name for name, pair in ours.items() if not pair.variant.shares_sms]


def _phases(pair: OurPair, workshop: Workshop) -> list[dict[str, Any]]:
    """They are a figure beside: times are there without them."""
    try:
        return pair.phases(workshop.gpu.num_sms)
    except Exception as error:
        return [{"failed": repr(error)[:200]}]


def _figures(floor: float, members: dict[str, list[str]], samples: dict[str, list[float]]) -> dict[str, Any]:
    """Of each kind the fastest, beside a floor in microseconds; the verdict is the simplest that is not slower than the
    fastest by more than a tie."""
    best = {kind: min(names, key=lambda name: median(samples[name])) for kind, names in members.items() if names}
    kind_us = {kind: median(samples[best[kind]]) if kind in best else None for kind in _KINDS}
    there = {kind: us for kind, us in kind_us.items() if us is not None}
    fastest = min(there.values())
    verdict = next(kind for kind, us in there.items() if us <= fastest * (1 + _TIE))
    library = samples[best["library"]]
    bar = next((more for most, more in _BARS_US if floor < most), None)
    return {
        "kind_us": {kind: None if us is None else round(us, 2) for kind, us in kind_us.items()},
        "best": best,
        "verdict": verdict,
        "verdict_speedup": round(median(library) / there[verdict], 3),
        "verdict_ci95": [round(end, 3) for end in ratio_ci95(paired_ratios(library, samples[best[verdict]]))],
        "library_us": round(median(library), 2),
        "floor_us": round(floor, 2),
        "over_floor": round(fastest / floor, 3),
        "over_floor_us": round(fastest - floor, 2),
        "bar_us": bar,
        "holds": None if bar is None else fastest <= floor + bar,
    }


def _libraries(
    library: LibraryPair, failed: dict[str, str]
) -> tuple[dict[str, torch.cuda.CUDAGraph], dict[str, float]]:
    """Each backend with each of the fastest algorithms, and its error; failures are added to. Graphs use what `library`
    has allocated."""
    tensors = library.tensors
    tensors.attended.normal_()
    alone: dict[str, torch.cuda.CUDAGraph] = {}
    for algorithm in range(library.gemm.num_algorithms):
        with _noting(failed, f"cuBLASLt {algorithm}"):
            alone[str(algorithm)] = library.captured_projection(algorithm)
    times = samples_us(alone, tensors.num_pairs, _ALGORITHM_ROUNDS)
    fastest = sorted(times, key=lambda name: median(times[name]))[:_ALGORITHMS]
    graphs, errors = dict[str, torch.cuda.CUDAGraph](), dict[str, float]()
    for backend_name, backend in library.backends.items():
        for algorithm_name in fastest:
            name = f"{backend_name} + cuBLASLt {algorithm_name}"
            with _noting(failed, name):
                graph = library.captured(backend, int(algorithm_name))
                tensors.poison()
                graph.replay()
                torch.cuda.synchronize()
                errors[name], graphs[name] = tensors.error(), graph
    return graphs, errors


def _ours(
    tensors: PairTensors, variants: list[PairVariant], workshop: Workshop, failed: dict[str, str]
) -> tuple[dict[str, OurPair], dict[str, torch.cuda.CUDAGraph], dict[str, float]]:
    """Variants, their graphs and errors; failures are added to."""
    schedules = list(dict.fromkeys(variant.projection for variant in variants))
    built = workshop.launchables(tensors.workload, schedules)
    tilings = [variant.attention.tiling for variant in variants]
    workshop.build_attention(tilings, tensors.row.op.dtype, tensors.row.form)
    pairs, graphs, errors = dict[str, OurPair](), dict[str, torch.cuda.CUDAGraph](), dict[str, float]()
    for variant in variants:
        name, launchable = str(variant), built[variant.projection]
        if isinstance(launchable, str):
            failed[name] = launchable
            continue
        with _noting(failed, name):
            pair = OurPair(tensors, variant, launchable, workshop.gpu.num_sms)
            graph = tensors.graph_of(pair.launch)
            tensors.poison()
            graph.replay()
            torch.cuda.synchronize()
            error = tensors.error()
            if not error < 0.02:
                raise TunerError(f"wrong numbers: the relative error is {error}")
            if refused := pair.attention.refused():
                raise TunerError(str(refused))
            pairs[name], graphs[name], errors[name] = pair, graph, error
    return pairs, graphs, errors


def _check_bits(tensors: PairTensors, pairs: dict[str, OurPair], graphs: dict[str, torch.cuda.CUDAGraph]) -> None:
    """That launches which overlap leave the bits that they leave one by one: no launch reads or writes too early.

    Raises:
        TunerError: they do not.
    """
    for name, pair in pairs.items():
        expected = pair.bits_one_by_one()
        for _ in range(10):
            tensors.poison()
            graphs[name].replay()
        torch.cuda.synchronize()
        for slot, (given, wanted) in enumerate(zip(tensors.results, expected, strict=True)):
            if not torch.equal(given.view(torch.int16), wanted.view(torch.int16)):
                raise TunerError(f"{name}: slot {slot} has other bits where launches overlap")


@contextlib.contextmanager
def _noting(failed: dict[str, str], name: str) -> Any:
    """What goes wrong with one way is noted, and the others go on."""
    try:
        yield
    except Exception as error:
        failed[name] = repr(error)[:300]


if __name__ == "__main__":
    main()
