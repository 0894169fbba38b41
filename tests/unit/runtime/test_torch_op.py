"""The operator of PyTorch, on tensors of the CPU; it runs where PyTorch is installed, which no extra of ours brings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.support.packs import ffn, ladder, make
from tuner.packs.write import write_pack
from tuner.runtime import Pack, RuntimeFailure, Weights, arrays, load, native

torch = pytest.importorskip("torch")

D_IN, D_HIDDEN, D_OUT, ROWS = 32, 48, 24, 5
ACTIVATIONS = ["identity", "relu", "gelu", "silu"]


@pytest.fixture
def op() -> Any:
    """The module, which registers the operator where it is imported first."""
    from tuner.runtime import torch_op

    return torch_op


def operands(*, gated: bool, full: bool, dtype: Any = None) -> tuple[Any, ...]:
    """Random ones; `full`: with biases, a residual and factors per row."""
    torch.manual_seed(7)
    rows = (2 if gated else 1) * D_HIDDEN
    x, w1, w2 = torch.randn(ROWS, D_IN), torch.randn(rows, D_IN) / 6, torch.randn(D_OUT, D_HIDDEN) / 7
    others = (torch.randn(rows), torch.randn(D_OUT), torch.randn(ROWS, D_OUT), torch.rand(ROWS)) if full else ()
    given = [one.to(dtype or one.dtype) for one in (x, w1, w2, *others)]
    return (*given, *(None,) * (7 - len(given)))


def expected(given: tuple[Any, ...], activation: str, gated: bool) -> np.ndarray[Any, Any]:
    """The formula in NumPy's float64, from the page on packs."""
    x, w1, w2, b1, b2, residual, scale = (None if one is None else one.double().numpy() for one in given)
    z = x @ w1.T
    if scale is not None:
        z = scale[:, None] * z + b1
    gate = z[:, :D_HIDDEN]
    match activation:
        case "relu":
            gate = np.maximum(gate, 0)
        case "gelu":
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        case "silu":
            gate = gate / (1 + np.exp(-gate))
    y = (gate * z[:, D_HIDDEN:] if gated else gate) @ w2.T
    return y if residual is None else y + b2 + residual


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_operator_is_the_formula_to_the_last_bits_of_float64(
    op: Any, activation: str, gated: bool, full: bool
) -> None:
    given = operands(gated=gated, full=full, dtype=torch.float64)
    found = torch.ops.tuner.ffn(*given, activation, gated, 0)
    np.testing.assert_allclose(found.numpy(), expected(given, activation, gated), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["identity", "relu"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_small_integers_are_computed_exactly_in_every_type(op: Any, dtype: str, activation: str, gated: bool) -> None:
    """Every sum is below 2^8, which each type holds exactly: one wrong row, column or sign shows as a wrong integer."""
    random = np.random.default_rng(3)
    rows = (2 if gated else 1) * D_HIDDEN
    x, w1 = (np.where(random.random(shape) < 0.1, 1.0, 0.0) for shape in ((ROWS, D_IN), (rows, D_IN)))
    w1, w2 = w1 * random.choice([-1.0, 1.0], w1.shape), random.choice([-1.0, 0.0, 1.0], (D_OUT, D_HIDDEN))
    given = tuple(torch.tensor(one).to(getattr(torch, dtype)) for one in (x, w1, w2))
    wanted = expected((*given, None, None, None, None), activation, gated)
    assert 3 < np.abs(wanted).max() < 2**8
    found = torch.ops.tuner.ffn(*given, None, None, None, None, activation, gated, 0)
    assert str(found.dtype) == f"torch.{dtype}"
    assert np.array_equal(found.double().numpy(), wanted)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_operator_passes_pytorchs_own_checks(op: Any, dtype: str, gated: bool, full: bool) -> None:
    """Schema, autograd, fake tensors, and whole graphs with shapes that change."""
    given = (*operands(gated=gated, full=full, dtype=getattr(torch, dtype)), "silu", gated, 0)
    found = torch.library.opcheck(torch.ops.tuner.ffn.default, given)
    assert len(found) == 4
    assert set(found.values()) == {"SUCCESS"}


def test_a_fake_tensor_has_the_shape_type_and_device_of_the_result(op: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w1, w2 = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((7, 32), (96, 32), (24, 48)))
        y = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, "silu", True, 0)
    assert (tuple(y.shape), y.dtype, y.device.type, y.is_contiguous()) == ((7, 24), torch.bfloat16, "cpu", True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_takes_a_block_whole_and_changes_no_bit(op: Any, dynamic: bool) -> None:
    x, w1, w2, *_ = operands(gated=True, full=False)

    def block(x: Any) -> Any:
        y = x + x  # exact: what inductor makes of it has the same bits
        for _ in range(3):
            y = torch.ops.tuner.ffn(y, w1, w2, None, None, None, None, "silu", True, 0) @ torch.ones(D_OUT, D_IN)
        return torch.ops.tuner.ffn(y, w1, w2, None, None, None, None, "silu", True, 0)

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for rows in (5, 3, 2):
            assert torch.equal(compiled(x[:rows]), block(x[:rows]))


def test_a_gradient_and_other_dimensions_are_refused_with_what_would_be_right(op: Any) -> None:
    x, w1, w2, *_ = operands(gated=True, full=False)
    rest = (None, None, None, None, "silu", True, 0)
    with pytest.raises(ValueError, match=r"x has 3 dimensions: give \[m, d_in\]"):
        torch.ops.tuner.ffn(x[None], w1, w2, *rest)
    w1.requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient: call it under"):
        torch.ops.tuner.ffn(x, w1, w2, *rest)
    with torch.no_grad():
        assert not torch.ops.tuner.ffn(x, w1, w2, *rest).requires_grad
    with torch.inference_mode():
        assert torch.ops.tuner.ffn(x, w1, w2, *rest).is_inference()


@pytest.fixture
def pack(op: Any, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pack]:
    """Kernels for up to 16 rows over the recorder of driver calls; tensors of the CPU stand where a card's would."""
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    monkeypatch.setattr(arrays._Torch, "current_stream", lambda self, like: 0x4242)
    monkeypatch.setattr(op, "_current_stream", lambda device: 0x4242)
    kernels = [make().kernel, make(workload=ffn(full=True)).kernel]
    write_pack([ladder(kernel) for kernel in kernels], tmp_path / "model.tunerpack")
    recorder.cuda.fake_parameter_bytes(kernels[0].manifest["parameter"]["size_bytes"])
    opened = load(tmp_path / "model.tunerpack")
    yield opened
    opened.close()


def test_the_kernel_gets_the_operands_and_all_that_is_not_its_own_is_pytorchs(
    op: Any, recorder: Recorder, pack: Pack
) -> None:
    half = {"dtype": torch.float16}
    w1, w2, x = torch.randn(256, 64, **half), torch.randn(128, 256, **half), torch.randn(9, 64, **half)
    number = op.register(pack.bind(Weights(w1, w2, activation="silu")))
    plain = (None, None, None, None)

    def launched(*given: Any) -> Any:
        recorder.clear()
        y = op._on_cuda(*given)
        return y, recorder.calls("cuLaunchKernelEx")

    y, (call,) = launched(x, w1, w2, *plain, "silu", False, number)
    assert call.stream == 0x4242
    found = [int.from_bytes(call.parameter[104 + at : 112 + at], "little") for at in (0, 8, 64 + 8, 64 + 24)]
    assert found == [one.data_ptr() for one in (x, w1, w2, y)]
    assert y.shape == (9, 128)
    columns = x.T.contiguous().T  # as inductor may hand it over
    assert len(launched(columns, w1, w2, *plain, "silu", False, number)[1]) == 1
    for wrong in (x.to(torch.bfloat16), x[:, :32].contiguous()):
        with pytest.raises(RuntimeFailure, match=r"give \[m, 64\] of float16"):
            launched(wrong, w1, w2, *plain, "silu", False, number)
    many = torch.randn(17, 64, **half)
    bias = torch.zeros(256, **half), torch.zeros(128, **half), None, None
    for given in (
        (many, w1, w2, *plain, "silu", False, number),
        (x, w1.clone(), w2, *plain, "silu", False, number),
        (x, w1, w2.clone(), *plain, "silu", False, number),
        (x, w1, w2, *bias, "silu", False, number),
        (x, w1, w2, *plain, "relu", False, number),
        (x, w1, w2, *plain, "silu", False, 0),
    ):
        y, calls = launched(*given)
        assert calls == []
        assert torch.equal(y, op.by_torch(*given))
    ffn = op._prepared[number].ffn
    assert torch.allclose(ffn(many), op.by_torch(many, w1, w2, *plain, "silu", False), rtol=1e-2, atol=1e-2)
    op.forget(number)
    assert launched(x, w1, w2, *plain, "silu", False, number)[1] == []


def test_every_option_reaches_the_kernel(op: Any, recorder: Recorder, pack: Pack) -> None:
    half = {"dtype": torch.float16}
    w1, w2, b1, b2 = (torch.randn(*shape, **half) for shape in ((512, 64), (128, 256), (512,), (128,)))
    weights = Weights(w1, w2, b1, b2, activation="silu", gated=True, residual=True, row_scale=True)
    number = op.register(pack.bind(weights))
    x, residual, scale = torch.randn(4, 64, **half), torch.randn(4, 128, **half), torch.rand(4)
    recorder.clear()
    y = op._on_cuda(x, w1, w2, b1, b2, residual, scale, "silu", True, number)
    (call,) = recorder.calls("cuLaunchKernelEx")
    places = (16, 40, 64 + 16, 64 + 24, 64 + 32)
    found = [int.from_bytes(call.parameter[104 + at : 112 + at], "little") for at in places]
    assert found == [one.data_ptr() for one in (b1, scale, b2, y, residual)]
    recorder.clear()
    op._on_cuda(x, w1, w2, b1, b2, None, scale, "silu", True, number)
    assert recorder.calls("cuLaunchKernelEx") == []
