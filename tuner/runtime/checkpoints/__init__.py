"""Quantised checkpoints' tensors as kernels read them, and back.

    config = json.load(open("config.json"))["quantization_config"]
    up = convert(tensors, ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"), config)
    layer({"x": x, "up.w": up.weights, ...})

A converted product holds all that its tensors said, so these may be freed. `restored` gives them back, bit by bit.
"""

from tuner.runtime.checkpoints.converting import Converted, convert, restored

__all__ = ["Converted", "convert", "restored"]
