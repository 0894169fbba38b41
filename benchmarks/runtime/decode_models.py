"""The models whose decode steps take turns: transformers' own, compiled, with the attention that it has or a grouped
one; and the one whose layers are launches of artifacts."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.runtime.decode_step import example
from benchmarks.runtime.layer_kernels import make_all

#: Tokens of the cache, of which half is filled.
LENGTH = 1024
NUM_TOKENS = 64
#: Of torch.compile.
MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def _grouped(query: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """The query heads that share a KV head as its rows, so that the cache is not expanded; any length by the mask."""
    import torch

    batch, heads, _, head_dim = query.shape
    shared = query.view(batch, keys.shape[1], heads // keys.shape[1], head_dim)
    found = torch.nn.functional.scaled_dot_product_attention(shared, keys, values, attn_mask=mask, scale=scaling)
    return found.view(batch, heads, 1, head_dim)


def _grouped_exact(query: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """PyTorch's own grouped attention over the tokens that are there, without a mask: a graph for this length alone."""
    import torch

    seen = (cache[:, :, : LENGTH // 2 + 1] for cache in (keys, values))
    return torch.nn.functional.scaled_dot_product_attention(query, *seen, scale=scaling, enable_gqa=True)


#: Attentions in the place of transformers' own, by name; None for that.
ATTENTIONS = {"expanded": None, "grouped": _grouped, "grouped-exact": _grouped_exact}


def _use(model: Any, name: str) -> None:
    """Lets a model attend so; transformers makes the mask of any cache for it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    attend = ATTENTIONS[name]
    if attend is None:
        return

    def forward(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None

    AttentionInterface.register(f"tuner_{name}", forward)
    if name != "grouped-exact":
        AttentionMaskInterface.register(f"tuner_{name}", sdpa_mask)
    model.config._attn_implementation = f"tuner_{name}"


@dataclass
class Compiled:
    """transformers' model, compiled whole."""

    attention: str
    mode: str
    layers: int
    graphs: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def capture(self, batch: int) -> None:
        """The step of so many sequences."""
        import torch

        llama = example()
        if not self.kept:
            model = llama.build(llama.LLAMA_3_8B | {"num_hidden_layers": self.layers}, "cuda")
            _use(model, self.attention)
            self.kept = [model]
        model, decoder = self.kept[0], llama.Decoder.of(self.kept[0], batch, LENGTH)
        torch.compiler.reset()
        run = torch.compile(model, fullgraph=True, dynamic=False, mode=MODES[self.mode])
        graph, logits = llama.captured(lambda: decoder.step(run))
        graph.replay()
        self.graphs, self.kept = {"step": graph}, [model, decoder, run]
        self.about = {"step": {"logits": logits[:, 0].float().cpu().numpy()}}

    def before(self, name: str) -> None:
        """Nothing: a step leaves its cache as it was."""

    def kernels(self, name: str) -> list[dict[str, Any]]:
        """Of one replay, summed up by name."""
        from benchmarks.runtime.graph_nodes import by_kernel, timeline

        return by_kernel(timeline(self.graphs[name]), self.layers)


@dataclass
class Layers:
    """The model whose layers are launches: each pair of a block's artifact and an attention's. The fastest is
    `step`."""

    folder: Path
    layers: int
    batches: tuple[int, ...]
    graphs: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._weights: Any = None
        self._told: dict[int, Any] = {}
        self._loaded: dict[tuple[Path, bool], Any] = {}

    def capture(self, batch: int) -> None:
        """Builds all artifacts, tells the tokens, and captures every pair of artifacts; those of before are dropped."""
        layers = example("llama_layers")
        if self._weights is None:
            self._begin(layers)
        caches, read, theirs, reference = self._told[batch]
        self.graphs, self.about, self.kept = {}, {}, []
        tuned = {name: self._pair(layers, caches, *paths) for name, paths in self._pairs(batch).items()}
        times: dict[str, float] = {}
        for name, decoder in tuned.items():
            graph, logits = layers.captured(decoder.step)
            self.kept.append((decoder, graph, logits))
            self.graphs[name] = graph
            times[name] = layers.milliseconds(graph, decoder, LENGTH // 2)
        best = min(times, key=lambda name: times[name])
        apart = self._pair(layers, caches, *self._pairs(batch)[best], shares_sms=False)
        self.graphs["default carve-out"] = layers.captured(apart.step)[0]
        decoder, graph, logits = self.kept[list(tuned).index(best)]

        def replay() -> Any:
            graph.replay()
            return logits

        told = layers.retell(decoder, read, LENGTH // 2, replay)
        self.graphs["step"] = graph
        self._decoders = {**tuned, "step": decoder, "default carve-out": apart}
        self._parts(layers, decoder)
        self.about = {
            "step": {
                "pair": best,
                "quick_ms": {name: round(ms, 4) for name, ms in times.items()},
                "from_theirs": layers.worst_error(told, theirs),
                "from_fp32": mean_error(layers, told, reference),
                "theirs_from_fp32": mean_error(layers, theirs, reference),
                "refused": [one for kernel in self._loaded.values() if (one := kernel.refused())],
                "aborted": [kernel.aborted() for kernel in self._loaded.values()].count(True),
                "first_logits": told[0].float().cpu().numpy(),
                "failures": self._failures,
            }
        }

    def _begin(self, layers: Any) -> None:
        """Artifacts, what transformers' model tells at each batch size in bf16 and in fp32, then the weights."""
        begin = time.perf_counter()
        self._made = make_all(self.batches, LENGTH, self.folder)
        self._failures = {name: found for name, found in self._made.items() if isinstance(found, str)}
        print(f"layers: artifacts after {time.perf_counter() - begin:.1f} s; not made: {self._failures}", flush=True)
        model = layers.build(layers.LLAMA_3_8B | {"num_hidden_layers": self.layers}, "cuda")
        for batch in self.batches:
            decoder = layers.Decoder.of(model, batch, LENGTH)
            caches = layers.caches_of(decoder)
            wide = replace(decoder, cache=copy.deepcopy(decoder.cache))
            read, theirs = layers.generate(decoder, NUM_TOKENS)
            for layer in wide.cache.layers:
                layer.keys, layer.values = layer.keys.float(), layer.values.float()
            with in_float32(model):
                reference = retold(wide, read)
            self._told[batch] = caches, read, theirs, reference
        print(f"layers: references after {time.perf_counter() - begin:.1f} s", flush=True)
        self._weights = layers.Weights.taken_from(model)

    def _pairs(self, batch: int) -> dict[str, tuple[Path, Path]]:
        """The folders of attention and block, by the names of both."""
        found: dict[str, dict[str, Path]] = {"block": {}, "attention": {}}
        for name, folder in self._made.items():
            kind, of_batch, own = name.split("/")
            if int(of_batch) == batch and isinstance(folder, Path):
                found[kind][own] = folder
        pairs = product(found["attention"].items(), found["block"].items())
        return {
            f"{attention} | {block}": (of_attention, of_block) for (attention, of_attention), (block, of_block) in pairs
        }

    def _pair(self, layers: Any, caches: Any, attention: Path, block: Path) -> Any:
        import tuner.runtime as runtime

        for path in (attention, block):
            if path not in self._loaded:
                self._loaded[path] = runtime.load_artifact(path)
        return layers.TunedDecoder(
            self._weights, caches, LENGTH // 2, self._loaded[attention].bind, self._loaded[block].bind
        )

    def _parts(self, layers: Any, decoder: Any) -> None:
        """Graphs of the blocks alone, and of the attentions, each with the kernel in front of it."""
        import torch

        def parts(first: int) -> Any:
            def step() -> Any:
                stream = torch.cuda.current_stream().cuda_stream
                for launch in decoder._launches[first::2]:
                    launch.enqueue(stream)

            return step

        for name, first in (("attentions alone", 0), ("blocks alone", 1)):
            self.graphs[name] = layers.captured(parts(first))[0]
            self._decoders[name] = decoder

    def before(self, name: str) -> None:
        """The context of the step's sequences is as long as in any other turn."""
        self._decoders[name].lengths.fill_(LENGTH // 2 + (name.endswith("alone")))

    def kernels(self, name: str) -> list[dict[str, Any]]:
        """Of one replay, summed up by name."""
        from benchmarks.runtime.graph_nodes import by_kernel, timeline

        self.before(name)
        return by_kernel(timeline(self.graphs[name]), self.layers)


def mean_error(layers: Any, found: Any, wanted: Any) -> float:
    """Over all tokens, the mean distance."""
    return float(sum(layers.rel_error(one, other) for one, other in zip(found, wanted, strict=True)) / len(found))


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """A model whose products are of its weights, and all else is in fp32; weights are widened one at a time."""
    import torch

    def product(self: Any, x: Any) -> Any:
        return torch.nn.functional.linear(x.float(), self.weight.float())

    linear, has_tf32 = torch.nn.Linear.forward, torch.backends.cuda.matmul.allow_tf32
    hook = model.model.embed_tokens.register_forward_hook(lambda module, given, found: found.float())
    torch.nn.Linear.forward, torch.backends.cuda.matmul.allow_tf32 = product, False  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Linear.forward, torch.backends.cuda.matmul.allow_tf32 = linear, has_tf32  # type: ignore[method-assign]
        hook.remove()


def retold(decoder: Any, read: Any) -> Any:
    """The logits of transformers' model that reads certain tokens."""
    import torch

    logits = []
    for step, tokens in enumerate(read):
        found = decoder.model(
            input_ids=tokens[:, None],
            position_ids=decoder.positions + step,
            past_key_values=decoder.cache,
            use_cache=True,
        ).logits
        logits.append(found[:, 0].to(torch.float32))
    return torch.stack(logits)
