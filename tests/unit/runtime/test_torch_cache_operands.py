"""Wrong operands of `attention_proj` and `decoder_layer` are refused alike when traced, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
Change = Callable[[Any], Any]

ATTENTION = ("q", "keys", "values", "lengths", "pages", "w", "heads_first", "scale", "window", "soft_cap", "number")
#: The error and its message, for 4 sequences of 2 new tokens, 6 heads, 2 of them KV heads, of 64 elements.
WRONG_ATTENTION: dict[str, tuple[str, Change, str]] = {
    "q of float32": ("q", lambda q: q.float(), "keys is .* of bfloat16: pass .* of float32"),
    "q of odd columns": ("q", lambda q: q[:, :200], "q has 200 columns for 2 KV heads of 64"),
    "keys of float16": ("keys", lambda k: k.half(), "keys is .* of float16: pass .* of bfloat16"),
    "keys of three dimensions": ("keys", lambda k: k[0], "dimensions"),
    "values of float32": ("values", lambda v: v.float(), "values is .* of float32: pass .* of bfloat16"),
    "values of fewer pages": ("values", lambda v: v[:-1], "values is "),
    "values of fewer columns": ("values", lambda v: v[..., :32], "values is .*, 32\\]"),
    "lengths of float32": ("lengths", lambda n: n.float(), "lengths is .* of float32: pass .* of int32"),
    "lengths of fewer": ("lengths", lambda n: n[:3], "q has 8 rows for 3 sequences"),
    "no lengths": ("lengths", lambda n: n[:0], "q has 8 rows for 0 sequences"),
    "pages of int16": ("pages", lambda p: p.short(), "pages is .* of int16: pass .* of int32"),
    "pages of fewer sequences": ("pages", lambda p: p[:2], r"pages is \[2, .*: pass \[4, pages of a sequence\]"),
    "pages of one dimension": ("pages", lambda p: p[0], "pages is "),
    "w of float32": ("w", lambda w: w.float(), "w is .* of float32"),
    "w of other columns": ("w", lambda w: w[:, :64], r"w is \[24, 64\]"),
    "a negative window": ("window", lambda n: -1, "window is -1"),
    "a negative soft cap": ("soft_cap", lambda n: -2.0, "soft_cap is -2.0"),
    "a soft cap of nan": ("soft_cap", lambda n: float("nan"), "soft_cap is nan"),
    "an infinite soft cap": ("soft_cap", lambda n: float("inf"), "soft_cap is inf"),
    "a scale of nan": ("scale", lambda n: float("nan"), "scale is nan"),
    "an infinite scale": ("scale", lambda n: -float("inf"), "scale is -inf"),
    "q of float8": ("q", lambda q: q.to(torch.float8_e4m3fn), "q is of float8_e4m3fn"),
    "q of complex64": ("q", lambda q: q.to(torch.complex64), "q is of complex64"),
    "q without rows": ("q", lambda q: q[:0], "q has 0 rows for 4 sequences: use the same number for each, at least 1"),
    "a cache without pages": ("keys", lambda k: k[:0], r"keys are \[0, 2, 16, 64\]: pass a cache with at least 1"),
    "a cache without heads": ("keys", lambda k: k[:, :0], r"keys are \[\d+, 0, "),
    "a cache without columns": ("keys", lambda k: k[..., :0], r"keys are \[\d+, 2, 16, 0\]"),
    "pages of no token": ("keys", lambda k: k[:, :, :0], r"keys are \[\d+, 2, 0, 64\]"),
    "a table without pages": ("pages", lambda p: p[:, :0], "pages has no page of any sequence"),
}
#: For a layer of 96 columns with all its options.
WRONG_LAYER: dict[str, tuple[str, Change, str]] = {
    "x of float32": ("x", lambda x: x.float(), "is .* of bfloat16: pass .* of float32"),
    "x of another width": ("x", lambda x: x[:, :64], r"w_qkv is \[640, 96\] of bfloat16: pass \[640, 64\]"),
    "squares of bfloat16": ("squares", lambda s: s.bfloat16(), "squares is .* of bfloat16: pass .* of float32"),
    "squares of one": ("squares", lambda s: s[:1], r"squares is \[1\] of float32: pass \[8\]"),
    "squares as a column": ("squares", lambda s: s[:, None], r"squares is \[8, 1\]"),
    "w_qkv of fewer rows": ("w_qkv", lambda w: w[:384], r"w_qkv is \[384, 96\] of bfloat16: pass \[640, 96\]"),
    "w_qkv of float32": ("w_qkv", lambda w: w.float(), "w_qkv is .* of float32"),
    "b_qkv of one": ("b_qkv", lambda b: b[:1], r"b_qkv is \[1\]"),
    "b_qkv of float32": ("b_qkv", lambda b: b.float(), "b_qkv is .* of float32"),
    "frequencies of bfloat16": (
        "frequencies",
        lambda f: f.bfloat16(),
        "frequencies is .* of bfloat16: pass .* of float32",
    ),
    "frequencies of one": ("frequencies", lambda f: f[:1], r"frequencies is \[1\] of float32: pass \[32\]"),
    "values of float32": ("values", lambda v: v.float(), "values is .* of float32"),
    "w_o of another width": ("w_o", lambda w: w[:64], r"w_o is \[64, 384\] of bfloat16: pass \[96, 384\]"),
    "w_o of float32": ("w_o", lambda w: w.float(), "w_o is .* of float32"),
    "w_up without a gate": ("w_up", lambda w: w[:80], r"w_up is \[80, 96\] of bfloat16: pass \[160, 96\]"),
    "w_up of float32": ("w_up", lambda w: w.float(), "w_up is .* of float32"),
    "w_down of another width": ("w_down", lambda w: w[:64], r"w_down is \[64, 80\] of bfloat16: pass \[96, 80\]"),
    "w_down of one dimension": ("w_down", lambda w: w[0], "w_down has 1 dimensions"),
    "w_down of float32": ("w_down", lambda w: w.float(), "w_down is .* of float32"),
    "x of float8": ("x", lambda x: x.to(torch.float8_e5m2), "x is of float8_e5m2"),
    "x without rows": ("x", lambda x: x[:0], "x has 0 rows for .* sequences: use the same number for each, at least 1"),
    "eps of nan": ("eps", lambda e: float("nan"), "eps is nan"),
    "a negative eps": ("eps", lambda e: -1e-5, "eps is -1e-05"),
    "an infinite eps": ("eps", lambda e: float("inf"), "eps is inf"),
    "heads of odd columns": ("keys", lambda k: k[..., :63], "keys have a head_dim of 63: use an even one"),
}


def bits(tensor: Any) -> Any:
    """The bit patterns of a tensor, including NaN."""
    return tensor.contiguous().view(torch.uint8)


def refused_alike(operator: Any, on_card: Any, given: tuple[Any, ...], says: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def faked(*real: Any) -> Any:
        with FakeTensorMode() as mode:
            return operator(*(mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in real))

    before = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
    found = set()
    for run in (faked, operator, on_card):
        with pytest.raises(ValueError, match=says) as caught:
            run(*given)
        found.add((type(caught.value), str(caught.value)))
    assert len(found) == 1
    for one, copy in zip(given, before, strict=True):
        assert not isinstance(one, torch.Tensor) or torch.equal(bits(one), bits(copy))


@pytest.mark.parametrize("case", WRONG_ATTENTION)
def test_a_wrong_operand_of_an_attention_is_refused_alike(case: str) -> None:
    from tests.unit.runtime.test_torch_attention import operands
    from tuner.runtime import torch_attention

    name, wrong, says = WRONG_ATTENTION[case]
    right = dict(zip(ATTENTION, operands({"page_tokens": 16}, torch.bfloat16), strict=True))
    given = tuple((right | {name: wrong(right[name])}).values())
    refused_alike(torch.ops.tuner.attention_proj, torch_attention._on_cuda, given, says)


def test_a_contiguous_cache_has_its_heads_first() -> None:
    from tests.unit.runtime.test_torch_attention import operands
    from tuner.runtime import torch_attention

    given = list(operands({}, torch.bfloat16))
    given[6] = False
    says = "heads_first is False, but the cache has no pages"
    refused_alike(torch.ops.tuner.attention_proj, torch_attention._on_cuda, tuple(given), says)


@pytest.mark.parametrize("case", WRONG_LAYER)
def test_a_wrong_operand_of_a_layer_is_refused_alike(case: str) -> None:
    from tests.unit.runtime.test_torch_layer import operands
    from tuner.runtime import torch_layer

    name, wrong, says = WRONG_LAYER[case]
    right = torch_layer.Operands(*operands(torch.bfloat16, bias=True, squares=True, block=True))
    given = right._replace(**{name: wrong(getattr(right, name))})
    refused_alike(torch.ops.tuner.decoder_layer, torch_layer._on_cuda, tuple(given), says)


def on_the_cpu_and_a_card() -> tuple[Any, Any]:
    from tuner.runtime import torch_layer

    return torch.ops.tuner.decoder_layer, torch_layer._on_cuda


def test_a_cache_that_is_written_lies_apart() -> None:
    from tests.unit.runtime.test_torch_layer import operands
    from tuner.runtime import torch_layer

    right = torch_layer.Operands(*operands(torch.bfloat16))
    for run in on_the_cpu_and_a_card():
        with pytest.raises(ValueError, match="keys is written and overlaps values: use separate memory"):
            run(*right._replace(values=right.keys))
        with pytest.raises(ValueError, match="keys is written, but several of its elements share memory"):
            run(*right._replace(keys=right.keys[:1].expand(right.keys.shape)))


def test_keys_and_values_of_one_allocation_lie_between_each_other() -> None:
    """As in caches [pages, 2, ...], and in caches with twice the columns."""
    from tests.unit.runtime.test_torch_layer import operands
    from tuner.runtime import torch_layer

    right = torch_layer.Operands(*operands(torch.bfloat16))
    expected = torch.ops.tuner.decoder_layer(*right._replace(keys=right.keys.clone(), values=right.values.clone()))
    for run in on_the_cpu_and_a_card():
        for dim in range(right.keys.dim()):
            both = torch.stack([right.keys, right.values], dim=dim)
            assert torch.equal(run(*right._replace(keys=both.select(dim, 0), values=both.select(dim, 1))), expected)
        values = both.view(-1)[8:].as_strided(right.values.shape, both.select(dim, 1).stride())
        with pytest.raises(ValueError, match="keys is written and overlaps values"):
            run(*right._replace(keys=both.select(dim, 0), values=values))


@pytest.mark.parametrize("number", [-1, 10**6])
def test_a_number_that_nobody_has_is_pytorchs(number: int) -> None:
    from tests.unit.runtime.test_torch_attention import operands
    from tuner.runtime import torch_attention

    given = operands({}, torch.float32)[:-1]
    assert torch.equal(torch_attention._on_cuda(*given, number), torch_attention._on_cuda(*given, 0))


def test_autocast_changes_no_type() -> None:
    from tests.unit.runtime.test_torch_attention import operands
    from tuner.runtime import torch_attention

    given = operands({}, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch_attention._on_cuda(*given).dtype is torch.float32
