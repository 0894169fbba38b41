"""Decode attention by cp.async beside the copy engine's, all else the same, and beside PyTorch's flash and cuDNN
attention: cold caches, one graph each, in turns. No engine has clusters here.

python -m benchmarks.attention.engines [--row llama3-8b/1/512 ...] [--seconds 80] [--out attention_engines.json]
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.report import rows_of_this_build, write_report
from tuner.ops.attention.schedule import AttentionEngine

from .measure import (
    LIBRARIES,
    MASKED_LIBRARIES,
    Tensors,
    bandwidth_here,
    captured_variants,
    gpu_here,
    machine_here,
    timed,
)
from .on_card import make_current
from .rows import Row, Variant, by_engine, rows, tiling_of, variants

_ROUNDS, _FINAL_ROUNDS = 8, 30
#: Of each engine, variants that are measured again.
_FINALISTS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Rows until the time is over; what is there is written after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append", help="model/batch/context; all without it")
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    make_current()
    torch.manual_seed(0)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    machine, bytes_per_s = machine_here(), bandwidth_here()
    done = rows_of_this_build(options.out, machine)
    for row in rows():
        if (options.row and row.name not in options.row) or row.name in {one["row"] for one in done}:
            continue
        if time.monotonic() - begin > options.seconds:
            break
        try:
            done.append({"row": row.name, **measure_row(row, num_sms, bytes_per_s)})
        except Exception as error:  # the rows behind it may be right
            print(f"== {row.name}: {error!r}", flush=True)
            traceback.print_exc()
            continue
        print(json.dumps(done[-1]), flush=True)
        complete = {one["row"] for one in done} >= {one.name for one in rows()}
        write_report(options.out, done, {**machine, "complete": complete, "bytes_per_s": bytes_per_s})


def _split(row: Row, num_sms: int) -> list[Variant]:
    """Contexts in some spans, as many as fill the SMs at most, by tiles of 32 and 64 tokens: what clusters do else."""
    op, found = row.op, list[Variant]()
    most = num_sms // (op.sequences * op.kv_heads)
    for spans, tile in product((2, 4, 8, 16, 32, 64), (32, 64)):
        if spans <= most and (spans - 1) * tile < op.max_length:
            span = -(-op.max_length // (spans * tile)) * tile
            found.append(Variant(tiling=tiling_of(tile, queries=op.columns), span_tokens=span))
    return found


def measure_row(row: Row, num_sms: int, bytes_per_s: float) -> dict[str, Any]:
    """Both engines and libraries at one shape: all variants once, then the fastest of each engine again."""
    tensors, tried = Tensors(row), [*variants(row, gpu_here()), *_split(row, num_sms)]
    backends = MASKED_LIBRARIES if set(row.lengths) != {row.op.max_length} else LIBRARIES
    graphs, failed = {}, {}
    for name, backend in backends.items():
        try:
            graphs[name] = tensors.captured_library(backend)
        except Exception as error:
            failed[name] = str(error)[:120]
    of_engine = {engine: list(dict.fromkeys(by_engine(tried, engine))) for engine in AttentionEngine}
    both = [variant for found in of_engine.values() for variant in found]
    kernels, errors = captured_variants(tensors, both, num_sms, graphs, failed)
    times = timed(graphs, tensors.num_launches, _ROUNDS)
    finals = [name for name in backends if name in graphs]
    for found in of_engine.values():
        ran = sorted((str(one) for one in found if str(one) in kernels), key=times.__getitem__)
        finals += ran[:_FINALISTS]
    us = timed({name: graphs[name] for name in finals}, tensors.num_launches, _FINAL_ROUNDS)
    best = {
        engine: min((str(one) for one in found if str(one) in us), key=us.__getitem__, default=None)
        for engine, found in of_engine.items()
    }
    return {
        "kind_us": {name: us.get(name) for name in backends},
        **{f"{engine}_us": us.get(name) if name else None for engine, name in best.items()},
        **{f"{engine}_best": name for engine, name in best.items()},
        "floor_us": round(row.kv_bytes / bytes_per_s * 1e6, 2),
        "rel_error": max(errors.values(), key=lambda error: (error != error, error)),
        "launches": tensors.num_launches,
        "variants_us": {name: times[name] for name in kernels},
        "failed": failed,
    }


if __name__ == "__main__":
    main()
