"""Products of quantised weights by PyTorch's own operators, on any device, and the tensors that they have beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tuner.core.problem.dtype import ELEMENTS, UINT8, Dtype
from tuner.core.problem.epilogue.added import AddedPart, Own, parts_from_json
from tuner.core.problem.epilogue.part import Stage
from tuner.core.problem.ops.op import Role
from tuner.core.problem.weights import WeightFormat
from tuner.runtime.pytorch.formula import wide_product
from tuner.runtime.pytorch.operands import name_of
from tuner.runtime.tensors.operands import Operand

Json = dict[str, Any]
Tensors = Mapping[str, torch.Tensor | None]
_ELEMENTS = {one.row.array_name: one.row for one in Dtype}


def dtype_of(name: str) -> torch.dtype:
    """PyTorch's, of a name as workloads have it."""
    found: torch.dtype = getattr(torch, ELEMENTS[name].array_name)
    return found


def out_dtype(op: Json, first: torch.dtype) -> torch.dtype:
    """What an op stores, in a chain of such elements."""
    return dtype_of(op["out_dtype"]) if op.get("out_dtype") else first


def of_parts(op: Json) -> Iterator[tuple[AddedPart, Own, str]]:
    """The tensors of what stands in an op's epilogue beside its options, in order, by their names."""
    for part in parts_from_json(op.get("epilogue") or ()):
        for own in part.owns:
            yield part, own, f"{op['name']}.{part.name}_{own.name}"


def weights_of(op: Json) -> tuple[str, ...]:
    """Those that are the same at every launch."""
    return tuple(name for _, own, name in of_parts(op) if own.role is Role.WEIGHT)


def stored_operand(op: Json, width: int, dtype: str) -> Operand:
    """W [width, k], or the bytes of its codes."""
    name = f"{op['name']}.w"
    if not op.get("weights"):
        return Operand(name=name, role="weight", shape=(width, op["k"]), dtype=dtype)
    row_bytes = WeightFormat(op["weights"]).row.row_bytes(op["k"])
    return Operand(name=name, role="weight", shape=(width, row_bytes), dtype=UINT8.array_name)


def operands_of_parts(op: Json, width: int, dtype: str) -> Iterator[Operand]:
    """What their tensors must be."""
    about: Any = SimpleNamespace(**op, weight_rows=width)
    for part, own, name in of_parts(op):
        kind = ELEMENTS[own.dtype].array_name if own.dtype else dtype
        yield Operand(name=name, role=f"{part.name}_{own.name}", shape=part.shape(about, own.name), dtype=kind)


def is_plain(op: Json) -> bool:
    """Whether all of it is of one element type, without such parts."""
    return not any(op.get(name) for name in ("weights", "epilogue", "out_dtype"))


def known(codes: torch.Tensor, stored: str, k: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights [rows, k] that codes stand for, in an element type; each is rounded to it."""
    row, element = WeightFormat(stored).row, _ELEMENTS.get(name_of(dtype), Dtype.BF16.row)
    values = row.known(np, codes.cpu().numpy(), k, element)
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(device=codes.device, dtype=dtype)


def scaled_product(
    op: Json, x: torch.Tensor, w: torch.Tensor, there: Tensors, options: Mapping[str, Any], first: torch.dtype
) -> torch.Tensor:
    """What an op computes, in float32 at least. `options` as `product` has them; `first` is the element type of the
    chain."""
    if op.get("weights"):
        w = known(w, op["weights"], op["k"], x.dtype)
    return wide_product(x, w, **options, applied=partial(_applied, op, there), stored=out_dtype(op, first))


def _applied(op: Json, there: Tensors, stage: Stage, values: torch.Tensor) -> torch.Tensor:
    for part in parts_from_json(op.get("epilogue") or ()):
        if part.stage is stage:
            own = [there[f"{op['name']}.{part.name}_{one.name}"] for one in part.owns]
            values = part.host(torch, values, *own)
    return values
