"""What bounded waits cost an attention, and lengths that one warp of a CTA reads for both.

Builds of the same variant in the same rounds, cold caches, one graph each. Takes under 60 seconds.

python -m benchmarks.attention.lengths --out benchmarks/results/<gpu>/attention_waits.json [--seconds 55]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.report import write_report
from tuner.ops.attention.schedule import AttentionEngine

from .measure import Tensors, gpu_here, machine_here, timed
from .on_card import Attention, Waits, cubin_of, make_current
from .rows import Row, Variant, by_engine, rows, variants

_ROUNDS = 20
_ROWS = 6
_BUILDS = {
    "unbounded": Waits(bounded=False),
    "bounded": Waits(),
    "bounded, lengths once": Waits(lengths_once=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Rows that lie evenly among those of the benchmark, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    make_current()
    torch.manual_seed(0)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    every = rows()
    done: list[dict[str, Any]] = []
    for row in every[:: max(1, len(every) // _ROWS)][:_ROWS]:
        if time.monotonic() - begin > options.seconds:
            break
        done.append(measure_row(row, num_sms))
        print(json.dumps(done[-1]), flush=True)
        write_report(options.out, done, {**machine_here(), "complete": len(done) == _ROWS})


def measure_row(row: Row, num_sms: int) -> dict[str, Any]:
    """One variant of each engine in each build that differs; microseconds, and over the build without bounds."""
    tensors, kernels, graphs = Tensors(row), [], {}
    tried = {engine: by_engine(variants(row, gpu_here()), engine)[0] for engine in AttentionEngine}
    builds = [
        (engine, name)
        for engine in AttentionEngine
        for name, waits in _BUILDS.items()
        if engine is AttentionEngine.MMA or not waits.lengths_once  # one warp requests there
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: _compiled(row, tried[one[0]], _BUILDS[one[1]]), builds))
    for engine, name in builds:
        kernel = Attention(row.op, tried[engine], num_sms, form=row.form, shares_sms=True, waits=_BUILDS[name])
        kernels.append(kernel)
        graphs[f"{engine}, {name}"] = tensors.captured_ours(kernel, tensors.lengths)
    us = timed(graphs, tensors.num_launches, _ROUNDS)
    base_us = {engine: us[f"{engine}, unbounded"] for engine in AttentionEngine}
    return {
        "row": row.name,
        "variants": {str(engine): str(one) for engine, one in tried.items()},
        "us": us,
        "over_unbounded": {f"{engine}, {name}": us[f"{engine}, {name}"] / base_us[engine] for engine, name in builds},
    }


def _compiled(row: Row, variant: Variant, waits: Waits) -> None:
    cubin_of(variant.tiling, row.op.dtype, row.form, waits=waits)


if __name__ == "__main__":
    main()
