"""PyTorch's own calls on the same buffers: a cross-check of the library baseline; when compiled, a competitor.

The kind of a workload's tile ops has ``torch_chain(data, calls)`` in its module ``library``, which captures them.
"""

from __future__ import annotations

from typing import Any, Protocol

from tuner.core.problem.op_kinds import part_of
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.errors import WorkerError

from ...source.launch_args import OpBuffers
from ..tensors.data import ProblemData


class TorchRunner(Protocol):
    """A captured chain."""

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""

    def output(self, slot: int) -> Any:
        """The last op's output [m, n] of one run of the last chain, as the bits of its elements in a CuPy array."""

    def outputs_of(self, ops: tuple[OpBuffers, ...]) -> dict[str, Any]:
        """For each op with an output of the workload, the bits [m, n] that one run on these operands writes, in a
        CuPy array. It runs on the default stream, and is waited for."""


def torch_runner(data: ProblemData, calls: TorchCalls = TorchCalls.EAGER) -> TorchRunner:
    """The problem's chain in PyTorch; with torch.compile it takes longer than a search, mostly on the card.

    Raises:
        WorkerError: PyTorch is not installed, or has no call for an op.
    """
    if own := data.workload.launch_ops:
        raise WorkerError(f"the library's {own[0].KIND} is already PyTorch's: its time is the library's")
    first, *others = data.workload.tile_ops
    make = getattr(part_of(first.KIND, "library"), "torch_chain", None)
    other = next((op for op in others if op.KIND != first.KIND), None)
    if make is None or other is not None:
        unknown = other or first
        raise WorkerError(f"PyTorch's call for {unknown.name}, a {unknown.KIND}, is not known")
    made: TorchRunner = make(data, calls)
    return made
