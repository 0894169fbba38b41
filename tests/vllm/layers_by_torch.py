"""PyTorch in place of a pack's layers, on a CPU; attention and the write to the cache are vLLM's own.

It computes what the launches do from the tensors that they are given, by the same names. So it tests that vLLM's
weights, streams, lengths and caches are passed correctly, but tests no kernel.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch


class Bound:
    """The launches of a layer, or of one of its two runs."""

    def __init__(self, tensors: dict[str, torch.Tensor], eps: float) -> None:
        self._given, self._eps = tensors, eps

    def enqueue(self, stream: int) -> None:
        """Computes immediately."""
        given, functions = self._given, torch.nn.functional
        if "q" in given:
            stream_ = functions.linear(self._attend(given["q"]), given["o_proj.w"]) + given["residual"]
            given["down"].copy_(self._mlp(self._normed(stream_)) + stream_)
            self._turn_and_write(self._qkv(self._normed(given["down"])), "qkv", given["qkv"])
        elif "o_proj" in given:
            q = torch.empty(len(given["residual"]), given["o_proj.w"].shape[1], dtype=given["residual"].dtype)
            self._turn_and_write(self._qkv(self._normed_by_squares()), "attention", q)
            given["o_proj"].copy_(functions.linear(self._attend(q), given["o_proj.w"]))
        else:
            given["down"].copy_(self._mlp(self._normed_by_squares()))

    def _qkv(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self._given["qkv.w"], self._given.get("qkv.bias"))

    def _mlp(self, rows: torch.Tensor) -> torch.Tensor:
        functions = torch.nn.functional
        gate, up = functions.linear(rows, self._given["gate_up.w"]).chunk(2, dim=-1)
        return functions.linear(functions.silu(gate) * up, self._given["down.w"])

    def _normed_by_squares(self) -> torch.Tensor:
        rows, squares = self._given["residual"], self._given["residual.squares"]
        factors = torch.rsqrt(squares[: len(rows), None] / rows.shape[1] + self._eps)
        return (rows.float() * factors).to(rows.dtype)

    def _normed(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(rows, rows.shape[-1:], eps=self._eps)

    def _attend(self, rows: torch.Tensor) -> torch.Tensor:
        attention, metadata = self._of_cache(self._given["attention.keys"])
        assert metadata.seq_lens.data_ptr() == self._given["attention.lengths"].data_ptr()
        assert metadata.block_table.data_ptr() == self._given["attention.pages"].data_ptr()
        q = rows.view(len(rows), attention.num_heads, attention.head_size)
        out = torch.empty_like(q)
        attention.impl.forward(attention, q, None, None, attention.kv_cache, metadata, out)
        return out.flatten(1)

    def _turn_and_write(self, halves: torch.Tensor, cache: str, queries: torch.Tensor) -> None:
        """Rows have the first halves of all heads first; `cache` belongs to the next layer, or to this one."""
        given = self._given
        half, lengths = len(given["qkv.frequencies"]), given[f"{cache}.lengths"]
        x, y = (part.view(len(halves), -1, half).float() for part in halves.chunk(2, dim=-1))
        angles = (lengths - 1).float()[:, None, None] * given["qkv.frequencies"]
        turned = torch.cat([x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()], dim=-1)
        plain = torch.cat([x, y], dim=-1)
        attention, _ = self._of_cache(given[f"{cache}.keys"])
        q, k, _ = turned.to(halves.dtype).split([attention.num_heads, *[attention.num_kv_heads] * 2], dim=1)
        v = plain.to(halves.dtype)[:, -attention.num_kv_heads :]
        queries.copy_(q.flatten(1))
        if bool((lengths > 0).any()):
            from vllm.forward_context import get_forward_context

            slots = get_forward_context().slot_mapping[attention.layer_name]
            attention.impl.do_kv_cache_update(attention, k.contiguous(), v.contiguous(), attention.kv_cache, slots)

    def _of_cache(self, keys: torch.Tensor) -> tuple[Any, Any]:
        """The vLLM attention that owns this cache, and its metadata of the step."""
        from vllm.forward_context import get_forward_context

        context = get_forward_context()
        attentions = [one for one in context.no_compile_layers.values() if hasattr(one, "kv_cache")]
        (found,) = [one for one in attentions if one.kv_cache.data_ptr() == keys.data_ptr()]
        return found, context.attn_metadata[found.layer_name]


class Program:
    """A layer's program in a pack, or one of its two runs."""

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def bind(self, tensors: dict[str, torch.Tensor]) -> Bound:
        """The launches over `tensors`."""
        return Bound(dict(tensors), self._eps)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape as in a pack's program: room for several more rows."""
        assert tensor == "residual.squares"
        return (8,)


def programs_of(path: Any, model: Any, vllm_config: Any) -> dict[int, tuple[Program, ...]]:
    """Replaces `tuner.vllm.layers.programs_of`: for one and for three sequences, none for two. The environment selects
    whole layers (1) or runs of them (2)."""
    from tuner.vllm.layers import reasons_against_model

    assert reasons_against_model(model, vllm_config) == []
    for layer in model.model.layers:
        for module in (layer.self_attn.qkv_proj, layer.self_attn.o_proj):
            _kept.append((module, module.weight))
    eps = model.model.norm.variance_epsilon
    programs = tuple(Program(eps) for _ in range(int(os.environ["PROGRAMS_OF_A_LAYER"])))
    return dict.fromkeys((1, 3), programs)


def register() -> None:
    """Registers it in place of the plugin. vLLM calls it in each of its processes, as a separate plugin."""
    from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
    from vllm.model_executor.model_loader import weight_utils

    # vLLM draws weights so small that an MLP would hardly change a token.
    weight_utils.initialize_dummy_weights.__defaults__ = (-0.2, 0.2, 1234)
    # On a CPU, vLLM's activations are PyTorch's, which round once more than vLLM's kernels. On GPUs, and in the plugin,
    # they are the kernels.
    for activation in (SiluAndMul, GeluAndMul):
        activation.forward_cpu = activation.forward_cuda
    if "PROGRAMS_OF_A_LAYER" in os.environ:
        import tuner.vllm.loader

        vars(tuner.vllm.loader).update(programs_of=programs_of, install=install)
    if "LAST_ROW" in os.environ:
        import tuner.vllm.ranges

        vars(tuner.vllm.ranges).update(last_row=lambda path: int(os.environ["LAST_ROW"]))
        compile_as_on_a_gpu()


def compile_as_on_a_gpu() -> None:
    """Makes vLLM compile pieces for ranges of rows, which its CPU platform turns off."""
    from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
    from vllm.platforms.cpu import CpuPlatform

    kept = ("mode", "backend", "inductor_compile_config", "ir_enable_torch_wrap")
    plain = CpuPlatform.check_and_update_config

    def check_and_update(config: Any) -> None:
        compilation = config.compilation_config
        before = {name: copy.copy(getattr(compilation, name)) for name in kept}
        plain(config)
        vars(compilation).update(before, compile_sizes=[])

    CpuPlatform.check_and_update_config = staticmethod(check_and_update)
    # It names operators that the CPU build lacks.
    FixFunctionalizationPass.__call__ = lambda self, graph: None


#: Weights of modules as loaded; on a CPU, vLLM keeps them in a different form, and drops these.
_kept: list[tuple[Any, Any]] = []


def install(model: Any, programs: Any) -> None:
    """Replaces `tuner.vllm.decode.install`, which then finds the weights."""
    from tuner.vllm import decode

    for module, weight in _kept:
        module.weight = weight
    decode.install(model, programs)
