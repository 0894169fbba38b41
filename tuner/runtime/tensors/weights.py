"""The weights of an FFN: their addresses, their shape, and how their library computes it."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.activation import canonical
from tuner.errors import InvalidInput
from tuner.runtime.binding import native
from tuner.runtime.binding.native import RuntimeFailure, Shape, WrongOperand
from tuner.runtime.tensors.arrays import View, address_of, library_of, view
from tuner.runtime.tensors.operands import of_ffn

_ALIGNMENT = 256


class Weights:
    """The weights of an FFN: nn.Linear's layout, a gated one with the gate's rows above the up projection's."""

    def __init__(
        self,
        w1: Any,
        w2: Any,
        b1: Any = None,
        b2: Any = None,
        *,
        activation: str = "identity",
        gated: bool = False,
        residual: bool = False,
        row_scale: bool = False,
        dtype: str = "",
        memory: Any = None,
    ) -> None:
        """`activation` by our name (``gelu`` is the tanh form), or by another name of the same function. `residual` and
        `row_scale`: each call passes one. `dtype` names the type in arrays of bits. `memory`: a function that takes a
        number of bytes and returns a device array, for arrays of unknown libraries.

        Raises:
            NotAnArray: an argument is not an array, or not contiguous.
            RuntimeFailure: shapes, element types, addresses or devices do not fit an FFN.
        """
        given = {"w1": w1, "w2": w2, "b1": b1, "b2": b2}
        #: Their addresses and descriptions, by name.
        self.views: dict[str, View] = {name: view(one) for name, one in given.items() if one is not None}
        first, second = self.views["w1"], self.views["w2"]
        for name, one in (("w1", first), ("w2", second)):
            if len(one.shape) != 2:
                raise WrongOperand(f"{name} has {len(one.shape)} dimensions: pass nn.Linear's weight [rows, columns]")
        rows, self.d_in = first.shape
        self.d_out, self.d_hidden = second.shape
        if rows != (2 if gated else 1) * self.d_hidden:
            raise WrongOperand(
                f"w1 has {rows} rows and w2 {self.d_hidden} columns: w1 of a {'gated' if gated else 'plain'} FFN has "
                f"{2 * self.d_hidden if gated else self.d_hidden}"
            )
        if (b1 is None) != (b2 is None):
            raise WrongOperand("pass both biases or none")
        try:
            self.activation = str(canonical(activation))
        except InvalidInput as error:
            raise RuntimeFailure(-1, str(error)) from error
        self.w1, self.w2, self.b1, self.b2 = w1, w2, b1, b2
        self.gated, self.residual, self.row_scale = gated, residual, row_scale
        self.dtype = dtype or first.dtype
        if self.dtype not in native.DTYPES or first.dtype not in (self.dtype, "bits"):
            named = f", and dtype is {dtype!r}" if dtype else ""
            raise WrongOperand(f"elements of {first.dtype}{named}: pass one of {', '.join(native.DTYPES)} as dtype")
        #: The operands of a call with these weights; elements as in the arrays.
        self.operands = of_ffn(self.d_in, self.d_hidden, self.d_out, first.dtype, gated=gated)
        self.operands.checked({name: one for name, one in given.items() if one is not None})
        self._library, self._memory = library_of(w1), memory
        flags = gated * native.GATED | (b1 is not None) * native.BIAS
        flags |= residual * native.RESIDUAL | row_scale * native.ROW_SCALE
        dtype_number, activation_number = native.DTYPES[self.dtype], native.ACTIVATIONS[self.activation]
        self.shape = Shape(dtype_number, activation_number, self.d_in, self.d_hidden, self.d_out, flags)

    @property
    def device(self) -> int:
        """The number of their device, if the library reports it."""
        found = getattr(getattr(self.w1, "device", None), "index", None) or getattr(
            getattr(self.w1, "device", None), "id", 0
        )
        return int(found or 0)

    def allocate(self, num_bytes: int) -> tuple[Any, int]:
        """`num_bytes` bytes of device memory, and their address, a multiple of 256.

        Raises:
            RuntimeFailure: the array library is unknown, and no `memory` was given.
        """
        size = num_bytes + _ALIGNMENT
        if self._memory is not None:
            held = self._memory(size)
        elif self._library is not None:
            held = self._library.empty_bytes(size, self.w1)
        else:
            raise RuntimeFailure(-1, "arrays of this library need `memory`: a function that returns a device array")
        return held, -(-address_of(held) // _ALIGNMENT) * _ALIGNMENT

    def empty(self, rows: int) -> Any:
        """A new array for the output."""
        if self._library is None:
            raise RuntimeFailure(-1, "arrays of this library need `out`: an array for the result")
        return self._library.empty((rows, self.d_out), self.w1)

    def stream(self) -> int:
        """The library's current stream; the default one if the library is unknown."""
        return 0 if self._library is None else self._library.current_stream(self.w1)

    def by_the_library(self, x: Any, residual: Any, row_scale: Any) -> Any:
        """The FFN with the array library's own products.

        Raises:
            RuntimeFailure: the library is unknown, or does not know the type of its arrays.
        """
        if self._library is None:
            raise RuntimeFailure(
                native.LIBRARY, "the table chooses the library, but no function for arrays of this library is known"
            )
        if self.views["w1"].dtype == "bits":
            problem = f"the table chooses the library, for which {self.dtype} is only raw bits"
            raise RuntimeFailure(native.LIBRARY, f"{problem}: compute these rows elsewhere")
        z = x @ self.w1.T
        if row_scale is not None:
            scaled = z * row_scale[:, None]
            z = scaled.astype(z.dtype) if hasattr(scaled, "astype") else scaled.to(z.dtype)
        if self.b1 is not None:
            z = z + self.b1
        if self.gated:
            gate = self._library.activate(z[:, : self.d_hidden], self.activation)
            hidden = gate * z[:, self.d_hidden :]
        else:
            hidden = self._library.activate(z, self.activation)
        y = hidden @ self.w2.T
        if self.b2 is not None:
            y = y + self.b2
        return y if residual is None else y + residual
