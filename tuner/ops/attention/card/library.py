"""The library's side of an attention: PyTorch's `scaled_dot_product_attention`.

PyTorch has the vendor's fused kernels (cuDNN's) and flash decoding. Each backend that supports the problem is timed
with each of cuBLASLt's algorithms, and the fastest combination is the baseline. PyTorch does nothing else: its calls
are captured in a separate graph, over the problem's tensors, so a sample reads as much from DRAM as a sample of our
kernel does.

Different lengths need a mask, which is made before the timing. PyTorch then reads the cache from the first token that
any query sees up to the longest length. Its kernels do not accept page tables, so pages are also sorted before the
timing. That favours the library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.errors import WorkerError
from tuner.ops.attention.card.data import in_order
from tuner.ops.attention.card.products import IN_ORDER
from tuner.ops.attention.in_parts import attend_in_parts
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.library.op_library import TorchOpLibrary
from tuner.workers.gpu.tensors.op_data import Arrays

#: PyTorch's fused backends, by their names in PyTorch.
FUSED = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION")
#: The backend that supports any problem; it is called part by part, see in_parts.py.
ANY = "MATH"


class AttentionLibrary(TorchOpLibrary):
    """PyTorch's attention with one of its backends."""

    def __init__(self, op: AttentionOp, dtype: Dtype, arrays: Arrays) -> None:
        """Finds the backends that support the problem; `arrays` are those of a timed run.

        Raises:
            WorkerError: PyTorch cannot be imported, or has no backend for it.
        """
        try:
            import torch
            import torch.nn.attention
        except ImportError as error:
            problem = f"the library's attention is PyTorch's, which cannot be imported ({error})"
            raise WorkerError(f"{problem}: pip install torch") from error
        self._torch, self._op = torch, op
        self._dtype = getattr(torch, dtype.row.array_name)
        self._bits = f"int{dtype.row.bits}"
        self._timed_mask = self._mask(arrays)
        #: Keys and values of timed runs, by the address of a slot's lengths.
        self._slots: dict[int, tuple[Any, Any]] = {}
        self.backends = self._found_backends(arrays)
        self.num_choices = len(self.backends)

    def recipe(self) -> str:
        """How this calls the library."""
        mask = "" if self._timed_mask is None else ", with a mask"
        mask += "" if self._op.form.paged is None else IN_ORDER
        return f"PyTorch {self._torch.__version__} scaled_dot_product_attention by {self._backend}{mask}"

    def enqueue(self, arrays: Arrays, stream: int) -> None:
        """One run whose results are in the problem's outputs; a captured run leaves them elsewhere. It accepts any
        lengths; for some it uses a different backend, since cuDNN has no kernel for them. PyTorch reads masked tokens,
        and NaN there makes the result NaN, as does a sequence without tokens; so hidden tokens are cleared before the
        call, and the rows of such a sequence after it."""
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream)):
            mask, (q, keys, values) = self._mask(arrays), self._tensors(arrays)
            if mask is not None:
                keys, values = keys.nan_to_num(0.0), values.nan_to_num(0.0)
            attended = self._attend_by_any((q, keys, values), mask)
            if mask is not None:
                attended = attended.masked_fill(~mask.any(dim=-1)[:, 0, :, None, None], 0)
            out = self._tensor(arrays[self._op.name])
            out.copy_(attended.reshape(out.shape))

    def captured(self, arrays: Arrays) -> Callable[[], Any]:
        """A timed run. Each choice has a graph with many runs, so a slot's visible pages are sorted only once."""
        slot = int(arrays[self._op.operands[2]].data.ptr)
        if slot not in self._slots:
            keys, values = self._caches(arrays)
            self._slots[slot] = (
                (keys, values) if self._op.form.paged is None else (keys.contiguous(), values.contiguous())
            )
        tensors = (self._queries(arrays), *self._slots[slot])
        return lambda: self._attend(tensors, self._timed_mask, self._backend)

    @property
    def _backend(self) -> str:
        return self.backends[self.choice]

    def _found_backends(self, arrays: Arrays) -> list[str]:
        """The fused backends that support the problem; if there are none, the one that supports anything.

        Raises:
            WorkerError: the card has too little memory even for that.
        """
        tensors = self._tensors(arrays)
        if found := [name for name in FUSED if self._takes(name, tensors)]:
            return found
        if self._takes(ANY, tensors):
            return [ANY]
        problem = "no backend of PyTorch's attention takes this problem"
        free = self._torch.cuda.mem_get_info()[0] / 2**30
        raise WorkerError(f"{problem}, with {free:.1f} GiB free: give fewer sequences, or a shorter longest context")

    def _takes(self, name: str, tensors: tuple[Any, Any, Any]) -> bool:
        try:
            self._attend(tensors, self._timed_mask, name)
            self._torch.cuda.synchronize()
        except RuntimeError:  # the backend has no kernel for this, or not enough memory
            return False
        return True

    def _attend_by_any(self, tensors: tuple[Any, Any, Any], mask: Any) -> Any:
        """Calls the chosen backend, or else the first one that can compute it."""
        for name in dict.fromkeys((self._backend, *FUSED)):
            with contextlib.suppress(RuntimeError):
                return self._attend(tensors, mask, name)
        return self._attend(tensors, mask, ANY)

    def _attend(self, tensors: tuple[Any, Any, Any], mask: Any, backend: str) -> Any:
        """[sequences, new tokens, heads, head_dim]; raises RuntimeError if the backend cannot compute it."""
        torch, scale = self._torch, self._op.shape.score_scale
        with torch.no_grad():
            if backend == ANY:
                return attend_in_parts(torch, tensors, mask, scale)
            q, keys, values = tensors
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                attended = torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), keys, values, attn_mask=mask, scale=scale, enable_gqa=True
                )
        return attended.transpose(1, 2)

    def _seen(self, inputs: Arrays) -> tuple[int, int]:
        """The range from the first token that any query sees to the last one."""
        op = self._op
        lengths = inputs[op.operands[2]].get().tolist()
        return min(op.form.first_seen(op.shape, length) for length in lengths), max(1, *lengths)

    def _mask(self, inputs: Arrays) -> Any:
        """[sequences, 1, new tokens, tokens] which tokens a query sees; None if every query sees all tokens."""
        torch, op = self._torch, self._op
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

    def _tensors(self, arrays: Arrays) -> tuple[Any, Any, Any]:
        """Queries, keys and values."""
        return (self._queries(arrays), *self._caches(arrays))

    def _queries(self, arrays: Arrays) -> Any:
        """[sequences, new tokens, heads, head_dim]."""
        shape = self._op.shape
        queries = self._tensor(arrays[self._op.source])
        return queries.view(shape.sequences, shape.new_tokens, -1, shape.head_dim)

    def _caches(self, arrays: Arrays) -> tuple[Any, Any]:
        """Keys and values [sequences, KV heads, tokens that are seen, head_dim]."""
        first, end = self._seen(arrays)
        keys, values = (self._tensor(bits)[:, :, first:end] for bits in in_order(self._op, arrays))
        return keys, values

    def _tensor(self, bits: Any) -> Any:
        """The same memory as a tensor with the element type."""
        return self._torch.from_dlpack(bits.view(self._bits)).view(self._dtype)
