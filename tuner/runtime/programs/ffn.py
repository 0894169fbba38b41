"""One FFN of a model: its weights, and for every number of rows the kernel or the library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from tuner.runtime.binding import native
from tuner.runtime.binding.native import Launch, Tensors, WrongOperand
from tuner.runtime.binding.prepared import NUM_CACHED, Prepared
from tuner.runtime.tensors.arrays import address_of, kind_reader, matrix_reader
from tuner.runtime.tensors.weights import Weights


class Opened(Protocol):
    """A pack, as seen by its FFNs."""

    def check_open(self) -> None:
        """Raises RuntimeFailure if it was closed."""

    def when_closed(self, forget: Callable[[], None]) -> None:
        """Registers `forget`, which is called before everything that was prepared is freed."""


class Ffn:
    """Y = FFN(X), with the kernel that the table names for X's rows, or with the library."""

    def __init__(self, pack: Opened, weights: Weights, by_rows: list[Prepared | None], hidden: int) -> None:
        """`by_rows` contains the kernel or library for each number of rows, `hidden` is the address of memory for the
        intermediate."""
        self.weights, self._by_rows = weights, by_rows
        #: The pack must outlive this object.
        self.pack = pack
        self._kind_of, self._address = kind_reader(weights.w1), matrix_reader(weights.w1)
        self._kind = self._kind_of(weights.w1)
        #: Rows and addresses of calls whose output is known not to overlap other operands.
        self._apart: set[tuple[int, int, int]] = set()
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
        """By number of rows, from 0 on, the address of the prepared kernel; 0 if the library computes them."""
        return [0 if one is None else one.address or 0 for one in self._by_rows]

    @property
    def tensors(self) -> Tensors:
        """The addresses of weights, biases and memory for the intermediate; the others are those of the last call."""
        return self._tensors

    def is_kernel(self, rows: int) -> bool:
        """Whether a kernel of the pack computes `rows` rows."""
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
        """The FFN of `x` [m, d_in], contiguous, on `stream`: the library's current one by default. It does not wait,
        and it may be captured in a graph.

        Raises:
            RuntimeFailure: the pack was closed, or an operand is missing or does not fit `Weights.operands`; nothing
                was launched.
        """
        weights = self.weights
        is_plain = not self._has_more and out is residual is row_scale is None
        if not is_plain or not self._is_own(x, weights.d_in):
            self._check(x, out, residual, row_scale)
        rows = x.shape[0]
        if not self.is_kernel(rows):
            return self._by_the_library(x, out, residual, row_scale)
        y = weights.empty(rows) if out is None else out
        if self._has_more:
            self._add_more(residual, row_scale)
        on = weights.stream() if stream is None else stream
        self.launch(rows, self._address(x, weights.d_in), self._address(y, weights.d_out), on, no_pdl=no_pdl)
        return y

    def _is_own(self, matrix: Any, columns: int) -> bool:
        """Whether an array has the weights' type and device, and `columns` columns. This runs in every call."""
        if not self._kind_of(matrix) == self._kind is not None:
            return False
        shape = matrix.shape
        return len(shape) == 2 and shape[1] == columns

    def _check(self, x: Any, out: Any, residual: Any, row_scale: Any) -> None:
        """Checks all operands with the table, unless a plain call with these rows and addresses was checked before."""
        weights = self.weights
        is_plain = residual is row_scale is None and not self._has_more and out is not None
        if is_plain and self._is_own(x, weights.d_in) and self._is_own(out, weights.d_out) and len(x) == len(out):
            key = (len(x), self._address(x, weights.d_in), self._address(out, weights.d_out))
            if key in self._apart:
                return
            if len(self._apart) >= NUM_CACHED:
                self._apart.clear()
            self._check_all(x, out, residual, row_scale)
            self._apart.add(key)
        else:
            self._check_all(x, out, residual, row_scale)

    def _check_all(self, x: Any, out: Any, residual: Any, row_scale: Any) -> None:
        weights, more = self.weights, {"residual": residual, "row_scale": row_scale}
        for name, one in more.items():
            if (one is not None) != (is_bound := getattr(weights, name)):
                problem = f"{name} is missing" if one is None else f"{name} was given"
                raise WrongOperand(
                    f"{problem}, but the weights were bound with {name}={is_bound}: pass the bound value"
                )
        given = {"x": x} | {name: one for name, one in ({"out": out} | more).items() if one is not None}
        weights.operands.checked(given, beside=weights.views)

    def launch(self, rows: int, x: int, y: int, stream: int, *, no_pdl: bool = False) -> None:
        """Enqueues the kernel for `rows` rows with the addresses of X and Y, without further checks: a kernel must
        compute these rows, without a residual and without a factor per row.

        Raises:
            RuntimeFailure: an address is not a multiple of 16, the pack was closed, or the driver refuses.
        """
        prepared = self._by_rows[rows]
        assert prepared is not None
        arguments, tensors = self._arguments, self._tensors
        arguments.ffn, arguments.m, arguments.stream = prepared.address, rows, stream
        arguments.flags = native.NO_PDL if no_pdl else 0
        tensors.x, tensors.y = x, y
        status = self._launch(self._there)
        if status:
            self.pack.check_open()
            native.checked(native.library(), status)

    def _add_more(self, residual: Any, row_scale: Any) -> None:
        self._tensors.residual = 0 if residual is None else address_of(residual)
        self._tensors.row_scale = 0 if row_scale is None else address_of(row_scale)

    def _by_the_library(self, x: Any, out: Any, residual: Any, row_scale: Any) -> Any:
        y = self.weights.by_the_library(x, residual, row_scale)
        if out is None:
            return y
        out[...] = y
        return out
