"""The parts of an epilogue agree with the op that has them."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from typing import Any

import pytest

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import ELEMENTS, Dtype
from tuner.core.problem.epilogue import PARTS, Part
from tuner.core.problem.ops.rotary import Rotary
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp

#: 4 heads of queries, 1 of keys and 1 of values, of 64 elements: 192 pairs.
TURNED = {"n": 192, "rotary": Rotary(heads=4, kv_heads=1, head_dim=64, max_length=32)}
#: By the field of each part: what enables it.
SET: dict[str, dict[str, Any]] = {
    "row_scale": {"row_scale": True},
    "norm": {"norm": "x"},
    "bias": {"bias": True},
    "rotary": TURNED,
    "activation": {"activation": Activation.GELU},
    "gated": {"gated": True},
    "residual": {"residual": True},
}


def op_of(**options: Any) -> GemmOp:
    return GemmOp(**{"name": "up", "m": 8, "n": 48, "k": 32, **options})


def test_each_part_is_a_field_of_a_product_and_lies_in_a_file_of_its_own() -> None:
    assert [part.field for part in PARTS] == list(SET)
    assert {part.field for part in PARTS} <= {field.name for field in fields(GemmOp)}
    assert len({type(part).__module__ for part in PARTS}) == len(PARTS)


def test_an_op_has_the_parts_that_its_fields_say_in_the_order_of_the_kernel() -> None:
    assert op_of().parts == ()
    for part in PARTS:
        assert op_of(**SET[part.field]).parts == (part,)
    every = op_of(**SET["norm"], **SET["bias"], **SET["activation"], **SET["gated"], **SET["residual"])
    assert [part.field for part in every.parts] == ["norm", "bias", "activation", "gated", "residual"]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part.field))
def test_a_part_reads_what_its_tensors_weigh(part: Part) -> None:
    """Except for the normed tensor, which is read as A, and the cache, which the epilogue writes."""
    op, dtype = op_of(**SET[part.field]), Dtype.BF16
    plain = {tensor.name for tensor in op_of().tensors(dtype)}
    tensors = [tensor for tensor in part.tensors(op, dtype) if tensor.name not in plain]
    assert {tensor.dtype for tensor in tensors} <= set(ELEMENTS)
    if part.field != "rotary":
        assert part.num_bytes(op, dtype) == sum(tensor.num_bytes for tensor in tensors)
    assert {tensor.name for tensor in tensors} <= set(op.operands)


def test_what_parts_read_adds_up_to_what_the_op_says() -> None:
    """For every legal set of parts, compared with the formulas used before parts existed."""
    kinds, num = ("row_scale", "norm", "bias", "activation", "gated", "residual"), 0
    for chosen in product((False, True), repeat=len(kinds)):
        options = {
            key: value for kind, is_in in zip(kinds, chosen, strict=True) if is_in for key, value in SET[kind].items()
        }
        if options.get("norm") and options.get("row_scale"):
            continue
        op, num = op_of(**options), num + 1
        weight_rows = op.n * (2 if op.gated else 1)
        assert op.weight_rows == weight_rows
        assert op.scales_rows == bool(op.row_scale or op.norm)
        assert op.epilogue_bytes(Dtype.FP16) == (op.bias * weight_rows + op.residual * 8 * 48) * 2 + op.scales_rows * 32
        vectors = op.row_scale or bool(op.norm)
        own = (op.bias * weight_rows + op.residual * 8 * 48) * 2
        assert op.own_bytes(Dtype.FP16, ()) == own + vectors * 32
        assert op.own_bytes(Dtype.FP16, ("x",)) == own + op.row_scale * 32
    assert num == 48


def test_a_residual_that_is_named_is_nobodys_own() -> None:
    op = op_of(residual=True, residual_source="stream")
    assert op.own_bytes(Dtype.FP16, ()) == 0
    assert op.epilogue_bytes(Dtype.FP16) == 8 * 48 * 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"residual_source": "r"}, "up.residual_source"),
        ({"norm": "x", "row_scale": True}, "up.norm"),
        ({"eps": 1e-3}, "up.eps"),
        ({"norm": "x", "eps": 1.0}, "up.eps"),
        *(({**TURNED, **SET[kind]}, f"up.{kind}") for kind in ("activation", "gated", "residual", "row_scale")),
        ({**TURNED, "n": 191}, "up.n"),
    ],
)
def test_what_does_not_go_together_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        op_of(**options)
    assert str(raised.value).startswith(field)
