"""Where the time of a pair goes, as bars that stand one on the other: arithmetic alone, on numbers that others took.

An SM multiplies, waits for operands, finishes tiles, or has nothing to do. Its counters say how many cycles it was at
work and how many its tensor cores multiplied. Whose SM is the busiest says how long the kernels take.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

#: How far the bars' sum may be from the measured time, relative.
MOST_OFF = 0.05


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured of one way to run a pair."""

    #: Of a run in a graph of runs, beside the library in the same rounds, microseconds.
    time_us: float
    #: The same for its launches without work, microseconds.
    launches_us: float
    #: Gate, activation and stores, by their stamps or by leaving them out, microseconds.
    epilogue_us: float
    #: SM clock of the timed runs and of the counted ones, MHz.
    clock_mhz: float
    counted_clock_mhz: float
    #: Cycles in which an SM had a CTA: of all SMs the most.
    active_cycles: float
    #: Cycles in which an SM's tensor cores multiplied: of all SMs the most, and the mean.
    most_tensor_cycles: float
    mean_tensor_cycles: float
    #: Operations that the pair asks for, over those that the tensor cores did; at most 1.
    needed_share: float


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """Bars of a run, microseconds, in the order in which they are drawn."""

    #: Products of rows and columns that the pair asks for, if all SMs had the same share of them.
    main_loop_us: float
    #: Products of rows and columns that nobody stores.
    unneeded_rows_us: float
    #: What the busiest SM multiplies longer than the mean one.
    tail_us: float
    #: An SM is at work, and its tensor cores are not: operands from the L2 are awaited, or signals.
    l2_traffic_us: float
    #: Gate, activation, sums of parts, stores.
    epilogue_us: float
    #: From one launch to the next, and from one run to the next.
    launch_us: float

    @property
    def sum_us(self) -> float:
        """Sum of all bars."""
        return float(sum(getattr(self, bar.name) for bar in fields(self)))

    def off_by(self, time_us: float) -> float:
        """How far the sum is from the measured time, relative to that."""
        return self.sum_us / time_us - 1

    def holds(self, time_us: float) -> bool:
        """Whether the bars explain the measured time."""
        return abs(self.off_by(time_us)) <= MOST_OFF


def waterfall_of(figures: Figures) -> Waterfall:
    """The bars of a run.

    Raises:
        ValueError: a share or an order of the figures cannot be.
    """
    if not 0 < figures.needed_share <= 1.001:
        raise ValueError(f"needed_share is {figures.needed_share}: operations asked for over those done, at most 1")
    of_sms = (figures.mean_tensor_cycles, figures.most_tensor_cycles, figures.active_cycles)
    if not 0 < of_sms[0] <= of_sms[1] <= of_sms[2]:
        raise ValueError(
            f"the mean SM multiplied {of_sms[0]} cycles, the busiest one {of_sms[1]}, and one was at work for "
            f"{of_sms[2]}: this is their order"
        )
    mean_us = figures.mean_tensor_cycles / figures.clock_mhz
    most_us = figures.most_tensor_cycles / figures.clock_mhz
    active_us = figures.active_cycles / figures.counted_clock_mhz
    needed = min(figures.needed_share, 1.0)
    return Waterfall(
        main_loop_us=mean_us * needed,
        unneeded_rows_us=mean_us * (1 - needed),
        tail_us=most_us - mean_us,
        l2_traffic_us=max(0.0, active_us - most_us - figures.epilogue_us),
        epilogue_us=figures.epilogue_us,
        launch_us=figures.launches_us,
    )
