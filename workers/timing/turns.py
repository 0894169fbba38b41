"""The order in which the graphs of a round are sampled, and the cost of a sample besides its own time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One graph's position in a round."""

    #: Index of the graph.
    index: int
    #: Whether the previous sample was of the same graph, so that it needs no other load.
    is_loaded: bool = False
    #: Whether the same sample also counts for this round.
    is_shared: bool = False


def turns(num_graphs: int, number: int, *, shares_first: bool = False) -> Iterator[Turn]:
    """Round `number`, counted from 0: every graph once, starting with a different one than the previous round.

    A sample may depend on what ran before it (docs/findings/README.md). So each graph follows every other one equally
    often: once in as many rounds as there are graphs, or twice in twice as many if their number is odd (E. J. Williams,
    Experimental designs balanced for the estimation of residual effects of treatments, 1949).

    With two graphs, a round begins with that of the previous sample. With `shares_first`, if that is the first graph,
    the sample is reused. Every sample of the second graph then has one of the first right before or after it.
    """
    first = number % num_graphs
    is_mirrored = num_graphs % 2 == 1 and number // num_graphs % 2 == 1
    for place in range(num_graphs):
        step = (place + 1) // 2 if place % 2 else -(place // 2)  # 0, 1, -1, 2, -2, ...
        index = (first - step if is_mirrored else first + step) % num_graphs
        is_loaded = place == 0 and number > 0 and num_graphs <= 2
        yield Turn(index=index, is_loaded=is_loaded, is_shared=is_loaded and shares_first and index == 0)
