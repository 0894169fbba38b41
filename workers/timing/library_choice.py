"""The choice among the vendor library's algorithms: the heuristic's first, or the fastest of its list; and for
independent products, whether they run sequentially or concurrently.

A sample is one of the whole chain, cold like any other, with only one op's algorithm changed, so that the difference
between two samples is due to that op. Since the minimum of several noisy figures is biased low, the best algorithms of
all ops are then compared with the first ones in new rounds, and used only if they are faster by a margin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.core.trial.outcome import Metric
from tuner.core.trial.stats import median, paired_ratios

#: Minimum and maximum rounds over all algorithms.
MIN_ROUNDS, MAX_ROUNDS = 2, 6
#: Seconds after which no further round begins.
ROUNDS_S = 0.5
#: The best is used if it is faster by more than this.
MARGIN = 0.005

#: One index per op, 0 being the heuristic's first.
Choices = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Picked:
    """The library's algorithms, and the times that led to them."""

    #: The choice to use.
    choices: Choices
    #: Time of one run with the heuristic's first algorithms, microseconds.
    first_us: float
    #: The same with the best of the list; `first_us` if none was faster.
    best_us: float
    #: With the chosen algorithms: the products sequentially, and concurrently, each on its own stream, microseconds;
    #: None if an op reads another's output.
    one_stream_us: float | None = None
    two_streams_us: float | None = None
    #: Whether the library runs its products side by side, if that is faster.
    beside: bool = False
    #: Whether the kernels of norms add residuals instead of the products, if that is faster.
    adds_in_norms: bool = False

    def metrics(self, names: Sequence[str]) -> tuple[Metric, ...]:
        """The times, and the index of each op's algorithm; `names` are the ops'."""
        by_streams = {"library_one_stream_us": self.one_stream_us, "library_two_streams_us": self.two_streams_us}
        return (
            Metric(tag="library_first_us", unit="us", value=self.first_us),
            Metric(tag="library_best_us", unit="us", value=self.best_us),
            *(
                Metric(tag=f"library_algorithm_{name}", unit="", value=choice)
                for name, choice in zip(names, self.choices, strict=True)
            ),
            *(Metric(tag=tag, unit="us", value=time_us) for tag, time_us in by_streams.items() if time_us is not None),
        )


#: Times of two ways in the same rounds, microseconds: the default way first.
Rounds = tuple[Sequence[float], Sequence[float]]


def pick(
    offered: Sequence[Sequence[int]],
    sample_us: Callable[[Choices], float],
    rounds_us: Callable[[Choices, Choices], Rounds],
    clock: Callable[[], float] = time.perf_counter,
) -> Picked:
    """Chooses by samples; `offered` are the working algorithms of each op, with the heuristic's first (0) among them.

    `rounds_us` compares the first with the best in the objective's power state: under sustained load another may be
    faster.
    """
    first = first_of(offered)
    variants = {first: list[float]()}
    for op, algorithms in enumerate(offered):
        variants |= {with_one(first, op, algorithm): [] for algorithm in algorithms}
    begin = clock()
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and clock() - begin > ROUNDS_S:
            break
        order = list(variants)
        for choices in order[done % len(order) :] + order[: done % len(order)]:
            variants[choices].append(sample_us(choices))
    best = tuple(
        min(algorithms, key=lambda algorithm, op=op: median(variants[with_one(first, op, algorithm)]))  # type: ignore[misc]
        for op, algorithms in enumerate(offered)
    )
    if best == first:
        alone_us = median(variants[first])
        return Picked(choices=first, first_us=alone_us, best_us=alone_us)
    first_us, best_us, is_ahead = contest(rounds_us(first, best))
    return Picked(
        choices=best if is_ahead else first,
        first_us=first_us,
        best_us=best_us if is_ahead else first_us,
    )


def pick_streams(picked: Picked, rounds_us: Rounds) -> Picked:
    """`picked` with the times of its algorithms, sequentially and side by side, from rounds of both."""
    one_us, two_us, is_ahead = contest(rounds_us)
    return replace(picked, one_stream_us=one_us, two_streams_us=two_us, beside=is_ahead)


def pick_adds(picked: Picked, rounds_us: Rounds) -> Picked:
    """`picked` with residuals added by the products or by the norm kernels, according to rounds of both."""
    products_us, norms_us, is_ahead = contest(rounds_us)
    return replace(picked, best_us=norms_us if is_ahead else products_us, adds_in_norms=is_ahead)


def contest(rounds_us: Rounds) -> tuple[float, float, bool]:
    """The median times of both ways, and whether the second is faster by the margin."""
    usual, other = rounds_us
    return median(usual), median(other), median(paired_ratios(usual, other)) > 1 + MARGIN


def first_of(ops: Sequence[object]) -> Choices:
    """The heuristic's first algorithm for each op."""
    return (0,) * len(ops)


def with_one(choices: Choices, op: int, algorithm: int) -> Choices:
    """`choices` with a different algorithm for one op."""
    return (*choices[:op], algorithm, *choices[op + 1 :])
