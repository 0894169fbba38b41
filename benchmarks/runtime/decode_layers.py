"""The decode step of a model whose layers are tuner's launches, beside transformers' own compiled: all take turns.

python -m benchmarks.runtime.decode_layers [--batch 1,16] [--layers 32] [--seconds 150] [--kernels FILE] [--out FILE]

The model is Llama-3-8B in bf16 with random weights, and a static cache of 1024 tokens that is half filled. Others are
transformers' model by torch.compile, in its default mode and with max-autotune. Their attention expands the cache, as
transformers' own does, or is grouped: with a mask over the whole cache, or by PyTorch's own over the tokens that are
there, which serves one length alone. Ours is by the artifacts of `benchmarks.runtime.layer_kernels`, each attention
with each block; the fastest pair takes part.

Each model has a process of its own, and 17 GB of the card. All capture one batch size at once, then take turns. What
is not ready in time does not take part. The bars are those of the faster mode: over transformers' own, and over the
faster grouped one. Logits of 64 tokens are compared with transformers' and, both, with products in fp32."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import (
    at_least_row,
    check_row,
    failed_row,
    machine_of,
    merge_report,
    results_file,
    write_report,
)
from benchmarks.runtime.decode_launches import Layers
from benchmarks.runtime.decode_models import Compiled
from benchmarks.runtime.decode_step import milliseconds
from benchmarks.runtime.turns import Client, Times, take_turns
from tuner.core.trial.stats import median, paired_ratios, ratio_ci95
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

#: By name: attention and mode of transformers' models.
OTHERS = {
    "expanded": ("expanded", "default"),
    "expanded, max-autotune": ("expanded", "max-autotune"),
    "grouped": ("grouped", "default"),
    "grouped, max-autotune": ("grouped", "max-autotune"),
    "grouped-exact": ("grouped-exact", "default"),
}
OURS = "layers"
#: Over the fastest of those whose name begins so. The first is for one sequence alone, as the others are what is asked.
BARS = {"expanded": 1.40, "grouped": 1.15}
#: The distance of ours from fp32, over that of transformers' own.
ERROR_BAR = 1.1
#: What else is told of logits.
MORE_OF_LOGITS = ("from_theirs", "from_fp32", "theirs_from_fp32", "same_tokens", "refused", "aborted", "failures")
#: What turns need, for each batch size, and what processes and models need before the first.
TURNS_S, BEGIN_S = 10.0, 30.0

Row = dict[str, Any]


def rows_of(batch: int, clients: Sequence[Client], times: Times) -> list[Row]:
    """What is checked of one batch size."""
    at = f"llama-3-8b layers, batch {batch}"
    ours = next(client for client in clients if client.name == OURS)
    if ours.failure:
        return [failed_row(f"{at}: step", ours.failure)]
    about = ours.about["step"]
    raw = {
        "after_ms": milliseconds(times[OURS, "step"]),
        "parts_ms": {name: milliseconds(times[OURS, name]) for name in names_of(ours)[1:]},
        "pair": about["pair"],
        "pairs_quick_ms": about["quick_ms"],
    }
    rows = [_speedup(at, family, clients, times, raw) for family in BARS]
    error = about["from_fp32"] / about["theirs_from_fp32"]
    more = {name: about[name] for name in MORE_OF_LOGITS}
    check = f"{at}: logits of 64 tokens, distance from fp32 over transformers'"
    return [*rows, check_row(check, error, ERROR_BAR, **more)]


def _speedup(at: str, family: str, clients: Sequence[Client], times: Times, raw: dict[str, Any]) -> Row:
    """Over the fastest of a family, of those that were ready."""
    check = f"{at}: step over {family} attention, compiled"
    others = [client for client in clients if client.name.startswith(family)]
    late = {client.name: client.failure for client in others if client.failure}
    there = {client.name: times[client.name, "step"] for client in others if not client.failure}
    if not there:
        return failed_row(check, "; ".join(late.values()) or "it did not take part")
    fastest = min(there, key=lambda name: median(there[name]))
    ratios = paired_ratios(there[fastest], times[OURS, "step"])
    about = {
        "ci95": [round(end, 4) for end in ratio_ci95(ratios)],
        "before": fastest,
        "before_ms": milliseconds(there[fastest]),
        "otherwise_ms": {name: milliseconds(us) for name, us in there.items()},
    }
    return at_least_row(check, median(ratios), BARS[family], **about, **raw, **({"late": late} if late else {}))


def names_of(client: Client) -> list[str]:
    """The graphs of a process that take part; ours has parts of its step, too."""
    return ["step", "default carve-out", "attentions alone", "blocks alone"] if client.name == OURS else ["step"]


def measure(batch: int, clients: Sequence[Client], deadline_s: float, kernels: bool) -> tuple[list[Row], list[Row]]:
    """Rows of one batch size, and the kernels of each graph."""
    alive = [client for client in clients if not client.failure]
    for client in alive:
        client.begin(batch)
    for client in sorted(alive, key=lambda one: one.name == OURS, reverse=True):
        client.wait(deadline_s - time.perf_counter())
    ready = [client for client in alive if not client.failure]
    times = take_turns(ready, names_of)
    found = [
        {"batch": batch, "task": client.name, "graph": name, "us": round(median(times[client.name, name]), 2),
         "kernels": client.ask("kernels", name) if kernels else []}
        for client in ready
        for name in names_of(client)
    ]  # fmt: skip
    return rows_of(batch, clients, times), found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,16", help="sequences of a step, with commas between them")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--others", default=";".join(OTHERS), help="models beside ours, with semicolons between them")
    parser.add_argument("--kernels", type=Path, help="where the kernels of each graph go")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    begin_s, batches = time.perf_counter(), tuple(int(one) for one in options.batch.split(","))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    rows: list[Row] = []
    graphs: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        with closing(GpuSupervisor(usable_gpus()[0], Path(name))) as card:
            machine, target_id = machine_of(card.environment()), card.target.id
        folder = Path(name) / "artifacts"
        clients = [Client(OURS, partial(Layers, folder, options.layers, batches, target_id))]
        for other in options.others.split(";") if options.others else ():
            attention, mode = OTHERS[other]
            clients.append(Client(other, partial(Compiled, attention, mode, options.layers)))
        try:
            for number, batch in enumerate(batches, start=1):
                share_s = (options.seconds - BEGIN_S) * number / len(batches)
                deadline_s = begin_s + BEGIN_S + share_s - TURNS_S
                more, of_graphs = measure(batch, clients, deadline_s, options.kernels is not None)
                print(*more, sep="\n", flush=True)
                rows, graphs = rows + more, graphs + of_graphs
                merge_report(options.out or results_file(target_id, "decode_layers"), rows, machine)
                if options.kernels is not None:
                    write_report(options.kernels, graphs, {**machine, "layers": options.layers})
        finally:
            for client in clients:
                client.end()


if __name__ == "__main__":
    main()
