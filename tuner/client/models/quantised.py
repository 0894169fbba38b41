"""From the config of a quantised model to its feed-forward blocks, as one tensor-parallel rank has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.asked import workload_of
from tuner.core.problem.quantisation import Activations, Stored, quantisation_of, stored_as
from tuner.core.problem.quantisation.said import FIELD
from tuner.errors import InvalidInput
from tuner.packs.shapes import Shape

Json = dict[str, Any]
#: Modules of the MLP of layer {}; a family may have the first two in one.
_MODULES = ("gate_proj", "up_proj", "down_proj")
_JOINED = {"phi3": ("gate_up_proj", "down_proj")}
#: A factor of each row of W, and the one that H is divided by before it is stored.
_CHANNELS, _OUTPUT = {"part": "channel_scale"}, {"part": "output_scale"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A feed-forward block, and how all of its products are quantised."""

    #: Of elements as wide as the model's.
    shape: Shape
    stored: Stored

    def pair(self, m: int) -> Json:
        """As `POST /jobs` takes it."""
        shape, activations = self.shape, self.stored.activations
        has_wide = activations is Activations.SIXTEEN
        weights = {"weights": str(self.stored.weights)} if has_wide else {}
        channels = [] if has_wide and self.stored.weights.row.group else [_CHANNELS]
        up = {"name": "gate_up", "source": "x", "n": shape.d_hidden, "k": shape.d_in, "gated": shape.gated, **weights}
        up |= {"activation": shape.activation, "row_scale": activations is Activations.TOKEN}
        down = {"name": "down", "source": "gate_up", "n": shape.d_out, "k": shape.d_hidden, **weights}
        if shape.residual:
            down["residual"] = "residual"
        if not has_wide:
            down["out_dtype"] = shape.dtype
        up["epilogue"] = [*channels, *([] if has_wide else [_OUTPUT])]
        down["epilogue"] = channels
        dtype = shape.dtype if has_wide else str(self.stored.weights.row.element)
        return {"kind": "chain", "m": m, "ops": [up, down], "dtype": dtype}

    def __str__(self) -> str:
        return f"{self.shape}, {self.stored}"


def blocks_of(config: Mapping[str, Any], shape: Shape, layers: int) -> dict[Block | Shape, int]:
    """What each of the layers has, of a block of that shape, and how many; a `Shape` is left as it was.

    Raises:
        InvalidInput: a layer's weights have no kernel; or its products are quantised in several ways.
    """
    quantised = quantisation_of(config)
    if quantised is None:
        return {shape: layers}
    modules = _JOINED.get(str(config.get("model_type")), _MODULES)
    found = Counter(_stored_in_layer(quantised, modules, layer) for layer in range(layers))
    blocks = {Block(shape=shape, stored=stored) if stored else shape: count for stored, count in found.items()}
    for block in blocks:
        if isinstance(block, Block):
            _check(block)
    return blocks


def _stored_in_layer(quantised: Mapping[str, Any], modules: tuple[str, ...], layer: int) -> Stored | None:
    names = [f"model.layers.{layer}.mlp.{module}" for module in modules]
    found = {name: stored_as(quantised, name) for name in names}
    if len(set(found.values())) > 1:
        each = ", ".join(f"{name} {stored or 'left as it was'}" for name, stored in found.items())
        problem = f"has mixed formats in one layer: {each}"
        raise InvalidInput(FIELD, problem, "give a checkpoint in which all products of an MLP have one format")
    return found[names[0]]


def _check(block: Block) -> None:
    """That there can be such a block.

    Raises:
        InvalidInput: a row of weights is cut within a group, or the epilogue has no such part beside such weights.
    """
    if block.shape.bias:
        problem = "is true, and biases beside factors of quantised weights have no kernel here"
        raise InvalidInput("mlp_bias", problem, "give the config of the model before it was quantised")
    try:
        workload_of(block.pair(1))
    except InvalidInput as error:
        raise InvalidInput(FIELD, f"says {block.stored}, and {error.field} {error.problem}", error.remedy) from error
