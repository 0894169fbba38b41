"""The one seam: the interface that measures a candidate, implemented by a real card and by the simulated twin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.core.problem.gpu import Target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Failed, Outcome, Rejected
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchTime


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What all candidates of a job share; an evaluator may cache inputs and references for the last one."""

    workload: Workload
    objective: Objective
    #: Seed of the input data.
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A candidate that is ready for the card: proven, rendered, built. Anything else in it belongs to its evaluator,
    and may be sent to another process or machine (pickled)."""

    #: Seconds spent by stage so far: verify, render, build.
    stage_s: dict[str, float] = field(default_factory=dict)
    #: The simulator's forecast, microseconds; None for the library.
    forecast_us: float | None = None


#: The result of preparing a candidate: it is ready, or already has an outcome.
Preparation = Prepared | Rejected | Failed


@dataclass(frozen=True, kw_only=True)
class FinalsTimes:
    """Times of all finalists, interleaved: row r of every finalist was measured in round r."""

    #: [num_candidates][num_rounds], microseconds; None for a candidate that failed in the finals.
    times_us: tuple[tuple[float, ...] | None, ...]
    #: Why a candidate has no times; empty if it has some.
    reasons: tuple[str, ...]
    #: [num_rounds] the process that ran each round: 0 the warm child, 1 a fresh one.
    process_of_round: tuple[int, ...]
    #: Rounds that do not count, because of the clocks of one of their samples.
    num_dropped: int = 0
    #: How the library was called; None if it is simulated.
    library: LibraryRecipe | None = None
    #: PyTorch's time; None if it was not requested.
    torch: TorchTime | None = None
    #: Seconds of the finals by stage; a stage within another one is named after both, separated by a dot.
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The origin of figures; part of every result, since a difference makes the result a weaker match."""

    #: e.g. ``NVIDIA H200``; ``simulated NVIDIA H200`` for the simulated GPU.
    gpu_name: str
    simulated: bool
    #: Driver version, empty if there is none.
    driver: str = ""
    #: CUDA version of the compiler, empty if nothing was compiled.
    cuda: str = ""
    #: SM and memory clock limits, MHz.
    clocks_mhz: dict[str, int] = field(default_factory=dict)
    #: Version of this package.
    tuner_version: str = ""
    #: Digest of the kernel sources.
    kernel_version: str = ""


@dataclass(frozen=True, kw_only=True)
class ArtifactFiles:
    """The files of an artifact: a manifest and the files that it names."""

    #: By name: kernel.cu, kernel.cubin (absent when simulated), plan*.bin, manifest.json.
    files: dict[str, bytes]
    #: The parsed manifest.
    manifest: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """A card that is not used until a probe finds it usable again."""

    #: Why it is not used, as a sentence.
    reason: str
    #: Seconds since the epoch.
    since: float


class Evaluator(Protocol):
    """The two steps of a candidate: `prepare` needs cores, `measure` needs the card.

    All calls block. `prepare` may be called by several threads at a time, also during another call. All other calls
    come one at a time, from one thread.

    Errors of a candidate never raise: they are an `Outcome`. `WorkerError` means that the evaluator itself is unusable,
    and `Quarantined` that its card is unusable for now: `probe` says when it can be used again.
    """

    @property
    def target(self) -> Target:
        """The target that it measures on."""
        ...

    @property
    def uuid(self) -> str:
        """UUID of its card, as reported by the driver, ``GPU-…``; empty for the simulated GPU."""
        ...

    def environment(self) -> Environment:
        """The origin of its figures."""
        ...

    def probe(self) -> None:
        """Checks whether the card is usable for measurements.

        Raises:
            Quarantined: it is not; the message says why.
        """
        ...

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Proves, renders and builds one candidate, without the card. What several candidates share is built once,
        even if they arrive at the same time."""
        ...

    def measure(
        self,
        problem: Problem,
        prepared: Prepared,
        incumbent_speedup: float | None = None,
    ) -> Outcome:
        """Checks and times what this evaluator, or one of the same target, has prepared, interleaved with the library.

        If `incumbent_speedup` (the best speed-up over the library so far) is given, a candidate that is certainly far
        worse is truncated.
        """
        ...

    def finals(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        *,
        num_rounds: int,
        torch_compile: bool = False,
    ) -> FinalsTimes:
        """Times all candidates in `num_rounds` interleaved rounds in a warm process, and in as many in a fresh one.

        With `torch_compile`, the library, which is the first candidate, is the faster of the vendor's and
        torch.compile.
        """
        ...

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        *,
        num_rounds: int,
        winner: int,
    ) -> tuple[BaselineTime, ...]:
        """Checks a user's own programs, and times them in shared rounds with all candidates. The first candidate is
        the library, and `winner` is the index of the winner. A program's error becomes its reason."""
        ...

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> ArtifactFiles:
        """The files of our candidate; `extra` is added to the manifest (times, verdict, environment)."""
        ...

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        """Hardware counters over one cold run of a candidate: the named `metrics`, or the base set if None.

        If there are none, the report's `reason` says why.

        Raises:
            InvalidInput: the GPU has no such metric; the message names similar ones.
        """
        ...

    def energy(self, problem: Problem, candidate: Candidate) -> EnergyReport:
        """The energy per run of a candidate under continuous load, after its numbers were checked. It takes over a
        second. If there is no figure, the report's `reason` says why."""
        ...

    def trace(self, problem: Problem, candidate: Candidate) -> Trace:
        """A Gantt chart of one run of our candidate; if there is none, its `reason` says why."""
        ...

    def close(self) -> None:
        """Ends its processes."""
        ...


def evaluate(
    evaluator: Evaluator,
    problem: Problem,
    candidate: Candidate,
    incumbent_speedup: float | None = None,
) -> Outcome:
    """Runs both steps of one candidate, one after the other."""
    prepared = evaluator.prepare(problem, candidate)
    if not isinstance(prepared, Prepared):
        return prepared
    return evaluator.measure(problem, prepared, incumbent_speedup)
