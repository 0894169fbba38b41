"""Decode attention beside PyTorch's flash and cuDNN attention: cold caches, one graph each, in turns.

python -m benchmarks.attention.measure [--row llama3-8b/1/512 ...] [--seconds 80] [--best 4] [--out attention.json]
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tuner.core.problem.attention import DecodeAttention
from tuner.core.problem.workload import Dtype
from tuner.core.trial.stats import median

from .on_card import Attention, make_current
from .rows import BANDWIDTH, Variant, shapes, tiling_of, variants

#: Bytes of caches that launches take in turns, so that each finds its own cold; and the most launches of a graph.
_COLD_BYTES, _MOST_LAUNCHES = 240e6, 512
_ROUNDS = 20
#: A launch whose sequences have no tokens.
_EMPTY = "no tokens"
_LIBRARIES = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


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
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    results["numbers"] = check_numbers(num_sms)
    print(json.dumps(results["numbers"]), flush=True)
    for model, op in shapes():
        name = f"{model}/{op.sequences}/{op.max_length}"
        if options.row and name not in options.row:
            continue
        if time.monotonic() - begin > options.seconds:
            results.setdefault("left_out", []).append(name)
            continue
        row = {
            "model": model,
            "batch": op.sequences,
            "context": op.max_length,
            **measure_row(op, num_sms, options.best),
        }
        results["rows"].append(row)
        _print(row, time.monotonic() - begin)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def _print(row: dict[str, Any], seconds: float) -> None:
    print(
        f"== {row['model']} {row['batch']} {row['context']}: library {row['library_us']}, ours {row['ours_us']} "
        f"({row['best']}), speedup {row['speedup']:.3f}, floor {row['floor_us']:.2f}, empty {row['empty_us']}, "
        f"error {row['rel_error']:.1e}, at {seconds:.0f} s",
        flush=True,
    )
    for name, us in row["variants_us"].items():
        print(f"   {us:8} {name}")
    print(f"   {row['phases']}", flush=True)


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


def _numbers(op: DecodeAttention, lengths: Sequence[int], chunk: int, num_sms: int) -> float:
    columns = 16 if op.columns > 8 else 8
    tiling = tiling_of(32, warps=4, head_dim=op.head_dim, columns=columns)
    kernel = Attention(op, Variant(tiling=tiling, chunk_tokens=chunk), num_sms)
    q, k, v = operands(op)
    for sequence, length in enumerate(lengths):
        k[sequence, :, length:] = v[sequence, :, length:] = float("nan")
    out = torch.full_like(q, float("nan"))
    seen = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    for _ in range(3):
        kernel.launch(q, k, v, seen, out)
    torch.cuda.synchronize()
    return max(relative_error(op, q, k, v, out, sequence, length) for sequence, length in enumerate(lengths))


def operands(op: DecodeAttention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys, values."""
    kind = {"dtype": torch.bfloat16 if op.dtype is Dtype.BF16 else torch.float16, "device": "cuda"}
    cache = (op.sequences, op.kv_heads, op.max_length, op.head_dim)
    q = torch.randn(op.sequences, op.new_tokens, op.kv_heads * op.query_heads, op.head_dim, **kind)  # type: ignore[arg-type]
    return q, torch.randn(cache, **kind), torch.randn(cache, **kind)  # type: ignore[arg-type]


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


def captured(launches: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """One graph of all launches; two are run before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches[:2]:
            launch()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


def timed(graphs: dict[str, torch.cuda.CUDAGraph], num_launches: int) -> dict[str, float]:
    """Medians of microseconds a launch, all graphs in turns."""
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(_ROUNDS + 2):
        for name, graph in graphs.items():
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            graph.replay()
            after.record()
            after.synchronize()
            if turn >= 2:
                samples[name].append(before.elapsed_time(after) * 1e3 / num_launches)
    return {name: round(median(us), 2) for name, us in samples.items()}


def measure_row(op: DecodeAttention, num_sms: int, best: int) -> dict[str, Any]:
    """Libraries and variants of one shape, each context as long as can be."""
    kv_bytes = op.cache_bytes(op.sequences * op.max_length)
    num_launches = max(3, min(_MOST_LAUNCHES, int(_COLD_BYTES // kv_bytes) + 1))
    q, *_ = operands(op)
    caches = [operands(op)[1:] for _ in range(num_launches)]
    lengths = torch.full((op.sequences,), op.max_length, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    queries = q.transpose(1, 2)
    graphs, failed = {}, {}
    for name, backend in _LIBRARIES.items():
        try:
            with sdpa_kernel([backend]):
                graphs[name] = captured(
                    [
                        lambda k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                            queries, k, v, enable_gqa=True
                        )  # type: ignore[misc]
                        for k, v in caches
                    ]
                )
        except Exception as error:
            failed[name] = str(error)[:120]
    errors: dict[str, float] = {}
    kept: list[Attention] = []  # graphs read what these hold
    sequences = {0, op.sequences // 2, op.sequences - 1}
    tried = variants(op, num_sms)
    for variant in tried[: best or None]:
        name = str(variant)
        try:
            kernel = Attention(op, variant, num_sms)
            kept.append(kernel)
            graph = captured([lambda c=c, kernel=kernel: kernel.launch(q, *c, lengths, out) for c in caches])  # type: ignore[misc]
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            errors[name] = max(relative_error(op, q, *caches[-1], out, s, op.max_length) for s in sequences)
            graphs[name] = graph
        except Exception as error:  # the variants behind it may be right
            failed[name] = repr(error)[:200]
            print(f"   failed: {name}: {error!r}", flush=True)
    empty = Attention(op, replace(tried[0], speculative=False), num_sms)
    kept.append(empty)
    nothing = torch.zeros_like(lengths)
    graphs[_EMPTY] = captured([lambda c=c: empty.launch(q, *c, nothing, out) for c in caches])  # type: ignore[misc]
    us = timed(graphs, num_launches)
    empty_us = us.pop(_EMPTY)
    ours = {name: time_us for name, time_us in us.items() if name not in _LIBRARIES}
    best_name = min(ours, key=lambda name: ours[name])
    library = min((us[name] for name in _LIBRARIES if name in us), default=float("nan"))
    floor = kv_bytes / BANDWIDTH * 1e6
    return {
        "kind_us": {name: us.get(name) for name in _LIBRARIES},
        "library_us": library,
        "ours_us": ours[best_name],
        "best": best_name,
        "speedup": round(library / ours[best_name], 3),
        "floor_us": round(floor, 2),
        "over_floor": round(ours[best_name] / floor, 2),
        "rel_error": max(errors.values(), key=lambda error: (error != error, error)),
        "launches": num_launches,
        "empty_us": empty_us,
        "variants_us": dict(sorted(ours.items(), key=lambda item: item[1])),
        "failed": failed,
        "phases": _phases(op, next(v for v in tried if str(v) == best_name), num_sms, (q, caches, lengths, out)),
    }


def _phases(op: DecodeAttention, variant: Variant, num_sms: int, tensors: tuple[Any, ...]) -> dict[str, Any]:
    """Of the last launch of a row of them, by a traced build."""
    q, caches, lengths, out = tensors
    try:
        kernel = Attention(op, variant, num_sms, traced=True)
        for cache in caches[-8:]:
            kernel.launch(q, *cache, lengths, out)
        torch.cuda.synchronize()
        return kernel.phases()
    except Exception as error:  # times are there without it
        return {"failed": repr(error)[:200]}


if __name__ == "__main__":
    main()
