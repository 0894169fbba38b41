"""`torch.ops.tuner.decoder_layer` on CPU tensors; requires PyTorch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attention_packs import made_of
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.native.recorder import Recorder
from tests.unit.runtime.prepared_layer import make_layer
from tests.unit.runtime.test_layer import zip_at
from tuner.ops.attention.reference import attention, gathered
from tuner.ops.attention.shapes.form import form_for
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.runtime import RuntimeFailure, load_layer
from tuner.runtime.device import driver
from tuner.runtime.tensors import arrays

torch = pytest.importorskip("torch")
#: PyTorch's own deprecations, which inductor triggers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

SHAPE = DecodeAttention(sequences=4, kv_heads=2, query_heads=3, head_dim=64, max_length=70, new_tokens=2)
LENGTHS = (70, 0, 33, 1)
HIDDEN, INNER, EPS = 96, 80, 1e-5
STREAM = 0x4242
#: The requested attention, and the existing parts.
CASES: dict[str, dict[str, Any]] = {
    "qkv, attention, o_proj": {"residual": False},
    "with a bias and the stream": {"bias": True, "window": 20, "soft_cap": 2.0},
    "squares are given": {"squares": True},
    "no norm": {"eps": None, "residual": False},
    "queries alone": {"turned": False},
    "a block behind": {"block": True},
    "pages": {"page_tokens": 16},
    "pages, tokens first": {"page_tokens": 16, "heads_first": False, "bias": True},
}


@pytest.fixture
def op() -> Any:
    """The module, which registers the operator at its first import."""
    from tuner.runtime import torch_layer

    return torch_layer


def operands(
    dtype: Any,
    *,
    eps: float | None = EPS,
    turned: bool = True,
    bias: bool = False,
    squares: bool = False,
    block: bool = False,
    residual: bool = True,
    **form: Any,
) -> tuple[Any, ...]:
    """All arguments of the operator. Rows of the cache beyond a length are NaN, including those of new tokens."""
    torch.manual_seed(5)
    made, rows = form_for(SHAPE, **form), SHAPE.sequences * SHAPE.new_tokens
    columns = SHAPE.kv_heads * SHAPE.query_heads * SHAPE.head_dim
    width = columns + (2 * SHAPE.kv_heads * SHAPE.head_dim if turned else 0)

    def weight(n: int, k: int) -> Any:
        return torch.randn(n, k, dtype=dtype) * k**-0.5

    x = torch.randn(rows, HIDDEN, dtype=dtype)
    contiguous = (SHAPE.sequences, SHAPE.kv_heads, SHAPE.max_length, SHAPE.head_dim)
    caches = [torch.randn(made.paged.shape(SHAPE) if made.paged else contiguous, dtype=dtype) for _ in range(2)]
    pages = torch.randperm(made.paged.num_pages, dtype=torch.int32).view(SHAPE.sequences, -1) if made.paged else None
    if made.paged is None:
        for cache in caches:
            for sequence, length in enumerate(LENGTHS):
                cache[sequence, :, max(0, length - SHAPE.new_tokens if turned else length) :] = float("nan")
    pairs = torch.arange(SHAPE.head_dim // 2, dtype=torch.float32)
    return (
        x,
        (x.double() ** 2).sum(dim=1).to(torch.float32) if squares else None,
        weight(width, HIDDEN),
        torch.randn(width, dtype=dtype) if bias else None,
        500_000.0 ** (-pairs / pairs.numel()) if turned else None,
        *caches,
        torch.tensor(LENGTHS, dtype=torch.int32),
        pages,
        weight(HIDDEN, columns),
        weight(2 * INNER, HIDDEN) if block else None,
        weight(HIDDEN, INNER) if block else None,
        eps,
        residual,
        made.paged is None or made.paged.heads_first,
        SHAPE.score_scale,
        made.window or 0,
        made.soft_cap or 0.0,
        0,
    )


def expected(given: tuple[Any, ...], asked: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The rows and both caches, in float64 by NumPy, head by head."""
    tensors = [None if one is None else one.numpy() for one in given[:12]]
    wide = [one.astype(np.float64) if one is not None and one.dtype.kind == "f" else one for one in tensors]
    x, _, w_qkv, b_qkv, frequencies, keys, values, lengths, pages, w_o, w_up, w_down = wide
    eps, residual = given[12:14]
    form = {name: asked[name] for name in ("window", "soft_cap", "page_tokens", "heads_first") if name in asked}
    made, keys, values = form_for(SHAPE, **form), keys.copy(), values.copy()
    rows = x.shape[0]

    def normed(of: Any) -> Any:
        return of / np.sqrt((of**2).mean(axis=1, keepdims=True) + eps)

    qkv = (x if eps is None else normed(x)) @ w_qkv.T + (0 if b_qkv is None else b_qkv)
    if frequencies is None:
        queries = qkv
    else:
        half, count = SHAPE.head_dim // 2, qkv.shape[1] // SHAPE.head_dim
        num_queries, queries = count - 2 * SHAPE.kv_heads, np.zeros((rows, count - 2 * SHAPE.kv_heads, 2 * half))
        for row in range(rows):
            sequence, token = divmod(row, SHAPE.new_tokens)
            place = int(lengths[sequence]) - SHAPE.new_tokens + token
            angles = (np.float32(place) * frequencies.astype(np.float32)).astype(np.float64)
            for head in range(count):
                a = qkv[row, head * half : (head + 1) * half]
                b = qkv[row, (count + head) * half : (count + head + 1) * half]
                pair = np.concatenate([a, b])
                if head < count - SHAPE.kv_heads:
                    cos, sin = np.cos(angles), np.sin(angles)
                    pair = np.concatenate([a * cos - b * sin, b * cos + a * sin])
                if head < num_queries:
                    queries[row, head] = pair
                    continue
                cache = keys if head < num_queries + SHAPE.kv_heads else values
                of_cache = (head - num_queries) % SHAPE.kv_heads
                if 0 <= place < SHAPE.max_length:
                    if made.paged is None:
                        cache[sequence, of_cache, place] = pair
                    else:
                        page, line = pages[sequence, place // 16], place % 16
                        at = (page, of_cache, line) if made.paged.heads_first else (page, line, of_cache)
                        cache[at] = pair
    k, v = (keys, values)
    if made.paged is not None:
        k, v = (gathered(SHAPE, made.paged, cache, pages, LENGTHS, np) for cache in (keys, values))
    shaped = queries.reshape(SHAPE.sequences, SHAPE.new_tokens, -1, SHAPE.head_dim)
    attended = attention(SHAPE, shaped, k, v, list(LENGTHS), np, made).reshape(rows, -1)
    stream = attended @ w_o.T + (x if residual else 0)
    if w_up is not None:
        gate, up = np.split(normed(stream) @ w_up.T, 2, axis=1)
        stream = (gate / (1 + np.exp(-gate)) * up) @ w_down.T + stream
    return stream, keys, values


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_the_operator_is_the_reference_in_float64(op: Any, asked: dict[str, Any]) -> None:
    given = operands(torch.float64, **asked)
    wanted, keys, values = expected(given, asked)
    found = torch.ops.tuner.decoder_layer(*given)
    # The angles are fp32, as in kernels, and so are sines and given squares.
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5, atol=2e-6)
    for name, cache, right in (("keys", given[5], keys), ("values", given[6], values)):
        np.testing.assert_allclose(cache.numpy(), right, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_the_operator_passes_pytorchs_own_checks(op: Any, asked: dict[str, Any]) -> None:
    """Schema, autograd, fake tensors, and whole graphs with changing shapes; it mutates what the schema declares."""
    given = operands(torch.bfloat16, **asked)
    given = tuple(one.nan_to_num() if getattr(one, "is_floating_point", bool)() else one for one in given)
    found = torch.library.opcheck(torch.ops.tuner.decoder_layer.default, given)
    assert len(found) == 4
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_torch_compile_takes_it_whole_and_changes_no_bit_of_rows_or_caches(op: Any) -> None:
    given = operands(torch.float32)

    def step(x: Any, keys: Any, values: Any) -> Any:
        return torch.ops.tuner.decoder_layer(x + x, *given[1:5], keys, values, *given[7:])

    copies = [[one.clone() for one in given[5:7]] for _ in range(2)]
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(step, fullgraph=True)(given[0], *copies[0])
        assert torch.equal(compiled, step(given[0], *copies[1]))
    for one, other, before in zip(*copies, given[5:7], strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert not torch.equal(one.nan_to_num(), before.nan_to_num())


def test_shapes_that_do_not_meet_and_gradients_are_refused(op: Any) -> None:
    x, *rest = operands(torch.float32)
    with pytest.raises(ValueError, match="x has 3 dimensions: pass 2"):
        torch.ops.tuner.decoder_layer(x[None], *rest)
    with pytest.raises(ValueError, match="x has 7 rows for 4 sequences"):
        torch.ops.tuner.decoder_layer(x[:7], *rest)
    with pytest.raises(ValueError, match="w_up and w_down go together"):
        torch.ops.tuner.decoder_layer(x, *rest[:9], torch.zeros(4, HIDDEN), *rest[10:])
    x.requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient: call it under"):
        torch.ops.tuner.decoder_layer(x, *rest)
    with torch.no_grad():
        assert not torch.ops.tuner.decoder_layer(x, *rest).requires_grad


@pytest.mark.parametrize(
    "asked",
    [{}, {"num_behind": 3}, {"rotary": False}, {"norm": False}, {"sequences": 3}],
    ids=["run", "block", "queries alone", "no norm", "rows with room behind"],
)
def test_kernels_get_their_own_operands_and_all_else_is_pytorchs(
    op: Any, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    recorder.cuda.fake_parameter_bytes(64)
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(arrays._Torch, "current_stream", lambda self, like: STREAM)
    monkeypatch.setattr(driver.Driver, "device_name", lambda self: "cpu")  # whose tensors stand in for a card's
    layer = load_layer(zip_at(tmp_path / "best.zip", make_layer(**asked)))
    dtypes = {"fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32}
    made = {name: torch.zeros(one["shape"], dtype=dtypes[one["dtype"]]) for name, one in layer.tensors.items()}
    number, norm, turned = op.register(layer), asked.get("norm", True), asked.get("rotary", True)
    rows = asked.get("sequences", 4)
    own = op.Operands(
        x=made["x"], squares=None, w_qkv=made["qkv.w"], b_qkv=None, frequencies=made.get("qkv.frequencies"),
        keys=made["attention.keys"], values=made["attention.values"], lengths=made["attention.lengths"], pages=None,
        w_o=made["o_proj.w"], w_up=made.get("gate_up.w"), w_down=made.get("down.w"),
        eps=1e-5 if norm else None, residual=True, heads_first=True, scale=64**-0.5, window=0, soft_cap=0.0,
        number=number,
    )  # fmt: skip
    count = 2 + len(layer.artifact.manifest["launches"]) - 1

    def num_launched(given: Any) -> int:
        recorder.clear()
        assert op._on_cuda(*given).shape == (rows, 256)
        return len(recorder.calls("cuLaunchKernelEx"))

    assert num_launched(own) == count
    assert {call.stream for call in recorder.calls("cuLaunchKernelEx")} == {STREAM}
    assert num_launched(own._replace(w_o=own.w_o.clone())) == count, "another layer's weight"
    if norm:
        assert made["x.squares"].shape == (4,)
        for squares in (made["x.squares"], made["x.squares"][:rows]):
            assert num_launched(own._replace(squares=squares)) == count
    others = [
        {"lengths": own.lengths.long()}, {"w_qkv": own.w_qkv.T.contiguous().T}, {"scale": 0.3}, {"window": 400},
        {"soft_cap": 3.0}, {"eps": 0.1}, {"residual": False},
        {"keys": own.keys[:, :, :500].contiguous()},
    ]  # fmt: skip
    others += [{"frequencies": own.frequencies.double()}] if turned else []
    for other in others:
        changed = own._replace(**other)
        if "keys" in other:
            changed = changed._replace(values=changed.keys.clone())
        assert num_launched(changed) == 0, other
    for other in (0, number + 1):
        assert num_launched(own._replace(number=other)) == count, "it is found without its number"
    op.forget(number)
    assert num_launched(own) == 0


def test_a_layer_that_the_operator_has_no_argument_for_is_refused_by_what_differs(
    op: Any, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))

    def refused(says: str, workload: Any) -> None:
        name = f"{len(list(tmp_path.iterdir()))}.zip"
        with pytest.raises(RuntimeFailure, match=f"decoder_layer has no argument for it: {says}"):
            op.register(load_layer(zip_at(tmp_path / name, made_of(workload, candidate_of(workload)))))

    plain = between()
    *front, o_proj = plain.ops
    refused("its ops are qkv, attention, o_proj, gate_up: register qkv", between(num_behind=2))
    refused("o_proj has bias: call the layer", replace(plain, ops=(*front, replace(o_proj, bias=True))))
    refused("o_proj has the residual other", replace(plain, ops=(*front, replace(o_proj, residual_source="other"))))
    block = between(num_behind=3)
    *front, up, down = block.ops
    refused("gate_up has no gate", replace(block, ops=(*front, replace(up, eps=1e-6), down)))


def test_halves_first_is_what_a_product_that_is_turned_has(op: Any) -> None:
    rows = torch.arange(3 * 8)[:, None].expand(-1, 5)
    found = op.halves_first(rows, 8)
    assert found[:, 0].tolist() == [
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
        16,
        17,
        18,
        19,
        4,
        5,
        6,
        7,
        12,
        13,
        14,
        15,
        20,
        21,
        22,
        23,
    ]
    assert found.shape == rows.shape
    assert op.halves_first(rows[:, 0], 8).tolist() == found[:, 0].tolist()
