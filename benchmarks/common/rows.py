"""The pairs for evaluating the engines, as data: pairs, numbers of rows, and targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Activation, Workload
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.errors import InvalidInput
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

Mnk = tuple[int, int, int]

#: Model -> (width, hidden width). If gated, the gate and the up projection each have the hidden width.
PLAIN = {"llama3-8b": (4096, 14336), "llama3-70b": (8192, 28672), "gpt3-tp8": (12288, 6144)}
GATED = {"llama3-8b": (4096, 14336), "llama3-70b-tp8": (8192, 3584), "llama65b-tp8": (8192, 2816)}
#: Two independent GEMMs, each (m, n, k).
INDEPENDENT = (
    ((1024, 1024, 4096), (1024, 1152, 4096)),
    ((512, 2048, 4096), (512, 2048, 8192)),
    ((64, 512, 512), (64, 128, 512)),
)
#: Gated pairs of chunked prefill and of large batches, and pairs without built-in winners.
WIDE = {
    f"{width}-{hidden}": (width, hidden) for width, hidden in ((4096, 14336), (8192, 3584), (5120, 6400), (7168, 5120))
}
HELD_OUT = {
    f"{width}-{hidden}": (width, hidden) for width, hidden in ((7168, 5120), (7168, 2304), (5120, 6400), (3072, 8192))
}
DECODE_MS = (1, 16, 32, 64)
MIDDLE_MS = (96, 128, 192, 256)
WIDE_MS = (320, 384, 512, 768, 1024)
#: Numbers of rows that are not multiples of a tile's height.
HELD_OUT_MS = (150, 200, 300, 333)
PREFILL_MS = (512, 1024, 1536, 2048, 4096)


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The targets of a suite, as library time over ours; None if there is no target."""

    #: Geometric mean over the rows of the best fused launch.
    fused: float | None = None
    #: The same with programmatic launches.
    fused_pdl: float | None = None
    #: The same for the fastest of all our kinds.
    ours: float | None = None
    #: For each row: the best fused launch.
    each_fused: float | None = None
    #: For each row: the verdict's kind.
    each_verdict: float | None = None
    #: For each row: the fastest of all our kinds, even if the verdict is the library.
    each_ours: float | None = None
    #: Maximum ratio of our best launch to the reference at m <= 16, for these pairs.
    over_reference: float | None = None
    reference_pairs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pair at one number of rows."""

    suite: str
    pair: str
    m: int
    regime: Regime
    workload: Workload = field(repr=False)

    @property
    def name(self) -> str:
        """e.g. ``decode-plain/llama3-8b/m16``."""
        return f"{self.suite}/{self.pair}/m{self.m}"

    @property
    def problem(self) -> Problem:
        """The problem with cold caches."""
        return Problem(workload=self.workload, objective=Objective(l2=CacheState.COLD, regime=self.regime))


def _plain(suite: str, m: int, pairs: Iterable[str], regime: Regime = Regime.BURST) -> Iterator[Row]:
    for pair in pairs:
        width, hidden = PLAIN[pair]
        workload = ffn_pair(m=m, d_in=width, d_hidden=hidden, d_out=width, activation=Activation.RELU)
        yield Row(suite=suite, pair=pair, m=m, regime=regime, workload=workload)


def _gated(suite: str, m: int, pairs: Iterable[str], regime: Regime = Regime.BURST, suffix: str = "") -> Iterator[Row]:
    for pair in pairs:
        width, hidden = (GATED | WIDE | HELD_OUT)[pair]
        workload = ffn_pair(m=m, d_in=width, d_hidden=hidden, d_out=width, activation=Activation.SILU, gated=True)
        yield Row(suite=suite, pair=pair + suffix, m=m, regime=regime, workload=workload)


def _independent(first: Mnk, second: Mnk) -> Row:
    pair = "+".join("x".join(map(str, mnk)) for mnk in (first, second))
    workload = independent_pair(first, second)
    return Row(suite="independent", pair=pair, m=first[0], regime=Regime.BURST, workload=workload)


def _rows() -> Iterator[Row]:
    for m in DECODE_MS:
        yield from _plain("decode-plain", m, PLAIN)
    for m in DECODE_MS:
        yield from _gated("decode-swiglu", m, GATED)
    for m in MIDDLE_MS:
        yield from _plain("middle", m, PLAIN)
        yield from _gated("middle", m, GATED, suffix="-swiglu")
    for m in PREFILL_MS:
        yield from _plain("prefill-plain", m, ("llama3-8b", "gpt3-tp8"), Regime.SUSTAINED)
    for m in PREFILL_MS:
        yield from _gated("prefill-swiglu", m, ("llama3-8b", "llama3-70b-tp8"), Regime.SUSTAINED)
    for m in WIDE_MS:
        yield from _gated("wide", m, WIDE)
    for m in WIDE_MS:
        yield from _gated("wide-sustained", m, WIDE, Regime.SUSTAINED)
    for m in HELD_OUT_MS:
        yield from _gated("held-out", m, HELD_OUT)
    yield from (_independent(first, second) for first, second in INDEPENDENT)


#: Suite by suite; within a suite the pairs alternate, so that a row's neighbours are searched before it.
ROWS = tuple(_rows())

SUITES: dict[str, Bars] = {
    "decode-plain": Bars(fused=1.09, fused_pdl=1.12, each_fused=1.02),
    "decode-swiglu": Bars(
        fused=1.14,
        fused_pdl=1.18,
        each_fused=1.05,
        over_reference=1.12,
        reference_pairs=("llama3-8b", "llama3-70b-tp8"),
    ),
    "middle": Bars(fused=1.03, each_verdict=0.99),
    "prefill-plain": Bars(fused=0.99),
    "prefill-swiglu": Bars(fused=1.05),
    "wide": Bars(ours=1.08, each_ours=0.985),
    "wide-sustained": Bars(ours=1.05, each_ours=0.985),
    "held-out": Bars(ours=1.05, each_ours=0.985),
    "independent": Bars(each_fused=1.10),
}


def choose_rows(suites: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[Row, ...]:
    """The rows of these suites with these names: a row's, a pair's, or ``m16``; by default all.

    Raises:
        InvalidInput: there is no such row.
    """

    def is_named(row: Row) -> bool:
        return not names or any(name in (row.name, row.pair, f"m{row.m}") for name in names)

    chosen = tuple(row for row in ROWS if (not suites or row.suite in suites) and is_named(row))
    if not chosen:
        asked = " ".join((*suites, *names))
        remedy = f"suites are {', '.join(SUITES)}; rows have names like {ROWS[0].name}, {ROWS[0].pair} or m{ROWS[0].m}"
        raise InvalidInput("row", f"no row is called {asked}", remedy)
    return chosen
