"""A decode step of transformers' own Llama, with and without the kernels of a pack in its MLPs.

    tuner-client tune-model config.json --m 1,16,64 -o llama.tunerpack
    python examples/llama_decode.py llama.tunerpack --json rows.json

The model is Llama-3-8B with random weights and a half-filled static cache. A step is one token per sequence, in a CUDA
graph: eager, and with torch.compile at the batch sizes of `--compiled`. In a second model with the same weights, the
MLPs are replaced in place: their gate and up weights are merged, and the originals freed. The graphs of both models
alternate. The output is the milliseconds per step before and after, those of the MLPs alone, and whether the logits
agree. `--shard` does the same for the MLPs of one of eight ranks of Llama-3-70B. `llama_layers.py` and
`llama_from_qkv.py` replace whole layers.

Without a GPU it runs a tiny model with the operator's PyTorch formula, which tests the replacement but not the times:

    python examples/llama_decode.py --tiny

It needs torch, transformers, tuner and 48 GB of GPU memory. It takes about half a minute on an H200, plus a minute and
a half for each compiled batch size.
"""

from __future__ import annotations

import argparse
import copy
import gc
import inspect
import json
import statistics
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tuner.runtime as runtime
from tuner.runtime import torch_op

#: The config of Llama-3-8B, as published.
LLAMA_3_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
}  # fmt: skip
TINY = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
#: For Llama-3-70B: hidden size, columns of the intermediate on one of eight ranks, and layers.
SHARD = (8192, 28672 // 8, 80)

#: Targets: the MLPs' speed-up in the eager step, how far it may be from what the pack promises, the speed-up of the
#: whole compiled step, and the same if the captured graph keeps programmatic launches.
MLP_BAR, PROMISE_BAR, COMPILED_BAR, PROGRAMMATIC_BAR = 1.17, 1.05, 1.04, 1.06
#: ||logits - logits before|| / ||logits before||: a few bf16 roundings per layer.
LOGITS_BAR = 0.05
NUM_TURNS = 25

#: What the model's `forward` calls the cache; older versions of transformers have the longer name.
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"

Row = dict[str, Any]


class PackedMlp(torch.nn.Module):
    """A model's MLP by the operator or, for row counts that the pack leaves to the library, by PyTorch's products."""

    def __init__(self, w1: torch.Tensor, w2: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("w1", w1)
        self.register_buffer("w2", w2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes [..., hidden] with any leading dimensions."""
        rows = x.reshape(-1, x.shape[-1])
        y = torch.ops.tuner.ffn(rows, self.w1, self.w2, None, None, None, None, "silu", True)
        return y.view(x.shape)


def packed(gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear, pack: runtime.Pack | None) -> PackedMlp:
    """Makes one from an MLP's three projections, and frees the gate and up weights. The gate's rows come first."""
    w1, w2 = torch.cat([gate.weight, up.weight]), down.weight.detach()
    gate.weight = up.weight = None
    if pack is not None:  # the operator finds the pack by these weights
        torch_op.register(pack.bind(runtime.Weights(w1, w2, activation="silu", gated=True)))
    return PackedMlp(w1, w2)


def replace_mlps(model: LlamaForCausalLM, pack: runtime.Pack | None) -> None:
    """Replaces each MLP with the operator, layer by layer, so that at most one layer's weights are in memory twice."""
    for layer in model.model.layers:
        mlp = layer.mlp
        layer.mlp = packed(mlp.gate_proj, mlp.up_proj, mlp.down_proj, pack)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A model with a half-filled cache, and the next token of each sequence."""

    model: LlamaForCausalLM
    cache: StaticCache
    tokens: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(cls, model: LlamaForCausalLM, batch: int, length: int) -> Decoder:
        """Fills half of a cache of `length` tokens with random keys and values."""
        device, config = model.device, model.config
        cache = StaticCache(config=config, max_cache_len=length)
        generator = torch.Generator(device=device).manual_seed(5)
        shape = (batch, config.num_key_value_heads, length // 2, config.head_dim)
        for i in range(config.num_hidden_layers):
            keys, values = (
                torch.randn(shape, generator=generator, device=device, dtype=model.dtype) / 8 for _ in range(2)
            )
            cache.update(keys, values, i)
        tokens = torch.randint(config.vocab_size, (batch, 1), generator=generator, device=device)
        positions = torch.full((batch, 1), length // 2, device=device)
        return cls(model=model, cache=cache, tokens=tokens, positions=positions)

    def step(self, run: Callable[..., Any]) -> torch.Tensor:
        """The logits of the next token. The cache is restored, so that every step is the same."""
        found = run(input_ids=self.tokens, position_ids=self.positions, use_cache=True, **{CACHE: self.cache}).logits
        for layer in self.cache.layers:
            layer.cumulative_length.sub_(1)
        return found


def captured(step: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A CUDA graph of a step, captured after warm-up on another stream, and its result buffer."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        result = step()
    graph.instantiate()
    return graph, result


def milliseconds(*graphs: torch.cuda.CUDAGraph) -> list[float]:
    """The median time of several replays of each graph, which alternate. An untimed replay hides the host's time to
    launch the next one."""
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(NUM_TURNS):
        for graph, kept in zip(graphs, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            kept.append(begin.elapsed_time(end))
    return [statistics.median(kept) for kept in times]


def programmatic_edges(graph: torch.cuda.CUDAGraph) -> int:
    """The number of edges of a captured graph that let a kernel begin before the previous one has ended."""
    import ctypes

    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    if cuda.cuGraphGetEdges_v2(handle, None, None, None, ctypes.byref(count)):
        return 0
    ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    data = (ctypes.c_uint8 * 8 * count.value)()  # CUgraphEdgeData: the third byte is the type; 1 is programmatic
    if cuda.cuGraphGetEdges_v2(handle, *ends, data, ctypes.byref(count)):
        return 0
    return sum(edge[2] == 1 for edge in data)


def mlps_step(mlps: Sequence[torch.nn.Module], x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call that runs all MLPs of a model in sequence on the same input, with nothing else in between."""

    def step() -> torch.Tensor:
        for mlp in mlps:
            y = mlp(x)
        return y

    return step


def rel_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference, divided by that of the expected logits."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def at_least(check: str, value: float, bar: float, **raw: Any) -> Row:
    """A row that passes if the value is at least the bar."""
    return {"check": check, "value": round(value, 4), "bar": bar, "holds": value >= bar, **raw}


def at_most(check: str, value: float, bar: float, **raw: Any) -> Row:
    """A row that passes if the value is at most the bar."""
    return {"check": check, "value": round(value, 6), "bar": bar, "holds": value <= bar, **raw}


def promised_us(path: Path, hidden: int, intermediate: int, batch: int) -> float | None:
    """The microseconds of a pack's kernel in the finals at `batch` rows; None if the pack has no such kernel."""
    with zipfile.ZipFile(path) as archive:
        document = json.loads(archive.read("pack.json"))
    for ladder in document["shapes"]:
        shape = ladder["shape"]
        if (shape["d_in"], shape["d_hidden"], shape["gated"]) == (hidden, intermediate, True):
            for rung in ladder["rungs"]:
                if rung["m"][1] == batch and rung["kernel"]:
                    time_us = rung["provenance"].get("time_us")
                    return None if time_us is None else float(time_us)
    return None


def build(sizes: dict[str, Any], device: str) -> LlamaForCausalLM:
    """A model with random weights from a fixed seed."""
    torch.manual_seed(11)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa", dtype=torch.bfloat16))
    finally:
        torch.set_default_dtype(usual)
    return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class Times:
    """Milliseconds of a step at one batch size, and its logits."""

    eager_ms: float
    mlps_ms: float
    #: None if it was not compiled.
    compiled_ms: float | None
    programmatic_edges: int
    logits: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Captured:
    """The graphs of one model at one batch size, its logits, and the buffers that the graphs use."""

    eager: torch.cuda.CUDAGraph
    mlps: torch.cuda.CUDAGraph
    #: None if it was not compiled.
    compiled: torch.cuda.CUDAGraph | None
    logits: torch.Tensor
    used: tuple[Any, ...]


def capture(model: LlamaForCausalLM, batch: int, length: int, mode: str | None) -> Captured:
    """Captures each step in its own graph. `mode` is torch.compile's, or None for eager."""
    decoder, run, compiled = Decoder.of(model, batch, length), None, None
    eager, logits = captured(lambda: decoder.step(model))
    eager.replay()
    kept = logits.clone()
    x = torch.randn(batch, model.config.hidden_size, device=model.device, dtype=model.dtype)
    mlps, _ = captured(mlps_step([layer.mlp for layer in model.model.layers], x))
    if mode is not None:
        torch.compiler.reset()
        run = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)
        compiled, _ = captured(lambda: decoder.step(run))
    return Captured(eager=eager, mlps=mlps, compiled=compiled, logits=kept, used=(decoder, run, x))


def measure(models: Sequence[LlamaForCausalLM], batch: int, length: int, mode: str | None) -> list[Times]:
    """Times several models at one batch size; their graphs alternate."""
    taken = [capture(model, batch, length, mode) for model in models]
    eager, mlps = (milliseconds(*(getattr(one, part) for one in taken)) for part in ("eager", "mlps"))
    graphs = [one.compiled for one in taken if one.compiled is not None]
    compiled = milliseconds(*graphs) if graphs else [None] * len(models)
    edges = [programmatic_edges(graph) for graph in graphs] or [0] * len(models)
    logits = [one.logits for one in taken]
    return [Times(*of) for of in zip(eager, mlps, compiled, edges, logits, strict=True)]


def rows_of(batch: int, before: Times, after: Times, promised_ms: float | None) -> list[Row]:
    """The checks of one batch size."""
    at = f"batch {batch}"
    raw = {"before_ms": round(before.mlps_ms, 4), "after_ms": round(after.mlps_ms, 4)}
    rows = [
        at_most(f"llama-3-8b, {at}: logits", rel_error(after.logits, before.logits), LOGITS_BAR),
        at_least(f"llama-3-8b, {at}: MLPs of the eager step", before.mlps_ms / after.mlps_ms, MLP_BAR, **raw),
    ]
    if promised_ms is not None:
        name = f"llama-3-8b, {at}: MLPs, over what the pack promises"
        rows.append(at_most(name, after.mlps_ms / promised_ms, PROMISE_BAR, promised_ms=round(promised_ms, 4), **raw))
    raw = {name: round(value, 4) for name, value in (("before_ms", before.eager_ms), ("after_ms", after.eager_ms))}
    rows.append(at_least(f"llama-3-8b, {at}: eager step", before.eager_ms / after.eager_ms, 1.0, **raw))
    if before.compiled_ms is not None and after.compiled_ms is not None:
        edges = after.programmatic_edges
        bar = 1.0 if batch != 1 else PROGRAMMATIC_BAR if edges else COMPILED_BAR
        raw = {"before_ms": round(before.compiled_ms, 4), "after_ms": round(after.compiled_ms, 4)}
        speedup = before.compiled_ms / after.compiled_ms
        rows.append(at_least(f"llama-3-8b, {at}: compiled step", speedup, bar, programmatic_edges=edges, **raw))
    return rows


def decode(path: Path, batches: Sequence[int], length: int, modes: Mapping[int, str]) -> list[Row]:
    """Checks the whole model on a card; `modes`: torch.compile's mode by batch size."""
    models = [build(LLAMA_3_8B, "cuda") for _ in range(2)]
    config, pack = models[0].config, runtime.load(path)
    if note := pack.check():
        print(note, file=sys.stderr)
    replace_mlps(models[1], pack)
    rows = []
    for batch in batches:
        gc.collect()
        torch.cuda.empty_cache()
        before, after = measure(models, batch, length, modes.get(batch))
        us = promised_us(path, config.hidden_size, config.intermediate_size, batch)
        rows += rows_of(batch, before, after, None if us is None else us * config.num_hidden_layers / 1e3)
    for sentence in pack.aborts():
        rows.append({"check": "llama-3-8b: aborts", "value": None, "bar": 0, "holds": False, "reason": sentence})
    return rows


def shard(path: Path, batches: Sequence[int]) -> list[Row]:
    """Checks the MLPs of one of eight ranks of Llama-3-70B, without the sum over the ranks."""
    hidden, intermediate, num_layers = SHARD
    pack, half = runtime.load(path), {"device": "cuda", "dtype": torch.bfloat16}

    def projections() -> tuple[torch.nn.Linear, ...]:
        sizes = ((hidden, intermediate), (hidden, intermediate), (intermediate, hidden))
        return tuple(torch.nn.Linear(*size, bias=False, **half).requires_grad_(False) for size in sizes)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = projections()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    plain = [Plain() for _ in range(num_layers)]
    inputs = {batch: torch.randn(batch, hidden, **half) for batch in batches}
    copies = (copy.deepcopy(mlp) for mlp in plain)
    ours = [packed(mlp.gate, mlp.up, mlp.down, pack) for mlp in copies]
    rows = []
    for batch, x in inputs.items():
        (graph, wanted), (our_graph, result) = captured(mlps_step(plain, x)), captured(mlps_step(ours, x))
        before_ms, after_ms = milliseconds(graph, our_graph)
        at = f"llama-3-70b shard of 8, batch {batch}"
        raw = {"before_ms": round(before_ms, 4), "after_ms": round(after_ms, 4)}
        rows.append(at_most(f"{at}: output", rel_error(result, wanted), LOGITS_BAR))
        rows.append(at_least(f"{at}: MLPs", before_ms / after_ms, MLP_BAR, **raw))
    return rows


def tiny() -> list[Row]:
    """Checks a small model on the CPU: the logits before and after, eager and compiled."""
    model, rows = build(TINY, "cpu"), []
    decoders = {batch: Decoder.of(model, batch, 32) for batch in (1, 4)}
    before = {batch: decoder.step(model) for batch, decoder in decoders.items()}
    replace_mlps(model, None)
    compiled = torch.compile(model, fullgraph=True)
    for batch, decoder in decoders.items():
        for name, run in (("eager", model), ("compiled", compiled)):
            error = rel_error(decoder.step(run), before[batch])
            rows.append(at_most(f"tiny, batch {batch}: logits, {name}", error, LOGITS_BAR))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", nargs="?", type=Path, help="a pack with the shape of the model's MLPs")
    parser.add_argument("--batch", default="1,16,64", help="sequences per step, separated by commas")
    parser.add_argument("--compiled", default="1,16", help="batch sizes at which the step is also compiled")
    parser.add_argument("--mode", default="default", help="mode of torch.compile, e.g. max-autotune-no-cudagraphs")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the cache; half of it is filled")
    parser.add_argument("--shard", action="store_true", help="instead, the MLPs of a rank of Llama-3-70B")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, without a pack")
    parser.add_argument("--json", type=Path, help="where the rows go")
    options = parser.parse_args(arguments)
    if not options.tiny and (options.pack is None or not torch.cuda.is_available()):
        parser.error("pass a pack, on a machine with a GPU; or --tiny for a model on the CPU")
    batches, length = [int(part) for part in options.batch.split(",")], options.length
    modes = {int(part): options.mode for part in options.compiled.split(",") if part}
    with torch.inference_mode():
        if options.tiny:
            rows = tiny()
        else:
            rows = shard(options.pack, batches) if options.shard else decode(options.pack, batches, length, modes)
    for row in rows:
        before, after = row.get("before_ms"), row.get("after_ms")
        times = "" if before is None else f"{before:8.3f} ms -> {after:8.3f} ms"
        print(f"{row['check']:58} {row['value']!s:>10} (bar {row['bar']}) {times} {'' if row['holds'] else 'MISSED'}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
