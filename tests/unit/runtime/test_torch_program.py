"""`torch.ops.tuner.program` on CPU tensors; requires PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.support.packs import ladder, make, mlp
from tests.unit.runtime.test_layer import zip_at
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.shapes import ops_without_sizes
from tuner.packs.write import write_pack
from tuner.runtime import Program, load, load_layer
from tuner.runtime.binding import native
from tuner.runtime.device import driver
from tuner.runtime.tensors import arrays

torch = pytest.importorskip("torch")

from tests.unit.runtime.test_torch_layer import HIDDEN, INNER, SHAPE, operands  # noqa: E402 - it has a torch

#: PyTorch's own deprecations, which inductor triggers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

STREAM = 0x4242
MLP = ops_without_sizes(mlp().to_json())
NAMES = ("residual", "gate_up.w", "residual.squares", "down.w")


@pytest.fixture
def op() -> Any:
    """The module, which registers the operator at its first import."""
    from tuner.runtime import torch_program

    return torch_program


def of_mlp(dtype: Any, rows: int = 5) -> list[Any]:
    """Random tensors of `mlp`, without sums of squares."""
    torch.manual_seed(7)
    shapes = {"residual": (rows, 64), "gate_up.w": (512, 64), "down.w": (64, 256)}
    made = {
        name: (torch.randn(shape, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype) for name, shape in shapes.items()
    }
    return [made.get(name) for name in NAMES]


def called(op: Any, *given: Any) -> Any:
    return op.call(op.form(MLP), dict(zip(NAMES, given, strict=True)))


def test_names_are_those_of_the_manifest_in_the_order_of_the_ops(op: Any) -> None:
    form, made = op.form(MLP), make(PlanKind.FUSED_PDL, workload=mlp()).kernel.manifest
    assert (form.names, form.caches, form.outputs) == (NAMES, (), ("down",))
    assert set(NAMES) == {one["name"] for one in made["tensors"] if one["role"] not in ("intermediate", "output")}


def test_a_chain_is_the_formula_in_float64(op: Any) -> None:
    given = of_mlp(torch.float64)
    x, w_in, _, w_out = (None if one is None else one.numpy() for one in given)
    assert x is not None
    assert w_in is not None
    assert w_out is not None
    gate, up = np.split((x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)) @ w_in.T, 2, axis=1)
    wanted = (gate / (1 + np.exp(-gate)) * up) @ w_out.T + x
    (found,) = called(op, *given)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-13)
    squares = torch.cat([(given[0] ** 2).sum(1), torch.full((3,), float("nan"), dtype=torch.float64)])
    (found,) = called(op, *given[:2], squares, given[3])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "asked", [{"bias": True}, {"block": True}, {"page_tokens": 16}], ids=["bias", "block", "pages"]
)
def test_a_layer_is_what_its_own_operator_computes(op: Any, asked: dict[str, Any]) -> None:
    """Compares rows and caches."""
    from tuner.runtime import torch_layer

    given = torch_layer.Operands(*operands(torch.float64, residual=True, **asked))
    cache = {"heads": 6, "kv_heads": SHAPE.kv_heads, "head_dim": SHAPE.head_dim}
    cache |= {"page_tokens": 16} if given.pages is not None else {}
    qkv = {"name": "qkv", "source": "x", "n": 5 * SHAPE.head_dim, "k": HIDDEN, "activation": "identity"}
    qkv |= {"bias": bool(asked.get("bias")), "norm": "x", "eps": given.eps, "rotary": cache}
    attention = {"op": "attention", "name": "attention", "source": "qkv", "query_heads": 3, **cache}
    o_proj = {"name": "o_proj", "source": "attention", "n": HIDDEN, "k": 6 * SHAPE.head_dim}
    o_proj |= {"activation": "identity", "residual": True, "residual_source": "x"}
    ops = [qkv, attention, o_proj]
    if asked.get("block"):
        up = {"name": "up", "source": "o_proj", "n": INNER, "k": HIDDEN, "activation": "silu", "gated": True}
        down = {"name": "down", "source": "up", "n": HIDDEN, "k": INNER, "activation": "identity"}
        ops += [up | {"norm": "o_proj", "eps": given.eps}, down | {"residual": True, "residual_source": "o_proj"}]
    form = op.form(ops_without_sizes({"ops": ops}))
    tensors = {
        "x": given.x, "qkv.w": given.w_qkv, "qkv.bias": given.b_qkv, "qkv.frequencies": given.frequencies,
        "attention.lengths": given.lengths, "attention.pages": given.pages, "o_proj.w": given.w_o,
        "up.w": given.w_up, "down.w": given.w_down,
    }  # fmt: skip
    caches = [given.keys.clone(), given.values.clone()]
    assert form.caches == ("attention.keys", "attention.values")
    names = {name for name in tensors if name in form.names}
    of_caches = dict(zip(form.caches, caches, strict=True))
    (found,) = op.call(form, {name: tensors[name] for name in names} | of_caches)
    wanted = torch.ops.tuner.decoder_layer(*given)
    assert torch.equal(found, wanted)
    for one, other in zip(caches, (given.keys, given.values), strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_the_operator_passes_pytorchs_own_checks(op: Any) -> None:
    found = torch.library.opcheck(
        torch.ops.tuner.program.default, (MLP, of_mlp(torch.bfloat16), [torch.zeros(5, 64, dtype=torch.bfloat16)])
    )
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_torch_compile_takes_it_whole(op: Any) -> None:
    given, form = of_mlp(torch.float32), op.form(MLP)

    def step(x: Any) -> Any:
        return op.call(form, dict(zip(NAMES, (x + x, *given[1:]), strict=True)))[0]

    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(step, fullgraph=True)(given[0]), step(given[0]))


def test_what_does_not_fit_is_refused_with_what_would(op: Any) -> None:
    x, w_in, _, w_out = of_mlp(torch.float32)
    y = torch.zeros(5, 64)
    for given, says in (
        ([x, w_in, None], r"there are 3 tensors: pass 4, in this order: residual, gate_up\.w, residual\.squares, down"),
        ([x, w_in[:9], None, w_out], r"gate_up\.w is \[9, 64\] of float32: pass \[512, 64\] of float32, the weight"),
        ([x[None], w_in, None, w_out], r"residual is \[1, 5, 64\] of float32: pass \[rows, 64\]"),
        ([x, w_in, None, None], r"down\.w must be given: None is allowed only for sums of squares"),
        ([x.int(), w_in, None, w_out], r"residual is of int32: use float16 or bfloat16"),
    ):
        for run in (torch.ops.tuner.program, op._on_cuda, op._fake):
            with pytest.raises(ValueError, match=says):
                run(MLP, given, [y])
    for written, says in (
        ([], "there are 0 tensors that are written: pass 1, in this order: down"),
        ([y[:4]], r"down is \[4, 64\] of float32: pass \[5, 64\] of float32, the output"),
        ([x], "down is written and overlaps residual: use separate memory"),
    ):
        with pytest.raises(ValueError, match=says):
            torch.ops.tuner.program(MLP, [x, w_in, None, w_out], written)
    with pytest.raises(ValueError, match=r"there is no tensor up\.w: pass residual, gate_up\.w"):
        op.call(op.form(MLP), {"residual": x, "up.w": w_in})
    with pytest.raises(ValueError, match="residual must be given"):
        op.call(op.form(MLP), {})
    x.requires_grad_()
    with pytest.raises(NotImplementedError, match="tuner::program has no gradient: call it under"):
        called(op, x, w_in, None, w_out)


@pytest.fixture
def chain(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A chain for up to 16 rows, over the recorder; CPU tensors replace a GPU's."""
    recorder.cuda.fake_parameter_bytes(64)
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    monkeypatch.setattr(arrays._Torch, "current_stream", lambda self, like: STREAM)
    monkeypatch.setattr(driver.Driver, "device_name", lambda self: "cpu")
    write_pack([ladder(make(PlanKind.FUSED_PDL, workload=mlp()).kernel)], tmp_path / "a.tunerpack")
    found = load(tmp_path / "a.tunerpack").chain(rows=16)
    assert found is not None
    return found


def test_a_program_is_found_by_its_weights_and_rows(op: Any, recorder: Recorder, chain: Program) -> None:
    own, other = of_mlp(torch.float16), of_mlp(torch.float16)
    number = op.register(chain, {name: one for name, one in zip(NAMES, own, strict=True) if one is not None})
    assert op.form_of(chain).text == MLP

    def num_launched(x: Any, *others: Any) -> int:
        recorder.clear()
        op._on_cuda(MLP, [x, *others], [x.new_zeros(x.shape[0], 64)])
        return len(recorder.calls("cuLaunchKernelEx"))

    x, *rest = own
    assert num_launched(x, *rest) == 1
    assert {call.stream for call in recorder.calls("cuLaunchKernelEx")} == {STREAM}
    assert num_launched(torch.zeros(16, 64, dtype=torch.float16), *rest) == 1
    assert num_launched(x.T.contiguous().T, *rest) == 1, "as inductor may hand it over"
    assert num_launched(x, rest[0], (x.float() ** 2).sum(1), rest[2]) == 1
    for given in (
        (torch.zeros(17, 64, dtype=torch.float16), *rest),
        (x, other[1], None, rest[2]),
        (x, rest[0], None, other[3]),
        (x, rest[0].T.contiguous().T, None, rest[2]),
        [None if one is None else one.float() for one in own],
    ):
        assert num_launched(*given) == 0
    op.forget(number)
    assert num_launched(x, *rest) == 0
    few = op.register(
        chain, {name: one for name, one in zip(NAMES, own, strict=True) if one is not None}, rows=range(1, 5)
    )
    assert [num_launched(torch.zeros(m, 64, dtype=torch.float16), *rest) for m in (4, 5)] == [1, 0]
    op.forget(few)
    with pytest.raises(ValueError, match=r"down\.w must be given: a program is found by its weights"):
        op.register(chain, {"gate_up.w": rest[0]})


def test_a_layers_caches_are_its_own(op: Any, recorder: Recorder, tmp_path: Path, chain: Program) -> None:
    from tests.unit.runtime.prepared_layer import make_layer

    layer = load_layer(zip_at(tmp_path / "best.zip", make_layer(pages={"page_tokens": 16})))
    dtypes = {"fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32}
    made = {name: torch.zeros(one["shape"], dtype=dtypes[one["dtype"]]) for name, one in layer.tensors.items()}
    form = op.form_of(layer)
    number = op.register(layer, made)

    def num_launched(**changed: Any) -> int:
        recorder.clear()
        given = made | changed
        written = [given[name] for name in (*form.caches, *form.outputs)]
        op._on_cuda(form.text, [given[name] for name in form.names], written)
        return len(recorder.calls("cuLaunchKernelEx"))

    assert num_launched() == 3
    more = {name: torch.zeros(200, *made[name].shape[1:], dtype=torch.float16) for name in form.caches}
    assert num_launched(**more) == 3, "a cache of more pages"
    assert num_launched(**{name: one[:, :, :8].contiguous() for name, one in more.items()}) == 0, "of other pages"
    op.forget(number)
