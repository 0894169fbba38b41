"""An MLP with the kernels of its run, whose first op normalizes rows, given rows that vLLM has already normalized.

In a pack of runs between two all-reduces, one program computes norm, gate_up and down from a residual stream and the
sums of squares of its rows. If the library computes the attention's run, the norm stays vLLM's. Normalized rows are
then passed with sums of squares that make the norm's factor one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tuner.packs.contents import Rung
from tuner.packs.read import read_pack
from tuner.packs.shapes import ChainShape, LayerShape

from .linear import DTYPES
from .pack import opened
from .step import Program

#: The ops of such a run, by their names in a pack.
RUN = ("gate_up", "down")


class RunKernels:
    """The programs of a run, each for some numbers of rows."""

    def __init__(self, programs: Mapping[range, Program], eps: float) -> None:
        """`eps` is the norm's epsilon."""
        self._programs, self._eps = programs, eps
        #: The sums of squares by number of rows.
        self._squares: dict[int, torch.Tensor] = {}

    def _program(self, rows: int) -> Program | None:
        return next((one for those, one in self._programs.items() if rows in those), None)

    def is_kernel(self, rows: int) -> bool:
        """Same as in `operator.Kernels`."""
        return self._program(rows) is not None

    def __call__(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
        """Same as in `operator.Kernels`."""
        program = self._program(x.shape[0])
        assert program is not None, "is_kernel was asked"
        (count,) = program.shape("residual.squares")
        if (squares := self._squares.get(count)) is None:
            squares = self._squares[count] = squares_of_normed(count, x.shape[1], self._eps, x.device)
        given = {"residual": x, "residual.squares": squares, "gate_up.w": w1, "down.w": w2}
        return program(given)


def squares_of_normed(rows: int, columns: int, eps: float, device: Any) -> torch.Tensor:
    """Sums of squares for which a norm leaves the rows unchanged."""
    return torch.full((rows,), columns * (1 - eps), dtype=torch.float32, device=device)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a pack, by the index for `tuner.runtime.Pack.layer`."""

    number: int
    shape: ChainShape
    rungs: tuple[Rung, ...]

    @property
    def said(self) -> list[dict[str, Any]]:
        """The fields of its ops that differ from the defaults, except names and the norm's eps."""
        named = {"name", "eps"}
        return [{name: value for name, value in op.items() if value and name not in named} for op in self.shape.ops]


def of_pack(path: Path, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> RunKernels | None:
    """The pack's run for an MLP with these weights; None if there is none, or if it uses the library for all rows.

    Raises:
        RuntimeFailure: a kernel cannot be loaded.
    """
    dtype = str(DTYPES.get(str(w1.dtype).removeprefix("torch.")))
    (d_hidden, d_in), d_out, up = (w1.shape[0] // 2, w1.shape[1]), w2.shape[0], RUN[0]
    wanted = [
        {"source": "residual", "norm": "residual", "n": d_hidden, "k": d_in, "activation": activation, "gated": True},
        {"source": up, "n": d_out, "k": d_hidden, "activation": "identity"},
    ]
    fitting = (one for one in _runs(path) if one.shape.dtype == dtype and one.said == wanted)
    return next((found for one in fitting if (found := _loaded(path, one.number))), None)


@cache
def _runs(path: Path) -> tuple[Run, ...]:
    entries = [one for one in read_pack(path.read_bytes()).entries if isinstance(one.shape, LayerShape | ChainShape)]
    return tuple(
        Run(number=number, shape=one.shape, rungs=one.rungs)
        for number, one in enumerate(entries)
        if isinstance(one.shape, ChainShape) and one.shape.names == RUN
    )


@cache
def _loaded(path: Path, number: int) -> RunKernels | None:
    """The kernels of the run, which all layers share."""
    (run,) = (one for one in _runs(path) if one.number == number)
    found = {
        range(rung.m_lo, rung.m_hi + 1): program
        for rung in run.rungs
        if (program := opened(path).layer(number=number, sequences=rung.m_hi, shares_sms=True)) is not None
    }
    return RunKernels(found, run.shape.ops[0]["eps"]) if found else None
