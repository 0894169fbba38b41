"""The PyTorch operator on CPU tensors; requires PyTorch, which is in none of our extras."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.support.packs import ladder, make
from tests.unit.runtime.torch_ffn import D_HIDDEN, D_IN, D_OUT, ROWS, STREAM, OnCard, expected, in_cpp, operands
from tuner.packs.write import write_pack
from tuner.runtime import Pack, RuntimeFailure, Weights, load
from tuner.runtime.binding import native

torch = pytest.importorskip("torch")
#: PyTorch's own deprecations, which inductor triggers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

ACTIVATIONS = ["identity", "relu", "gelu", "silu"]


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
    """Every sum is below 2^8, which each type represents exactly: one wrong row, column or sign gives a wrong
    integer."""
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
        y = x + x  # exact, since inductor's code gives the same bits
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
    with pytest.raises(ValueError, match=r"x has 3 dimensions: pass \[m, d_in\]"):
        torch.ops.tuner.ffn(x[None], w1, w2, *rest)
    w1.requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient: call it under"):
        torch.ops.tuner.ffn(x, w1, w2, *rest)
    with torch.no_grad():
        assert not torch.ops.tuner.ffn(x, w1, w2, *rest).requires_grad
    with torch.inference_mode():
        assert torch.ops.tuner.ffn(x, w1, w2, *rest).is_inference()


def test_the_kernel_gets_the_operands_and_all_that_is_not_its_own_is_pytorchs(
    op: Any, on_card: OnCard, recorder: Recorder, pack: Pack
) -> None:
    half = {"dtype": torch.float16}
    w1, w2, x = torch.randn(256, 64, **half), torch.randn(128, 256, **half), torch.randn(9, 64, **half)
    number = op.register(pack.bind(Weights(w1, w2, activation="silu")))
    plain = (None, None, None, None)

    def launched(*given: Any) -> Any:
        recorder.clear()
        y = on_card(*given)
        return y, recorder.calls("cuLaunchKernelEx")

    y, (call,) = launched(x, w1, w2, *plain, "silu", False, number)
    assert call.stream == STREAM
    found = [int.from_bytes(call.parameter[104 + at : 112 + at], "little") for at in (0, 8, 64 + 8, 64 + 24)]
    assert found == [one.data_ptr() for one in (x, w1, w2, y)]
    assert y.shape == (9, 128)
    for others in ((), (0,), (-1,), (number + 1,), (2**40,)):
        assert len(launched(x, w1, w2, *plain, "silu", False, *others)[1]) == 1, "it is found by its weights"
    columns = x.T.contiguous().T  # as inductor may pass it
    assert len(launched(columns, w1, w2, *plain, "silu", False, number)[1]) == 1
    for wrong in (x.to(torch.bfloat16), x[:, :32].contiguous()):
        with pytest.raises(RuntimeError, match=r"pass \[m, 64\] of (float16|Half)"):
            launched(wrong, w1, w2, *plain, "silu", False, number)
    many = torch.randn(17, 64, **half)
    bias = torch.zeros(256, **half), torch.zeros(128, **half), None, None
    for given in (
        (many, w1, w2, *plain, "silu", False, number),
        (x, w1.clone(), w2, *plain, "silu", False, number),
        (x, w1, w2.clone(), *plain, "silu", False, number),
        (x, w1, w2, *bias, "silu", False, number),
        (x, w1, w2, *plain, "relu", False, number),
        (x, w1.T.contiguous().T, w2, *plain, "silu", False, number),
    ):
        y, calls = launched(*given)
        assert calls == []
        assert torch.equal(y, op.by_torch(*given))
    ffn = next(op._prepared.of(op.lie((w1, w2, None, None)))).ffn
    assert torch.allclose(ffn(many), op.by_torch(many, w1, w2, *plain, "silu", False), rtol=1e-2, atol=1e-2)
    op.forget(number)
    assert launched(x, w1, w2, *plain, "silu", False, number)[1] == []


def test_of_several_for_one_weight_the_number_chooses_and_else_the_last(
    op: Any, on_card: OnCard, recorder: Recorder, pack: Pack
) -> None:
    """Strands have separate workspaces, and each stream uses one."""
    half = {"dtype": torch.float16}
    w1, w2, x = torch.randn(256, 64, **half), torch.randn(128, 256, **half), torch.randn(9, 64, **half)
    first, second = (op.register(pack.bind(Weights(w1, w2, activation="silu"), strand=strand)) for strand in (0, 1))

    def workspace(*number: int) -> bytes:
        recorder.clear()
        on_card(x, w1, w2, None, None, None, None, "silu", False, *number)
        (call,) = recorder.calls("cuLaunchKernelEx")
        return bytes(call.parameter[8:16])

    assert workspace() == workspace(second) != workspace(first)
    op.forget(second)
    assert workspace(second) == workspace() == workspace(first)
    op.forget(first)


def test_after_its_pack_was_closed_pytorch_computes(op: Any, on_card: OnCard, recorder: Recorder, pack: Pack) -> None:
    half = {"dtype": torch.float16}
    x, w1, w2 = torch.randn(4, 64, **half), torch.randn(256, 64, **half), torch.randn(128, 256, **half)
    number = op.register(pack.bind(Weights(w1, w2, activation="silu")))
    given = (x, w1, w2, None, None, None, None, "silu", False, number)
    on_card(*given)
    assert len(recorder.calls("cuLaunchKernelEx")) == 1
    pack.close()
    assert torch.equal(on_card(*given), op.by_torch(*given))
    assert len(recorder.calls("cuLaunchKernelEx")) == 1


def test_every_option_reaches_the_kernel(op: Any, on_card: OnCard, recorder: Recorder, pack: Pack) -> None:
    half = {"dtype": torch.float16}
    w1, w2, b1, b2 = (torch.randn(*shape, **half) for shape in ((512, 64), (128, 256), (512,), (128,)))
    weights = Weights(w1, w2, b1, b2, activation="silu", gated=True, residual=True, row_scale=True)
    number = op.register(pack.bind(weights))
    x, residual, scale = torch.randn(4, 64, **half), torch.randn(4, 128, **half), torch.rand(4)
    recorder.clear()
    y = on_card(x, w1, w2, b1, b2, residual, scale, "silu", True, number)
    (call,) = recorder.calls("cuLaunchKernelEx")
    places = (16, 40, 64 + 16, 64 + 24, 64 + 32)
    found = [int.from_bytes(call.parameter[104 + at : 112 + at], "little") for at in places]
    assert found == [one.data_ptr() for one in (b1, scale, b2, y, residual)]
    recorder.clear()
    on_card(x, w1, w2, b1, b2, None, scale, "silu", True, number)
    assert recorder.calls("cuLaunchKernelEx") == []


Bound = tuple[tuple[Any, ...], int]


@pytest.fixture
def bound(op: Any, compiled: Any, recorder: Recorder, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> Bound:
    """Arguments of the operator for which the pack has a kernel, and their number."""
    monkeypatch.setattr(op, "compiled", compiled)
    w1, w2, x = (torch.randn(*shape, dtype=torch.float16) for shape in ((256, 64), (128, 256), (9, 64)))
    number = op.register(pack.bind(Weights(w1, w2, activation="silu")))
    recorder.clear()
    return (x, w1, w2, None, None, None, None, "silu", False, number), number


def test_parameters_are_packed_once_for_each_set_of_addresses(bound: Bound, recorder: Recorder) -> None:
    """The operator allocates Y at each call, and the allocator returns the same memory again."""
    given, _ = bound
    seen = {in_cpp(*given).data_ptr()}  # this call also queries the device of its stream
    for _ in range(40):
        recorder.clear()
        y = in_cpp(*given)
        names = [call.name for call in recorder.calls()]
        is_new = y.data_ptr() not in seen
        maps = ["cuTensorMapEncodeTiled"] * 4 * is_new
        assert names == ["cuStreamIsCapturing", "cuStreamGetId", *maps, "cuLaunchKernelEx"]
        seen.add(y.data_ptr())
    assert len(seen) < 40


def test_what_the_driver_refuses_is_an_exception_with_the_runtimes_sentence(bound: Bound, recorder: Recorder) -> None:
    (x, *rest), _ = bound
    recorder.fail("cuLaunchKernelEx", 700)
    with pytest.raises(RuntimeError, match=r"cuLaunchKernelEx failed: .*\(700\)"):
        in_cpp(x, *rest)
    recorder.clear()
    odd = torch.randn(9 * 64 + 1, dtype=torch.float16)[1:].view(9, 64)
    with pytest.raises(RuntimeError, match="is not aligned to 16 bytes"):
        in_cpp(odd, *rest)


def test_what_is_forgotten_is_computed_by_pytorch(op: Any, bound: Bound, recorder: Recorder) -> None:
    given, number = bound
    op.forget(number)
    assert torch.equal(in_cpp(*given), op.by_torch(*given))
    assert recorder.calls("cuLaunchKernelEx") == []


@pytest.fixture
def on_cpu(bound: Bound) -> Iterator[Bound]:
    """Registers the C++ operator in place of the CPU's."""
    library = torch.library.Library("tuner", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of PyTorch warn of it
        library.impl("ffn", in_cpp, "CPU", allow_override=True)
    yield bound
    library._destroy()


def test_the_operator_in_cpp_passes_pytorchs_own_checks(on_cpu: Bound) -> None:
    """The checks copy the operands, so PyTorch's own products compute them, which C++ calls through Python."""
    (x, w1, w2, *rest), _ = on_cpu
    given = (x.float(), w1.float(), w2.float(), *rest)
    found = torch.library.opcheck(torch.ops.tuner.ffn.default, given)
    assert len(found) == 4
    assert set(found.values()) == {"SUCCESS"}
    assert torch.equal(torch.ops.tuner.ffn(*given), torch.ops.tuner.ffn_by_torch(*given))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_a_whole_graph_calls_the_operator_in_cpp(on_cpu: Bound, recorder: Recorder) -> None:
    (x, *rest), _ = on_cpu

    def block(x: Any) -> Any:
        return torch.ops.tuner.ffn(torch.ops.tuner.ffn(x, *rest)[:, :64] + 1, *rest)

    torch._dynamo.reset()
    with torch.no_grad():
        y = torch.compile(block, fullgraph=True)(x)
    assert y.shape == (9, 128)
    first, second = recorder.calls("cuLaunchKernelEx")
    places = [104, 104 + 64 + 24]  # X of the first op, Y of the second
    found = [[int.from_bytes(call.parameter[at : at + 8], "little") for at in places] for call in (first, second)]
    assert found[0][0] == x.data_ptr()
    assert found[1][1] == y.data_ptr()


def test_rows_gradients_and_dimensions_are_refused_in_cpp_as_in_python(bound: Bound) -> None:
    (x, w1, *rest), _ = bound
    with pytest.raises(ValueError, match=r"x has 3 dimensions: pass \[m, d_in\]"):
        in_cpp(x[None], w1, *rest)
    w1.requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient: call it under"):
        in_cpp(x, w1, *rest)
    with torch.no_grad():
        assert in_cpp(x, w1, *rest).shape == (9, 128)


def test_where_pytorch_has_no_card_a_pack_binds_nothing_and_says_why(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    write_pack([ladder(make().kernel)], tmp_path / "a.tunerpack")
    weights = Weights(
        *(torch.zeros(shape, dtype=torch.float16) for shape in ((256, 64), (128, 256))), activation="silu"
    )
    why = "" if torch.backends.cuda.is_built() else ", and this PyTorch was built without CUDA"
    with pytest.raises(RuntimeFailure, match=f"the tensors are on cpu{why}: pass tensors of a CUDA device"):
        load(tmp_path / "a.tunerpack").bind(weights)
