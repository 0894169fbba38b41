"""From tensors of a checkpoint to the inputs of a chain's kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.quantisation import stored_as
from tuner.core.problem.quantisation.methods import method_of
from tuner.core.problem.quantisation.said import FIELD
from tuner.core.problem.rows.dtype import OperandRow
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints import awq, compressed, fp8, gptq, mxfp4
from tuner.runtime.checkpoints.bits import Array, known
from tuner.runtime.checkpoints.product import Product, Tensors


class _Format(Protocol):
    """Names and layouts of a method's tensors."""

    def read(self, tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat) -> Product:
        """Reads a product."""

    def write(self, product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
        """Inverse of `read`: bits by tensor."""


#: The readers, by the method's name in configs.
FORMATS: dict[str, _Format] = {
    "gptq": gptq,
    "awq": awq,
    "compressed-tensors": compressed,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "modelopt": fp8,
    "modelopt_fp4": fp8,
    mxfp4.METHOD: mxfp4,
}


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A product in the kernels' layout: ``<op>.w``, and with scales per channel ``<op>.channel_scale_factors``."""

    stored: WeightFormat
    #: [rows, bytes per row] uint8; the rows of stacked products follow each other.
    weights: Array
    #: Number of weights in a row.
    k: int
    #: The dtype of the groups' factors in the checkpoint: the workload's, unless it has 8 bits; None if there are no
    #: factors, or if they are powers of two.
    dtype: Dtype | None
    #: [rows] float32; None if there are no scales per channel.
    channels: Array | None
    #: Rows of each product.
    rows: tuple[int, ...]
    #: For each product the factor of its 8-bit input; None if the checkpoint does not contain it.
    input_factors: tuple[float | None, ...] = ()

    @property
    def elements(self) -> Array:
        """[rows, k] uint8: codes in the order of k, if they are elements of a type."""
        codes: Array = self.stored.row.unpacked(np, self.weights, self.k)[0]
        return codes

    @property
    def blocks(self) -> Array:
        """[rows / 128, k / 128] float32: scales of blocks, of a format whose groups represent those."""
        factors = self.stored.row.unpacked(np, self.weights, self.k)[1]
        assert factors is not None, self.stored
        found: Array = np.ascontiguousarray(factors.view(np.float32)[:: self.stored.row.group])
        return found

    @property
    def input_factor(self) -> float | None:
        """The factor of the input that all products read: the largest, so that the input stays within 8 bits."""
        return max((one for one in self.input_factors if one is not None), default=None)


def _format_of(config: Mapping[str, Any]) -> _Format:
    """The reader for the tensors of a checkpoint.

    Raises:
        InvalidInput: no reader supports them.
    """
    method = method_of(config)
    if method not in FORMATS:
        raise InvalidInput(f"{FIELD}.quant_method", f"is {method}", f"give one of {', '.join(FORMATS)}")
    return FORMATS[method]


def _read(tensors: Tensors, config: Mapping[str, Any]) -> Product:
    """A product in the storage format of the config."""
    if (how := stored_as(config, tensors.name)) is None:
        raise InvalidInput(
            tensors.name, f"is not quantised by the {FIELD}", "use a kernel with unconverted weights for it"
        )
    return _format_of(config).read(tensors, config, how.weights)


def convert(tensors: Mapping[str, Any], names: str | Sequence[str], config: Mapping[str, Any]) -> Converted:
    """The product of a module, or of several stacked ones: for a gated op the gate first.

    Args:
        tensors: of a checkpoint, by name, on the host: from NumPy, PyTorch or `ml_dtypes`.
        names: of the modules, e.g. ``model.layers.0.mlp.down_proj``.
        config: the model's ``quantization_config``.

    Raises:
        InvalidInput: the message names the unsupported field or tensor, and what is expected. Nothing is changed.
    """
    listed = [names] if isinstance(names, str) else list(names)
    found = [_read(Tensors(tensors, name), config) for name in listed]
    first = found[0]
    for name, other in zip(listed, found, strict=True):
        if (mine := _words(other)) != (its := _words(first)):
            raise InvalidInput(
                name, f"has {mine}, but {listed[0]} has {its}", "use products of the same format, which are stacked"
            )
    factors = [_laid_factors(one, one.factors) for one in found if one.factors is not None]
    channels = [one.channels for one in found if one.channels is not None]
    zeros = [one.zeros for one in found if one.zeros is not None]
    codes = np.concatenate([one.codes for one in found])
    k, row = codes.shape[1], first.stored.row
    if k % row.unit:
        raise InvalidInput(str(names), f"has {k} columns", f"use a multiple of {row.unit}, the unit of {first.stored}")
    points = row.raised(np, np.concatenate(zeros), _element(first.dtype)) if zeros else None
    return Converted(
        stored=first.stored,
        weights=row.packed(np, codes, np.concatenate(factors) if factors else None, points),
        k=k,
        dtype=first.dtype,
        channels=np.concatenate(channels) if channels else None,
        rows=tuple(len(one.codes) for one in found),
        input_factors=tuple(one.input_factor for one in found),
    )


def restored(converted: Converted, config: Mapping[str, Any]) -> list[dict[str, Array]]:
    """The bits of each module's tensors, by the ends of their names: inverse of `convert`."""
    row, writer = converted.stored.row, _format_of(config)
    codes, factors, raised = row.unpacked(np, converted.weights, converted.k)
    zeros = None if raised is None else (raised - row.raised(np, np.zeros(1, np.uint8), _element(converted.dtype)))
    bounds = np.cumsum(converted.rows)[:-1]
    of_rows = [None] * len(converted.rows)
    parts = zip(
        np.split(codes, bounds),
        of_rows if factors is None else np.split(_given_factors(converted, factors), bounds),
        of_rows if converted.channels is None else np.split(converted.channels, bounds),
        of_rows if zeros is None else np.split(zeros.astype(np.uint8), bounds),
        converted.input_factors or of_rows,
        strict=True,
    )
    made = (
        Product(
            stored=converted.stored,
            codes=one,
            factors=two,
            dtype=converted.dtype,
            channels=three,
            zeros=four,
            input_factor=five,
        )
        for one, two, three, four, five in parts
    )
    return [writer.write(one, config) for one in made]


def _laid_factors(product: Product, factors: Array) -> Array:
    """The factors of its groups as kernels read them: bits of elements, or of float32."""
    if not product.stored.row.has_float_factors or product.dtype is None:
        return factors
    found: Array = np.asarray(known(factors, product.dtype), dtype=np.float32).view(np.uint32)
    return found


def _given_factors(converted: Converted, factors: Array) -> Array:
    """Inverse of `_laid_factors`."""
    if not converted.stored.row.has_float_factors or converted.dtype is None:
        return factors
    found: Array = converted.dtype.row.to_bits(np, factors.view(np.float32))
    return found


def _words(product: Product) -> str:
    """The properties that stacked products must share, as text."""
    scales = f" and {product.dtype} scales" if product.dtype else ""
    return f"{product.stored} in {product.codes.shape[1]} columns{scales}"


def _element(dtype: Dtype | None) -> OperandRow:
    """The type of existing scales of groups."""
    assert dtype is not None
    return dtype.row
