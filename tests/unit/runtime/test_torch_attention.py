"""`torch.ops.tuner.attention_proj` on CPU tensors; requires PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attention_zips import zip_of
from tests.support.native.recorder import Recorder
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.reference import attention, gathered
from tuner.ops.attention.shapes.form import form_for
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.runtime import load_attention
from tuner.runtime.device import driver
from tuner.runtime.tensors import arrays

torch = pytest.importorskip("torch")
#: PyTorch's own deprecations, which inductor triggers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

SHAPE = DecodeAttention(sequences=4, kv_heads=2, query_heads=3, head_dim=64, max_length=70, new_tokens=2)
LENGTHS = (70, 0, 33, 1)
STREAM = 0x4242
FORMS: list[dict[str, Any]] = [
    {},
    {"window": 20, "soft_cap": 2.0},
    {"page_tokens": 16},
    {"page_tokens": 16, "heads_first": False, "window": 9},
]


@pytest.fixture
def op() -> Any:
    """The module, which registers the operator at its first import."""
    from tuner.runtime import torch_attention

    return torch_attention


def operands(form: dict[str, Any], dtype: Any, *, with_w: bool = True) -> tuple[Any, ...]:
    """All arguments of the operator. Tokens that no query sees are NaN, and unused page numbers are invalid."""
    torch.manual_seed(3)
    made = form_for(SHAPE, **form)
    rows, heads = SHAPE.sequences * SHAPE.new_tokens, SHAPE.kv_heads * SHAPE.query_heads * SHAPE.head_dim
    q, w = torch.randn(rows, heads, dtype=dtype), torch.randn(24, heads, dtype=dtype) * heads**-0.5
    contiguous = (SHAPE.sequences, SHAPE.kv_heads, SHAPE.max_length, SHAPE.head_dim)
    caches = [torch.randn(made.paged.shape(SHAPE) if made.paged else contiguous, dtype=dtype) for _ in range(2)]
    pages = None
    if made.paged:
        pages = torch.randperm(made.paged.num_pages, dtype=torch.int32).view(SHAPE.sequences, -1)
        for sequence, length in enumerate(LENGTHS):
            unused = pages[sequence, -(-length // made.paged.page_tokens) :]
            for cache in caches:
                cache[unused.long()] = float("nan")
            unused.fill_(2**31 - 1)
    else:
        for sequence, length in enumerate(LENGTHS):
            for cache in caches:
                cache[sequence, :, length:] = float("nan")
    options = (made.paged is None or made.paged.heads_first, SHAPE.score_scale, made.window or 0, made.soft_cap or 0.0)
    return (q, *caches, torch.tensor(LENGTHS, dtype=torch.int32), pages, w if with_w else None, *options, 0)


@pytest.mark.parametrize("with_w", [False, True], ids=["alone", "projected"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_operator_is_the_reference_in_float64(op: Any, form: dict[str, Any], with_w: bool) -> None:
    given = operands(form, torch.float64, with_w=with_w)
    q, keys, values, lengths, pages, w = (None if one is None else one.numpy() for one in given[:6])
    made = form_for(SHAPE, **form)
    if made.paged is not None:
        assert isinstance(made.paged, PagedCache)
        keys, values = (gathered(SHAPE, made.paged, cache, pages, LENGTHS, np) for cache in (keys, values))
    queries = q.reshape(SHAPE.sequences, SHAPE.new_tokens, -1, SHAPE.head_dim)
    wanted = attention(SHAPE, queries, keys, values, lengths.tolist(), np, made).reshape(q.shape)
    wanted = wanted if w is None else wanted @ w.T
    found = torch.ops.tuner.attention_proj(*given)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_operator_passes_pytorchs_own_checks(op: Any, dtype: str, form: dict[str, Any]) -> None:
    """Schema, autograd, fake tensors, and whole graphs with shapes that change."""
    given = operands(form, getattr(torch, dtype))
    given = tuple(one.nan_to_num() if getattr(one, "is_floating_point", bool)() else one for one in given)
    found = torch.library.opcheck(torch.ops.tuner.attention_proj.default, given)
    assert len(found) == 4
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("with_w", [False, True])
def test_a_fake_tensor_has_the_shape_and_type_of_the_result(op: Any, with_w: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        given = [
            mode.from_tensor(one) if isinstance(one, torch.Tensor) else one
            for one in operands({}, torch.bfloat16, with_w=with_w)
        ]
        y = torch.ops.tuner.attention_proj(*given)
    assert (tuple(y.shape), y.dtype) == ((8, 24 if with_w else 384), torch.bfloat16)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_torch_compile_takes_it_whole_and_changes_no_bit(op: Any) -> None:
    given = operands({"page_tokens": 16}, torch.float32)

    def block(q: Any) -> Any:
        return torch.ops.tuner.attention_proj(q + q, *given[1:])

    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(block, fullgraph=True)(given[0]), block(given[0]))


def test_shapes_that_do_not_meet_and_gradients_are_refused(op: Any) -> None:
    q, *rest = operands({}, torch.float32)
    with pytest.raises(ValueError, match=r"q, keys and lengths have 3, 4 and 1 dimensions: pass \[rows"):
        torch.ops.tuner.attention_proj(q[None], *rest)
    with pytest.raises(ValueError, match="q has 7 rows for 4 sequences"):
        torch.ops.tuner.attention_proj(q[:7], *rest)
    q.requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient: call it under"):
        torch.ops.tuner.attention_proj(q, *rest)
    with torch.no_grad():
        assert not torch.ops.tuner.attention_proj(q, *rest).requires_grad


def test_kernels_get_their_own_operands_and_all_else_is_pytorchs(
    op: Any, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.cuda.fake_parameter_bytes(64)
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(arrays._Torch, "current_stream", lambda self, like: STREAM)
    monkeypatch.setattr(driver.Driver, "device_name", lambda self: "cpu")  # whose tensors stand in for a card's
    attention = load_attention(zip_of(tmp_path, d_out=512, form={"page_tokens": 16, "window": 500}, scale=0.2).path)

    def tensor(name: str, dtype: Any = torch.bfloat16) -> Any:
        return torch.zeros(attention.shape(name), dtype=dtype)

    q, w = tensor("q"), tensor("o_proj.w")
    keys, values = tensor("attention.keys"), tensor("attention.values")
    lengths, pages = (tensor(f"attention.{name}", torch.int32) for name in ("lengths", "pages"))
    number = op.register(attention)
    own = (q, keys, values, lengths, pages, w, True, 0.2, 500, 0.0, number)

    def num_launched(*given: Any) -> int:
        recorder.clear()
        assert op._on_cuda(*given).shape == (4, 512)
        return len(recorder.calls("cuLaunchKernelEx"))

    assert num_launched(*own) == 2
    assert {call.stream for call in recorder.calls("cuLaunchKernelEx")} == {STREAM}
    assert num_launched(*own[:5], w.clone(), *own[6:]) == 2, "another layer's weight"
    more = [torch.zeros(200, 2, 16, 64, dtype=torch.bfloat16) for _ in range(2)]
    assert num_launched(q, *more, *own[3:]) == 2, "a cache of more pages"
    others = [(3, lengths.long()), (5, w.T.contiguous().T), (7, 0.3), (8, 400), (9, 3.0)]
    for place, other in others:
        assert num_launched(*own[:place], other, *own[place + 1 :]) == 0
    assert num_launched(*(one.float() for one in own[:3]), *own[3:5], w.float(), *own[6:]) == 0
    for numbers in ((), (0,), (number + 1,)):
        assert num_launched(*own[:-1], *numbers) == 2, "it is found without its number"
    op.forget(number)
    assert num_launched(*own) == 0
