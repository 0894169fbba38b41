"""`torch.ops.tuner_vllm.mlp`: the operator of packs, which finds its kernel by its weights.

A graph does not refer to a kernel, so all layers of one shape have the same graph, and vLLM compiles it once. Weights
that are reloaded in place keep their kernels. If their address changes, PyTorch's products are used.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch

from tuner.runtime import Ffn, torch_op

from .log import log


class Kernels(Protocol):
    """Computes an MLP with one pair of weights, for some numbers of rows."""

    def is_kernel(self, rows: int) -> bool:
        """Whether it supports this number of rows."""

    def __call__(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
        """Maps rows [rows, hidden] to the same shape, on the current stream."""


class FfnKernels:
    """A pack's kernels for the MLP alone."""

    def __init__(self, ffn: Ffn) -> None:
        self._ffn, self._number = ffn, torch_op.register(ffn)

    def is_kernel(self, rows: int) -> bool:
        """Same as in `Kernels`."""
        return self._ffn.is_kernel(rows)

    def __call__(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
        """Same as in `Kernels`."""
        found: torch.Tensor = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, activation, True, self._number)
        return found


#: PyTorch compiles kernels with 32-bit indices for tensors with fewer elements.
_MOST_ELEMENTS = 2**31
#: How vLLM computes a gated activation for rows without a kernel, by the activation's name here; others, PyTorch does.
_gated: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
#: Activations that vLLM's own kernel computes in its graphs, too, since `custom_ops` name them.
by_kernel: set[str] = set()
#: The prepared kernels by `key_of` their weights; the first that supports the number of rows is used.
_bound: dict[tuple[Any, ...], list[Kernels]] = {}
#: How often an MLP ran, or was captured, by what computed it: a "kernel" of the pack, the "library" if the pack uses it
#: for this number of rows, "unbound" if no kernel was prepared for these weights, "layers" for whole steps. Replays of
#: a graph are not counted.
calls: Counter[str] = Counter()


def key_of(w1: torch.Tensor, w2: torch.Tensor) -> tuple[Any, ...]:
    """The key of two weights: their addresses, shapes, strides, dtype and device."""
    return w1.data_ptr(), w2.data_ptr(), w1.shape, w2.shape, w1.stride(), w2.stride(), w1.dtype, w1.device


def bind(w1: torch.Tensor, w2: torch.Tensor, kernels: list[Kernels]) -> None:
    """Makes the operator use these kernels for the weights."""
    _bound[key_of(w1, w2)] = kernels


def use_activation(activation: str, layer: Any) -> None:
    """Makes the operator compute rows without a kernel as this layer of vLLM does in its graphs: compiled, or by vLLM's
    kernel if the server's `custom_ops` name it. A layer without that choice is called."""
    choose = getattr(layer, "dispatch_forward", None)
    alone, outside = (layer, layer) if choose is None else (choose(compile_native=one) for one in (False, True))
    if alone == outside:
        by_kernel.add(activation)
    _gated[activation] = outside if alone == outside else compiled_for_any_rows(alone)


def activated(pairs: torch.Tensor, activation: str) -> torch.Tensor:
    """Gate and up [rows, 2 columns] after an activation that was given to `use_activation`."""
    return _gated[activation](pairs)


def compiled_for_any_rows(run: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """An activation compiled for any number of rows, but for the number of columns that it is given, as in vLLM's
    graphs. What vLLM compiles for use outside of them knows neither, so it loads elements one by one: 12.6 instead of
    4.9 µs for 136 rows of 2 x 18,944.

    Steps without a graph wait for the host, and the checks of `torch.compile` take most of a call's time there. So what
    it has compiled for usual rows is called without them."""
    known: dict[tuple[Any, ...], Callable[[torch.Tensor], torch.Tensor]] = {}
    checked = torch.compile(run, dynamic=False)

    def with_checks(pairs: torch.Tensor) -> torch.Tensor:
        torch._dynamo.maybe_mark_dynamic(pairs, 0)
        found: torch.Tensor = checked(pairs)
        return found

    def of_rows(pairs: torch.Tensor) -> torch.Tensor:
        # PyTorch compiles a single row, and elements beyond 32-bit indices, separately.
        if not (pairs.shape[0] > 1 and pairs.numel() < _MOST_ELEMENTS and pairs.is_contiguous()):
            return with_checks(pairs)
        key = pairs.shape[1:], pairs.dtype, pairs.device
        if (compiled := known.get(key)) is None:
            compiled = known[key] = _compiled_like(run, pairs) or with_checks
        return compiled(pairs)

    return of_rows


def _compiled_like(
    run: Callable[[torch.Tensor], torch.Tensor], pairs: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """`run` compiled for any number of rows like these, to be called without checks; None if PyTorch compiled it for
    this number only."""
    from torch._inductor.compile_fx import compile_fx

    made = list[tuple[Callable[..., Any], list[bool]]]()

    def kept(graph: Any, inputs: Any) -> Any:
        made.append((compile_fx(graph, inputs), [isinstance(one, torch.SymInt) for one in inputs]))
        return made[-1][0]

    torch._dynamo.maybe_mark_dynamic(pairs, 0)
    torch.compile(run, backend=kept, dynamic=False)(pairs)
    if len(made) != 1 or sorted(made[0][1]) != [False, True]:
        return None
    ((compiled, (is_rows, _)),) = made
    if is_rows:
        return lambda pairs: compiled(pairs.shape[0], pairs)[0]
    return lambda pairs: compiled(pairs, pairs.shape[0])[0]


def _run(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
    known = _bound.get(key_of(w1, w2))
    if kernels := next((one for one in known or () if one.is_kernel(x.shape[0])), None):
        calls["kernel"] += 1
        return kernels(x, w1, w2, activation)
    calls["unbound" if known is None else "library"] += 1
    if known is None and x.is_cuda and calls["unbound"] == 1:
        log.warning("tuner: weights have moved since the kernels were prepared; PyTorch's products are used instead")
    # Tensors from the model's own layers are not checked, since checking would take the host longer than the launches.
    if (gated := _gated.get(activation)) is None:
        return torch_op.by_torch(x, w1, w2, None, None, None, None, activation, True)
    return torch.nn.functional.linear(gated(torch.nn.functional.linear(x, w1)), w2)


def _fake(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
    return x.new_empty((x.shape[0], w2.shape[0]))


def _say_calls() -> None:
    if calls:
        counted = ", ".join(f"{count} by {by}" for by, count in sorted(calls.items()))
        log.info("tuner: MLPs and layers that ran or were captured: %s", counted)


atexit.register(_say_calls)
_library = torch.library.Library("tuner_vllm", "DEF")


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Defines an operator of the plugin, on CPU and card alike, whose inputs keep their strides."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    _library.impl(name, run, "CPU")
    _library.impl(name, run, "CUDA")
    torch.library.register_fake(f"tuner_vllm::{name}", fake, lib=_library)


define("mlp(Tensor x, Tensor w1, Tensor w2, str activation) -> Tensor", _run, _fake)
