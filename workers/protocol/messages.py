"""The messages between the supervisor and its GPU child; plain values, importable without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.core.insight.traces.tracing import Stamps
from tuner.core.problem.gpu import LiveFacts
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Tiling
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Outcome
from tuner.core.trial.reports.baselines import KernelLaunch, PythonFunction
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.errors import InvalidInput

from ..source.launchable import Launchable, Ties
from ..source.own_launchable import OwnLaunchable
from ..timing.library_choice import Picked

#: The launchable of one kernel.
AnyLaunchable = Launchable | OwnLaunchable


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """Take the card: lock, context, probe. Before that, the child is a spare."""

    #: tools.cu, compiled for the card.
    tools_cubin: bytes


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The child's first message: the card that it holds."""

    facts: LiveFacts
    driver: str
    #: SM and memory clock limits, MHz.
    clocks_mhz: dict[str, int]
    #: Seconds of each stage: context, probe.
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The child cannot work at all; it ends after this message."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """Make a problem's inputs, references and baseline, before its first candidate arrives."""

    problem: Problem
    #: The choice of an earlier process for the problem. The baseline is chosen once, so that a fresh process is ready
    #: soon.
    picked: Picked | None = None


@dataclass(frozen=True, kw_only=True)
class PrepareAnswer:
    """The problem's tensors and baseline are ready."""

    #: The library's algorithms for the problem.
    picked: Picked | None = None
    #: Seconds of each stage: inputs, references, library, fingerprints.
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One candidate, verified and compiled: everything that the card needs."""

    plan_kind: PlanKind
    #: One for each kernel, in the order of their first launches: one for all launches of tile ops, and one for each
    #: launch op. Empty for the library.
    launchables: tuple[AnyLaunchable, ...] = ()
    #: SM clock cycles that one wait may last.
    spin_limit_cycles: int = Limits.spin_limit_cycles

    @property
    def shared(self) -> Launchable | None:
        """The launchable of tile ops; None for the library, and if there is no tile op."""
        return next((one for one in self.launchables if isinstance(one, Launchable)), None)

    @property
    def own(self) -> tuple[OwnLaunchable, ...]:
        """The launchable of each launch op."""
        return tuple(one for one in self.launchables if not isinstance(one, Launchable))

    @property
    def plans(self) -> tuple[VerifiedPlan, ...]:
        """The plans of tile ops: one per op for two_launches, one for fused, none for the library."""
        return self.shared.plans if self.shared else ()

    @property
    def ties(self) -> tuple[Ties, ...]:
        """The ties of each kernel; none for the library."""
        return tuple(one.ties for one in self.launchables)

    @property
    def tiling(self) -> Tiling | None:
        """The tiling that the kernel of tile ops is compiled for; None if there is none."""
        return self.shared.tiling if self.shared else None


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """Check and time one candidate."""

    problem: Problem
    work: Work
    #: The best speed-up so far; a candidate that is certainly far slower is truncated.
    incumbent_speedup: float | None = None


@dataclass(frozen=True, kw_only=True)
class OwnKernels:
    """A user's own kernels, compiled for the card."""

    cubin: bytes
    launches: tuple[KernelLaunch, ...]


#: A user's own program, in the form for the process at a card.
OwnProgram = OwnKernels | PythonFunction


@dataclass(frozen=True, kw_only=True)
class FinalsRequest:
    """Time several works in the same rounds."""

    problem: Problem
    works: tuple[Work, ...]
    num_rounds: int
    #: Other programs to time in the same rounds: PyTorch's calls, and a user's own.
    others: tuple[TorchCalls | OwnProgram, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OtherTimes:
    """[round] times of another program, microseconds; or None, with the reason."""

    times_us: tuple[float, ...] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FinalsAnswer:
    """[work][round] microseconds, or None with the reason."""

    times_us: tuple[tuple[float, ...] | None, ...]
    reasons: tuple[str, ...]
    #: Rounds that were run but do not count.
    num_dropped: int
    #: Times of each other program that was requested.
    others: tuple[OtherTimes, ...] = ()
    #: How the library was called.
    library: LibraryRecipe | None = None
    #: Seconds of each stage: load, check, time.
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EnergyRequest:
    """Check a work, then measure the energy of a run."""

    problem: Problem
    work: Work


@dataclass(frozen=True, kw_only=True)
class EnergyAnswer:
    """The energy, or why there is none."""

    report: EnergyReport


@dataclass(frozen=True, kw_only=True)
class CountRequest:
    """Read hardware counters over cold runs of a work; afterwards all times of this process are wrong."""

    problem: Problem
    work: Work
    #: The metrics, by the vendor's names; None for the base set.
    metrics: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class CountAnswer:
    """The counters, or why a metric is refused."""

    report: CounterReport | InvalidInput


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """Run a work once, cold, and stamp every task; its cubin is a traced build."""

    problem: Problem
    work: Work


@dataclass(frozen=True, kw_only=True)
class TraceAnswer:
    """The stamps of each launch in order, or why there are none."""

    stamps: tuple[Stamps, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class EvaluateAnswer:
    """The outcome of a candidate."""

    outcome: Outcome
    #: Whether the CUDA context may be poisoned, so that the child must be replaced.
    poisoned: bool = False


Request = StartRequest | PrepareRequest | EvaluateRequest | FinalsRequest | EnergyRequest | CountRequest | TraceRequest
Answer = Hello | Refusal | PrepareAnswer | EvaluateAnswer | FinalsAnswer | EnergyAnswer | CountAnswer | TraceAnswer
