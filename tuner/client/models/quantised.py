"""From the config of a quantised model to its feed-forward blocks on a tensor-parallel rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.core.problem.asked import asked_workloads, parameter_names, workload_of
from tuner.core.problem.ops.codec import hints_of
from tuner.core.problem.quantisation import Activations, Stored, quantisation_of, stored_as
from tuner.core.problem.quantisation.said import FIELD
from tuner.errors import InvalidInput
from tuner.packs.shapes import Shape

Json = dict[str, Any]
#: The kind of request, and its schemes with 8-bit activations.
_KIND = "quantised-ffn"
_SCHEMES = {Activations.TENSOR: "tensor", Activations.TOKEN: "token", Activations.BLOCK: "block"}
#: The scheme of activations by token whose intermediate has scales of groups.
_IN_GROUPS = "token_groups"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A feed-forward block, and the quantisation of its products."""

    #: The shape, with elements as wide as the model's.
    shape: Shape
    stored: Stored
    #: Whether the intermediate of activations by token has a scale for 128 of a row, which its kernel computes.
    has_groups: bool = False

    def pair(self, m: int) -> Json:
        """The block in the form of `POST /jobs`."""
        known = parameter_names(asked_workloads()[_KIND])
        sizes = {name: value for name, value in vars(self.shape).items() if name in known}
        pair: Json = {"kind": _KIND, "m": m, **sizes, "scheme": self._scheme, "out_dtype": self.shape.dtype}
        if self.stored.activations is Activations.SIXTEEN:
            pair |= {"weights": str(self.stored.weights), "dtype": self.shape.dtype}
        elif not self._multiplies_weights:
            pair |= {"weights": str(self.stored.weights)}
        return pair

    @property
    def _multiplies_weights(self) -> bool:
        """Whether kernels multiply the weights as they are, in 8 bits."""
        return self.stored.activations is not Activations.SIXTEEN and self.stored.weights.row.element is not None

    @property
    def _scheme(self) -> str:
        if self.has_groups:
            return _IN_GROUPS
        if self._multiplies_weights:
            return _SCHEMES[self.stored.activations]
        schemes = hints_of(asked_workloads()[_KIND])["scheme"]
        form = self.stored.weights.row.form
        return next(str(one) for one in schemes if one.row.weights and one.row.weights.row.form == form)

    def __str__(self) -> str:
        return f"{self.shape}, {self.stored}" + (", its intermediate in groups of 128" if self.has_groups else "")


def blocks_of(
    config: Mapping[str, Any], shape: Shape, layers: int, modules: Sequence[str], *, fp8_groups: bool = False
) -> dict[Block | Shape, int]:
    """The block of each layer with that shape, and the number of such layers; a `Shape` means that it is not quantised.
    `modules` are those of the MLP. With `fp8_groups`, activations in groups have 8 bits, otherwise 16, which is more
    exact; and with activations by token, the intermediate is in groups, otherwise it needs a static factor.

    Raises:
        InvalidInput: there is no kernel for a layer's weights, or its products differ in quantisation.
    """
    quantised = quantisation_of(config)
    if quantised is None:
        return {shape: layers}
    of_layers = (_stored_in_layer(quantised, modules, layer) for layer in range(layers))
    found = Counter(of_layers if fp8_groups else map(_in_sixteen_bits, of_layers))
    blocks = {_block_of(shape, stored, fp8_groups) if stored else shape: count for stored, count in found.items()}
    for block in blocks:
        if isinstance(block, Block):
            _check(block)
    return blocks


def _block_of(shape: Shape, stored: Stored, fp8_groups: bool) -> Block:
    has_groups = fp8_groups and stored.activations is Activations.TOKEN and stored.weights.row.element is not None
    return Block(shape=shape, stored=stored, has_groups=has_groups)


def _in_sixteen_bits(stored: Stored | None) -> Stored | None:
    """The same without activations in groups."""
    has_groups = stored is not None and stored.activations is Activations.BLOCK
    return replace(stored, activations=Activations.SIXTEEN) if stored and has_groups else stored


def _stored_in_layer(quantised: Mapping[str, Any], modules: Sequence[str], layer: int) -> Stored | None:
    names = [f"model.layers.{layer}.mlp.{module}" for module in modules]
    found = {name: stored_as(quantised, name) for name in names}
    if len(set(found.values())) > 1:
        each = ", ".join(f"{name} {stored or 'not quantised'}" for name, stored in found.items())
        problem = f"has mixed formats in one layer: {each}"
        raise InvalidInput(FIELD, problem, "use a checkpoint in which all products of an MLP have the same format")
    return found[names[0]]


def _check(block: Block) -> None:
    """Checks that kernels for such a block exist.

    Raises:
        InvalidInput: a rank's part of a row of weights does not end with a group.
    """
    try:
        workload_of(block.pair(1))
    except InvalidInput as error:
        raise InvalidInput(FIELD, f"says {block.stored}: {error.field} {error.problem}", error.remedy) from error
