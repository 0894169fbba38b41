"""Stores the output, or an operand beside it, in 8 bits with a scale for each row and 128 columns, which the tile that
writes them computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.added import AddedPart, Own
from tuner.core.problem.epilogue.kernel import KernelPart
from tuner.core.problem.epilogue.part import Broken, Product, Stage
from tuner.core.problem.epilogue.sums import EPILOGUE_ERROR, Sums, Tensors
from tuner.core.problem.ops.op import Op, Role
from tuner.core.problem.rows.dtype import Array, ArrayModule

#: Elements of a row that share a scale; also rows of weights that do.
BLOCK = 128
#: The smallest maximum of a group, so that a group of zeros has a scale. Source: vLLM, `per_token_group_quant_fp8`.
LEAST_SIZE = 1e-10


def grouped(xp: ArrayModule, values: Array, error: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The scales of groups of values [rows, columns], and the values divided by them, each with its maximum error."""
    groups = (values.shape[0], values.shape[1] // BLOCK, BLOCK)
    largest = Dtype.FP8_E4M3.row.largest
    assert largest is not None, "8-bit elements saturate"
    sizes = xp.maximum(xp.abs(values).reshape(groups).max(axis=2), LEAST_SIZE)
    factors = sizes / largest
    of_factors = error.reshape(groups).max(axis=2) / largest + EPILOGUE_ERROR * factors
    whole, off = (xp.repeat(one, BLOCK, axis=1) for one in (factors, of_factors))
    divided = values / whole
    return (factors, of_factors), (divided, error / whole + xp.abs(divided) * (off / whole))


def misplaced(part: AddedPart, tensor: str, ops: Sequence[Op], dtype: Dtype) -> list[Broken]:
    """Why a part cannot store a tensor with scales of groups: elements have other bits, or an op reads it without."""
    if not dtype.row.fp8_kind:
        problem = f"has {part.name}, which stores 8 bits, and the dtype is {dtype}"
        return [("epilogue", problem, f"use {Dtype.FP8_E4M3}")]
    for other in ops:
        scaled = any(own.role is Role.INPUT for part in getattr(other, "epilogue", ()) for own in part.owns)
        if tensor in other.read_names and not scaled:
            problem = f"stores scales of groups, which {other.name} does not read"
            return [("epilogue", problem, f"give {other.name} the part block_scale or input_scale")]
    return []


@dataclass(frozen=True, kw_only=True)
class GroupScale(AddedPart):
    """Elements are divided by their group's scale, the largest magnitude over the largest number of the element type;
    ``<op>.group_scale_factors`` [m, n / 128] has the scales in fp32."""

    name: ClassVar[str] = "group_scale"
    stage: ClassVar[Stage] = Stage.RESULT
    owns: ClassVar[tuple[Own, ...]] = (Own(name="factors", role=Role.OUTPUT),)
    kernel: ClassVar[KernelPart] = KernelPart(
        engines=("wgmma",), tile_columns=BLOCK, exchanges=True, stores="GroupedTile"
    )
    planted: ClassVar[tuple[str, str]] = ("__fdividef(out[r], scales[r])", "__fdividef(out[r], scales[r ^ 1])")

    @classmethod
    def factors_of(cls, tensor: str) -> str:
        """The name of the scales of a tensor's groups."""
        return f"{tensor}.{cls.name}_factors"

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return (op.m, op.n // BLOCK)

    def broken(self, op: Product) -> list[Broken]:
        found = super().broken(op)
        if op.n % BLOCK:
            problem = f"is {op.n}, but {self.name} has a scale for {BLOCK} columns"
            found.append(("n", problem, f"use a multiple of {BLOCK}"))
        if op.out_dtype or op.residual or (op.epilogue and op.epilogue[-1] is not self):
            what = "an out_dtype" if op.out_dtype else "a residual" if op.residual else "a part after it"
            found.append(("epilogue", f"has {self.name} and {what}", "leave one of them out"))
        return found

    def misplaced(self, op: Product, ops: Sequence[Op], dtype: Dtype) -> list[Broken]:
        return misplaced(self, op.name, ops, dtype)

    def made(self, op: Product, sums: Sums, tensors: Tensors) -> Mapping[str, tuple[Array, Array]]:
        """The scales, by which it divides the values."""
        scales, divided = grouped(sums.xp, sums.values, sums.error)
        sums.replace(*divided)
        return {self.tensor_name(op, self.owns[0]): scales}

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """Adds the rounding of a library whose kernel reads stored sums; `made` divides."""
        sums.compute()

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values

    def stored(self, xp: ArrayModule, values: Array, *tensors: Array) -> tuple[Array, tuple[Array, ...]]:
        groups = values.reshape((values.shape[0], -1, BLOCK))
        factors = xp.amax(xp.abs(groups), 2).clip(LEAST_SIZE) / Dtype.FP8_E4M3.row.largest
        return (groups / factors[:, :, None]).reshape(values.shape), (factors,)

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error

    def is_plain(self, op: Product) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class GroupOperand(AddedPart):
    """Later products read ``<op>.group_operand_values`` [m, n] as their source, times the scales
    ``<op>.group_operand_values.group_scale_factors`` [m, n / 128]; the output itself is unchanged.

    As for `operand`, the factors are a norm's weights, and its factor per row commutes with the products; but
    scales are not static."""

    name: ClassVar[str] = "group_operand"
    stage: ClassVar[Stage] = Stage.RESULT
    owns: ClassVar[tuple[Own, ...]] = (
        Own(name="factors"),
        Own(name="values", dtype="", role=Role.OUTPUT),
        Own(name="scales", role=Role.OUTPUT),
    )
    kernel: ClassVar[KernelPart] = KernelPart(
        engines=("wgmma",),
        tile_columns=BLOCK,
        max_sums={1: 64, 2: 64, 3: 32},
        exchanges=True,
        watches="GroupedOperand",
    )
    planted: ClassVar[tuple[str, str]] = ("out[r] * factor;", "out[r];")

    @classmethod
    def wgmma_file(cls) -> str:
        return GroupScale.wgmma_file()

    @classmethod
    def values_of(cls, op: str) -> str:
        """The name of the operand that the op named `op` writes."""
        return f"{op}.{cls.name}_values"

    def tensor_name(self, op: Product, own: Own) -> str:
        return GroupScale.factors_of(self.values_of(op.name)) if own.name == "scales" else super().tensor_name(op, own)

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        return {"factors": (op.n,), "values": (op.m, op.n), "scales": (op.m, op.n // BLOCK)}[name]

    def broken(self, op: Product) -> list[Broken]:
        found = super().broken(op)
        if op.n % BLOCK:
            problem = f"is {op.n}, but {self.name} has a scale for {BLOCK} columns"
            found.append(("n", problem, f"use a multiple of {BLOCK}"))
        if op.gated:
            found.append(
                ("gated", f"is true, but {self.name} needs the registers of its sums", "leave one of them out")
            )
        return found

    def misplaced(self, op: Product, ops: Sequence[Op], dtype: Dtype) -> list[Broken]:
        return misplaced(self, self.values_of(op.name), ops, dtype)

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error

    def made(self, op: Product, sums: Sums, tensors: Tensors) -> Mapping[str, tuple[Array, Array]]:
        factors, values, scales = (self.tensor_name(op, own) for own in self.owns)
        product = sums.values * tensors[factors].values
        error = sums.error * sums.xp.abs(tensors[factors].values) + EPILOGUE_ERROR * sums.xp.abs(product)
        of_groups, divided = grouped(sums.xp, product, error)
        return {values: divided, scales: of_groups}

    def is_plain(self, op: Product) -> bool:
        return True
