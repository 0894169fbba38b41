"""The operator of PyTorch, on tensors of the CPU; it runs where PyTorch is installed, which no extra of ours brings."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def ffn() -> Any:
    from tuner.runtime import torch_op

    return torch_op.by_torch


def operands(*, gated: bool, full: bool) -> tuple[Any, ...]:
    torch.manual_seed(7)
    rows = 2 * 48 if gated else 48
    x, w1, w2 = torch.randn(5, 32), torch.randn(rows, 32) / 6, torch.randn(24, 48) / 7
    others = (torch.randn(rows), torch.randn(24), torch.randn(5, 24), torch.rand(5)) if full else (None,) * 4
    return (x, w1, w2, *others)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu", "silu"])
def test_the_operator_is_the_ffn_and_passes_pytorchs_own_checks(
    ffn: Any, activation: str, gated: bool, full: bool
) -> None:
    given = (*operands(gated=gated, full=full), activation, gated, 0)
    found = torch.ops.tuner.ffn(*given)
    assert torch.equal(found, ffn(*given))
    assert found.shape == (5, 24)
    torch.library.opcheck(torch.ops.tuner.ffn.default, given, test_utils=("test_schema", "test_faketensor"))


def test_torch_compile_takes_the_operator_whole(ffn: Any) -> None:
    x, w1, w2, *_ = operands(gated=True, full=False)

    def block(x: Any) -> Any:
        return x.sum() + torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, "silu", True, 0)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), block(x))


def test_the_formula_is_the_one_that_kernels_compute(ffn: Any) -> None:
    x, w1, w2, b1, b2, residual, scale = operands(gated=True, full=True)
    z = scale[:, None] * (x @ w1.T) + b1
    want = (torch.nn.functional.silu(z[:, :48]) * z[:, 48:]) @ w2.T + b2 + residual
    assert torch.allclose(ffn(x, w1, w2, b1, b2, residual, scale, "silu", True), want, atol=1e-5)
