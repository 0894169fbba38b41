"""A decode step with the runs of ops between two all-reduces: norm, qkv, attention, o_proj; and norm, gate_up, down."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from vllm.distributed import tensor_model_parallel_all_reduce

from .step import Batch, Model, Program, Step, normed, stream_of


class Runs(Batch):
    """vLLM and PyTorch compute the embedding, the last norm, the all-reduces, and the sum after each run."""

    def __init__(self, model: Model, attention: Program, mlp: Program, sequences: int) -> None:
        super().__init__(model, sequences)
        hidden = model.weights[0].w_o.shape[0]
        self._attention, self._mlp = attention, mlp
        self._stream, self._attended, self._down = (self.rows(hidden) for _ in range(3))
        #: Sums of squares of the stream's rows; programs may read a few rows past the end.
        wanted = {program: program.shape("residual.squares")[0] for program in (attention, mlp)}
        self._squares = torch.zeros(max(wanted.values()), dtype=torch.float32, device=self._stream.device)
        self._squares_of = {program: self._squares[:rows] for program, rows in wanted.items()}

    def _bound(self, step: Step) -> list[Any]:
        found = []
        for place, own in enumerate(self.model.weights):
            of_attention = {
                **self._read_by(self._attention),
                **self.of_qkv(place),
                **self.of_cache(step, place),
                "o_proj.w": own.w_o,
                "o_proj": self._attended,
            }
            of_mlp = self._read_by(self._mlp) | {"gate_up.w": own.w_up, "down.w": own.w_down, "down": self._down}
            found += [self._attention.bind(of_attention), self._mlp.bind(of_mlp)]
        return found

    def _read_by(self, program: Program) -> dict[str, torch.Tensor]:
        return {"residual": self._stream, "residual.squares": self._squares_of[program]}

    def run(self, hidden: torch.Tensor, positions: torch.Tensor, step: Step, launches: list[Any]) -> torch.Tensor:
        """Same as in `Batch`."""
        stream, squares = stream_of(hidden), self._squares[: self.sequences]
        add = _compiled() if hidden.is_cuda else _add
        self._stream.zero_()
        add(self._stream, hidden, squares)
        for place, one in enumerate(launches):
            one.enqueue(stream)
            made = self._down if place % 2 else self._attended
            add(self._stream, tensor_model_parallel_all_reduce(made), squares)
        return normed(self._stream, self.model.inner.norm)


def _add(stream: torch.Tensor, rows: torch.Tensor, squares: torch.Tensor) -> None:
    """Adds rows to the stream, and stores its sums of squares."""
    stream.add_(rows)
    squares.copy_(stream.float().square().sum(dim=-1))


@cache
def _compiled() -> Any:
    """`_add` as one compiled kernel."""
    return torch.compile(_add, dynamic=True)
