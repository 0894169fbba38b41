"""The list of tensors of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tuner.core.plan.graph.norm_slots import norm_slots, slot_stride
from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import NO_TILING
from tuner.core.schedule.tiling import Tiling

from ..source.launch_args import squares_of
from ..source.parts import listed_others
from .facts import TENSOR_ALIGNMENT_BYTES
from .own_artifact import OwnArtifact

#: In the order of an op's tensors.
_ROLES = (
    *("input", "weight", "bias", "residual", "input_squares", "squares", "row_scale", "output", "intermediate"),
    *("cache", "lengths", "pages", "frequencies"),
)


def tensors_of(workload: Workload, tiling: Tiling, own: Sequence[OwnArtifact]) -> list[dict[str, Any]]:
    """Every tensor by name, with its role and shape; all row-major, contiguous, 16-byte aligned.

    A gated op's weight and bias have the gate's rows first, then the up projection's. If an op's heads are rotated,
    they have the first halves of all heads first. The launches write `squares`, and read `input_squares`: the sums of
    the squares of rows of the input before the dot. `stored` describes the bytes of weights with fewer bits.
    """
    tensors = [tensor for one in own for tensor in one.tensors()]
    names = {tensor["name"] for tensor in tensors}
    for i in range(len(workload.tile_ops)):
        for role, name, shape, dtype in sorted(_of_op(workload, tiling, i), key=lambda one: _place(one[0])):
            if name not in names:
                names.add(name)
                stored = workload.tile_ops[i].about_weights(workload.dtype) if role == "weight" else None
                more = {"alignment_bytes": TENSOR_ALIGNMENT_BYTES} | ({"stored": stored} if stored else {})
                tensors.append({"name": name, "role": role, "shape": [*shape], "dtype": dtype, **more})
    return tensors


def tensors_of_joined(asked: Workload, launched: Workload) -> list[dict[str, Any]]:
    """Same as `tensors_of`, if an op of the `launched` workload computes several of the `asked` ops: callers pass what
    they pass to other kernels, and there are no intermediates within such an op."""
    inside = {op.name for op in asked.ops} - {op.name for op in launched.ops}
    return [one for one in tensors_of(asked, NO_TILING, ()) if one["name"] not in inside]


def _of_op(workload: Workload, tiling: Tiling, index: int) -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    """Role, name, shape and type of each tensor of an op."""
    op, dtype = workload.tile_ops[index], str(workload.dtype)
    if workload.producer_of(index) is None:
        yield "input", op.source, op.source_shape, dtype
    if op.has_weights:
        yield "weight", f"{op.name}.w", *op.stored_weights(workload.dtype)
    yield from listed_others(op, workload)
    for part in op.parts:
        for role, tensor in part.listed(op, workload.dtype, workload.cache_name_of(op)):
            yield role, tensor.name, tensor.shape, str(tensor.dtype)
    if workload.writes_squares(index):
        shape = norm_slots(workload, tiling, index), slot_stride(op.m)
        yield "squares", squares_of(op.name), shape, "fp32"
    stored = str(op.stored_in(workload.dtype))
    yield "output" if workload.leaves(op) else "intermediate", op.name, (op.m, op.c_columns), stored


def _place(role: str) -> int:
    """Position of a role in the list of an op's tensors, which determines the bytes of packs; newer roles come last."""
    return _ROLES.index(role) if role in _ROLES else len(_ROLES)
