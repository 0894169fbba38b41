"""The library's side of an attention: PyTorch's `scaled_dot_product_attention`, and cuBLASLt's products around it.

PyTorch has the vendor's fused kernels (cuDNN's) and flash decoding. Each backend that takes the problem is timed with
each of cuBLASLt's algorithms, and the best is the baseline. Nothing else of it is used: its calls are captured in a
graph of its own, over the problem's tensors, so a sample reads from DRAM what a sample of ours reads.

Lengths that differ take a mask, which is made outside of what is timed. PyTorch then reads the cache up to the longest,
from the first token that any query sees on. Its kernels take no table of pages, so pages are put in order before,
outside of what is timed too. That favours the library.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tuner.core.trial.library_recipe import LibraryRecipe
from tuner.errors import WorkerError
from tuner.ops.attention.card.data import AttentionAddresses, AttentionData, WithAttentions
from tuner.ops.attention.card.products import IN_ORDER
from tuner.ops.attention.card.products_around import ProductsAround, WithProducts
from tuner.workers.gpu.cublaslt import CublasLt
from tuner.workers.source.launch_args import OpBuffers

#: PyTorch's backends by their names there, those that are fused first; the last one takes anything.
BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")


class AttentionLibrary(WithProducts):
    """PyTorch's attention by one backend, and cuBLASLt by one of its algorithms; a `Runner`."""

    #: Products that read the attention run behind it, those that it reads in front of it.
    can_run_beside = False

    def __init__(self, lt: CublasLt, data: AttentionData, tools: Any) -> None:
        """Finds the backends that take the problem; `tools` as `ProductsAround` has them.

        Raises:
            WorkerError: PyTorch cannot be imported, or has no backend for it.
        """
        try:
            import torch
            import torch.nn.attention
        except ImportError as error:
            problem = f"the library's attention is PyTorch's, which cannot be imported ({error})"
            raise WorkerError(f"{problem}: pip install torch") from error
        self._torch, self._data, self._lt_version = torch, data, lt.version
        self._dtype = getattr(torch, data.workload.dtype.row.array_name)
        self._bits = f"int{data.workload.dtype.row.bits}"
        self._products = ProductsAround(lt, data, tools)
        self._timed_mask = self._mask(data.inputs_of_slot(0))
        self.backends = self._found_backends()
        self._choice = 0

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Of each op, how many there are to choose from."""
        return (*self._products.num_algorithms, len(self.backends))

    def recipe(self) -> LibraryRecipe:
        """How to call the library as this does."""
        calls = self._products.calls()
        mask = "" if self._timed_mask is None else ", with a mask"
        mask += "" if self._data.attention.form.paged is None else IN_ORDER
        attention = f"PyTorch {self._torch.__version__} scaled_dot_product_attention by {self._backend}{mask}"
        return LibraryRecipe(cublaslt_version=self._lt_version, beside=False, calls=calls, attention=attention)

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """One run whose results are in the problem's outputs, which a captured one leaves elsewhere. It takes whatever
        lengths there are, some of them by another backend, since cuDNN's has no kernel for each. PyTorch reads what a
        mask hides, and makes NaN of NaN there, and of a sequence without tokens; so hidden tokens are cleared before,
        and such a sequence's rows behind."""
        assert isinstance(ops, WithAttentions)
        given = ops.attentions[0]
        inputs = self._data.inputs_at(given)
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream)):
            self._products.enqueue_in_front(tuple(ops), stream)
            mask, (q, keys, values) = self._mask(inputs), self._tensors(given)
            if mask is not None:
                keys, values = keys.nan_to_num(0.0), values.nan_to_num(0.0)
            attended = self._attend((q, keys, values), mask, (self._backend, *BACKENDS))
            if mask is not None:
                attended = attended.masked_fill(~mask.any(dim=-1)[:, 0, :, None, None], 0)
            out = self._tensor(self._data.output_at(given))
            out.copy_(attended.reshape(out.shape))
            self._products.enqueue_behind(tuple(ops), out.data_ptr(), stream)

    def captured(self) -> TorchGraph:
        """A chain of runs over the slots."""
        data, has_product = self._data, bool(self._data.workload.tile_ops)
        given = [data.slot_ops(slot) for slot in range(data.num_slots)]
        slots = range(data.chain_length)
        # before, since a capture may not hand over memory
        tensors = [self._tensors(ops.attentions[0]) for ops in given]

        def run(slot: int) -> Any:
            ops, stream = tuple(given[slot % data.num_slots]), self._torch.cuda.current_stream().cuda_stream
            self._products.enqueue_in_front(ops, stream)
            attended = self._attend(tensors[slot % data.num_slots], self._timed_mask, (self._backend,))
            if has_product:
                attended = attended.contiguous()
                self._products.enqueue_behind(ops, attended.data_ptr(), stream)
            return attended

        return TorchGraph(self._torch, [partial(run, slot) for slot in slots], kept=tensors)

    def abort_record(self) -> str | None:
        """The library never waits."""
        return None

    def overwritten(self) -> str:
        """The library has no memory that it must not write but the problem's."""
        return ""

    def poison(self) -> None:
        """What lies between the products."""
        self._products.poison()

    @property
    def _backend(self) -> str:
        return self.backends[self._choice]

    def _found_backends(self) -> list[str]:
        """Those that are fused and take the problem; where none does, the one that takes anything."""
        found, tensors = list[str](), self._tensors(self._data.slot_ops(0).attentions[0])
        for name in BACKENDS:
            if found and name == BACKENDS[-1]:
                break
            try:
                self._attend(tensors, self._timed_mask, (name,))
                self._torch.cuda.synchronize()
            except RuntimeError:  # it has no kernel for this
                continue
            found.append(name)
        if not found:
            raise WorkerError("no backend of PyTorch's attention takes this problem")
        return found

    def _attend(self, tensors: tuple[Any, Any, Any], mask: Any, backends: Sequence[str]) -> Any:
        """[sequences, new tokens, heads, head_dim], by the first of these backends that can."""
        torch, attention = self._torch, self._torch.nn.attention
        chosen = [getattr(attention.SDPBackend, name) for name in dict.fromkeys(backends)]
        with torch.no_grad(), attention.sdpa_kernel(chosen, set_priority=True):
            q, keys, values = tensors
            attended = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys,
                values,
                attn_mask=mask,
                scale=self._data.attention.shape.score_scale,
                enable_gqa=True,
            )
        return attended.transpose(1, 2)

    def _seen(self, inputs: dict[str, Any]) -> tuple[int, int]:
        """From the first token that any query sees to the last one."""
        op = self._data.attention
        lengths = inputs[op.operands[2]].get().tolist()
        return min(op.form.first_seen(op.shape, length) for length in lengths), max(1, *lengths)

    def _mask(self, inputs: dict[str, Any]) -> Any:
        """[sequences, 1, new tokens, tokens] which of the tokens a query sees; None where each sees all."""
        torch, op = self._torch, self._data.attention
        shape, lengths = op.shape, inputs[op.operands[2]].get()
        first, end = self._seen(inputs)
        if shape.new_tokens == 1 and (lengths == end).all():
            return None
        ends = torch.tensor(lengths.tolist(), device="cuda")[:, None] - shape.new_tokens + 1
        ends = (ends + torch.arange(shape.new_tokens, device="cuda")[None])[:, :, None]
        places = torch.arange(first, end, device="cuda")[None, None]
        is_seen = places < ends
        if op.form.window is not None:
            is_seen &= places >= ends - op.form.window
        return is_seen[:, None]

    def _tensors(self, given: AttentionAddresses) -> tuple[Any, Any, Any]:
        """Queries [sequences, new tokens, heads, head_dim], keys, values."""
        inputs = self._data.inputs_at(given)
        op, (first, end) = self._data.attention, self._seen(inputs)
        queries = self._tensor(self._data.queries_at(given))
        q = queries.view(op.shape.sequences, op.shape.new_tokens, -1, op.shape.head_dim)
        cache = self._data.contiguous_cache(inputs)
        keys, values = (self._tensor(bits)[:, :, first:end] for bits in cache)
        return q, keys, values

    def _tensor(self, bits: Any) -> Any:
        """The same memory as a tensor of the element type."""
        return self._torch.from_dlpack(bits.view(self._bits)).view(self._dtype)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """What is garbage is freed before: modules, graphs or memory that a collection frees would end a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class TorchGraph:
    """A chain captured by PyTorch; `launch` is that of a CuPy graph, so that a timer takes both in the same rounds."""

    def __init__(self, torch: Any, runs: Sequence[Callable[[], Any]], kept: Any) -> None:
        """Warms up, and captures all of `runs`; what they return, and `kept`, lives as long as the graph."""
        self._torch, self._read = torch, kept
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            runs[0]()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with _without_collections():
                self._graph.capture_begin()
                try:
                    self._written = [run() for run in runs]
                finally:
                    self._graph.capture_end()
        torch.cuda.synchronize()

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.ptr)):
            self._graph.replay()
