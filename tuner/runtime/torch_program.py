"""`torch.ops.tuner.program`: any ops of a pack as one PyTorch operator, which torch.compile treats as a whole.

import tuner.runtime.torch_program as op
mlp = pack.chain("gate_up", "down", rows=16)
op.register(mlp, {"gate_up.w": w_in, "down.w": w_out})   # for each layer of a model
(y,) = op.call(op.form_of(mlp), {"residual": x, "gate_up.w": w_in, "down.w": w_out})

A form describes the computation: the ops, without rows, sequences and contexts. It is the same for equal layers, and so
are their graphs. Tensors have the names of the artifact's manifest. `call` allocates the outputs, and returns them in
the order of the ops. The operator receives the form's text, the tensors in the order of its names, and what it writes:
caches, then outputs. Sums of squares of a normalized input are computed here if not given.

A program is found by the form and the weights: address, shape, strides and element type. If there is none for these
weights and rows, and for tensors on the CPU, PyTorch's own operators compute it. It is for inference only: there is no
gradient. Call it once before a capture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from tuner.core.problem.dtype import ELEMENTS
from tuner.packs.base_shape import is_product
from tuner.packs.shapes import ops_without_sizes
from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.programs.program import Program
from tuner.runtime.pytorch.formula import activated, attend, normed, product, squares_of, turned
from tuner.runtime.pytorch.found import Found, lie
from tuner.runtime.pytorch.of_kinds import formula_of
from tuner.runtime.pytorch.operands import cache_operands, check, check_apart, check_float, name_of
from tuner.runtime.pytorch.scaled import (
    is_plain,
    made_by_parts,
    of_parts,
    operands_of_parts,
    out_dtype,
    scaled_product,
    stored_operand,
    weights_of,
)
from tuner.runtime.tensors.operands import Operand

Json = dict[str, Any]
Tensors = Mapping[str, torch.Tensor | None]
_SCHEMA = "(str ops, Tensor?[] tensors, Tensor(a!)[] written) -> ()"
_library = torch.library.Library("tuner", "FRAGMENT")
_DTYPES = {name: getattr(torch, row.array_name, None) for name, row in ELEMENTS.items()}


def columns(op: Json) -> int:
    """Columns of an op's output; for a rotated product, its queries'."""
    if own := formula_of(op):
        return own.made(op)[1]
    if not is_product(op):
        return int(op["kv_heads"] * op["query_heads"] * op["head_dim"])
    turn = op.get("rotary")
    return int(turn["heads"] * turn["head_dim"] if turn else op["n"])


def _has_cache(op: Json) -> bool:
    return not is_product(op) and formula_of(op) is None


class Form:
    """The computation, without its sizes. All of it is known before a graph is traced."""

    def __init__(self, text: str) -> None:
        self.text = text
        #: In the order of a manifest's workload.
        self.ops: tuple[Json, ...] = tuple(json.loads(text))
        made = {name for op in self.ops for name in (op["name"], *made_by_parts(op))}
        read = [name for op in self.ops for name in self._read(op)]
        #: The operator's inputs, except caches: each op's input, weights, residual, and its options.
        self.names = tuple(dict.fromkeys(name for name in read if name not in made))
        of_caches = [self.cache_of(op) for op in self.ops if _has_cache(op) or op.get("rotary")]
        #: The tensors of keys and values of each cache.
        self.caches = tuple(f"{name}.{what}" for name in dict.fromkeys(of_caches) for what in ("keys", "values"))
        #: The outputs.
        self.outputs = tuple(op["name"] for op in self.ops if op["name"] not in read or op.get("is_output"))
        #: The columns of each output.
        self.columns = tuple(columns(op) for op in self.ops if op["name"] in self.outputs)
        fixed: dict[str, int | None] = {}
        for op in self.ops:
            own = formula_of(op)
            fixed[op["name"]] = own.made(op)[0] if own else fixed.get(op["source"])
        #: Rows of the output, if its op or the op that reads it determines the number; else None: those of the first
        #: tensor.
        self.rows = tuple(fixed[name] for name in self.outputs)

    @property
    def writes_caches(self) -> bool:
        """Whether a product writes keys and values of new tokens to the caches."""
        return any(op.get("rotary") for op in self.ops)

    @property
    def weights(self) -> tuple[str, ...]:
        """Tensors by which a program is found."""
        of_parts = {name for op in self.ops if is_product(op) for name in weights_of(op)}
        return tuple(name for name in self.names if name.endswith((".w", ".bias", ".frequencies")) or name in of_parts)

    def dtypes(self, first: torch.dtype) -> tuple[torch.dtype, ...]:
        """Types of the outputs for inputs of this type."""
        return tuple(out_dtype(op, first) for op in self.ops if op["name"] in self.outputs)

    def cache_of(self, op: Json) -> str:
        """The op whose cache an op reads or writes: for a product, that of the op after it."""
        readers = (one["name"] for one in self.ops if _has_cache(one) and one["source"] == op["name"])
        return next(readers, str(op["name"]))

    def _read(self, op: Json) -> Iterator[str]:
        if own := formula_of(op):
            yield from own.operands(op)
            return
        name = op["name"]
        yield op["source"]
        if not is_product(op) or op.get("rotary"):
            yield f"{self.cache_of(op)}.lengths"
            if op.get("page_tokens") or (op.get("rotary") or {}).get("page_tokens"):
                yield f"{self.cache_of(op)}.pages"
        if not is_product(op):
            return
        yield f"{name}.w"
        if op.get("norm") and op["norm"] not in (one["name"] for one in self.ops):
            yield f"{op['norm']}.squares"
        for option, tensor in (("bias", "bias"), ("row_scale", "row_scale"), ("rotary", "frequencies")):
            if op.get(option):
                yield f"{name}.{tensor}"
        yield from (tensor for _, _, tensor in of_parts(op))
        if op.get("residual"):
            yield op.get("residual_source") or f"{name}.residual"


form = lru_cache(maxsize=256)(Form)


def form_of(program: Program) -> Form:
    """The form of a program."""
    return form(ops_without_sizes(program.artifact.manifest["workload"]))


@dataclass(frozen=True, kw_only=True)
class _Registered:
    program: Program
    rows: range


_registered = Found[_Registered]()


def register(program: Program, weights: Mapping[str, torch.Tensor], *, rows: range | None = None) -> int:
    """Makes the operator use the program for these weights and numbers of rows: by default all that the program
    supports. Returns a number for `forget`.

    Raises:
        WrongOperand: a weight is missing.
    """
    of = form_of(program)
    if missing := [name for name in of.weights if name not in weights]:
        raise WrongOperand(f"{', '.join(missing)} must be given: a program is found by its weights")
    serves = program.rows
    one = _Registered(program=program, rows=serves if rows is None else range(rows.start, min(rows.stop, serves.stop)))
    return _registered.add((of.text, lie(weights[name] for name in of.weights)), one)


def forget(number: int) -> None:
    """Unregisters it; PyTorch's own operators then compute its calls."""
    _registered.forget(number)


def call(of: Form, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The outputs for tensors by name, including caches; it may be traced.

    Raises:
        WrongOperand: a tensor is missing, or does not fit its operand.
    """
    known = (*of.names, *of.caches)
    unknown = [name for name in tensors if name not in known]
    if unknown:
        raise WrongOperand(f"there is no tensor {', '.join(unknown)}: pass {', '.join(known)}")
    missing = [name for name in (of.names[0], *of.caches) if tensors.get(name) is None]
    if missing:
        raise WrongOperand(f"{', '.join(missing)} must be given")
    first = tensors[of.names[0]]
    assert first is not None
    leaving = zip(of.rows, of.columns, of.dtypes(first.dtype), strict=True)
    outputs = [first.new_empty((rows or first.shape[0], count), dtype=dtype) for rows, count, dtype in leaving]
    caches = [tensors[name] for name in of.caches]
    torch.ops.tuner.program(of.text, [tensors.get(name) for name in of.names], [*caches, *outputs])
    return tuple(outputs)


def by_torch(of: Form, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The results by PyTorch's own operators, on any device; it writes to the caches, too."""
    there, first = dict(tensors), tensors[of.names[0]]
    assert first is not None
    for op in of.ops:
        name, x = op["name"], there[op["source"]]
        if own := formula_of(op):
            there[name] = own.computed(torch, op, there, partial(activated, gated=False))
            continue
        cache = of.cache_of(op)
        at = [there.get(f"{cache}.{what}") for what in ("keys", "values", "lengths", "pages")]
        if not is_product(op):
            seen = {"heads_first": bool(op.get("heads_first", True)), "window": int(op.get("window") or 0)}
            scale = float(op.get("scale") or op["head_dim"] ** -0.5)
            soft_cap = float(op.get("soft_cap") or 0.0)
            there[name] = attend(x, *at, scale=scale, soft_cap=soft_cap, **seen)  # type: ignore[arg-type]
            continue
        assert x is not None
        if op.get("norm"):
            x = normed(x, there.get(f"{op['norm']}.squares"), op["eps"])
        w = there[f"{name}.w"]
        assert w is not None
        options: dict[str, Any] = {
            "bias": there.get(f"{name}.bias"),
            "row_scale": there.get(f"{name}.row_scale"),
            "activation": op["activation"],
            "gated": bool(op.get("gated")),
            "residual": there[op.get("residual_source") or f"{name}.residual"] if op.get("residual") else None,
        }
        if is_plain(op) and first.dtype.itemsize > 1:
            y = product(x, w, **options)
        else:
            y = scaled_product(op, x, w, there, options, first.dtype)
        if turn := op.get("rotary"):
            heads_first = bool(turn.get("heads_first", True))
            y = turned(y, there[f"{name}.frequencies"], *at, heads_first=heads_first)
        there[name] = y
    return tuple(one for name in of.outputs if (one := there[name]) is not None)


def _named(of: Form, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> Tensors:
    is_written = (*of.caches, *of.outputs)
    for what, given, names in (("tensors", tensors, of.names), ("tensors that are written", written, is_written)):
        if len(given) != len(names):
            raise WrongOperand(f"there are {len(given)} {what}: pass {len(names)}, in this order: {', '.join(names)}")
    found: dict[str, torch.Tensor | None] = dict(zip(of.names, tensors, strict=True))
    return found | dict(zip(is_written, written, strict=True))


def _check(of: Form, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> Tensors:
    """All tensors by name: each fits its operand, and no gradient is requested."""
    there = _named(of, tensors, written)
    missing = [name for name, one in there.items() if one is None and not name.endswith(".squares")]
    if missing:
        raise WrongOperand(f"{', '.join(missing)} must be given: None is allowed only for sums of squares")
    first = there[of.names[0]]
    assert first is not None
    check_float(of.names[0], first, has_scales=True)
    table: dict[str, Operand] = {}
    for op in of.ops:
        for one in _operands(of, op, there, name_of(first.dtype)):
            if one.name in there:
                table.setdefault(one.name, one)
    for name, rows, count, dtype in zip(of.outputs, of.rows, of.columns, of.dtypes(first.dtype), strict=True):
        table[name] = Operand(name=name, role="output", shape=(rows or "rows", count), dtype=name_of(dtype))
    check("program", table, there)
    return there


def _operands(of: Form, op: Json, there: Tensors, dtype: str) -> Iterator[Operand]:
    if own := formula_of(op):
        for tensor, (role, shape) in own.operands(op).items():
            yield Operand(name=tensor, role=role, shape=shape, dtype=dtype)
        return
    name = op["name"]
    if not is_product(op):
        columns = op["kv_heads"] * op["query_heads"] * op["head_dim"]
        yield Operand(name=op["source"], role="input", shape=("rows", columns), dtype=dtype)
        yield from _of_cache(of.cache_of(op), columns, there, dtype, heads_first=bool(op.get("heads_first", True)))
        return
    width = op["n"] * (2 if op.get("gated") or op.get("rotary") else 1)
    yield Operand(name=op["source"], role="input", shape=("rows", op["k"]), dtype=dtype)
    yield stored_operand(op, width, dtype)
    yield from operands_of_parts(op, width, dtype)
    yield Operand(name=f"{name}.bias", role="bias", shape=(width,), dtype=dtype)
    yield Operand(
        name=f"{name}.row_scale", role="row_scale", shape=("rows",), dtype=_wide(there.get(f"{name}.row_scale"))
    )
    squares = f"{op.get('norm')}.squares"
    yield Operand(name=squares, role="input_squares", shape=(f"of {name}",), dtype=_wide(there.get(squares)))
    residual = op.get("residual_source") or f"{name}.residual"
    yield Operand(name=residual, role="residual", shape=("rows", op["n"]), dtype=dtype)
    if turn := op.get("rotary"):
        pairs, dtype_of_it = (turn["head_dim"] // 2,), _wide(there.get(f"{name}.frequencies"))
        yield Operand(name=f"{name}.frequencies", role="frequencies", shape=pairs, dtype=dtype_of_it)
        columns, heads_first = turn["heads"] * turn["head_dim"], bool(turn.get("heads_first", True))
        yield from _of_cache(of.cache_of(op), columns, there, dtype, heads_first=heads_first)


def _wide(given: torch.Tensor | None) -> str:
    """The tensors that kernels have in fp32; PyTorch's own operators compute in wider types, too."""
    return "float64" if given is not None and given.dtype is torch.float64 else "float32"


def _of_cache(cache: str, columns: int, there: Tensors, dtype: str, *, heads_first: bool) -> Iterator[Operand]:
    keys, lengths = there[f"{cache}.keys"], there[f"{cache}.lengths"]
    assert keys is not None
    assert lengths is not None
    found = cache_operands(columns, keys, lengths, there.get(f"{cache}.pages"), dtype, heads_first=heads_first)
    for one in found.values():
        yield Operand(name=f"{cache}.{one.name}", role=one.role, shape=one.shape, dtype=one.dtype)


def _checked_by_torch(ops: str, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> None:
    _apart_by_torch(form(ops), _check(form(ops), tensors, written))


def _apart_by_torch(of: Form, there: Tensors) -> None:
    check_apart([name for name in (*of.caches, *of.outputs) if name not in of.caches or of.writes_caches], there)
    first = there[of.names[0]]
    assert first is not None
    with torch.autocast(first.device.type, enabled=False):
        for name, made in zip(of.outputs, by_torch(of, there), strict=True):
            output = there[name]
            assert output is not None
            output.copy_(made)


def _on_cuda(ops: str, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> None:
    """The operator on a card, with the registered program for these weights and rows."""
    of = form(ops)
    there = _check(of, tensors, written)
    rows = written[-1].shape[0]
    for known in _registered.of((ops, lie(there[name] for name in of.weights))):
        if rows not in known.rows:
            continue
        given = {name: _with_squares(known.program, name, one, there) for name, one in there.items()}
        forms = {name: (tuple(one.shape), one.dtype) for name, one in given.items() if name not in of.outputs}
        if known.program.fits(forms, _DTYPES) and all(
            given[name].is_contiguous() for name in (*of.caches, *of.outputs)
        ):
            known.program({name: one.contiguous() for name, one in given.items()})
            return
    _apart_by_torch(of, there)


def _with_squares(program: Program, name: str, given: torch.Tensor | None, there: Tensors) -> torch.Tensor:
    """The given tensor; sums of squares are padded to as many as the kernels read, some after the last row."""
    if not name.endswith(".squares"):
        assert given is not None
        return given
    rows = there[name.removesuffix(".squares")]
    assert rows is not None
    found = squares_of(rows) if given is None else given
    missing = program.shape(name)[0] - found.shape[0]
    return torch.nn.functional.pad(found, (0, missing)) if missing > 0 else found


def _fake(ops: str, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> None:
    _check(form(ops), tensors, written)


_library.define("program" + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
_library.impl("program", _checked_by_torch, "CPU")
_library.impl("program", _on_cuda, "CUDA")
torch.library.register_fake("tuner::program", _fake, lib=_library)

__all__ = ["Form", "by_torch", "call", "forget", "form", "form_of", "register"]
