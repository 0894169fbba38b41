"""Checkpoints with random weights are in the layout of each format, as the converter reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.quantisation.said import FIELD
from tuner.runtime.checkpoints import convert

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize("name", ["gptq", "awq", "compressed"])
def test_codes_are_where_the_format_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.runtime import vllm_checkpoints as program

    codes, scales = program._drawn(64, 256)
    monkeypatch.setattr(program, "_drawn", lambda rows, k: (codes, scales))
    make, quantisation = program.FORMATS[name]
    found = convert({f"mlp.{ending}": values for ending, values in make(64, 256).items()}, "mlp", quantisation)
    values = found.stored.row.known(np, found.weights, found.k, (found.dtype or Dtype.FP16).row).reshape(64, 2, 128)
    zero_points = codes.numpy().reshape(64, 2, 128) - np.round(values / scales.numpy()[:, :, None])
    assert (zero_points == zero_points[:, :, :1]).all()
    assert 6 <= zero_points.min() <= zero_points.max() <= 9


@pytest.mark.parametrize("name", ["gptq", "awq", "compressed", "compressed_fp8"])
def test_every_product_is_read_and_its_values_are_those_of_a_model(name: str, tmp_path: Path) -> None:
    from benchmarks.runtime.vllm_checkpoints import products, write

    write(CONFIG, name, 2, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        for product, (rows, k) in products(CONFIG).items():
            found = convert(tensors, f"model.layers.{layer}.{product}", config[FIELD])
            values = found.stored.row.known(np, found.weights, found.k, (found.dtype or Dtype.BF16).row)
            if found.channels is not None:
                values = values * found.channels[:, None]
            assert (len(values), found.k) == (rows, k)
            assert np.isfinite(values).all()
            assert 0.005 < values.std() < 0.05
            assert abs(values.mean()) < 0.005
