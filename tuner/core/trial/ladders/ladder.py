"""A ladder: which kernel runs, or whether the library does, for each number of rows from 1 to the largest measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.trial.ladders.cover import least_cover

T = TypeVar("T")
#: Kernels within this relative distance of the fastest are treated as equally good, so that few kernels are needed.
DEFAULT_SLACK = 0.01


@dataclass(frozen=True, kw_only=True)
class KernelName:
    """What identifies a kernel of a ladder: the candidate, and the number of tile rows of each op in its plan.

    A kernel takes the rows of each launch as a parameter. Rows beyond them are read as zeros and never stored. So the
    same source and the same plan serve every number of rows with that many tile rows.
    """

    candidate: Candidate
    #: The number of tile rows of each tile op.
    tile_rows: tuple[int, ...]
    #: What distinguishes the kernels of each launch op.
    launch_ops: tuple[tuple[int, ...], ...] = ()
    #: Whether it can run for fewer rows than it was measured with.
    serves_fewer_rows: bool = True


def kernel_name(candidate: Candidate, workload: Workload) -> KernelName:
    """The name of a candidate's kernel for a workload.

    Raises:
        ValueError: the candidate is the library.
    """
    if candidate.schedule is None:
        raise ValueError("there is no kernel: the library is recommended")
    workload, _ = launched(workload, candidate)
    tiles = candidate.schedule.tiling.tiles
    rows = tuple(op.tile_grid(tile.m, tile.n)[0] for op, tile in zip(workload.tile_ops, tiles, strict=True))
    return KernelName(
        candidate=candidate,
        tile_rows=rows,
        launch_ops=tuple(op.ladder_key for op in workload.launch_ops),
        serves_fewer_rows=all(op.SERVES_FEWER_ROWS for op in workload.ops),
    )


@dataclass(frozen=True, kw_only=True)
class Option:
    """A kernel, as measured in the finals for one number of rows."""

    name: KernelName
    #: Microseconds.
    time_us: float
    #: Median over rounds of library time / this time, and its 95 % interval.
    speedup: float
    speedup_ci95: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measurements at one number of rows."""

    m: int
    #: The job with these finals.
    job_id: str
    #: Microseconds.
    library_us: float
    #: Our kernels; empty if the library won.
    options: tuple[Option, ...]
    #: The kernel that the job itself delivers, one of the options; None if unknown.
    winner: KernelName | None = None

    def best_us(self) -> float:
        """The fastest of all, microseconds."""
        return min((self.library_us, *(option.time_us for option in self.options)))

    def is_librarys(self, slack: float) -> bool:
        """Whether the library runs because it is as good as the fastest: it is the simplest choice, and needs no
        kernel."""
        return self.winner is None and self.library_us <= (1 + slack) * self.best_us()


@dataclass(frozen=True, kw_only=True)
class LadderKernel:
    """A kernel that a ladder uses."""

    candidate: Candidate
    #: The fewest and the most rows that it runs for, and the job with the most.
    m_lo: int
    m_hi: int
    job_id: str
    #: sha256 of its artifact, hex; None before it was made, or if it could not be.
    artifact_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class LadderRung:
    """What runs for a range of rows."""

    #: Both ends are included.
    m_lo: int
    m_hi: int
    #: Index of the kernel; None for the library.
    kernel: int | None
    #: The rows at which the figures were measured, `m_hi`, and the job; None if nothing was measured.
    job_id: str | None = None
    time_us: float | None = None
    library_us: float | None = None
    #: Library time / this time, and its 95 % interval; 1 for the library.
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    #: How much slower it is than the fastest kernel measured at these rows, relative.
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The result of a ladder of jobs. Above its last rung the library runs."""

    #: The shape, as a workload with its largest number of rows.
    workload: str
    rungs: tuple[LadderRung, ...]
    kernels: tuple[LadderKernel, ...]
    #: The relative distance within which kernels are treated as equal.
    slack: float
    #: The proven minimum number of kernels.
    least: int
    #: Why there is no result; empty if there is one.
    reason: str = ""


def served_from(m: int, before: int) -> int:
    """The fewest rows that the kernel of m rows serves, if `before` is the next smaller measured m.

    It serves the numbers in between, but no fewer rows than half of its own plus one: farther from a measurement, its
    gain is unknown. It must also gain between the two: `ranges`.
    """
    return max(before, m // 2) + 1


@dataclass(frozen=True, kw_only=True)
class Served(Generic[T]):
    """What runs at the number of rows of one measurement."""

    m: int
    #: What runs there, compared by `==`; None for the library.
    kernel: T | None
    #: Microseconds of the kernel and of the library; None if not measured.
    time_us: float | None
    library_us: float | None
    #: Whether the kernel can run for fewer rows than its own.
    serves_fewer_rows: bool = True


def ranges(served: Sequence[Served[T]], least: float) -> Iterator[tuple[int, int, Served[T] | None]]:
    """The least and the most rows of each range, and the measurement that it ends with, or None for a range between two
    measurements that no kernel serves. `served` is in the order of rows.

    A kernel serves rows between its own and the next smaller ones if it gains at least `least` at all of them. It takes
    no longer with fewer rows than with its own, since it runs the same tasks. The library takes no less time with more
    rows than with fewer. So it is enough that it beats the library's time at both ends. It serves all rows between two
    measurements that it serves, otherwise those from `served_from` on.
    """
    end, below = 0, None
    for one in served:
        begin = served_from(one.m, end)
        if one.kernel is not None and not one.serves_fewer_rows:
            begin = one.m
        elif one.kernel is not None:
            times = (one.library_us, below.library_us if below else None)
            known = [time for time in times if time is not None]
            if one.time_us is None or len(known) < len(times) or min(known) < least * one.time_us:
                begin = one.m
            elif below and below.kernel == one.kernel:
                begin = end + 1
        if begin > end + 1:
            yield end + 1, begin - 1, None
        yield begin, one.m, one
        end, below = one.m, one


def choose_kernels(measurements: Sequence[Measurement], slack: float) -> tuple[tuple[KernelName, ...], int]:
    """The smallest set of kernels that has, for each measurement where the library is not the answer, one within
    `slack` of the fastest, or the one that the job chose; and the proven minimum. Among sets of equal size, those with
    kernels that jobs chose are preferred, then those with faster ones."""
    needed, held, loss = 0, dict[KernelName, int](), dict[KernelName, float]()
    for place, one in enumerate(measurements):
        if one.is_librarys(slack):
            continue
        needed |= 1 << place
        for option in one.options:
            behind = option.time_us / one.best_us() - 1
            if behind <= slack or option.name == one.winner:
                held[option.name] = held.get(option.name, 0) | 1 << place
                loss[option.name] = loss.get(option.name, 0.0) + behind
    winners = Counter(one.winner for one in measurements)
    names = sorted(held, key=lambda name: (-winners[name], loss[name] / held[name].bit_count()))
    cover = least_cover([held[name] for name in names], needed)
    return tuple(names[i] for i in cover.chosen), cover.least


def make_ladder(workload: str, measurements: Sequence[Measurement], slack: float = DEFAULT_SLACK) -> Ladder:
    """The ladder made from the measurements; every number of rows up to the largest is in one rung.

    If a kernel runs at two consecutive numbers of rows, and gains between them, it runs for all rows between.

    Raises:
        ValueError: nothing was measured, or one number of rows was measured twice.
    """
    by_rows = sorted(measurements, key=lambda one: one.m)
    if not by_rows or len({one.m for one in by_rows}) < len(by_rows):
        raise ValueError("a ladder needs one measurement for each number of rows, and at least one")
    chosen, least = choose_kernels(by_rows, slack)
    options = {one.m: None if one.is_librarys(slack) else _fastest(one, chosen) for one in by_rows}
    served = [
        Served(
            m=one.m,
            kernel=option.name if (option := options[one.m]) else None,
            time_us=option.time_us if option else None,
            library_us=one.library_us,
            serves_fewer_rows=option is None or option.name.serves_fewer_rows,
        )
        for one in by_rows
    ]
    measured = {one.m: one for one in by_rows}
    rungs, used = list[LadderRung](), dict[KernelName, LadderKernel]()
    for begin, end, one in ranges(served, 1 + slack):
        if one is None:
            rungs.append(LadderRung(m_lo=begin, m_hi=end, kernel=None))
            continue
        option = options[end]
        if option is not None:
            known = used.get(option.name)
            used[option.name] = LadderKernel(
                candidate=option.name.candidate,
                m_lo=known.m_lo if known else begin,
                m_hi=end,
                job_id=measured[end].job_id,
            )
        rungs.append(_rung(measured[end], begin, option, list(used)))
    return Ladder(workload=workload, rungs=tuple(rungs), kernels=tuple(used.values()), slack=slack, least=least)


def _fastest(one: Measurement, chosen: Sequence[KernelName]) -> Option:
    """Among the chosen kernels, the one that the job itself chose, or else the fastest at its rows."""
    there = (option for option in one.options if option.name in chosen)
    return min(there, key=lambda option: (option.name != one.winner, option.time_us))


def _rung(one: Measurement, begin: int, option: Option | None, names: Sequence[KernelName]) -> LadderRung:
    time_us = one.library_us if option is None else option.time_us
    return LadderRung(
        m_lo=begin,
        m_hi=one.m,
        kernel=None if option is None else names.index(option.name),
        job_id=one.job_id,
        time_us=time_us,
        library_us=one.library_us,
        speedup=1.0 if option is None else option.speedup,
        speedup_ci95=None if option is None else option.speedup_ci95,
        loss=time_us / one.best_us() - 1,
    )
