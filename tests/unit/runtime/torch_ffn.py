"""The FFN operator as the CPU runs it, and as a GPU would, over the recorder of driver calls."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.support.packs import ffn, ladder, make
from tuner.packs.write import write_pack
from tuner.runtime import Pack, load
from tuner.runtime.binding import native
from tuner.runtime.tensors import arrays

D_IN, D_HIDDEN, D_OUT, ROWS = 32, 48, 24, 5
#: The current stream, for tests that need no real one.
STREAM = 0x4242


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current_stream(device: int, found: Any) -> int:
    """Replaces PyTorch's C function, as in a PyTorch with CUDA."""
    found[0] = STREAM
    return 0


@pytest.fixture
def op() -> Any:
    """The module, which registers the operator at its first import."""
    pytest.importorskip("torch")
    from tuner.runtime import torch_op

    return torch_op


def operands(*, gated: bool, full: bool, dtype: Any = None) -> tuple[Any, ...]:
    """Random operands; `full`: with biases, a residual and factors per row."""
    import torch

    torch.manual_seed(7)
    rows = (2 if gated else 1) * D_HIDDEN
    x, w1, w2 = torch.randn(ROWS, D_IN), torch.randn(rows, D_IN) / 6, torch.randn(D_OUT, D_HIDDEN) / 7
    others = (torch.randn(rows), torch.randn(D_OUT), torch.randn(ROWS, D_OUT), torch.rand(ROWS)) if full else ()
    given = [one.to(dtype or one.dtype) for one in (x, w1, w2, *others)]
    if full:  # factors are never narrower than float32
        given[6] = given[6].to(torch.promote_types(given[0].dtype, torch.float32))
    return (*given, *(None,) * (7 - len(given)))


def expected(given: tuple[Any, ...], activation: str, gated: bool) -> np.ndarray[Any, Any]:
    """The formula of the page on packs in float64 NumPy."""
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


@pytest.fixture
def pack(op: Any, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pack]:
    """Kernels for up to 16 rows over the recorder of driver calls; CPU tensors replace a GPU's."""
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    monkeypatch.setattr(arrays._Torch, "current_stream", lambda self, like: STREAM)
    monkeypatch.setattr(op, "_current_stream", lambda device: STREAM)
    kernels = [make().kernel, make(workload=ffn(full=True)).kernel]
    write_pack([ladder(kernel) for kernel in kernels], tmp_path / "model.tunerpack")
    recorder.cuda.fake_parameter_bytes(kernels[0].manifest["parameter"]["size_bytes"])
    opened = load(tmp_path / "model.tunerpack")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def compiled() -> Any:
    """The C++ operator, which CUDA tensors would then use; a PyTorch with CUDA may have loaded it already."""
    from tuner.runtime import torch_compiled

    if shutil.which("ninja") is None or shutil.which("g++") is None:
        pytest.skip("PyTorch's builder needs ninja and g++")
    address = ctypes.cast(current_stream, ctypes.c_void_p).value
    assert address is not None
    return torch_compiled.Compiled(torch_compiled.build(), address)


OnCard = Callable[..., Any]


def in_cpp(*given: Any) -> Any:
    """The operator as CUDA tensors would run it; ours are on the CPU."""
    import torch

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    return torch.ops.tuner.ffn.default.redispatch(keys, *given)


@pytest.fixture(params=["python", "c++"])
def on_card(op: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OnCard:
    """The operator as on a GPU, in either language."""
    if request.param == "python":
        found: OnCard = op._on_cuda
        return found
    monkeypatch.setattr(op, "compiled", request.getfixturevalue("compiled"))
    return in_cpp
