"""Steps with more rows than any kernel of a pack supports are vLLM's own code.

vLLM compiles each piece of a model once per range of rows. Here a range ends at the last row with a kernel, and in the
ranges after it, the plugin's operators are replaced by the calls that vLLM's own modules make. So the host launches
nothing of ours in steps without a graph. If such a piece cannot be made or compiled, it keeps our operators.

Source: `CompilerManager.compile` of vLLM 0.26, whose graphs are as PyTorch traced them. What vLLM and PyTorch do with
them comes afterwards, so their passes see the graphs that they would see without the plugin.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from tuner.packs.read import read_pack

from .log import log
from .operator import by_kernel
from .pack import UNFIT, digest

#: The value of `CompilationConfig.mode` for which vLLM compiles ranges.
_BY_VLLM = 3
#: vLLM treats a range of a single row as a fixed size, and refuses it as an end.
_LEAST_END = 2
_MLP, _NORM = "tuner_vllm.mlp", "tuner_vllm.add_norm"


def last_row(path: Path) -> int:
    """The largest number of rows for which the pack has a kernel of any shape; 0 if it has none."""
    try:
        entries = read_pack(path.read_bytes()).entries
    except UNFIT:
        return 0
    return max((rung.m_hi for entry in entries for rung in entry.rungs if rung.kernel is not None), default=0)


def code_digest() -> str:
    """Digest of this module: code that another version made must not come out of vLLM's compile cache."""
    return digest(Path(__file__))


def split(config: Any, path: Path) -> None:
    """Ends a range of vLLM's compilation (`CompilationConfig`) at the pack's last row, unless no step has more rows.
    vLLM must not have compiled the model yet. Of several models in a process, the largest last row counts."""
    try:
        from vllm.compilation.backends import CompilerManager

        compile_, ends, is_compiled = CompilerManager.compile, config.compile_ranges_endpoints, config.mode == _BY_VLLM
        if "compile_range" not in inspect.signature(compile_).parameters:
            raise AttributeError("CompilerManager.compile has no compile_range")
    except (ImportError, AttributeError) as error:
        log.info("tuner: steps of all sizes call the operators, since this vLLM compiles ranges differently: %s", error)
        return
    last, has_failed = last_row(path), getattr(compile_, "last", 0) == math.inf
    if has_failed or not is_compiled or not ends or not 0 < last < max(ends):
        return
    last = max(last, _LEAST_END)
    if not hasattr(compile_, "last"):
        compile_ = CompilerManager.compile = _with_vllms_own(compile_)
    compile_.last = max(compile_.last, last)
    config.compile_ranges_endpoints = sorted({*ends, last})
    log.info("tuner: from %d rows on, steps are vLLM's own code", compile_.last + 1)


def _with_vllms_own(plain: Callable[..., Any]) -> Any:
    @wraps(plain)
    def compiled(self: Any, graph: GraphModule, *others: Any, **named: Any) -> Any:
        chosen = named.get("compile_range")
        if chosen is not None and chosen.start > found.last:
            try:
                return plain(self, own(graph), *others, **named)
            except Exception as error:
                # Pieces do not depend on each other, so those that are vLLM's remain so.
                found.last = math.inf
                log.warning("tuner: other steps call the operators, since vLLM's own code does not compile: %s", error)
        return plain(self, graph, *others, **named)

    found: Any = compiled
    found.last = 0
    return found


def own(graph: GraphModule) -> GraphModule:
    """A copy of a graph with the calls that vLLM's modules make in place of the plugin's operators; parameters are
    shared. It is the graph itself if there is none, or if it passes an fp32 sum to another graph."""
    if not any(_name(node) in _OWN for node in graph.graph.nodes) or _passes_wide_sum(graph.graph):
        return graph
    made = GraphModule(graph, copy.deepcopy(graph.graph))
    made.meta = graph.meta
    for node in list(made.graph.nodes):
        if (make := _OWN.get(_name(node))) is None:
            continue
        with made.graph.inserting_before(node):
            found = make(made.graph, *node.args)
        if found is not None:
            node.replace_all_uses_with(found)
            made.graph.erase_node(node)
    made.recompile()
    return made


def _name(node: Node) -> str:
    return str(node.target).removesuffix(".default") if node.op == "call_function" else ""


def _passes_wide_sum(graph: Graph) -> bool:
    """Whether a sum in fp32 enters or leaves: the other graph expects that type, and may keep the operators."""
    for node in graph.nodes:
        if node.op == "output" and any(_is_wide_sum(_source(one)) for one in node.all_input_nodes):
            return True
        if _name(node) == _NORM and (given := _source(node.args[1])).op == "placeholder":
            rows, residual = (one.meta["example_value"].dtype for one in (node.args[0], given))
            if rows != residual:
                return True
    return False


def _source(node: Any) -> Any:
    """What a node is a view of."""
    while node.op == "call_method" and node.target in ("view", "reshape"):
        node = node.args[0]
    return node


def _is_wide_sum(node: Any) -> bool:
    if node.target is not operator.getitem or node.args[1] != 1:
        return False
    norm = node.args[0]
    return _name(norm) == _NORM and bool(norm.args[4])


def _mlp(graph: Graph, x: Node, w1: Node, w2: Node, activation: str) -> Node | None:
    """Of an activation that vLLM compiles; None if its own kernel computes it."""
    if activation not in _ACTIVATIONS or activation in by_kernel:
        return None
    columns = w1.meta["example_value"].shape[0] // 2
    linear, (function, named) = torch.nn.functional.linear, _ACTIVATIONS[activation]
    pairs = graph.call_function(linear, (x, w1))
    gate, up = (
        graph.call_function(operator.getitem, (pairs, (..., part)))
        for part in (slice(None, columns), slice(columns, None))
    )
    gated = graph.call_function(operator.mul, (graph.call_function(function, (gate,), named), up))
    return graph.call_function(linear, (gated, w2))


def _norm(graph: Graph, rows: Node, residual: Node, weight: Node, eps: float, is_wide: bool) -> Node:
    """With a sum in the model's dtype, also where ours is fp32: only another of these norms reads that one."""
    return graph.call_function(torch.ops.vllm_ir.fused_add_rms_norm.maybe_inplace, (rows, residual, weight, eps, None))


_ACTIVATIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "silu": (torch.nn.functional.silu, {}),
    "gelu": (torch.nn.functional.gelu, {"approximate": "tanh"}),
}
_OWN: dict[str, Callable[..., Node | None]] = {_MLP: _mlp, _NORM: _norm}
