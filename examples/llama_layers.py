"""A decode step of transformers' own Llama whose layers are consecutive launches of tuner.

    tuner-client submit --preset decoder-layer --model llama3-8b --sequences 1 --max-length 1024 --dtype bf16 --watch
    tuner-client pack --job JOB -o layer.tunerpack
    python examples/llama_layers.py --pack layer.tunerpack --batch 1

A fetched artifact also works: `--layer layer.zip`.

A layer is one artifact: its attention, and all products from o_proj to the next layer's qkv, with their norms,
residuals and activation. That qkv rotates queries and keys, and writes keys and values to the next layer's cache. Each
launch begins while the one before it ends. PyTorch computes the embedding, the first norm and qkv, the last norm and
the head; before the first attention, a small separate kernel rotates and writes.

Attention and block may be separate artifacts: `--attention attention.zip --block block.zip`. After the last layer, no
op reads a qkv. With these, `--last last.zip`, a chain of only o_proj, gate_up and down, avoids it; otherwise it is
computed, and written to a separate cache.

The model is Llama-3-8B with random weights and a half-filled static cache. The norms' weights are folded in place into
the products that follow them, so no weight is stored twice, and the model can no longer run by itself. The output is
the milliseconds per step in a CUDA graph, and the distance of the logits of 64 tokens from transformers'.

Without a GPU it runs a tiny model with the launches' PyTorch formula, which tests the replacement but not the times:

    python examples/llama_layers.py --tiny
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent))

import torch
from llama_decode import LLAMA_3_8B, LOGITS_BAR, TINY, Decoder, build, captured
from llama_logits import LAYERS_BAR, NUM_TOKENS, caches_of, generate, judged, milliseconds, retell, worst_error
from transformers import LlamaForCausalLM

Tensors = Mapping[str, torch.Tensor]


class Launches(Protocol):
    """What a step enqueues: `tuner.runtime.Launches`, or a formula that replaces them."""

    def enqueue(self, stream: int) -> None:
        """Enqueues on a stream, given by its address."""


#: Binds tensors to launches by name: `bind` of an artifact, or of a formula.
Bind = Callable[[Tensors], Launches]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a model, as the launches read them."""

    #: [vocabulary, hidden], fp32 [head_dim / 2] radians a token, and the head's norm and product.
    embedding: torch.Tensor
    frequencies: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor
    eps: float
    num_heads: int
    #: The product before the first attention, with the heads' rows in PyTorch's order.
    first_qkv: torch.Tensor
    #: Weights of each layer, by the names of the block's tensors; `qkv.w` belongs to the next layer, so the last layer
    #: has none.
    layers: list[dict[str, torch.Tensor]]

    @classmethod
    def taken_from(cls, model: LlamaForCausalLM) -> Weights:
        """Merges and folds a model's weights, and frees the originals, layer by layer.

        Raises:
            ValueError: the model has something that the launches do not support.
        """
        config, rotary = model.config, model.model.rotary_emb
        if config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
            raise ValueError(
                "the launches support neither biases nor activations other than SiLU, which this model has"
            )
        if rotary.attention_scaling != 1.0 or "dynamic" in rotary.rope_type or rotary.rope_type == "longrope":
            raise ValueError(
                f"rotary embeddings of type {rotary.rope_type}, which depend on the length or a scale, are "
                "not supported"
            )
        layers = [_taken_from(layer) for layer in model.model.layers]
        first_qkv, *behind = [layer.pop("qkv.w") for layer in layers]
        for layer, qkv in zip(layers, behind, strict=False):
            layer["qkv.w"] = halves_first(qkv, config.head_dim)
        return cls(
            embedding=model.model.embed_tokens.weight,
            frequencies=rotary.inv_freq.float().contiguous(),
            norm=model.model.norm.weight,
            head=model.lm_head.weight,
            eps=config.rms_norm_eps,
            num_heads=config.num_attention_heads,
            first_qkv=first_qkv,
            layers=layers,
        )


def _taken_from(layer: Any) -> dict[str, torch.Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    found = {
        "qkv.w": _merged(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj),
        "o_proj.w": attention.o_proj.weight.detach(),
        "gate_up.w": _merged(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj),
        "down.w": mlp.down_proj.weight.detach(),
    }
    attention.o_proj.weight = mlp.down_proj.weight = None
    return found


def _merged(norm: Any, *projections: torch.nn.Linear) -> torch.Tensor:
    """The projections' rows concatenated, times the weight of the norm before them; frees the originals."""
    rows = torch.cat([one.weight for one in projections])
    for one in projections:
        one.weight = None
    return rows.mul_(norm.weight)


def halves_first(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorders rows of heads in place: first halves of all heads, then second halves, as a rotated product has them."""
    halves = rows.view(-1, 2, head_dim // 2, rows.shape[1]).transpose(0, 1)
    return rows.copy_(halves.reshape(rows.shape))


class TunedDecoder:
    """Decodes each sequence's next token. A step may be captured in a CUDA graph and then replayed token by token."""

    def __init__(
        self,
        weights: Weights,
        caches: Sequence[tuple[torch.Tensor, torch.Tensor]],
        begin: int,
        attention: Bind,
        block: Bind,
        last: Bind | None = None,
    ) -> None:
        """`caches` has keys and values of each layer, [sequences, KV heads, longest context, head_dim], contiguous.
        Each sequence has filled `begin` tokens of them. `last` replaces the last layer's block, without a qkv."""
        keys, _ = caches[0]
        batch, kv_heads, _, head_dim = keys.shape
        self.weights, hidden = weights, weights.embedding.shape[1]
        like = {"dtype": keys.dtype, "device": keys.device}
        #: int32: each sequence's length, including the new token that `step` adds.
        self.lengths = torch.full((batch,), begin, dtype=torch.int32, device=keys.device)
        self.tokens = torch.zeros(batch, dtype=torch.long, device=keys.device)
        columns = weights.num_heads * head_dim
        self._qkv = torch.zeros(batch, columns + 2 * kv_heads * head_dim, **like)
        queries, attended = torch.zeros(batch, columns, **like), torch.zeros(batch, columns, **like)
        self._stream = [torch.zeros(batch, hidden, **like) for _ in range(2)]
        of_all = {"lengths": self.lengths, "frequencies": weights.frequencies}
        #: For each layer, the attention and the block, with the tensors to which they are bound.
        self.launches: list[Launches] = []
        self.tensors: list[dict[str, torch.Tensor]] = []
        for i, (own, cache) in enumerate(zip(weights.layers, caches, strict=True)):
            before = {"q": queries, "attention": attended, "attention.lengths": self.lengths}
            before |= {"attention.keys": cache[0], "attention.values": cache[1]}
            if i == 0:  # no block comes before it
                before |= {"attention.qkv": self._qkv, "attention.frequencies": weights.frequencies}
            after = {"attention": attended, "residual": self._stream[i % 2], "down": self._stream[(i + 1) % 2], **own}
            is_last = i == len(caches) - 1
            if last is None or not is_last:
                behind = [torch.zeros_like(keys) for _ in range(2)] if is_last else caches[i + 1]
                after |= {"qkv.w": weights.first_qkv} if is_last else {}  # any value, since nothing reads it
                after |= {"qkv": queries, "qkv.keys": behind[0], "qkv.values": behind[1]}
                after |= {f"qkv.{name}": tensor for name, tensor in of_all.items()}
            self.launches += [attention(before), last(after) if last is not None and is_last else block(after)]
            self.tensors += [before, after]

    def step(self) -> torch.Tensor:
        """The logits [sequences, vocabulary] after `tokens`, which are appended to their sequences."""
        weights, functions = self.weights, torch.nn.functional
        self.lengths.add_(1)
        self._stream[0].copy_(functions.embedding(self.tokens, weights.embedding))
        torch.mm(self._normed(self._stream[0]), weights.first_qkv.T, out=self._qkv)
        stream = torch.cuda.current_stream().cuda_stream if self._qkv.is_cuda else 0
        for launch in self.launches:
            launch.enqueue(stream)
        found = self._stream[len(weights.layers) % 2]
        return functions.linear(self._normed(found) * weights.norm, weights.head)

    def _normed(self, rows: torch.Tensor) -> torch.Tensor:
        """The norm without a weight, because the first layer's is folded into its product."""
        return torch.nn.functional.rms_norm(rows, rows.shape[-1:], eps=self.weights.eps)


class Formula:
    """Computes with PyTorch what an artifact's launches compute, for a machine without a GPU."""

    def __init__(self, compute: Callable[[Tensors], None], tensors: Tensors) -> None:
        self._compute, self._tensors = compute, tensors

    def enqueue(self, stream: int) -> None:
        """Computes immediately."""
        self._compute(self._tensors)


def attention_by_pytorch(given: Tensors) -> None:
    """Attends to each sequence's tokens; if a row of queries, keys and values is given, it is rotated and written
    first."""
    keys, values = given["attention.keys"], given["attention.values"]
    kv_heads, lengths = keys.shape[1], given["attention.lengths"]
    if "attention.qkv" in given:
        turn_and_write(given["attention.qkv"], given["q"], keys, values, lengths, given["attention.frequencies"])
    for row, length in enumerate(lengths.tolist()):
        queries = given["q"][row].view(kv_heads, -1, keys.shape[3])
        seen = (cache[row, :, :length] for cache in (keys, values))
        given["attention"][row] = torch.nn.functional.scaled_dot_product_attention(queries, *seen).reshape(-1)


def turn_and_write(
    qkv: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    frequencies: torch.Tensor,
) -> None:
    """Rotates each sequence's new token and writes it to the caches. `qkv` [sequences, all heads] is in PyTorch's
    order."""
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    for row, length in enumerate(lengths.tolist()):
        heads = qkv[row].view(-1, head_dim).float()
        angles = (length - 1) * frequencies
        x, y = heads.chunk(2, dim=-1)
        turned = torch.cat([x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()], dim=-1)
        queries[row] = turned[: -2 * kv_heads].reshape(-1).to(queries.dtype)
        keys[row, :, length - 1] = turned[-2 * kv_heads : -kv_heads].to(keys.dtype)
        values[row, :, length - 1] = heads[-kv_heads:].to(values.dtype)


def block_by_pytorch(given: Tensors, eps: float) -> None:
    """Computes the ops from o_proj to the next layer's qkv, if there is a next layer; its qkv is rotated and written to
    its cache."""
    functions, width = torch.nn.functional, given["residual"].shape[-1:]
    stream = functions.linear(given["attention"], given["o_proj.w"]) + given["residual"]
    gate, up = functions.linear(functions.rms_norm(stream, width, eps=eps), given["gate_up.w"]).chunk(2, dim=-1)
    given["down"].copy_(functions.linear(functions.silu(gate) * up, given["down.w"]) + stream)
    if "qkv.w" not in given:
        return
    halves = functions.linear(functions.rms_norm(given["down"], width, eps=eps), given["qkv.w"])
    half = given["qkv.keys"].shape[3] // 2
    qkv = halves.view(len(halves), 2, -1, half).transpose(1, 2).reshape(halves.shape)
    cache = (given[f"qkv.{name}"] for name in ("keys", "values", "lengths", "frequencies"))
    turn_and_write(qkv, given["qkv"], *cache)


class Both:
    """Launches of a whole layer, bound once the tensors of both parts are known; a part alone does nothing."""

    def __init__(self, bind: Bind) -> None:
        self._bind, self._before = bind, dict[str, torch.Tensor]()

    def attention(self, tensors: Tensors) -> Launches:
        """Keeps the tensors of a layer's attention for its block."""
        self._before = dict(tensors)
        return Formula(lambda given: None, tensors)

    def block(self, tensors: Tensors) -> Launches:
        """Binds the whole layer."""
        return self._bind({**self._before, **tensors})


def loaded(paths: Sequence[Path], pack: Path | None, batch: int, length: int) -> list[Any]:
    """The artifacts at `paths`, or a pack's whole layer, which starts with its attention.

    Raises:
        SystemExit: the pack uses the library, or the layer begins with its own qkv.
    """
    import tuner.runtime as runtime

    torch.zeros(1, device="cuda")  # makes the card's context current
    if pack is None:
        found = [runtime.load_artifact(path, shares_sms=True) for path in paths]
    else:
        layer = runtime.load(pack).layer(sequences=batch, length=length, shares_sms=True)
        if layer is None:
            raise SystemExit(f"the pack leaves {batch} sequences of {length} tokens to the library")
        found = [layer.artifact]
    if "launch_order" in found[0].manifest:
        raise SystemExit("this layer begins with its own qkv: run it with llama_from_qkv.py")
    return found


def on_card(kernels: Sequence[Any], batch: int, length: int, layers: int) -> int:
    """Checks the whole model; returns 1 if the logits do not agree."""
    model = build(LLAMA_3_8B | {"num_hidden_layers": layers}, "cuda")
    decoder = Decoder.of(model, batch, length)
    caches = caches_of(decoder)
    read, wanted = generate(decoder, NUM_TOKENS)
    whole = Both(kernels[0].bind)
    binds = [one.bind for one in kernels] if len(kernels) > 1 else [whole.attention, whole.block]
    tuned = TunedDecoder(Weights.taken_from(model), caches, length // 2, *binds)
    graph, logits = captured(tuned.step)

    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    error = worst_error(retell(tuned, read, length // 2, replay), wanted)
    print(f"batch {batch}: {milliseconds(graph, tuned, length // 2):.3f} ms per step")
    return judged(f"logits of {NUM_TOKENS} tokens", error, LAYERS_BAR, [kernel.refused() for kernel in kernels])


def tiny() -> int:
    """Checks a small model on the CPU; returns 1 if the logits do not agree."""
    model = build(TINY, "cpu")
    decoder = Decoder.of(model, 3, 64)
    caches, plain = caches_of(decoder), replace(decoder, cache=copy.deepcopy(decoder.cache))
    read, wanted = generate(plain, 8)
    weights = Weights.taken_from(model)
    tuned = TunedDecoder(
        weights,
        caches,
        32,
        lambda tensors: Formula(attention_by_pytorch, tensors),
        lambda tensors: Formula(lambda given: block_by_pytorch(given, weights.eps), tensors),
    )
    return judged("tiny: logits of 8 tokens", worst_error(retell(tuned, read, 32, tuned.step), wanted), LOGITS_BAR, [])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="a pack of a layer that starts with its attention")
    parser.add_argument("--layer", type=Path, help="or a programmatic artifact of such a layer")
    parser.add_argument("--attention", type=Path, help="or an artifact of only decode attention ...")
    parser.add_argument("--block", type=Path, help="... and one of the four products between two attentions")
    parser.add_argument("--last", type=Path, help="with these, an artifact of o_proj, gate_up, down for the last layer")
    parser.add_argument("--batch", type=int, default=1, help="sequences per step, as in the artifacts")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the cache; half of it is filled")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, without artifacts")
    options = parser.parse_args(arguments)
    if options.last and (options.layer or options.pack):
        parser.error("--last needs --attention and --block: other artifacts have the attention and all products in one")
    artifacts = [options.layer or options.pack] if options.layer or options.pack else [options.attention, options.block]
    if not options.tiny and (None in artifacts or not torch.cuda.is_available()):
        parser.error("pass --pack, --layer, or --attention and --block, on a machine with a GPU; or --tiny, on the CPU")
    with torch.inference_mode():
        if options.tiny:
            return tiny()
        paths = [*artifacts, *([options.last] if options.last else [])]
        kernels = loaded(paths, options.pack, options.batch, options.length)
        return on_card(kernels, options.batch, options.length, options.layers)


if __name__ == "__main__":
    raise SystemExit(main())
