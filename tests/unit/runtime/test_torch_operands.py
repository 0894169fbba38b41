"""Wrong operands of `torch.ops.tuner.ffn` are refused alike when traced, on the CPU and on a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.unit.runtime.torch_ffn import OnCard, expected, operands
from tuner.runtime import Pack, Weights

torch = pytest.importorskip("torch")
#: PyTorch's own deprecations, which inductor triggers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

#: The error in one operand of an FFN 64 -> 256 -> 128 with all options, at four rows, and the message about it.
WRONG: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "x of float32": ("x", lambda x: x.float(), r"x is \[4, 64\] of float32: pass \[m, 64\] of float16"),
    "x of bfloat16": ("x", lambda x: x.bfloat16(), r"x is \[4, 64\] of bfloat16"),
    "x of another width": ("x", lambda x: x[:, :56].contiguous(), r"x is \[4, 56\] of float16: pass \[m, 64\]"),
    "x of three dimensions": ("x", lambda x: x[None], "x has 3 dimensions"),
    "w1 without a gate": ("w1", lambda w: w[:256], r"w1 is \[256, 64\] of float16: pass \[512, 64\]"),
    "w1 of another type": ("w1", lambda w: w.bfloat16(), "x is .* pass .* of bfloat16"),
    "w2 of another type": ("w2", lambda w: w.float(), "w2 is .* of float32: pass .* of float16"),
    "w2 of another width": ("w2", lambda w: w[:, :128], r"w1 is \[512, 64\] of float16: pass \[256, 64\]"),
    "w1 of float8": ("w1", lambda w: w.to(torch.float8_e4m3fn), "w1 is of float8_e4m3fn: use float16 or bfloat16"),
    "w1 of complex64": ("w1", lambda w: w.to(torch.complex64), "w1 is of complex64: use float16 or bfloat16"),
    "w2 of one dimension": ("w2", lambda w: w[0], "w2 has 1 dimensions"),
    "b1 of float32": ("b1", lambda b: b.float(), "b1 is .* of float32"),
    "b1 of half the rows": ("b1", lambda b: b[:256], r"b1 is \[256\] of float16: pass \[512\]"),
    "b1 of one": ("b1", lambda b: b[:1], r"b1 is \[1\]"),
    "b1 alone": ("b2", lambda b: None, "b1 and b2 go together"),
    "b2 of another width": ("b2", lambda b: b[:64], r"b2 is \[64\] of float16: pass \[128\]"),
    "residual of float32": ("residual", lambda r: r.float(), "residual is .* of float32: pass .* of float16"),
    "residual of one row": ("residual", lambda r: r[:1], r"residual is \[1, 128\] of float16: pass \[4, 128\]"),
    "residual of another width": ("residual", lambda r: r[:, :1], r"residual is \[4, 1\]"),
    "residual without rows": ("residual", lambda r: r[0], r"residual is \[128\]"),
    "residual of more rows": ("residual", lambda r: r.repeat(2, 1), r"residual is \[8, 128\]"),
    "row_scale of one": ("row_scale", lambda s: s[:1], r"row_scale is \[1\] of float32: pass \[4\]"),
    "row_scale of none": ("row_scale", lambda s: s[:0], r"row_scale is \[0\]"),
    "row_scale of float16": ("row_scale", lambda s: s.half(), "row_scale is .* of float16: pass .* of float32"),
    "row_scale of float64": ("row_scale", lambda s: s.double(), "row_scale is .* of float64"),
    "row_scale as a column": ("row_scale", lambda s: s[:, None], r"row_scale is \[4, 1\]"),
    "row_scale with gaps": ("row_scale", lambda s: s.repeat_interleave(2)[::2], "row_scale is not contiguous"),
    "activation none": ("activation", lambda a: "none", "activation: is 'none', which no kernel supports; use one"),
    "activation RELU": ("activation", lambda a: "RELU", "activation: is 'RELU'"),
    "no activation": ("activation", lambda a: "", "activation: is ''"),
    "the exact gelu": ("activation", lambda a: "gelu_python", "activation: is 'gelu_python'"),
}
ARGUMENTS = ("x", "w1", "w2", "b1", "b2", "residual", "row_scale", "activation", "gated", "number")


def faked(*given: Any) -> Any:
    """The operator on fake tensors, as in tracing."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        tensors = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in given]
        return torch.ops.tuner.ffn(*tensors)


@pytest.fixture
def full(op: Any, recorder: Recorder, pack: Pack) -> dict[str, Any]:
    """Arguments of a prepared FFN with all options."""
    half = {"dtype": torch.float16}
    w1, w2, b1, b2 = (torch.randn(*shape, **half) for shape in ((512, 64), (128, 256), (512,), (128,)))
    weights = Weights(w1, w2, b1, b2, activation="silu", gated=True, residual=True, row_scale=True)
    x, residual, scale = torch.randn(4, 64, **half), torch.randn(4, 128, **half), torch.rand(4)
    number = op.register(pack.bind(weights))
    recorder.clear()
    return dict(zip(ARGUMENTS, (x, w1, w2, b1, b2, residual, scale, "silu", True, number), strict=True))


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_operand_is_refused_alike_when_it_is_traced_on_the_cpu_and_on_a_card(
    case: str, on_card: OnCard, recorder: Recorder, full: dict[str, Any]
) -> None:
    name, wrong, says = WRONG[case]
    given = tuple((full | {name: wrong(full[name])}).values())
    found = []
    for run in (faked, torch.ops.tuner.ffn, on_card):
        for number in (given[-1], 0):
            with pytest.raises((ValueError, NotImplementedError), match=says) as caught:
                run(*given[:-1], number)
            found.append((type(caught.value), str(caught.value)))
    assert len(set(found)) == 1
    assert isinstance(caught.value, RuntimeError)
    assert recorder.calls("cuLaunchKernelEx") == []


def test_a_gradient_of_any_operand_is_refused_alike(on_card: OnCard, recorder: Recorder, full: dict[str, Any]) -> None:
    for name in ARGUMENTS[:7]:
        given = tuple((full | {name: full[name].clone().requires_grad_()}).values())
        for run in (faked, torch.ops.tuner.ffn, on_card):
            with pytest.raises(NotImplementedError, match="tuner::ffn has no gradient: call it under"):
                run(*given)
    assert recorder.calls("cuLaunchKernelEx") == []


def test_weights_of_another_shape_order_or_type_at_a_known_address_are_others(
    op: Any, on_card: OnCard, recorder: Recorder, pack: Pack
) -> None:
    """An address is reused after a tensor is freed."""
    half = {"dtype": torch.float16}
    storage, w2 = torch.randn(256 * 64, **half), torch.randn(128, 256, **half)
    number = op.register(pack.bind(Weights(storage.view(256, 64), w2, activation="silu")))
    plain = (None, None, None, None, "silu", False, number)
    recorder.clear()
    x = torch.randn(4, 64, **half)
    transposed, narrow = storage.view(64, 256).T, storage[: 256 * 32].view(256, 32)
    others = [
        (x, transposed, w2),
        (x[:, :32].contiguous(), narrow, w2),
        (x.bfloat16(), storage.view(torch.bfloat16).view(256, 64), w2.bfloat16()),
        (x, storage.view(256, 64), w2[:64]),
    ]
    for given in others:
        assert {given[1].data_ptr()} == {storage.data_ptr()} or given[2].data_ptr() == w2.data_ptr()
        assert torch.equal(on_card(*given, *plain), op.by_torch(*given, *plain))
    assert recorder.calls("cuLaunchKernelEx") == []
    on_card(x, storage.view(256, 64), w2, *plain)
    assert len(recorder.calls("cuLaunchKernelEx")) == 1


@pytest.mark.parametrize("name", ["swish", "silu"])
def test_another_name_of_the_same_function_is_launched_too(
    on_card: OnCard, recorder: Recorder, full: dict[str, Any], name: str
) -> None:
    on_card(*(full | {"activation": name}).values())
    assert len(recorder.calls("cuLaunchKernelEx")) == 1


@pytest.mark.parametrize(
    ("name", "ours"), [("swish", "silu"), ("gelu_pytorch_tanh", "gelu"), ("gelu_new", "gelu"), ("linear", "identity")]
)
def test_names_of_one_function_compute_it(op: Any, name: str, ours: str) -> None:
    given = operands(gated=True, full=True, dtype=torch.float64)
    found = [torch.ops.tuner.ffn(*given, one, True, 0) for one in (name, ours)]
    assert torch.equal(*found)
    np.testing.assert_allclose(found[0].numpy(), expected(given, ours, True), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("number", [-1, -2, 0, 10**6, 2**40])
def test_a_number_that_nobody_has_says_nothing(
    on_card: OnCard, recorder: Recorder, full: dict[str, Any], number: int
) -> None:
    given = (*tuple(full.values())[:-1], number)
    assert on_card(*given).shape == torch.ops.tuner.ffn(*given).shape
    assert len(recorder.calls("cuLaunchKernelEx")) == 1, "the weights tell what was prepared"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast_changes_no_type(op: Any, dtype: Any) -> None:
    given = (*operands(gated=True, full=True, dtype=dtype), "silu", True, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.ops.tuner.ffn(*given)
    assert found.dtype is dtype
    assert torch.equal(found, torch.ops.tuner.ffn(*given))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_a_wrong_operand_is_refused_when_a_graph_is_traced(op: Any) -> None:
    given = [*operands(gated=True, full=True, dtype=torch.bfloat16), "silu", True, 0]
    given[5] = given[5].float()
    torch._dynamo.reset()
    with (
        torch.no_grad(),
        pytest.raises(Exception, match=r"residual is \[5, 24\] of float32: pass \[5, 24\] of bfloat16"),
    ):
        torch.compile(lambda *tensors: torch.ops.tuner.ffn(*tensors), fullgraph=True)(*given)
