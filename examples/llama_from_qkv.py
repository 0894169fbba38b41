"""A decode step of transformers' own Llama whose layers are `torch.ops.tuner.decoder_layer`: each starts with its own
qkv.

    tuner-client submit --preset decoder-layer --model llama3-8b --run from_qkv --sequences 1 --max-length 1024 \\
        --dtype bf16 --watch
    tuner-client pack --job JOB -o layers.tunerpack
    python examples/llama_from_qkv.py layers.tunerpack --batch 1

A layer is one call. It normalizes its input, computes queries, keys and values, rotates them, writes to its own cache,
attends, and computes o_proj and the MLP with both residuals. PyTorch computes the embedding, the last norm and the
head, and the sums of squares for each layer's first norm. `llama_layers.py` needs no kernels between two layers, since
the previous layer computes the sums. Use this example if there is an operation between two layers, such as an
all-reduce, or if PyTorch should compile the step.

The model is Llama-3-8B with random weights and a half-filled static cache. The output is the milliseconds per step in a
CUDA graph, and the distance of the logits of 64 tokens from transformers'. If the pack leaves this batch and length to
the library, PyTorch's own operators compute the layers.

Without a GPU it runs a tiny model with the operator's PyTorch formula, which tests the replacement but not the times:

    python examples/llama_from_qkv.py --tiny
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from llama_decode import LLAMA_3_8B, LOGITS_BAR, TINY, Decoder, build, captured
from llama_layers import Weights, halves_first
from llama_logits import LAYERS_BAR, NUM_TOKENS, caches_of, generate, judged, milliseconds, retell, worst_error

import tuner.runtime as runtime
from tuner.runtime import torch_layer

OPS = ("qkv", "attention", "o_proj", "gate_up", "down")


class OperatorDecoder:
    """Decodes each sequence's next token. A step may be captured in a CUDA graph and then replayed token by token."""

    def __init__(self, weights: Weights, caches: Sequence[tuple[torch.Tensor, torch.Tensor]], begin: int) -> None:
        """`caches` has keys and values of each layer, [sequences, KV heads, longest context, head_dim], contiguous.
        Each sequence has already filled `begin` tokens of them."""
        keys, _ = caches[0]
        self.weights, self._caches = weights, caches
        self._scale = keys.shape[3] ** -0.5
        #: int32: each sequence's length, including the new token that `step` adds.
        self.lengths = torch.full((keys.shape[0],), begin, dtype=torch.int32, device=keys.device)
        self.tokens = torch.zeros(keys.shape[0], dtype=torch.long, device=keys.device)
        behind = [layer["qkv.w"] for layer in weights.layers[:-1]]  # for each layer, the qkv of the next one
        self._qkv = [halves_first(weights.first_qkv, keys.shape[3]), *behind]

    def step(self) -> torch.Tensor:
        """The logits [sequences, vocabulary] after `tokens`, which are appended to their sequences."""
        weights, functions = self.weights, torch.nn.functional
        self.lengths.add_(1)
        x = functions.embedding(self.tokens, weights.embedding)
        for layer, qkv, (keys, values) in zip(weights.layers, self._qkv, self._caches, strict=True):
            x = torch.ops.tuner.decoder_layer(
                x, None, qkv, None, weights.frequencies, keys, values, self.lengths, None, layer["o_proj.w"],
                layer["gate_up.w"], layer["down.w"], weights.eps, True, True, self._scale, 0, 0.0,
            )  # fmt: skip
        return functions.linear(functions.rms_norm(x, x.shape[-1:], weights.norm, weights.eps), weights.head)


def layer_of(pack: runtime.Pack, batch: int, length: int) -> runtime.Layer | None:
    """The pack's layer for this batch, whose cache has `length` tokens; None if the pack uses the library.

    Raises:
        SystemExit: the kernels' cache has a different length.
    """
    layer = pack.layer(*OPS, sequences=batch, length=length)
    if layer is not None and (longest := layer.shape("attention.keys")[2]) != length:
        raise SystemExit(f"the pack's layer has caches of {longest} tokens: use --length {longest}")
    return layer


def on_card(path: Path, batch: int, length: int, layers: int) -> int:
    """Checks the whole model; returns 1 if the logits do not agree."""
    model = build(LLAMA_3_8B | {"num_hidden_layers": layers}, "cuda")
    decoder = Decoder.of(model, batch, length)
    caches = caches_of(decoder)
    read, wanted = generate(decoder, NUM_TOKENS)
    layer = layer_of(runtime.load(path), batch, length)
    if layer is not None:
        torch_layer.register(layer)
    tuned = OperatorDecoder(Weights.taken_from(model), caches, length // 2)
    graph, logits = captured(tuned.step)

    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    error = worst_error(retell(tuned, read, length // 2, replay), wanted)
    whose = "the pack's layers" if layer is not None else "the pack says to use PyTorch's own operators"
    print(f"batch {batch}, {whose}: {milliseconds(graph, tuned, length // 2):.3f} ms per step")
    refused = [layer.refused(), "a launch was aborted" * layer.aborted()] if layer is not None else []
    return judged(f"logits of {NUM_TOKENS} tokens", error, LAYERS_BAR, refused)


def tiny() -> int:
    """Checks a small model on the CPU; returns 1 if the logits do not agree."""
    model = build(TINY, "cpu")
    decoder = Decoder.of(model, 3, 64)
    caches, plain = caches_of(decoder), replace(decoder, cache=copy.deepcopy(decoder.cache))
    read, wanted = generate(plain, 8)
    tuned = OperatorDecoder(Weights.taken_from(model), caches, 32)
    error = worst_error(retell(tuned, read, 32, tuned.step), wanted)
    return judged("tiny: logits of 8 tokens", error, LOGITS_BAR, [])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, nargs="?", help="a pack of layers that start with their qkv")
    parser.add_argument("--batch", type=int, default=1, help="sequences per step, as in the pack")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the cache; half of it is filled")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, without a pack")
    options = parser.parse_args(arguments)
    if not options.tiny and (options.pack is None or not torch.cuda.is_available()):
        parser.error("pass a pack on a machine with a GPU, or --tiny on the CPU")
    with torch.inference_mode():
        return tiny() if options.tiny else on_card(options.pack, options.batch, options.length, options.layers)


if __name__ == "__main__":
    raise SystemExit(main())
