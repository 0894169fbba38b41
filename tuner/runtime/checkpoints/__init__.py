"""Quantised checkpoints' tensors in the kernels' layout, and back.

    config = json.load(open("config.json"))["quantization_config"]
    mlp, names = pack.chain("up", "down", rows=16), "model.layers.0.mlp.{}_proj"
    weights = feed_forward(tensors, config, mlp.tensors, up=..., down=...)  # by the names of the kernel's tensors
    mlp({"x": x, "down": y, **{name: device(array) for name, array in weights.items()}})

`convert` converts a single product.

A converted product contains everything that its tensors did, so these may be freed. `restored` returns them, bit by
bit.
"""

from tuner.runtime.checkpoints.converting import Converted, convert, restored
from tuner.runtime.checkpoints.feed_forward import feed_forward

__all__ = ["Converted", "convert", "feed_forward", "restored"]
