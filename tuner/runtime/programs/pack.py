"""A pack in Python: its kernels on arrays, on the caller's stream, without copying or waiting.

Strands may run concurrently; the launches of one strand follow each other. An FFN on another stream that may run at the
same time uses another strand, so that it has separate workspaces.
"""

from __future__ import annotations

import ctypes
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.runtime.binding import native
from tuner.runtime.binding.native import (
    AttentionChoice,
    AttentionShape,
    Choice,
    LayerShape,
    RuntimeFailure,
    Shape,
    checked,
)
from tuner.runtime.binding.prepared import Prepared
from tuner.runtime.programs.artifact import Artifact
from tuner.runtime.programs.attention import Attention
from tuner.runtime.programs.ffn import Ffn
from tuner.runtime.programs.program import Program
from tuner.runtime.tensors.weights import Weights

#: The maximum number of rows that the C runtime accepts.
_LAST_ROW = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The table's answer for a shape and number of rows."""

    #: A `tuner_status`: a kernel of the pack computes it (0), the library does (1), or the pack has no answer (2).
    status: int
    #: The range of rows with the same answer.
    m_lo: int
    m_hi: int
    #: The library's time divided by the kernel's; 0 if nothing was measured.
    speedup: float
    #: The kernel's plan kind and schedule, or the library's recipe.
    text: str
    #: The answer in the C runtime's form.
    choice: Choice

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel of the pack computes it."""
        return self.status == native.OK


class Pack:
    """An opened pack. Any number of threads may share it; an FFN of it may only be used by one at a time."""

    def __init__(self, path: Path | str) -> None:
        """Opens it and checks every byte.

        Raises:
            RuntimeFailure: it is not an intact pack.
        """
        self.c = native.library()
        self._handle = ctypes.c_void_p()
        #: Its file.
        self.path = path
        checked(self.c, self.c.tuner_pack_open(os.fsencode(path), ctypes.byref(self._handle)))
        self._prepared: dict[tuple[int, int, int, int], Prepared] = {}
        self._scratch: dict[tuple[int, int], tuple[Any, int, int]] = {}
        self._outgrown: list[Any] = []
        self._when_closed: list[Callable[[], None]] = []

    @property
    def handle(self) -> ctypes.c_void_p:
        """The pack's handle for the C runtime.

        Raises:
            RuntimeFailure: it was closed.
        """
        self.check_open()
        return self._handle

    def check_open(self) -> None:
        """Checks that the pack is open.

        Raises:
            RuntimeFailure: it was closed.
        """
        if not self._handle:
            raise RuntimeFailure(-1, f"{self.path} was closed with all its kernels: load it again")

    def when_closed(self, forget: Callable[[], None]) -> None:
        """Registers `forget`, which is called before everything prepared is freed, and must then release it."""
        self._when_closed.append(forget)

    def check(self, device: int = 0) -> str:
        """Whether its kernels run on a device: empty if they do, or a note that the figures come from another card.

        Raises:
            RuntimeFailure: they do not run there.
        """
        status = checked(self.c, self.c.tuner_pack_check(self.handle, device))
        return "" if status == native.OK else self.c.tuner_error().decode()

    def find(self, shape: Shape, m: int) -> Answer:
        """The answer of the table."""
        choice = Choice()
        status = checked(self.c, self.c.tuner_ffn_find(self.handle, shape, m, ctypes.byref(choice)))
        return Answer(
            status=status,
            m_lo=choice.m_lo,
            m_hi=choice.m_hi,
            speedup=choice.speedup,
            text=(choice.text or b"").decode(),
            choice=choice,
        )

    def bind(self, weights: Weights, *, strand: int = 0, safe_weights: bool = False, as_measured: bool = False) -> Ffn:
        """An FFN of these weights, with every kernel of its ladder ready. Must not be called inside a graph capture.

        `safe_weights`: the work just before it in the stream may write the weights. `as_measured`: the builds that were
        timed, which detect neither simultaneous launches nor an abort.

        Raises:
            RuntimeFailure: a kernel cannot be loaded, or the shape is not in the pack.
        """
        if safe_weights and as_measured:
            raise RuntimeFailure(-1, "use safe_weights or as_measured, not both")
        flags = native.SAFE_WEIGHTS if safe_weights else native.AS_MEASURED if as_measured else 0
        by_rows = self._ladder(weights, strand, flags)
        most = len(by_rows) - 1
        return Ffn(self, weights, by_rows, self._room(strand, weights, most) if most else 0)

    def _ladder(self, weights: Weights, strand: int, flags: int) -> list[Prepared | None]:
        """The kernel for each number of rows, up to the largest that a kernel computes; None for the library."""
        by_rows: list[Prepared | None] = [None]
        found = self.find(weights.shape, 1)
        if found.status == native.NONE and found.m_hi == _LAST_ROW:
            raise RuntimeFailure(native.NONE, self.c.tuner_error().decode())
        while True:
            if found.is_kernel:
                prepared = self._prepare(found, weights, strand, flags)
                by_rows += [None] * (found.m_lo - len(by_rows))
                by_rows += [prepared] * (found.m_hi - found.m_lo + 1)
            if found.m_hi == _LAST_ROW:
                return by_rows
            found = self.find(weights.shape, found.m_hi + 1)

    def _prepare(self, answer: Answer, weights: Weights, strand: int, flags: int) -> Prepared:
        """The kernel of an answer in a strand, shared by all FFNs of that strand and device."""
        key = (answer.choice.kernel, strand, flags, weights.device)
        if key not in self._prepared:
            memory = weights.allocate(answer.choice.memory_bytes)
            self._prepared[key] = Prepared(
                self.c, self.handle, answer.choice, memory, stream=weights.stream(), flags=flags
            )
        return self._prepared[key]

    def attention(
        self,
        *,
        sequences: int,
        length: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        new_tokens: int = 1,
        page_tokens: int = 0,
        heads_first: bool = True,
        window: int = 0,
        soft_cap: float = 0.0,
        scale: float | None = None,
        d_out: int = 0,
    ) -> Attention | None:
        """The kernels for `sequences` sequences with contexts up to `length`, loaded; None if the table names the
        library. `dtype` is ``float16`` or ``bfloat16``. The result's `shape` contains the length of the cache's rows,
        since it may support longer contexts than requested. Must not be called inside a graph capture.

        Raises:
            RuntimeFailure: the pack has no answer, or the kernels cannot be loaded.
        """
        if dtype not in native.DTYPES:
            raise RuntimeFailure(-1, f"dtype is {dtype!r}: use one of {', '.join(native.DTYPES)}")
        shape = AttentionShape(
            dtype=native.DTYPES[dtype],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            new_tokens=new_tokens,
            page_tokens=page_tokens,
            flags=native.HEADS_FIRST if heads_first else 0,
            window=window,
            d_out=d_out,
            scale=head_dim**-0.5 if scale is None else scale,
            soft_cap=soft_cap,
        )
        choice = AttentionChoice()
        found = self.c.tuner_attention_find(self.handle, shape, sequences, length, ctypes.byref(choice))
        artifact = self._chosen(found, choice)
        return None if artifact is None else Attention(artifact)

    @property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """The names of the ops of each layer and each chain of the pack, in the order of their numbers."""
        found: list[tuple[str, ...]] = []
        shape = LayerShape()
        while self.c.tuner_pack_layer(self.handle, len(found), ctypes.byref(shape), None) == native.OK:
            found.append(tuple(shape.ops.decode().split()))
        return tuple(found)

    def layer(
        self, *ops: str, sequences: int, length: int = 0, number: int | None = None, shares_sms: bool = False
    ) -> Program | None:
        """The kernels of a layer for `sequences` sequences with contexts up to `length`, loaded; None if the table
        names the library. `ops` are the names of the layer's ops, as in `layers`; if two layers have the same names, or
        no ops are given, `number` is the layer's index in `layers`. The program's tensors show how long the cache's
        rows are, since it may support longer contexts than requested. `shares_sms` as in `load_artifact`. Must not be
        called inside a graph capture.

        Raises:
            RuntimeFailure: the pack has no such layer, or several, or no answer, or the kernels cannot be loaded.
        """
        choice, wanted = AttentionChoice(), self._layer_number(ops, number)
        found = self.c.tuner_layer_find(self.handle, wanted, sequences, length, ctypes.byref(choice))
        artifact = self._chosen(found, choice, shares_sms=shares_sms)
        return None if artifact is None else Program(artifact)

    def chain(self, *ops: str, rows: int, number: int | None = None, shares_sms: bool = False) -> Program | None:
        """The kernels of a chain without an attention for `rows` rows, loaded as by `layer`. The chain may have been
        tuned for more rows, as its tensors show.
        """
        return self.layer(*ops, sequences=rows, number=number, shares_sms=shares_sms)

    def _layer_number(self, ops: tuple[str, ...], number: int | None) -> int:
        known = self.layers
        fitting = [index for index, names in enumerate(known) if not ops or names == ops]
        if number is not None:
            fitting = [index for index in fitting if index == number]
        if len(fitting) == 1:
            return fitting[0]
        listed = "; ".join(f"{index}: {', '.join(names)}" for index, names in enumerate(known)) or "none"
        problem = f"{len(fitting)} layers of the pack fit {', '.join(ops) or 'the call'}"
        raise RuntimeFailure(native.NONE, f"{problem}: pass the names or the number of one of these: {listed}")

    def _chosen(self, status: int, choice: AttentionChoice, *, shares_sms: bool = False) -> Artifact | None:
        """The artifact that was found; None for the library."""
        if checked(self.c, status) == native.LIBRARY:
            return None
        if status != native.OK:
            raise RuntimeFailure(status, self.c.tuner_error().decode())
        return self._artifact(bytes(choice.digest).hex(), shares_sms=shares_sms)

    def _artifact(self, digest: str, *, shares_sms: bool = False) -> Artifact:
        """The artifact of a kernel of the pack, whose bytes were checked when it was opened."""
        folder = f"kernels/{digest}/"
        with zipfile.ZipFile(self.path) as archive:
            names = [name for name in archive.namelist() if name.startswith(folder)]
            files = {name.removeprefix(folder): archive.read(name) for name in names}
        return Artifact(files, f"{self.path}, kernel {digest[:12]}", shares_sms=shares_sms)

    def aborts(self) -> list[str]:
        """Why launches were aborted since the last reset; does not use the driver."""
        sentences = (one.abort() for key, one in self._prepared.items() if key[2] != native.AS_MEASURED)
        return [sentence for sentence in sentences if sentence]

    def reset(self, stream: int = 0) -> None:
        """Resets all workspaces after an abort. No launch may be running on another stream."""
        for one in self._prepared.values():
            one.reset(stream)

    def _room(self, strand: int, weights: Weights, rows: int) -> int:
        """Memory for the intermediate of a strand, for `rows` rows; shared by the FFNs of the strand."""
        key = (strand, weights.device)
        needed = rows * weights.d_hidden * 2
        held = self._scratch.get(key)
        if held is None or held[2] < needed:
            self._outgrown.append(held)  # others, and graphs, may use its address
            self._scratch[key] = held = (*weights.allocate(needed), needed)
        return held[1]

    def close(self) -> None:
        """Frees everything that was prepared; no launch may be running, and no graph with it may be replayed. Later
        calls of its FFNs are refused, and PyTorch operators compute them with PyTorch's own products."""
        for forget in self._when_closed:
            forget()
        self._when_closed.clear()
        for one in self._prepared.values():
            one.close()
        self._prepared.clear()
        self.c.tuner_pack_close(self._handle)
        self._handle = ctypes.c_void_p()


def load(path: Path | str) -> Pack:
    """Opens a pack."""
    return Pack(path)
