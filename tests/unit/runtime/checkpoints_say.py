"""Writes `checkpoints/*.safetensors`: modules packed by the formats' own libraries, and the values that they represent.

It requires compressed-tensors, vLLM (for GPTQ's packing) and safetensors: `python
tests/unit/runtime/checkpoints_say.py`.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("checkpoints")
ROWS, K = 32, 256


def main() -> None:
    """Writes all files, each with its `quantization_config` in the file's metadata."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    FOLDER.mkdir(exist_ok=True)
    for name, (tensors, config) in {**_compressed(torch), **_gptq(torch), **_mxfp4(torch)}.items():
        named = {f"mlp.{what}": tensor.contiguous() for what, tensor in tensors.items()}
        write = importlib.import_module("safetensors.torch").save_file
        write(named, FOLDER / f"{name}.safetensors", metadata={"quantization_config": json.dumps(config)})


def _compressed(torch: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Packs with compressed-tensors' compressors."""
    of = importlib.import_module("compressed_tensors.quantization")
    packing = importlib.import_module("compressed_tensors.compressors")
    functions = importlib.import_module("compressed_tensors.quantization.lifecycle.forward")
    found = {}
    for name, given in {
        "compressed_int4_g128": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
        "compressed_int4_g64": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64},
        "compressed_int4_zp": {
            "num_bits": 4,
            "type": "int",
            "strategy": "group",
            "group_size": 128,
            "symmetric": False,
        },
        "compressed_fp8": {"num_bits": 8, "type": "float", "strategy": "channel"},
    }.items():
        w = torch.randn(ROWS, K, dtype=torch.bfloat16)
        given = {"symmetric": True, **given}
        args = of.QuantizationArgs(**given)
        groups = w.view(ROWS, -1, given.get("group_size", K)).float()
        largest = 448.0 if given["type"] == "float" else 7.5
        scale = (groups.abs().amax(2) / largest).to(torch.bfloat16)
        zeros = torch.zeros_like(scale)
        if not given["symmetric"]:
            scale = ((groups.amax(2) - groups.amin(2)) / 15).to(torch.bfloat16)
            zeros = (-8 - groups.amin(2) / scale.float()).round().clamp(-8, 7)
        if given["type"] == "float":
            values = functions.quantize(w, scale, torch.zeros_like(scale), args, dtype=torch.float8_e4m3fn)
            tensors = {"weight": values, "weight_scale": scale}
            expected = values.float() * scale.float()
        else:
            values = functions.quantize(w, scale, zeros, args, dtype=torch.int8)
            packed = packing.pack_to_int32(values, 4)
            assert (packing.unpack_from_int32(packed, 4, values.shape) == values).all()
            shape = torch.tensor([ROWS, K])
            tensors = {"weight_packed": packed, "weight_scale": scale, "weight_shape": shape}
            points, factors = (one.float().repeat_interleave(given["group_size"], 1) for one in (zeros, scale))
            expected = (values.float() - points) * factors
            if not given["symmetric"]:
                tensors["weight_zero_point"] = packing.pack_to_int32(zeros.to(torch.int8), 4, packed_dim=0)
        group = {"weights": given, "targets": ["Linear"]}
        config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
        found[name] = ({**tensors, "expected": expected}, config)
    return found


def _gptq(torch: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Packs with vLLM's functions, which write the layout of GPTQ's kernels."""
    tools = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    types = importlib.import_module("vllm.scalar_type").scalar_types
    w = torch.randn(K, ROWS, dtype=torch.float16)
    expected, codes, scales, _ = tools.quantize_weights(w, types.uint4b8, 128)
    tensors = {
        "qweight": tools.gptq_pack(codes, 4, K, ROWS),
        "scales": scales,
        "qzeros": torch.full((K // 128, ROWS // 8), 0x77777777, dtype=torch.int32),
        "g_idx": torch.arange(K, dtype=torch.int32) // 128,
        "expected": (codes.float() - 8).t() * scales.float().t().repeat_interleave(128, 1),
    }
    assert (tensors["expected"].half().t() - expected).abs().max() < 0.01
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    w = torch.randn(K, ROWS, dtype=torch.float16)
    expected, codes, scales, zeros = tools.quantize_weights(w, types.uint4, 128, zero_points=True)
    spread = [one.float().t().repeat_interleave(128, 1) for one in (zeros, scales)]
    awq = {
        "qweight": tools.awq_pack(codes, 4, K, ROWS),
        "scales": scales,
        "qzeros": tools.awq_pack(zeros.to(torch.int32), 4, K // 128, ROWS),
        "expected": (codes.float().t() - spread[0]) * spread[1],
    }
    assert (awq["expected"].half().t() - expected).abs().max() < 0.01
    named = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    return {"gptq": (tensors, config), "awq": (awq, named)}


def _mxfp4(torch: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Packs with compressed-tensors' compressor."""
    of = importlib.import_module("compressed_tensors.quantization")
    by = importlib.import_module("compressed_tensors.compressors.mxfp4").MXFP4PackedCompressor
    given = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    weights = of.QuantizationArgs(**given)
    scheme = of.QuantizationScheme(targets=["Linear"], weights=weights)
    w = torch.randn(ROWS, K, dtype=torch.bfloat16)
    largest = w.view(ROWS, -1, 32).float().abs().amax(2)
    scale = (largest.log2().floor() - 2).exp2().to(torch.bfloat16)
    tensors = by.compress({"weight": w, "weight_scale": scale}, scheme)
    expected = by.decompress(dict(tensors), scheme)["weight"]
    group = {"weights": given, "targets": ["Linear"], "format": "mxfp4-pack-quantized"}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    return {"compressed_mxfp4": ({**tensors, "expected": expected.float()}, config)}


if __name__ == "__main__":
    main()
