"""Writes a checkpoint of a Llama with random quantised weights, in a format's own layout, for vLLM to load.

python -m benchmarks.runtime.vllm_checkpoints CONFIG FORMAT OUT [--layers 8]

CONFIG is the config.json of the unquantised model. A dummy load will not do, since vLLM looks for quantised layers in
the files. With Llama-3-8B's sizes, 8 layers of 4 bits are 2 GB. It needs PyTorch and safetensors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

GROUP = 128
#: The order of eight columns in a word of AWQ.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
#: A word of zero points of 8, which GPTQ stores minus one.
EIGHTS = 0x77777777
#: A vocabulary, its embedding and its head need only be there.
VOCABULARY = 32_000

Made = dict[str, torch.Tensor]


def words(codes: torch.Tensor) -> torch.Tensor:
    """Codes of 4 bits [rows, columns] as int32 [rows, columns / 8], lowest bits first."""
    eight = codes.view(len(codes), -1, 8).to(torch.int64)
    found = (eight << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


def _drawn(rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [rows, k] and scales [rows, k / GROUP], which give values of about the size of trained ones."""
    return torch.randint(16, (rows, k)), (0.002 + 0.002 * torch.rand(rows, k // GROUP)).to(torch.float16)


def gptq(rows: int, k: int) -> Made:
    """Words along k, symmetric."""
    codes, scales = _drawn(rows, k)
    zeros = torch.full((k // GROUP, rows // 8), EIGHTS, dtype=torch.int32)
    group_of = (torch.arange(k) // GROUP).to(torch.int32)
    return {"qweight": words(codes).T, "scales": scales.T, "qzeros": zeros, "g_idx": group_of}


def awq(rows: int, k: int) -> Made:
    """Words along rows, in an order of their own, with zero points."""
    codes, scales = _drawn(rows, k)
    zeros = torch.randint(6, 10, (rows, k // GROUP))

    def packed(values: torch.Tensor) -> torch.Tensor:
        return words(values.T.reshape(-1, rows // 8, 8)[:, :, AWQ_ORDER].reshape(-1, rows))

    return {"qweight": packed(codes), "scales": scales.T, "qzeros": packed(zeros)}


def compressed(rows: int, k: int) -> Made:
    """Words along k, symmetric."""
    codes, scales = _drawn(rows, k)
    return {
        "weight_packed": words(codes),
        "weight_scale": scales.to(torch.bfloat16),
        "weight_shape": torch.tensor([rows, k]),
    }


def compressed_fp8(rows: int, k: int) -> Made:
    """fp8 with a scale for each row."""
    weight = (100 * torch.randn(rows, k)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": weight, "weight_scale": 0.0001 + 0.0001 * torch.rand(rows, 1)}


def _of_groups(weights: Mapping[str, Any], form: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


#: For each format, the tensors of a product, and the model's quantization_config.
FORMATS: dict[str, tuple[Callable[[int, int], Made], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "compressed": (
        compressed,
        _of_groups({"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}, "pack-quantized"),
    ),
    "compressed_fp8": (
        compressed_fp8,
        _of_groups({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized"),
    ),
}


def products(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows and columns of each product of a layer."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    keys = config["num_key_value_heads"] * width
    return {
        "self_attn.q_proj": (heads * width, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, heads * width),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def write(config: Mapping[str, Any], name: str, layers: int, out: Path) -> None:
    """Writes config.json and model.safetensors."""
    make, quantisation = FORMATS[name]
    hidden = config["hidden_size"]
    torch.manual_seed(1)
    found = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": 0.1 * torch.randn(VOCABULARY, hidden),
    }
    for layer in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{norm}.weight"] = torch.ones(hidden)
    found = {name: values.to(torch.bfloat16) for name, values in found.items()}
    for layer in range(layers):
        for product, (rows, k) in products(config).items():
            for ending, values in make(rows, k).items():
                found[f"model.layers.{layer}.{product}.{ending}"] = values.contiguous()
    out.mkdir(parents=True, exist_ok=True)
    save_file(found, out / "model.safetensors", metadata={"format": "pt"})
    sizes = {"num_hidden_layers": layers, "vocab_size": VOCABULARY, "tie_word_embeddings": False}
    about = {**config, **sizes, "quantization_config": quantisation}
    (out / "config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")


def main() -> None:
    """Reads the config, and writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    given = parser.parse_args()
    write(json.loads(given.config.read_text(encoding="utf-8")), given.format, given.layers, given.out)


if __name__ == "__main__":
    main()
