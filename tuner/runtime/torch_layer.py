"""`torch.ops.tuner.decoder_layer`: a decode step of a layer from its qkv on, which torch.compile treats as a whole.

import tuner.runtime.torch_layer as op
op.register(pack.layer("qkv", "attention", "o_proj", sequences=16, length=2048))   # once, for all layers
y = torch.ops.tuner.decoder_layer(
    x, None, w_qkv, None, frequencies, keys, values, lengths, None, w_o, None, None, 1e-5, False, True, scale, 0, 0.0
)

`x` is [sequences * new tokens, hidden], with the new tokens of each sequence, which `lengths` includes. With `eps` its
rows are normalized, without a weight: fold that into `w_qkv`. `squares` are the fp32 sums of squares of the rows of
`x`; if None, they are computed here. `frequencies` are fp32 radians per token [head_dim / 2]. With them, `w_qkv` and
its bias have the first halves of all heads first, then the second halves, as from `halves_first`; queries and keys are
rotated, and keys and values of the new tokens are written to the caches. Without them, `w_qkv` computes only queries.
Caches, lengths and pages are those of `attention_proj`. `residual` tells whether `x` is added after o_proj. With `w_up`
and `w_down`, a norm, a gated SiLU and `down` follow, with o_proj's rows as its residual. Registered layers are found by
shapes, element types and options, and `number` chooses among equals. If there is none, and for tensors on the CPU,
PyTorch's own operators compute it. It is for inference only: there is no gradient. Call it once before a capture.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tuner.core.problem.dtype import ELEMENTS
from tuner.runtime.binding.native import RuntimeFailure, WrongOperand
from tuner.runtime.programs.program import Layer
from tuner.runtime.pytorch.formula import attend, halves_first, normed, product, squares_of, turned
from tuner.runtime.pytorch.found import Found
from tuner.runtime.pytorch.operands import (
    at_its_own_precision,
    cache_operands,
    check,
    check_apart,
    check_float,
    check_rows,
    check_scores,
    name_of,
)
from tuner.runtime.tensors.operands import Operand

_SCHEMA = (
    "(Tensor x, Tensor? squares, Tensor w_qkv, Tensor? b_qkv, Tensor? frequencies, Tensor(a!) keys, "
    "Tensor(b!) values, Tensor lengths, Tensor? pages, Tensor w_o, Tensor? w_up, Tensor? w_down, float? eps, "
    "bool residual, bool heads_first, float scale, int window, float soft_cap, int number=0) -> Tensor"
)
_library = torch.library.Library("tuner", "FRAGMENT")
_DTYPES = {name: getattr(torch, row.array_name, None) for name, row in ELEMENTS.items()}
_BY_NAME = "call the layer with its tensors by name"
#: Options of products for which the operator has no argument.
_ODD = ("gated", "bias", "row_scale", "norm", "rotary")


class Operands(NamedTuple):
    """Arguments of the operator, in order."""

    x: torch.Tensor
    squares: torch.Tensor | None
    w_qkv: torch.Tensor
    b_qkv: torch.Tensor | None
    frequencies: torch.Tensor | None
    keys: torch.Tensor
    values: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor | None
    w_o: torch.Tensor
    w_up: torch.Tensor | None
    w_down: torch.Tensor | None
    eps: float | None
    residual: bool
    heads_first: bool
    scale: float
    window: int
    soft_cap: float
    number: int = 0

    @property
    def options(self) -> tuple[Any, ...]:
        """The arguments that are not tensors."""
        return self[12:18]


#: The tensors, in the order of the arguments.
_TENSORS = Operands._fields[:12]


@dataclass(frozen=True, kw_only=True)
class _Registered:
    """A registered layer, and the operands that it is for."""

    layer: Layer
    #: The manifest's name of each tensor argument; missing ones have none.
    names: dict[str, str]
    #: How many sums of squares the kernels read, some after the last row; 0 if they read none.
    num_squares: int


_registered = Found[_Registered]()


def register(layer: Layer) -> int:
    """Registers it with the operator; returns a number that distinguishes it from others with its shapes and options.

    Raises:
        RuntimeFailure: the operator has no argument for part of the layer's computation.
    """
    ops = layer.ops
    places = [index for index, op in enumerate(ops) if op.get("op") == "attention"]
    if places != [1] or len(ops) not in (3, 5) or ops[1]["source"] != ops[0]["name"] or len(layer.outputs) != 1:
        listed = ", ".join(op["name"] for op in ops)
        raise _refused(f"its ops are {listed}", "register qkv, attention and o_proj, with or without gate_up and down")
    front, attention, o_proj, *block = ops
    names = {
        "x": front["source"],
        "w_qkv": f"{front['name']}.w",
        **{what: f"{attention['name']}.{what}" for what in ("keys", "values", "lengths", "pages")},
        "w_o": f"{o_proj['name']}.w",
        "squares": f"{front['source']}.squares",
        "b_qkv": f"{front['name']}.bias",
        "frequencies": f"{front['name']}.frequencies",
    }
    _check_product(front, source=front["source"], norm=front["source"], may=("bias", "norm", "rotary"))
    _check_product(o_proj, source=attention["name"], residual=front["source"], may=())
    if block:
        up_proj, down = block
        _check_product(up_proj, source=o_proj["name"], norm=o_proj["name"], may=("gated", "norm"), activation="silu")
        _check_product(down, source=up_proj["name"], residual=o_proj["name"], may=())
        is_block = up_proj.get("gated") and up_proj.get("norm") and down.get("residual")
        if not is_block or up_proj["eps"] != front.get("eps", up_proj["eps"]):
            others = f"another eps than {front['name']}, or {down['name']} has no residual"
            raise _refused(f"{up_proj['name']} has no gate or no norm, {others}", _BY_NAME)
        names |= {"w_up": f"{up_proj['name']}.w", "w_down": f"{down['name']}.w"}
    known = layer.tensors
    names = {argument: name for argument, name in names.items() if name in known}
    shapes = {
        argument: (tuple(known[name]["shape"]), _DTYPES[known[name]["dtype"]]) for argument, name in names.items()
    }
    options = (
        front["eps"] if front.get("norm") else block[0]["eps"] if block else None,
        bool(o_proj.get("residual")),
        bool(attention.get("heads_first", True)),
        float(attention.get("scale") or attention["head_dim"] ** -0.5),
        int(attention.get("window") or 0),
        float(attention.get("soft_cap") or 0.0),
    )
    if block and not front.get("norm"):
        raise _refused(f"{front['name']} has no norm, but {block[0]['name']} has one", _BY_NAME)
    if unknown := _unnamed(layer, set(names.values())):
        raise _refused(f"it reads {', '.join(unknown)}", _BY_NAME)
    (num_squares,) = shapes.pop("squares", ((0,), None))[0]
    return _registered.add(_key(shapes, options), _Registered(layer=layer, names=names, num_squares=num_squares))


def _key(shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype | None]], options: tuple[Any, ...]) -> Hashable:
    """By argument shape and element type, except for sums of squares. A paged cache may have any number of pages."""
    forms = {name: (shape[name in ("keys", "values") and "pages" in shapes :], dtype)
             for name, (shape, dtype) in shapes.items()}  # fmt: skip
    return frozenset(forms.items()), options


def forget(number: int) -> None:
    """Unregisters it; PyTorch's own operators then compute its calls."""
    _registered.forget(number)


def _unnamed(layer: Layer, named: set[str]) -> list[str]:
    """Required tensors for which there is no argument."""
    own = ("intermediate", "squares", "optional", "output")
    return [name for name, one in layer.tensors.items() if one["role"] not in own and name not in named]


def _check_product(
    op: dict[str, Any],
    *,
    source: str,
    may: tuple[str, ...],
    norm: str = "",
    residual: str = "",
    activation: str = "identity",
) -> None:
    odd = [name for name in _ODD if op.get(name) and name not in may]
    odd += [f"{op['activation']}"] if op["activation"] != activation else []
    odd += [f"a norm of {op['norm']}"] if op.get("norm") and op["norm"] != norm else []
    if op.get("residual") and op.get("residual_source") != residual:
        odd.append(f"the residual {op.get('residual_source') or 'of its own'}")
    odd += [f"the source {op['source']}"] if op["source"] != source else []
    if odd:
        raise _refused(f"{op['name']} has {', '.join(odd)}", _BY_NAME)


def _refused(problem: str, remedy: str) -> RuntimeFailure:
    return RuntimeFailure(-1, f"torch.ops.tuner.decoder_layer has no argument for it: {problem}: {remedy}")


@at_its_own_precision
def by_torch(*arguments: Any) -> torch.Tensor:
    """The result by PyTorch's own operators, on any device; it writes to the caches, too."""
    given = Operands(*arguments)
    x = given.x if given.eps is None else normed(given.x, given.squares, given.eps)
    q, at = product(x, given.w_qkv, given.b_qkv), (given.keys, given.values, given.lengths, given.pages)
    if given.frequencies is not None:
        q = turned(q, given.frequencies, *at, heads_first=given.heads_first)
    names = ("heads_first", "scale", "window", "soft_cap")
    attended = attend(q, *at, **{name: getattr(given, name) for name in names})
    stream = product(attended, given.w_o, residual=given.x if given.residual else None)
    if given.w_up is None or given.w_down is None:
        return stream
    inner = stream if given.eps is None else normed(stream, None, given.eps)
    return product(product(inner, given.w_up, activation="silu", gated=True), given.w_down, residual=stream)


def _check(given: Operands) -> None:
    """Checks that all fit together, and no gradient is requested."""
    dims = {"x": 2, "w_qkv": 2, "keys": 4, "values": 4, "lengths": 1, "w_o": 2}
    for name, count in dims.items():
        if (found := getattr(given, name).dim()) != count:
            raise WrongOperand(f"{name} has {found} dimensions: pass {count}")
    check_rows("x", given.x, given.lengths)
    if (given.w_up is None) != (given.w_down is None):
        raise WrongOperand("w_up and w_down go together: pass both, or neither")
    check_float("x", given.x)
    check_scores(given.scale, given.window, given.soft_cap)
    if given.eps is not None and not 0 <= given.eps < float("inf"):
        raise WrongOperand(
            f"eps is {given.eps}: pass the number that is added to the mean of squares, or None for no norm"
        )
    if given.frequencies is not None and given.keys.shape[3] % 2:
        raise WrongOperand(
            f"keys have a head_dim of {given.keys.shape[3]}: use an even one, since its halves are rotated"
        )
    check("decoder_layer", _operands(given), {name: getattr(given, name) for name in _TENSORS})


def _operands(given: Operands) -> dict[str, Operand]:
    """The operand for each tensor, given the others."""
    dtype, (rows, hidden), (d_out, columns) = name_of(given.x.dtype), given.x.shape, given.w_o.shape
    caches = cache_operands(columns, given.keys, given.lengths, given.pages, dtype, heads_first=given.heads_first)
    head_dim, kv_heads = given.keys.shape[3], given.keys.shape[1 if given.heads_first else 2]
    width = columns if given.frequencies is None else columns + 2 * kv_heads * head_dim
    shapes: dict[str, tuple[str, tuple[Any, ...]]] = {
        "x": ("input", (rows, hidden)),
        "squares": ("input_squares", (_squares_of(given),)),
        "w_qkv": ("weight", (width, hidden)),
        "b_qkv": ("bias", (width,)),
        "frequencies": ("frequencies", (head_dim // 2,)),
        "w_o": ("weight", (hidden if given.residual else d_out, columns)),
    }
    if given.w_up is not None and given.w_down is not None:
        if given.w_down.dim() != 2:
            raise WrongOperand(f"w_down has {given.w_down.dim()} dimensions: pass 2")
        inner = given.w_down.shape[1]
        shapes |= {"w_up": ("weight", (2 * inner, d_out)), "w_down": ("weight", (d_out, inner))}
    is_wide = given.frequencies is not None and given.frequencies.dtype is torch.float64
    dtypes = {"squares": "float32", "frequencies": "float64" if is_wide else "float32"}
    return caches | {
        name: Operand(name=name, role=role, shape=shape, dtype=dtypes.get(name, dtype))
        for name, (role, shape) in shapes.items()
    }


def _squares_of(given: Operands) -> Any:
    """How many sums of squares there are: those of the rows, and possibly padding after them."""
    rows, squares = given.x.shape[0], given.squares
    return squares.shape[0] if squares is not None and squares.dim() == 1 and squares.shape[0] > rows else rows


def _checked_by_torch(*arguments: Any) -> torch.Tensor:
    given = Operands(*arguments)
    _check(given)
    return _apart_by_torch(given)


def _apart_by_torch(given: Operands) -> torch.Tensor:
    if given.frequencies is not None:
        check_apart(("keys", "values"), {name: getattr(given, name) for name in _TENSORS})
    found: torch.Tensor = by_torch(*given)
    return found


def _on_cuda(*arguments: Any) -> torch.Tensor:
    """The operator on a card, with the registered kernels if they accept these operands."""
    given = Operands(*arguments)
    _check(given)
    there = {name: one for name in _TENSORS if (one := getattr(given, name)) is not None}
    squares = there.pop("squares", None)
    shapes = {name: (tuple(one.shape), one.dtype) for name, one in there.items()}
    is_plain = all(one.is_contiguous() for one in there.values())
    for known in _registered.of(_key(shapes, given.options), given.number) if is_plain else ():
        if known.num_squares == 0 and squares is not None:
            continue
        if known.num_squares:
            there["squares"] = _with_room(squares_of(given.x) if squares is None else squares, known.num_squares)
        found: torch.Tensor = known.layer({name: there[argument] for argument, name in known.names.items()})
        return found
    return _apart_by_torch(given)


def _with_room(squares: torch.Tensor, wanted: int) -> torch.Tensor:
    """The sums of squares, padded to as many as the kernels read."""
    missing = wanted - squares.shape[0]
    return torch.nn.functional.pad(squares, (0, missing)) if missing > 0 else squares.contiguous()


def _fake(*arguments: Any) -> torch.Tensor:
    given = Operands(*arguments)
    _check(given)
    last = given.w_o if given.w_down is None else given.w_down
    return given.x.new_empty((given.x.shape[0], last.shape[0]))


_library.define("decoder_layer" + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
_library.impl("decoder_layer", _checked_by_torch, "CPU")
_library.impl("decoder_layer", _on_cuda, "CUDA")
torch.library.register_fake("tuner::decoder_layer", _fake, lib=_library)

__all__ = ["by_torch", "forget", "halves_first", "register"]
