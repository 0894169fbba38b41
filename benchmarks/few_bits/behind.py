"""The time that a pair adds to a stream in which another program's kernel writes its input.

A gain that requires one of our launches before the pair does not help in a model.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.attention.timing import captured, samples_us
from tuner.core.problem.dtype import ELEMENTS
from tuner.runtime.programs.artifact import Artifact
from tuner.runtime.programs.program import Program

#: Bytes of weights that launches cycle through, more than an L2 holds; minimum launches of a graph, and rounds.
_COLD_BYTES, _LEAST_LAUNCHES, _ROUNDS = 260e6, 8, 15
#: Upper limit of the random bytes for codes and factors, so that the factors are small, finite and positive.
_LARGEST_BYTE = 0x3B


def behind_foreign_us(content: bytes) -> float:
    """The time that an artifact's pair adds: microseconds per pair of a graph that alternates foreign kernels and
    pairs, minus those of a graph with only the foreign kernels. Weights are cold.

    Raises:
        RuntimeFailure: the artifact does not run alone here.
    """
    torch.ones(1, device="cuda")  # creates the context that the artifact is loaded into
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        program = Program(Artifact({name: archive.read(name) for name in archive.namelist()}))
    tensors = {name: one for name, one in program.tensors.items() if one["role"] not in ("intermediate", "squares")}
    source = next(name for name, one in tensors.items() if one["role"] == "input")
    shared = {name: _made(one) for name, one in tensors.items() if one["role"] != "weight"}
    weights = {name: one for name, one in tensors.items() if one["role"] == "weight"}
    num_bytes = sum(math.prod(one["shape"]) * ELEMENTS[one["dtype"]].size_bytes for one in weights.values())
    num_sets = max(3, int(_COLD_BYTES // num_bytes) + 1)
    sets = [{name: _made(one) for name, one in weights.items()} for _ in range(num_sets)]
    foreign = partial(torch.Tensor.copy_, shared[source].view(torch.uint8), _made(tensors[source]).view(torch.uint8))
    pairs: list[Callable[[], Any]] = [partial(program, {**shared, **one}) for one in sets]
    turns = max(1, -(-_LEAST_LAUNCHES // len(sets)))
    both = [one for pair in pairs * turns for one in (foreign, pair)]
    graphs = {"both": captured(both), "foreign": captured([foreign] * (len(both) // 2))}
    samples = samples_us(graphs, len(both) // 2, _ROUNDS)
    return median(samples["both"]) - median(samples["foreign"])


def _made(tensor: dict[str, Any]) -> torch.Tensor:
    """A random array with the shape and element type of `tensor`, on the card."""
    shape, row = tensor["shape"], ELEMENTS[tensor["dtype"]]
    if tensor["dtype"] == "fp32":
        return torch.rand(shape, device="cuda") + 0.5
    size = math.prod(shape) * row.size_bytes
    filled = torch.randint(1, _LARGEST_BYTE, (size,), device="cuda", dtype=torch.uint8)
    return filled.view(getattr(torch, row.array_name)).view(shape)
