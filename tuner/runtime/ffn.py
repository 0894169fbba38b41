"""One FFN of a model: its weights, and for every number of rows the kernel or the library."""

from __future__ import annotations

import ctypes
from typing import Any

from . import native
from .arrays import address_of, matrix_reader, view
from .native import Launch, RuntimeFailure, Tensors
from .prepared import Prepared
from .weights import Weights


class Ffn:
    """Y = FFN(X), by the kernel that the table names for X's rows, or by the library."""

    def __init__(self, pack: object, weights: Weights, by_rows: list[Prepared | None], hidden: int) -> None:
        """`by_rows` has what computes each number of rows, `hidden` is the address of room for the intermediate."""
        self.weights, self._by_rows = weights, by_rows
        self._pack = pack  # it must outlive this
        self._dtype = getattr(weights.w1, "dtype", None)
        self._address = matrix_reader(weights.w1)
        self._launch = native.library().tuner_ffn_launch_from
        self._arguments = Launch(
            tensors=Tensors(
                w1=address_of(weights.w1),
                w2=address_of(weights.w2),
                b1=0 if weights.b1 is None else address_of(weights.b1),
                b2=0 if weights.b2 is None else address_of(weights.b2),
                hidden=hidden,
            )
        )
        self._tensors: Tensors = self._arguments.tensors
        self._there = ctypes.addressof(self._arguments)
        self._has_more = weights.residual or weights.row_scale

    def kernels(self) -> list[int]:
        """By number of rows, from 0 on, the address of the prepared kernel; 0 where the library computes them."""
        return [0 if one is None else one.address or 0 for one in self._by_rows]

    @property
    def tensors(self) -> Tensors:
        """The addresses of weights, biases and room for the intermediate; the others are those of the last call."""
        return self._tensors

    def is_kernel(self, rows: int) -> bool:
        """Whether a kernel of the pack computes so many rows."""
        return rows < len(self._by_rows) and self._by_rows[rows] is not None

    def __call__(
        self,
        x: Any,
        *,
        out: Any = None,
        residual: Any = None,
        row_scale: Any = None,
        stream: int | None = None,
        no_pdl: bool = False,
    ) -> Any:
        """The FFN of `x` [m, d_in], contiguous, on `stream`: the library's current one where it is not given. Nothing
        is waited for, and it may be captured in a graph.

        Raises:
            RuntimeFailure: an operand is missing, or not aligned to 16 bytes.
        """
        shape, weights = x.shape, self.weights
        rows = shape[0]
        if not self.is_kernel(rows):
            return self._by_the_library(x, out, residual, row_scale)
        dtype = getattr(x, "dtype", self._dtype)
        if shape[1] != weights.d_in or dtype != self._dtype:
            wanted = f"[m, {weights.d_in}] of {weights.dtype}, as the weights are"
            raise RuntimeFailure(-1, f"x is {tuple(shape)} of {dtype or weights.dtype}: give {wanted}")
        y = weights.empty(rows) if out is None else out
        if y.shape != (rows, weights.d_out) and tuple(y.shape) != (rows, weights.d_out):
            raise RuntimeFailure(-1, f"out is {tuple(y.shape)}: give [{rows}, {weights.d_out}]")
        if self._has_more:
            self._add_more(residual, row_scale)
        on = weights.stream() if stream is None else stream
        self.launch(rows, self._address(x, weights.d_in), self._address(y, weights.d_out), on, no_pdl=no_pdl)
        return y

    def launch(self, rows: int, x: int, y: int, stream: int, *, no_pdl: bool = False) -> None:
        """Enqueues the kernel of so many rows on addresses of X and Y, without further checks: it must be a kernel that
        computes them, and there is neither residual nor factor per row.

        Raises:
            RuntimeFailure: an address is not a multiple of 16, or the driver refuses.
        """
        prepared = self._by_rows[rows]
        assert prepared is not None
        arguments, tensors = self._arguments, self._tensors
        arguments.ffn, arguments.m, arguments.stream = prepared.address, rows, stream
        arguments.flags = native.NO_PDL if no_pdl else 0
        tensors.x, tensors.y = x, y
        status = self._launch(self._there)
        if status:
            native.checked(native.library(), status)

    def _add_more(self, residual: Any, row_scale: Any) -> None:
        if self.weights.residual:
            self._tensors.residual = 0 if residual is None else address_of(residual)
        if self.weights.row_scale:
            if row_scale is None or view(row_scale).dtype != "float32":
                raise RuntimeFailure(-1, "row_scale is missing or not of float32: give one factor for each row")
            self._tensors.row_scale = address_of(row_scale)

    def _by_the_library(self, x: Any, out: Any, residual: Any, row_scale: Any) -> Any:
        y = self.weights.by_the_library(x, residual, row_scale)
        if out is None:
            return y
        out[...] = y
        return out
