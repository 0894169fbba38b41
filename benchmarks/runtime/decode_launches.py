"""The model whose layers are launches of artifacts, and what its logits are compared with."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.runtime.decode_models import LENGTH
from benchmarks.runtime.decode_step import example
from benchmarks.runtime.layer_kernels import make_all
from tuner.runtime import Artifact, RuntimeFailure, load_artifact

NUM_TOKENS = 64
#: ||result - the formula's|| / ||the formula's||, of one layer's launches over random rows: two bf16 computations.
PART_BAR = 0.02


@dataclass
class Layers:
    """Each attention's artifact with each block's. Those that compute something else than PyTorch do not take part. The
    fastest pair is `step`."""

    folder: Path
    layers: int
    batches: tuple[int, ...]
    target_id: str
    graphs: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._weights: Any = None
        self._references: dict[int, tuple[Any, ...]] = {}
        self._loaded: dict[tuple[Path, bool], Artifact] = {}
        self._decoders: dict[str, Any] = {}
        self._failures: dict[str, str] = {}

    def capture(self, batch: int) -> None:
        """Builds all artifacts, tells the tokens, and captures every pair of artifacts; those of before are dropped."""
        example_of_layers = example("llama_layers")
        if self._weights is None:
            self._begin(example_of_layers)
        self.graphs, self._decoders = {}, {}
        times = self._capture_pairs(example_of_layers, batch)
        best = min(times, key=lambda name: times[name])
        decoder, logits = self._decoders[best], self._logits[best]
        self.graphs["step"], self._decoders["step"] = self.graphs[best], decoder
        self.about = {"step": {"pair": best, "quick_ms": times} | self._judged(example_of_layers, batch, logits)}
        apart = self._pair(example_of_layers, batch, *self._pairs(batch)[best], shares_sms=False)
        self._add(example_of_layers, "default carve-out", apart, apart.step)
        self._add(example_of_layers, "attentions alone", decoder, launches_of(decoder, 0))
        self._add(example_of_layers, "blocks alone", decoder, launches_of(decoder, 1))

    def _begin(self, layers: Any) -> None:
        """Artifacts, what transformers' model tells at each batch size in bf16 and in fp32, then the weights."""
        begin = time.perf_counter()
        self._made = make_all(self.batches, LENGTH, self.folder, self.target_id)
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
                self._references[batch] = caches, read, theirs, read_again(wide, read)
        print(f"layers: references after {time.perf_counter() - begin:.1f} s", flush=True)
        self._weights = layers.Weights.taken_from(model)

    def _pairs(self, batch: int) -> dict[str, tuple[Path, ...]]:
        """The folders of attention and block, and of the last layer's block where there is one, by the names of the
        first two."""
        found: dict[str, dict[str, Path]] = {"block": {}, "last": {}, "attention": {}}
        for name, folder in self._made.items():
            kind, of_batch, own = name.split("/")
            if int(of_batch) == batch and isinstance(folder, Path):
                found[kind][own] = folder
        pairs = product(found["attention"].items(), found["block"].items())
        return {
            f"{name} | {other}": (attention, block, *([found["last"][other]] if other in found["last"] else []))
            for (name, attention), (other, block) in pairs
        }

    def _capture_pairs(self, layers: Any, batch: int) -> dict[str, float]:
        """Milliseconds of a few replays of each pair that computes what it should."""
        times: dict[str, float] = {}
        self._logits: dict[str, Any] = {}
        for name, paths in self._pairs(batch).items():
            try:
                decoder = self._pair(layers, batch, *paths)
            except RuntimeFailure as error:
                self._failures[name] = str(error)
                continue
            if (error_of_parts := parts_error(layers, decoder)) > PART_BAR:
                self._failures[name] = f"{error_of_parts:.4f} from the formula"
                continue
            self._logits[name] = self._add(layers, name, decoder, decoder.step)
            times[name] = round(layers.milliseconds(self.graphs[name], decoder, LENGTH // 2), 4)
        print(f"layers, batch {batch}: {times}; failed: {self._failures}", flush=True)
        return times

    def _pair(self, layers: Any, batch: int, *paths: Path, shares_sms: bool = True) -> Any:
        binds = []
        for path in paths:
            if (path, shares_sms) not in self._loaded:
                self._loaded[path, shares_sms] = load_artifact(path, shares_sms=shares_sms)
            binds.append(self._loaded[path, shares_sms].bind)
        return layers.TunedDecoder(self._weights, self._references[batch][0], LENGTH // 2, *binds)

    def _add(self, layers: Any, name: str, decoder: Any, step: Callable[[], Any]) -> Any:
        """Captures a step; what its graph leaves."""
        self._decoders[name] = decoder
        self.before(name)
        self.graphs[name], left = layers.captured(step)
        return left

    def _judged(self, layers: Any, batch: int, logits: Any) -> dict[str, Any]:
        """The logits of the tokens, beside those of transformers' model in bf16 and in fp32."""
        _, read, theirs, reference = self._references[batch]

        def replay() -> Any:
            self.graphs["step"].replay()
            return logits

        ours, kernels = (
            layers.retell(self._decoders["step"], read, LENGTH // 2, replay),
            self._loaded.values(),
        )
        return {
            "from_theirs": layers.worst_error(ours, theirs),
            "from_fp32": mean_error(layers, ours, reference),
            "theirs_from_fp32": mean_error(layers, theirs, reference),
            "same_tokens": float((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).float().mean()),
            "refused": [found for kernel in kernels if (found := kernel.refused())],
            "aborted": [kernel.aborted() for kernel in kernels].count(True),
            "failures": dict(self._failures),
        }

    def before(self, name: str) -> None:
        """The context of the step's sequences is as long as in any other turn; a whole step counts its token in."""
        self._decoders[name].lengths.fill_(LENGTH // 2 + name.endswith("alone"))

    def kernels(self, name: str) -> list[dict[str, Any]]:
        """Kernels of one replay, summed up by name."""
        from benchmarks.runtime.graph_nodes import by_kernel, timeline

        self.before(name)
        return by_kernel(timeline(self.graphs[name]), self.layers)


def launches_of(decoder: Any, first: int) -> Callable[[], None]:
    """A decoder's attentions alone (0), each with the kernel before it, or its blocks (1)."""
    import torch

    def step() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch in decoder.launches[first::2]:
            launch.enqueue(stream)

    return step


def parts_error(layers: Any, decoder: Any) -> float:
    """Of the first layer's attention and block, each over random rows: the greatest distance from the formula's. The
    cache has one more token then, behind all that counts."""
    import torch

    (before, after), worst = decoder.tensors[:2], 0.0
    decoder.lengths.fill_(LENGTH // 2 + NUM_TOKENS + 1)
    for given in (before["attention.qkv"], after["residual"]):
        given.normal_()
    stream = torch.cuda.current_stream().cuda_stream
    for tensors, launch, compute, results in (
        (before, decoder.launches[0], layers.attention_by_pytorch, ("attention", "attention.keys", "attention.values")),
        (
            after,
            decoder.launches[1],
            lambda one: layers.block_by_pytorch(one, decoder.weights.eps),
            ("down", "qkv", "qkv.keys", "qkv.values"),
        ),
    ):
        wanted = {name: tensors[name].clone() if name in (*results, "q") else tensors[name] for name in tensors}
        compute(wanted)
        for name in results:
            if name in ("attention", "down", "qkv"):
                tensors[name].fill_(float("nan"))
        launch.enqueue(stream)
        torch.cuda.synchronize()
        errors = [layers.worst_error([tensors[name]], [wanted[name]]) for name in results]
        worst = max([worst, *errors], key=lambda error: (error != error, error))
    return worst


def mean_error(layers: Any, found: Any, wanted: Any) -> float:
    """Over all tokens, the mean distance."""
    return float(sum(layers.worst_error([one], [other]) for one, other in zip(found, wanted, strict=True)) / len(found))


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """A model whose products are of its weights, and all else is in fp32; weights are widened one at a time."""
    import torch

    def product(self: Any, x: Any) -> Any:
        return torch.nn.functional.linear(x.float(), self.weight.float())

    linear, has_tf32 = torch.nn.Linear.forward, torch.backends.cuda.matmul.allow_tf32
    hook = model.model.embed_tokens.register_forward_hook(lambda module, given, found: found.float())
    torch.nn.Linear.forward, torch.backends.cuda.matmul.allow_tf32 = product, False
    try:
        yield
    finally:
        torch.nn.Linear.forward, torch.backends.cuda.matmul.allow_tf32 = linear, has_tf32
        hook.remove()


def read_again(decoder: Any, read: Any) -> Any:
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
