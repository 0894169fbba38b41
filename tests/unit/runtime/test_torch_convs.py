"""`torch.ops.tuner.program` of convolutions on CPU tensors; requires PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.convs import BY_WARPGROUPS, CASES
from tests.support.packs import make
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.shapes import ops_without_sizes
from tuner.runtime.binding.native import WrongOperand

torch = pytest.importorskip("torch")

ALL = {**CASES, **BY_WARPGROUPS}


@pytest.fixture
def op() -> Any:
    from tuner.runtime import torch_program

    return torch_program


def tensors_of(name: str) -> dict[str, Any]:
    """Random tensors of a case, by the names of its manifest."""
    torch.manual_seed(3)
    workload, tiling = ALL[name]
    if len(workload.ops) > 2:
        pytest.skip("a pack of a pair is made here")
    manifest = make(PlanKind.FUSED, tiling, workload=workload).kernel.manifest
    given = [one for one in manifest["tensors"] if one["role"] not in ("intermediate", "output")]
    return {one["name"]: torch.randn(one["shape"], dtype=torch.float64) / one["shape"][-1] ** 0.5 for one in given}


def convolved(op: Any, given: dict[str, Any]) -> Any:
    """A convolution as a plain loop over filter positions, unlike the operator's formula."""
    x = given[op.source].reshape(op.images, op.height, op.width, op.channels)
    padded = torch.nn.functional.pad(x, (0, 0, op.padding, op.padding, op.padding, op.padding))
    w = given[f"{op.name}.w"].reshape(op.filters, op.kernel, op.kernel, op.channels)
    sums: Any = 0
    for i in range(op.kernel):
        for j in range(op.kernel):
            rows = padded[:, i : i + op.stride * op.out_height : op.stride][:, : op.out_height]
            seen = rows[:, :, j : j + op.stride * op.out_width : op.stride][:, :, : op.out_width]
            sums = sums + seen @ w[:, i, j].T
    sums = sums.reshape(op.m, op.filters)
    sums = sums + given[f"{op.name}.bias"] if op.bias else sums
    sums = sums + given[op.residual_source] if op.residual else sums
    function = {"relu": torch.relu, "silu": torch.nn.functional.silu, "identity": lambda y: y}
    return function[str(op.activation)](sums)


def pooled(op: Any, given: dict[str, Any]) -> Any:
    """A pooling as a plain loop over window positions."""
    around = -torch.inf if op.function == "max" else 0.0
    x = given[op.source].reshape(op.images, op.height, op.width, op.channels)
    padded = torch.nn.functional.pad(x, (0, 0, op.padding, op.padding, op.padding, op.padding), value=around)
    seen = [
        padded[:, i : i + op.stride * op.out_height : op.stride, j : j + op.stride * op.out_width : op.stride]
        for i in range(op.kernel)
        for j in range(op.kernel)
    ]
    windows = torch.stack([one[:, : op.out_height, : op.out_width] for one in seen])
    return (windows.amax(0) if op.function == "max" else windows.mean(0)).reshape(op.m, op.channels)


@pytest.mark.parametrize("name", [name for name, (workload, _) in ALL.items() if len(workload.ops) == 2])
def test_it_makes_what_a_convolution_is(op: Any, name: str) -> None:
    given, workload = tensors_of(name), ALL[name][0]
    form = op.form(ops_without_sizes(workload.to_json()))
    assert set(form.names) == set(given)
    (made,) = op.call(form, given)
    known = dict(given)
    for one in workload.tile_ops:
        if one.GATHERS:
            known[one.name] = convolved(one, known)
        elif one.IS_PRODUCT:
            known[one.name] = known[one.source] @ known[f"{one.name}.w"].T
        else:
            known[one.name] = pooled(one, known)
    assert torch.allclose(made, known[workload.ops[-1].name])


def test_images_of_another_size_are_refused(op: Any) -> None:
    given = tensors_of("a stride, a shortcut")
    form = op.form(ops_without_sizes(ALL["a stride, a shortcut"][0].to_json()))
    with pytest.raises(WrongOperand, match=r"x is \[233, 128\] of float64: pass \[234, 128\]"):
        op.call(form, {**given, "x": given["x"][:-1]})
