"""Decode attention beside PyTorch's flash and cuDNN attention, and FlashInfer's where it is installed: cold caches, one
graph each, in turns. A library that was not there is null.

Variants are tried first. Then the fastest ones are measured again, in rounds of their own, beside the libraries.

python -m benchmarks.attention.measure [--row llama3-8b/1/512 ...] [--seconds 80] [--best 4] [--out attention.json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.common.report import driver_version, rows_of_this_build, write_report
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Dtype
from tuner.core.trial.stats import median
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import render_attention

from . import flashinfer_side
from .on_card import Attention, cubin_of, in_pages, make_current, random_pages
from .rows import BANDWIDTH, Row, Variant, policy_variants, rows, tiling_of, variants
from .timing import captured, read_bytes_per_s, samples_us

#: Bytes of caches that launches take in turns, so that each finds its own cold; and the most such caches.
_COLD_BYTES, _MOST_CACHES = 240e6, 512
#: Launches of a graph, at least, where they are short: how it begins and ends is to count for little.
_LEAST_LAUNCHES, _LONG_US = 24, 2000.0
_ROUNDS, _FINAL_ROUNDS = 12, 40
#: Relative error of a library's results, at most.
_MOST_ERROR = 0.02
#: Variants that are measured again: launched programmatically, and plainly.
_FINALISTS, _PLAIN_FINALISTS = 3, 1
LIBRARIES = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
#: Where lengths differ, PyTorch takes a mask, which its flash kernel does not.
MASKED_LIBRARIES = {"cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


def main(arguments: Sequence[str] | None = None) -> None:
    """Numbers first, then rows until the time is over; what is there is written after each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append", help="model/batch/context; all without it")
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--best", type=int, default=0, help="try only so many of a row's variants; 0 for all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/attention.json"))
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    make_current()
    torch.manual_seed(0)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    machine = machine_here()
    done = rows_of_this_build(options.out, machine)
    bytes_per_s = bandwidth_here()
    numbers = check_numbers(num_sms)
    print(json.dumps(numbers), flush=True)
    for row in rows():
        if (options.row and row.name not in options.row) or row.name in {one["row"] for one in done}:
            continue
        if time.monotonic() - begin > options.seconds:
            break
        found = {"row": row.name, "model": row.model, "batch": row.op.sequences, "context": row.op.max_length}
        try:
            done.append({**found, **measure_row(row, num_sms, options.best, bytes_per_s)})
        except Exception as error:  # the rows behind it may be right
            print(f"== {row.name}: {error!r}", flush=True)
            traceback.print_exc()
            continue
        _print(done[-1], time.monotonic() - begin)
        complete = {one["row"] for one in done} >= {one.name for one in rows()}
        figures = {"complete": complete, "numbers": numbers, "bytes_per_s": bytes_per_s}
        write_report(options.out, done, {**machine, **figures})


def gpu_here() -> Gpu:
    """The card in the domain's terms; an H200 where it is no other one that is known."""
    name = torch.cuda.get_device_name()
    return next((gpu for gpu in CATALOGUE.values() if gpu.name in name), CATALOGUE["h200"])


def bandwidth_here() -> float:
    """Bytes a second that floors count with."""
    return BANDWIDTH if "H200" in torch.cuda.get_device_name() else round(read_bytes_per_s(), -9)


def machine_here() -> dict[str, Any]:
    source = render_attention(tiling_of(64), Dtype.BF16)
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "kernel_version": hashlib.sha256(source.encode()).hexdigest()[:12],
    }


def _print(row: dict[str, Any], seconds: float) -> None:
    print(
        f"== {row['row']}: library {row['library_us']}, ours {row['ours_us']} ({row['best']}), "
        f"plain {row['plain_us']}, speedup {row['speedup']:.3f}, floor {row['floor_us']:.2f}, empty {row['empty_us']}, "
        f"hot {row['hot_us']}, error {row['rel_error']:.1e}, at {seconds:.0f} s",
        flush=True,
    )
    for name, us in row["variants_us"].items():
        print(f"   {us:8} {name}")
    for phases in row["phases"]:
        print(f"   {phases}", flush=True)


def check_numbers(num_sms: int) -> dict[str, float]:
    """Relative errors where lengths differ, tokens are several, heads are small: what the rows do not have."""
    found = {}
    for name, op, lengths, chunk in (
        ("ragged", DecodeAttention(sequences=6, kv_heads=8, query_heads=4, head_dim=128, max_length=2048),
         (0, 1, 128, 129, 2048, 700), 128),
        ("tokens", DecodeAttention(sequences=3, kv_heads=2, query_heads=8, head_dim=128, max_length=999, new_tokens=4),
         (999, 3, 500), 64),
        ("fp16", DecodeAttention(sequences=3, kv_heads=3, query_heads=5, head_dim=64, max_length=512, new_tokens=2,
                                 dtype=Dtype.FP16, scale=0.2), (512, 17, 256), 96),
    ):  # fmt: skip
        try:
            found[name] = _numbers(op, lengths, chunk, num_sms)
        except Exception as error:
            print(f"numbers, {name}: {error!r}", flush=True)
            traceback.print_exc()
            found[name] = float("nan")
    return found


def _numbers(op: DecodeAttention, lengths: Sequence[int], span: int, num_sms: int) -> float:
    """The worst of CTAs that are alone and of clusters."""
    q, k, v = operands(op)
    for sequence, length in enumerate(lengths):
        k[sequence, :, length:] = v[sequence, :, length:] = float("nan")
    seen = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    worst = 0.0
    for cluster, finish_warps in ((1, 3), (1, 0), (2, 3), (8, 3)):
        tiling = tiling_of(
            32, warps=4, head_dim=op.head_dim, queries=op.columns, cluster=cluster, finish_warps=finish_warps
        )
        kernel = Attention(op, Variant(tiling=tiling, span_tokens=span * cluster), num_sms)
        out = torch.full_like(q, float("nan"))
        for _ in range(3):
            kernel.launch(q, k, v, seen, out)
        torch.cuda.synchronize()
        errors = [relative_error(op, q, k, v, out, sequence, length) for sequence, length in enumerate(lengths)]
        worst = max([worst, *errors], key=lambda error: (error != error, error))
    return worst


def operands(op: DecodeAttention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys, values."""
    kind = {"dtype": torch.bfloat16 if op.dtype is Dtype.BF16 else torch.float16, "device": "cuda"}
    cache = (op.sequences, op.kv_heads, op.max_length, op.head_dim)
    q = torch.randn(op.sequences, op.new_tokens, op.kv_heads * op.query_heads, op.head_dim, **kind)
    return q, torch.randn(cache, **kind), torch.randn(cache, **kind)


def relative_error(
    op: DecodeAttention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    sequence: int,
    length: int,
) -> float:
    """Of one sequence, against float64: the norm of the difference over the norm; NaN where a number is."""
    worst = 0.0
    for token in range(op.new_tokens):
        seen = length - op.new_tokens + 1 + token
        given = out[sequence, token].double().view(op.kv_heads, op.query_heads, op.head_dim)
        if seen <= 0:
            worst = max(worst, 0.0 if bool((given == 0).all()) else float("inf"))
            continue
        queries = q[sequence, token].double().view(op.kv_heads, op.query_heads, op.head_dim)
        scores = op.score_scale * queries @ k[sequence, :, :seen].double().transpose(1, 2)
        expected = scores.softmax(dim=2) @ v[sequence, :, :seen].double()
        error = float((given - expected).norm() / expected.norm())
        worst = error if error != error else max(worst, error)
    return worst


def timed(graphs: dict[str, torch.cuda.CUDAGraph], num_launches: int, rounds: int) -> dict[str, float]:
    """Medians of microseconds a launch, all graphs in turns."""
    return {name: round(median(us), 2) for name, us in samples_us(graphs, num_launches, rounds).items()}


class Tensors:
    """Queries, caches that a graph's launches take in turns, lengths, and room for the result."""

    def __init__(self, row: Row) -> None:
        self.row, op = row, row.op
        num_caches = max(3, min(_MOST_CACHES, int(_COLD_BYTES // row.kv_bytes) + 1))
        enough = min(_LEAST_LAUNCHES, int(_LONG_US * 1e-6 * BANDWIDTH // row.kv_bytes))
        self.num_launches = -(-max(enough, num_caches) // num_caches) * num_caches
        self.q, *_ = operands(op)
        self.caches = [operands(op)[1:] for _ in range(num_caches)]
        self.pages = random_pages(row)
        self.own_caches = [tuple(in_pages(row, one, self.pages) for one in cache) for cache in self.caches]
        self.lengths = torch.tensor(row.lengths, dtype=torch.int32, device="cuda")
        self.out = torch.empty_like(self.q)
        #: What a library's graph reads.
        self.kept: Any = None

    def in_turn(self, caches: Sequence[Any]) -> list[Any]:
        """Of each launch of a graph the cache, or what was made of it."""
        return [caches[launch % len(caches)] for launch in range(self.num_launches)]

    def captured_library(self, backend: SDPBackend) -> torch.cuda.CUDAGraph:
        """One of PyTorch's kernels; where lengths differ, with a mask."""
        queries, op = self.q.transpose(1, 2), self.row.op
        mask = None
        if set(self.row.lengths) != {op.max_length}:
            places = torch.arange(op.max_length, device="cuda")
            mask = (places[None] < self.lengths[:, None])[:, None, None]

        def launch(k: torch.Tensor, v: torch.Tensor) -> None:
            torch.nn.functional.scaled_dot_product_attention(queries, k, v, attn_mask=mask, enable_gqa=True)

        with sdpa_kernel([backend]):
            return captured([lambda c=c: launch(*c) for c in self.in_turn(self.caches)])  # type: ignore[misc]

    def captured_ours(self, kernel: Attention, lengths: torch.Tensor, *, hot: bool = False) -> torch.cuda.CUDAGraph:
        """One of our kernels. `hot`: all launches read one cache, which the L2 keeps where it has room: then it is not
        the memory that holds them back."""
        q, out, pages = self.q, self.out, self.pages
        caches = self.in_turn(self.own_caches[:1] if hot else self.own_caches)
        return captured([lambda k=k, v=v: kernel.launch(q, k, v, lengths, out, pages) for k, v in caches])  # type: ignore[misc]

    def error(self) -> float:
        """Of the last launch."""
        op, lengths = self.row.op, self.row.lengths
        found = [
            relative_error(op, self.q, *self.caches[-1], self.out, sequence, lengths[sequence])
            for sequence in {0, op.sequences // 2, op.sequences - 1}
        ]
        return max(found, key=lambda error: (error != error, error))


def measure_row(row: Row, num_sms: int, best: int, bytes_per_s: float) -> dict[str, Any]:
    """Libraries and variants of one shape: all once, then the fastest again."""
    op, tensors = row.op, Tensors(row)
    is_ragged = set(row.lengths) != {op.max_length}
    graphs, failed = {}, {}
    backends = MASKED_LIBRARIES if is_ragged else LIBRARIES
    libraries = [*backends, flashinfer_side.NAME]
    for name, backend in backends.items():
        try:
            graphs[name] = tensors.captured_library(backend)
        except Exception as error:
            failed[name] = str(error)[:120]
    if flashinfer_side.is_installed():
        _add_flashinfer(tensors, graphs, failed)
    gpu = gpu_here()
    policies = policy_variants(row, gpu)
    all_variants = list(dict.fromkeys([*variants(row, gpu)[: best or None], *policies.values()]))
    kernels, errors = captured_variants(tensors, all_variants, num_sms, graphs, failed)
    tried = timed(graphs, tensors.num_launches, _ROUNDS)
    ours = sorted((name for name in tried if name in kernels), key=lambda name: tried[name])
    finalists = [name for name in ours if kernels[name].variant.programmatic][:_FINALISTS]
    finalists += [name for name in ours if not kernels[name].variant.programmatic][:_PLAIN_FINALISTS]
    again = {name: graphs[name] for name in [*(name for name in libraries if name in graphs), *finalists]}
    again["no tokens"] = tensors.captured_ours(kernels[finalists[0]], torch.zeros_like(tensors.lengths))
    again["hot"] = tensors.captured_ours(kernels[finalists[0]], tensors.lengths, hot=True)
    us = timed(again, tensors.num_launches, _FINAL_ROUNDS)
    empty_us, hot_us = us.pop("no tokens"), us.pop("hot")
    plain = [us[name] for name in finalists if not kernels[name].variant.programmatic]
    best_name = min(finalists, key=lambda name: us[name])
    library = min((us[name] for name in libraries if name in us), default=None)
    floor = row.kv_bytes / bytes_per_s * 1e6
    return {
        "kind_us": {name: us.get(name) for name in libraries},
        "library_us": library,
        "ours_us": us[best_name],
        "plain_us": min(plain, default=None),
        "best": best_name,
        "speedup": round(library / us[best_name], 3) if library else None,
        "floor_us": round(floor, 2),
        "over_floor": round(us[best_name] / floor, 2),
        "rel_error": max(errors.values(), key=lambda error: (error != error, error)),
        "launches": tensors.num_launches,
        "empty_us": empty_us,
        "hot_us": hot_us,
        "finals_us": us,
        "variants_us": {name: tried[name] for name in ours},
        "policies_us": {name: tried.get(str(variant)) for name, variant in policies.items()},
        "failed": failed,
        "phases": _phases(tensors, kernels[best_name].variant, num_sms),
    }


def _add_flashinfer(tensors: Tensors, graphs: dict[str, torch.cuda.CUDAGraph], failed: dict[str, str]) -> None:
    """Its graph, where its numbers are right."""
    try:
        graph, tensors.kept = flashinfer_side.captured_flashinfer(tensors)
        tensors.out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        error = tensors.error()
        if not error < _MOST_ERROR:
            raise ValueError(f"wrong numbers: the relative error is {error}")
        graphs[flashinfer_side.NAME] = graph
    except Exception as error:
        failed[flashinfer_side.NAME] = str(error)[:120]


def captured_variants(
    tensors: Tensors,
    tried: list[Variant],
    num_sms: int,
    graphs: dict[str, torch.cuda.CUDAGraph],
    failed: dict[str, str],
) -> tuple[dict[str, Attention], dict[str, float]]:
    """Kernels, which graphs read, and the errors of their results; graphs and failures are added to."""
    kernels: dict[str, Attention] = {}
    errors: dict[str, float] = {}
    dtype = tensors.row.op.dtype

    def build(variant: Variant) -> None:
        try:
            cubin_of(variant.tiling, dtype, tensors.row.form)
        except Exception as error:
            failed[str(variant)] = repr(error)[:200]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(build, tried))
    for variant in tried:
        name = str(variant)
        if name in failed:
            continue
        try:
            kernel = Attention(tensors.row.op, variant, num_sms, form=tensors.row.form, shares_sms=True)
            graph = tensors.captured_ours(kernel, tensors.lengths)
            tensors.out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            errors[name] = tensors.error()
            kernels[name], graphs[name] = kernel, graph
        except Exception as error:  # the variants behind it may be right
            failed[name] = repr(error)[:200]
            print(f"   failed: {name}: {error!r}", flush=True)
    return kernels, errors


def _phases(tensors: Tensors, variant: Variant, num_sms: int) -> list[dict[str, Any]]:
    """Of the last launch of a row of them, by a traced build."""
    try:
        kernel = Attention(tensors.row.op, variant, num_sms, form=tensors.row.form, traced=True)
        for k, v in tensors.own_caches[-8:]:
            kernel.launch(tensors.q, k, v, tensors.lengths, tensors.out, tensors.pages)
        torch.cuda.synchronize()
        return kernel.phases()
    except Exception as error:  # times are there without it
        return [{"failed": repr(error)[:200]}]


if __name__ == "__main__":
    main()
