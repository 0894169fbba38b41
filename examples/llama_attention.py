"""The attention of transformers' own Llama, and the projection after it, computed by a pack's kernels.

    tuner-client tune-model config.json --dtype bf16 --m 1 --context 1024 -o llama.tunerpack

    llama_attention.replace_attentions(model, runtime.load("llama.tunerpack"), [(1, 1024)])

It implements transformers' attention interface with `torch.ops.tuner.attention_proj`, so torch.compile can compile the
whole model. It is for decode steps with a static cache: one new token per sequence, and no left padding. The model is
in `examples/llama_decode.py`.

    python examples/llama_attention.py llama.tunerpack --batch 1 --json rows.json

times the compiled step of this model with MLPs and attentions by the pack, like `llama_decode.py`, on a GPU with 48 GB.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from llama_decode import LLAMA_3_8B, LOGITS_BAR, at_least, at_most, build, measure, rel_error, replace_mlps
from transformers import AttentionInterface, LlamaForCausalLM

import tuner.runtime as runtime
from tuner.runtime import torch_attention

NAME = "tuner"


class Projected(torch.nn.Module):
    """Replaces o_proj, whose input is already projected; only holds its weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` unchanged."""
        return x


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    position_ids: torch.Tensor,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Called by transformers: `query` [sequences, heads, 1, head_dim], `key` and `value` the whole cache."""
    sequences, heads, new_tokens, head_dim = query.shape
    lengths = (position_ids[:, -1] + 1).to(torch.int32)
    rows = query.transpose(1, 2).reshape(sequences * new_tokens, heads * head_dim)
    y = torch.ops.tuner.attention_proj(rows, key, value, lengths, None, module.o_proj.weight, True, scaling, 0, 0.0)
    return y.view(sequences, new_tokens, -1), None


def replace_attentions(
    model: LlamaForCausalLM, pack: runtime.Pack | None, sizes: Sequence[tuple[int, int]] = ()
) -> None:
    """Replaces each attention and its projection with the operator. `sizes`: pairs of sequences and cache rows.

    Raises:
        RuntimeError: for one of `sizes`, the pack uses the library, which is transformers' own attention.
    """
    config = model.config
    for sequences, length in sizes:
        attention = pack and pack.attention(
            sequences=sequences,
            length=length,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=str(model.dtype).removeprefix("torch."),
            d_out=config.hidden_size,
        )
        if attention is None or attention.op["max_length"] != length:
            raise RuntimeError(f"the pack has no kernels for {sequences} sequences in a cache of {length} rows")
        torch_attention.register(attention)
    for layer in model.model.layers:
        if layer.self_attn.o_proj.bias is not None:
            raise RuntimeError("o_proj has a bias, which the kernels do not support")
        layer.self_attn.o_proj = Projected(layer.self_attn.o_proj.weight.detach())
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def decode(path: Path, batches: Sequence[int], length: int) -> list[dict[str, Any]]:
    """Checks the whole compiled step on a card, against the model without the pack."""
    models, pack = [build(LLAMA_3_8B, "cuda") for _ in range(2)], runtime.load(path)
    replace_mlps(models[1], pack)
    replace_attentions(models[1], pack, [(batch, length) for batch in batches])
    rows = []
    for batch in batches:
        gc.collect()
        torch.cuda.empty_cache()
        before, after = measure(models, batch, length, "default")
        at = f"llama-3-8b, batch {batch}, the attention by the pack, too"
        raw = {"before_ms": round(before.compiled_ms, 4), "after_ms": round(after.compiled_ms, 4)}
        raw |= {"eager_before_ms": round(before.eager_ms, 4), "eager_after_ms": round(after.eager_ms, 4)}
        raw |= {"programmatic_edges": after.programmatic_edges}
        rows.append(at_most(f"{at}: logits", rel_error(after.logits, before.logits), LOGITS_BAR))
        rows.append(at_least(f"{at}: compiled step", before.compiled_ms / after.compiled_ms, 1.0, **raw))
    if aborts := pack.aborts():
        rows.append({"check": "llama-3-8b, attention: aborts", "value": None, "bar": 0, "holds": False, "said": aborts})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="a pack with the model's MLPs, and its attentions with o_proj")
    parser.add_argument("--batch", default="1", help="sequences per step, separated by commas")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the cache; half of it is filled")
    parser.add_argument("--json", type=Path, help="where the rows go")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("a GPU is needed; on a CPU, `llama_decode.py --tiny` tests the replacement of MLPs")
    with torch.inference_mode():
        rows = decode(options.pack, [int(part) for part in options.batch.split(",")], options.length)
    for row in rows:
        print(row)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
