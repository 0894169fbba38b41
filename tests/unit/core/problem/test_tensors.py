"""Tensors that manifests and packs cannot describe are refused where the workload is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.op import Tensor, form_problem, weight
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair

PLAIN = weight("up.weight", (64, 64), "fp16")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"shape": (1, 2, 3, 4)}, ""),
        ({"shape": (1, 1, 1, 1, 64)}, "use a tuple of 1 to 4 sizes"),
        ({"shape": ()}, "use a tuple of 1 to 4 sizes"),
        ({"shape": [64]}, "use a tuple of 1 to 4 sizes"),
        ({"shape": (64, 0)}, "sizes are integers from 1 to 2147483647"),
        ({"shape": (2**31,)}, "sizes are integers from 1 to 2147483647"),
        ({"shape": (64.0,)}, "sizes are integers from 1 to 2147483647"),
        ({"dtype": "fp13"}, "has elements of 'fp13': use one of fp16, bf16"),
    ],
)
def test_the_form_of_a_tensor(changed: dict[str, Any], problem: str) -> None:
    assert problem in form_problem(replace(PLAIN, **changed))
    assert bool(problem) == bool(form_problem(replace(PLAIN, **changed)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 64), ()])
def test_a_workload_with_such_a_tensor_is_refused(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = GemmOp.tensors

    def wrong(op: GemmOp, dtype: Dtype) -> tuple[Tensor, ...]:
        return tuple(replace(one, shape=shape) if one.name == op.name else one for one in tensors(op, dtype))

    monkeypatch.setattr(GemmOp, "tensors", wrong)
    with pytest.raises(InvalidInput, match="use a tuple of 1 to 4 sizes"):
        ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64)
