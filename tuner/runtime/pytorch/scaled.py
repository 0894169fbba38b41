"""Products of quantised weights with PyTorch's own operators, on any device, and the additional tensors that they
have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import or_
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tuner.core.problem.dtype import ELEMENTS, UINT8, Dtype
from tuner.core.problem.epilogue.added import AddedPart, Own, parts_from_json
from tuner.core.problem.epilogue.part import Stage
from tuner.core.problem.epilogue.sums import Known
from tuner.core.problem.ops.op import Role
from tuner.core.problem.weights import WeightFormat, WeightRow
from tuner.runtime.checkpoints.lanes import bundle_of, of_codes
from tuner.runtime.pytorch.formula import wide_product
from tuner.runtime.pytorch.operands import name_of
from tuner.runtime.tensors.operands import ROWS, Operand

Json = dict[str, Any]
Tensors = Mapping[str, torch.Tensor | None]
_ELEMENTS = {one.row.array_name: one.row for one in Dtype}


def dtype_of(name: str) -> torch.dtype:
    """PyTorch's type for a name from a workload."""
    found: torch.dtype = getattr(torch, ELEMENTS[name].array_name)
    return found


def out_dtype(op: Json, first: torch.dtype) -> torch.dtype:
    """The type that an op stores, in a chain of such elements."""
    return dtype_of(op["out_dtype"]) if op.get("out_dtype") else first


def of_parts(op: Json) -> Iterator[tuple[AddedPart, Own, str]]:
    """The tensors that additional parts of an op's epilogue read, in order, by their names."""
    about: Any = SimpleNamespace(**op)
    for part in parts_from_json(op.get("epilogue") or ()):
        for own in part.owns:
            if own.role is not Role.OUTPUT:
                yield part, own, part.tensor_name(about, own)


def made_by_parts(op: Json) -> tuple[str, ...]:
    """The tensors that such parts write, and PyTorch computes."""
    about: Any = SimpleNamespace(**op)
    return tuple(name for part in _parts(op) for name in _written(part, about))


def _written(part: AddedPart, about: Any) -> list[str]:
    if type(part).stored is AddedPart.stored:  # it does not say how PyTorch computes them
        return []
    return [part.tensor_name(about, own) for own in part.owns if own.role is Role.OUTPUT]


def _parts(op: Json) -> tuple[AddedPart, ...]:
    return parts_from_json(op.get("epilogue") or ())


def weights_of(op: Json) -> tuple[str, ...]:
    """The weights, which are the same for every launch."""
    return tuple(name for _, own, name in of_parts(op) if own.role is Role.WEIGHT)


def stored_operand(op: Json, width: int, dtype: str) -> Operand:
    """W [width, k], or the bytes of its codes."""
    name = f"{op['name']}.w"
    if not op.get("weights"):
        return Operand(name=name, role="weight", shape=(width, op["k"]), dtype=dtype)
    row_bytes = WeightFormat(op["weights"]).row.row_bytes(op["k"])
    return Operand(name=name, role="weight", shape=(width, row_bytes), dtype=UINT8.array_name)


def operands_of_parts(op: Json, width: int, dtype: str) -> Iterator[Operand]:
    """The operands for the tensors of such parts."""
    about: Any = SimpleNamespace(**op, weight_rows=width, m=ROWS)
    for part, own, name in of_parts(op):
        kind = ELEMENTS[own.dtype].array_name if own.dtype else dtype
        yield Operand(name=name, role=f"{part.name}_{own.name}", shape=part.shape(about, own.name), dtype=kind)


def is_plain(op: Json) -> bool:
    """Whether all tensors have one element type, and the op has no additional parts."""
    return not any(op.get(name) for name in ("weights", "epilogue", "out_dtype"))


@dataclass(frozen=True, kw_only=True)
class _Column:
    """The position of a column's code within 16 bytes, and the values of all codes."""

    word: int
    #: Positions of the code's bits within the word, lowest first.
    bits: tuple[int, ...]
    #: The values, indexed by these bits as a number.
    values: tuple[float, ...]


@cache
def _columns(stored: WeightFormat) -> tuple[_Column, ...]:
    row = stored.row
    base, words, changes = of_codes(row)
    of_codes_of_it = row.values(np, np.arange(1 << row.bits, dtype=np.uint8)).astype(np.float32)
    found = []
    for word, change in zip(words, changes, strict=True):
        mask = reduce(or_, change)
        bits = tuple(bit for bit in range(32) if mask >> bit & 1)
        values = [0.0] * (1 << len(bits))
        for code, changed in enumerate(change):
            held = base[word] ^ changed
            values[sum((held >> bit & 1) << i for i, bit in enumerate(bits))] = float(of_codes_of_it[code])
        found.append(_Column(word=word, bits=bits, values=tuple(values)))
    return tuple(found)


@cache
def _table(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Cached, since nothing may be copied from the host during a capture."""
    return torch.tensor(values, device=device)


def known(codes: torch.Tensor, stored: str, k: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights [rows, k] for these codes, rounded to an element type."""
    row, rows, flat = WeightFormat(stored).row, codes.shape[0], codes.reshape(-1)
    num_bytes = rows * k * row.bits // 8
    words = flat[:num_bytes].view(torch.int32).view(rows, k // row.chunk, 4)
    values = torch.empty((rows, k // row.chunk, row.chunk), device=codes.device, dtype=torch.float32)
    for number, column in enumerate(_columns(WeightFormat(stored))):
        held = words[:, :, column.word]
        places = sum(((held >> bit) & 1) << i for i, bit in enumerate(column.bits))
        values[:, :, number] = _table(column.values, codes.device)[places]
    if not row.group:
        return values.view(rows, k).to(dtype)
    lists, side = 1 + row.has_zeros, bundle_of(row) // row.group
    behind = flat[num_bytes:].view(k // row.group // side, lists, rows, -1)
    of_groups = [one.transpose(0, 1).reshape(rows, -1).contiguous() for one in behind.unbind(1)]
    grouped = values.view(rows, k // row.group, row.group)
    if row.has_zeros:
        raised = row.raised(np, np.zeros(1, np.uint8), _ELEMENTS[name_of(dtype)])
        grouped = grouped - (of_groups[1].view(torch.int16).float() - float(raised[0]))[:, :, None]
    factors = _powers(of_groups[0]) if row.has_powers else of_groups[0].view(_kind_of_factors(row, dtype)).float()
    return (grouped * factors[:, :, None]).view(rows, k).to(dtype)


def _kind_of_factors(row: WeightRow, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if row.has_float_factors else dtype


def _powers(exponents: torch.Tensor) -> torch.Tensor:
    """The values of e8m0: 2^(bits - 127)."""
    return torch.exp2(exponents.float() - 127)


def scaled_product(
    op: Json, x: torch.Tensor, w: torch.Tensor, there: dict[str, Any], options: Mapping[str, Any], first: torch.dtype
) -> torch.Tensor:
    """The result of an op, in at least float32. `options` as in `product`; `first` is the element type of the chain.
    `there` gets the tensors that additional parts write."""
    if op.get("weights"):
        w = known(w, op["weights"], op["k"], x.dtype if x.dtype.itemsize > 1 else torch.float32)
    about: Any = SimpleNamespace(**op)
    for part in (part for part in _parts(op) if part.kernel.multiplies):
        read = {name: Known(values=there[name]) for one, _, name in of_parts(op) if one == part}
        kind = next(iter(read.values())).values.dtype
        x, w = part.multiplied(about, read, torch, x.to(kind), w.to(kind))
    return wide_product(x, w, **options, applied=partial(_applied, op, there), stored=out_dtype(op, first))


def _applied(op: Json, there: dict[str, Any], stage: Stage, values: torch.Tensor) -> torch.Tensor:
    about: Any = SimpleNamespace(**op)
    for part in _parts(op):
        if part.stage is stage:
            own = [there[part.tensor_name(about, one)] for one in part.owns if one.role is not Role.OUTPUT]
            values, made = part.stored(torch, values, *own)
            there.update(zip(_written(part, about), made, strict=True))
    return values
