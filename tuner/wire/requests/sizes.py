"""Sizes that are too large for a search, which would block its card for all others, are refused before there is a
job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.core.problem.gpu import CATALOGUE, SIMULATED_PREFIX
from tuner.core.problem.ops.op import TILE
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.wire.base.fields import Strict

#: Maximum number of rows and columns, and maximum inner size, of a product.
MOST_SIZE = 2**20
#: Maximum number of tiles of all ops together, twice that of an output of 2^31 elements.
MOST_TILES = 2**18
_SIZES = ("m", "n", "k", "d_in", "d_hidden", "d_out")


def check_size(field: str, pair: Strict, workload: Workload, target_id: str) -> None:
    """`field` names the pair in the request.

    Raises:
        InvalidInput: a size, the number of tiles or the memory exceeds the limits of a search.
    """
    own_rows = {f"{field}.m"} if all(op.batch_size for op in workload.ops) else set[str]()
    for name, size in _sizes(field, pair.model_dump()):
        if size > MOST_SIZE and name not in own_rows:
            raise InvalidInput(name, f"is {size}; products with sizes above {MOST_SIZE} are not supported", "use less")
    if (num_tiles := sum(op.num_tiles for op in workload.ops)) > MOST_TILES:
        problem = f"has {num_tiles} tiles of {TILE} x {TILE} outputs, or pairs of a sequence and a KV head"
        remedy = f"use at most {MOST_TILES} in all ops together, with fewer rows or columns"
        raise InvalidInput(field, problem, remedy)
    gpu = CATALOGUE.get(target_id.removeprefix(SIMULATED_PREFIX))  # a card without a data sheet reports it itself
    if gpu is not None and workload.compulsory_bytes > gpu.dram_bytes:
        problem = f"reads and writes {_gib(workload.compulsory_bytes)}, but the {gpu.name} has {_gib(gpu.dram_bytes)}"
        raise InvalidInput(field, problem, "use smaller sizes, or another target")


def _sizes(field: str, value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Each size of a product in a request, with the full name of its field, whose last part is `name`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _sizes(f"{field}.{key}", inner, key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _sizes(f"{field}.{index}", inner, name)
    elif name in _SIZES and value is not None:
        yield field, value


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
