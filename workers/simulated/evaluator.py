"""The simulated GPU: an evaluator without a GPU, so that everything around a worker can be run and tested.

Its times are `simulate`'s forecast, changed by effects that a forecast cannot know: each tiling and each schedule is a
fixed few per cent slower, and each sample has noise. So a search that trusts only the forecast is wrong here as well,
though less often than on a card. Before a normalized input there is the kernel that sums its squares, which no forecast
includes. No numbers are computed: `rel_error` is 0.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, replace
from typing import Any

from tuner import __version__
from tuner.core.insight.traces.forecast_trace import forecast_trace
from tuner.core.insight.traces.tracing import no_trace
from tuner.core.model.bounds import reference_us
from tuner.core.model.forecast import forecast_us
from tuner.core.model.rates import fit_of
from tuner.core.problem.gpu import Target
from tuner.core.problem.objective import Procedure
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.codec import Frozen
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Preparation, Prepared, Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Metric, Outcome, Rejected, Stage
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace, no_counters, no_energy
from tuner.core.trial.reports.torch_time import TorchCalls, TorchTime
from tuner.core.trial.samples import Round
from tuner.errors import IllegalSchedule, PlanError

from ..builder.artifact import assemble
from ..builder.once import Once
from ..builder.own_artifact import own_kernels
from ..source.render import kernel_version, render
from ..timing.clocks import Sample
from ..timing.rounds import Ending, is_hopeless_by, is_previewed_enough, summary, to_previews, to_rounds
from ..timing.stop_rules import PREVIEW, HopelessRule, StopRule, is_previewed
from .counters import check_metrics, count
from .library import library_us

#: Time of the small kernel that sums the squares of a normalized input's rows (docs/findings/README.md).
INPUT_SQUARES_US = 1.5
#: The energy model: static power, and joules for each byte from DRAM and each operation.
STATIC_W = 300.0
DRAM_J_PER_BYTE = 60e-12
TENSOR_J_PER_FLOP = 0.4e-12
#: Each schedule uses more energy by a fixed share, which has this standard deviation.
ENERGY_ERROR = 0.05

NO_TORCH = TorchTime(reason="a simulated GPU has no PyTorch", calls=TorchCalls.COMPILED)

NUM_ROUNDS = 10
#: Times in a preview divided by those at the power limit; and the ratio's error, in standard deviations of a sample.
PREVIEW_SPEED = 0.9
PREVIEW_NOISE = 2.0


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Shares of the schedules with each fault; a schedule always has its fault, or never."""

    hang: float = 0.02
    crash: float = 0.02
    wrong_numbers: float = 0.02


def _compiled(schedule: Schedule) -> object:
    """The compiled part of a schedule: the tiling of tile ops, and of launch ops everything except their plans."""
    kernels = tuple(one.compiled for one in schedule.launch_ops)
    return (Frozen(schedule.tiling), kernels) if kernels else schedule.tiling


def _inputs_without_squares(workload: Workload) -> set[str]:
    """The inputs that an op normalizes as it reads them, and whose squares no earlier op has written."""
    normed = (index for index, op in enumerate(workload.tile_ops) if op.norm and op.norm == op.source)
    return {workload.tile_ops[index].source for index in normed if workload.norm_producer_of(index) is None}


@dataclass(frozen=True, kw_only=True)
class PreparedModel(Prepared):
    """A candidate with its simulated time."""

    candidate: Candidate
    #: The time without noise, microseconds.
    true_us: float


#: Why a user's own program has no measured time.
_NO_PROGRAMS = "a simulated GPU cannot run programs"


class SimulatedEvaluator:
    """An `Evaluator` without a card; `seed` determines the machine, a problem's seed its noise."""

    def __init__(
        self,
        target: Target,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        tiling_error: float = 0.05,
        schedule_error: float = 0.02,
        noise: float = 0.01,
        limits: Limits | None = None,
        latency_s: float = 0.0,
        build_s: float = 0.0,
    ) -> None:
        """`tiling_error`, `schedule_error` and `noise` are standard deviations, relative; `limits` has the limit of
        a kernel's waits, for fetched kernels; each measurement of a candidate sleeps for `latency_s`, so that there
        is something to watch, and each first build of a tiling for `build_s`."""
        self._target = target
        self._seed = seed
        self._faults = faults or Faults()
        self._tiling_error = tiling_error
        self._schedule_error = schedule_error
        self._noise = noise
        self._limits = limits or Limits()
        self._latency_s = latency_s
        self._build_s = build_s
        self._once = Once[tuple[Workload, object], None]()
        self._built: set[tuple[Workload, object]] = set()

    @property
    def target(self) -> Target:
        """The machine that it simulates."""
        return self._target

    @property
    def uuid(self) -> str:
        """A simulated GPU has no UUID."""
        return ""

    def environment(self) -> Environment:
        """The name shows that it is simulated, and whether its rates are estimates."""
        gpu = self._target.gpu
        return Environment(
            gpu_name=f"simulated NVIDIA {gpu.name}" + ("" if fit_of(gpu.id) else ", by its data sheet"),
            simulated=True,
            clocks_mhz={"sm": gpu.clock_mhz},
            tuner_version=__version__,
            kernel_version=kernel_version(),
        )

    def _random(self, *of: object) -> random.Random:
        """A generator for each purpose and object; the same one each time."""
        return random.Random("/".join(map(str, (self._seed, *of))))

    def slowdown(self, candidate: Candidate) -> float:
        """Factor >= 1 between the forecast and the true time: that of the tiling times that of the schedule."""
        tiling = self._random("tiling", candidate.schedule and _compiled(candidate.schedule))
        schedule = self._random("schedule", replace(candidate, plan_kind=candidate.plan_kind.launched_plainly))
        return math.exp(abs(tiling.gauss(0, self._tiling_error)) + abs(schedule.gauss(0, self._schedule_error)))

    def true_us(self, problem: Problem, candidate: Candidate) -> float:
        """The time without noise, microseconds; never below the roofline.

        Raises:
            IllegalSchedule, PlanError: the candidate is refused.
        """
        return self._true_us(problem, candidate, self._forecast_us(problem, candidate))

    def _forecast_us(self, problem: Problem, candidate: Candidate) -> float | None:
        if candidate.schedule is None:
            return None
        return forecast_us(problem.workload, self._target.gpu, candidate)

    def _true_us(self, problem: Problem, candidate: Candidate, forecast: float | None) -> float:
        workload, gpu = problem.workload, self._target.gpu
        if forecast is None:
            return library_us(workload, gpu)
        squares_us = INPUT_SQUARES_US * len(_inputs_without_squares(workload))
        return max(forecast * self.slowdown(candidate) + squares_us, reference_us(workload, gpu))

    def has_fault(self, candidate: Candidate) -> bool:
        """Whether this candidate hangs, crashes or computes wrong numbers."""
        return self._fault(candidate, {}) is not None

    def probe(self) -> None:
        """Empty, since a model always works."""

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Proves one candidate and simulates it; a build takes the configured time. Any thread may call this."""
        stage_s: dict[str, float] = {}
        begin_s = time.perf_counter()
        try:
            forecast = self._forecast_us(problem, candidate)
            true_us = self._true_us(problem, candidate, forecast)
        except (IllegalSchedule, PlanError) as error:
            return Rejected(stage=Stage.VERIFY, reason=str(error), stage_s={"verify": time.perf_counter() - begin_s})
        stage_s["simulate"] = time.perf_counter() - begin_s
        if self._build_s and candidate.schedule is not None:
            self._build(problem.workload, candidate.schedule)
            stage_s["build"] = time.perf_counter() - begin_s - stage_s["simulate"]
        return PreparedModel(candidate=candidate, true_us=true_us, forecast_us=forecast, stage_s=stage_s)

    def _build(self, workload: Workload, schedule: Schedule) -> None:
        """Waits for the time of a build, unless those kernels were already built."""
        key = workload, _compiled(schedule)

        def build() -> None:
            if key not in self._built:
                time.sleep(self._build_s)
                self._built.add(key)

        self._once.get(key, build)

    def measure(
        self,
        problem: Problem,
        prepared: Prepared,
        incumbent_speedup: float | None = None,
    ) -> Outcome:
        """Times a candidate on the simulator, together with the library.

        Raises:
            TypeError: it was prepared by a different kind of evaluator.
        """
        if not isinstance(prepared, PreparedModel):
            raise TypeError(f"the simulated GPU measures models, not a {type(prepared).__name__}")
        begin_s = time.perf_counter()
        time.sleep(self._latency_s)
        measured = self._measure(problem, prepared.candidate, prepared.true_us, incumbent_speedup)
        stage_s = {**prepared.stage_s, "time": time.perf_counter() - begin_s}
        return self._fault(prepared.candidate, stage_s) or replace(measured, stage_s=stage_s)

    def _fault(self, candidate: Candidate, stage_s: dict[str, float]) -> Failed | None:
        """The fault of this schedule, if any."""
        if candidate.schedule is None:
            return None
        draw = self._random("fault", candidate).random()
        for rate, stage, kind, what in (
            (self._faults.hang, Stage.TIME, FailureKind.HANG, "a wait never ended"),
            (self._faults.crash, Stage.LAUNCH, FailureKind.CRASH, "the child died"),
            (self._faults.wrong_numbers, Stage.CHECK, FailureKind.WRONG_NUMBERS, "an output element was wrong"),
        ):
            if draw < rate:
                return Failed(stage=stage, kind=kind, reason=f"simulated: {what}", stage_s=stage_s)
            draw -= rate
        return None

    def _measure(
        self, problem: Problem, candidate: Candidate, true_us: float, incumbent_speedup: float | None
    ) -> Measured:
        """Rounds of noisy samples of the candidate and the library; the round's drift is common to both."""
        floor_us = reference_us(problem.workload, self._target.gpu)
        draw = self._random("noise", problem.seed, candidate)
        base_us = library_us(problem.workload, self._target.gpu)
        is_library = candidate.schedule is None
        ending = Ending(
            stop=StopRule(min_rounds=NUM_ROUNDS, max_rounds=NUM_ROUNDS),
            hopeless=HopelessRule(),
            incumbent_speedup=None if is_library else incumbent_speedup,
        )
        procedure = Procedure(
            l2=problem.objective.l2,
            regime=problem.objective.regime,
            launch=candidate.plan_kind.launch_style,
            chain_length=1,
        )
        exact = Metric(tag="noise_free_time", unit="us", value=true_us)
        previewed = () if is_library else self._preview(problem, candidate, true_us, incumbent_speedup)
        if is_hopeless_by(previewed, incumbent_speedup):
            measured = summary(previewed, procedure, truncated=True, library_us=base_us)
            return replace(measured, metrics=(*measured.metrics, exact))
        samples, library, rounds = list[Sample](), list[Sample](), tuple[Round, ...]()
        while not (ending.is_enough(rounds, 0.0) or ending.is_truncation(rounds)):
            drift = draw.gauss(0, self._noise)
            for track, mean_us in ((samples, true_us), (library, base_us)):
                time_us = max(mean_us * math.exp(drift + draw.gauss(0, self._noise)), floor_us)
                track.append(Sample(time_us=time_us, clock_mhz=self._target.gpu.clock_mhz))
            rounds = to_rounds(samples, None if is_library else library, problem.objective.regime)
        measured = summary((*previewed, *rounds), procedure, truncated=not ending.is_enough(rounds, 0.0))
        return replace(measured, metrics=(*measured.metrics, exact))

    def _preview(
        self, problem: Problem, candidate: Candidate, true_us: float, incumbent_speedup: float | None
    ) -> tuple[Round, ...]:
        """The short samples before the first round, if the regime has them. The card is not at its power limit then,
        so a sample has a larger error, and both are faster."""
        if not is_previewed(problem.objective.regime):
            return ()
        draw, tracks = self._random("preview", problem.seed, candidate), list[list[Sample]]()
        for mean_us in (true_us, library_us(problem.workload, self._target.gpu)):
            off = PREVIEW_SPEED * math.exp(draw.gauss(0, PREVIEW_NOISE * self._noise))
            times_us = [mean_us * off * math.exp(draw.gauss(0, self._noise)) for _ in range(PREVIEW.min_rounds)]
            tracks.append([Sample(time_us=time_us, clock_mhz=self._target.gpu.clock_mhz) for time_us in times_us])
        rounds = to_previews(*tracks)
        enough = (count for count in range(len(rounds)) if is_previewed_enough(rounds[:count], incumbent_speedup))
        return rounds[: next(enough, len(rounds))]

    def finals(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        *,
        num_rounds: int,
        torch_compile: bool = False,
    ) -> FinalsTimes:
        """Interleaved rounds; the second half represents a fresh process. There is no model of torch.compile."""
        floor_us = reference_us(problem.workload, self._target.gpu)
        draw = self._random("finals", problem.seed)
        process_of_round = (0,) * num_rounds + (1,) * num_rounds
        drifts = [draw.gauss(0, self._noise) for _ in process_of_round]
        times: list[tuple[float, ...] | None] = []
        reasons = []
        for candidate in candidates:
            fault = self._fault(candidate, {})
            true_us = self.true_us(problem, candidate)
            rounds = [max(true_us * math.exp(drift + draw.gauss(0, self._noise)), floor_us) for drift in drifts]
            times.append(None if fault else tuple(rounds))
            reasons.append(fault.reason if fault else "")
        return FinalsTimes(
            times_us=tuple(times),
            reasons=tuple(reasons),
            process_of_round=process_of_round,
            torch=NO_TORCH if torch_compile else None,
        )

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        *,
        num_rounds: int,
        winner: int,
    ) -> tuple[BaselineTime, ...]:
        """There are no times: a user's programs cannot be modelled."""
        return tuple(BaselineTime(name=one.name, reason=_NO_PROGRAMS) for one in baselines)

    def energy(self, problem: Problem, candidate: Candidate) -> EnergyReport:
        """The energy according to a model."""
        fault = self._fault(candidate, {})
        if fault:
            return no_energy(fault.reason)
        try:
            return EnergyReport(run_mj=self._energy_mj(problem, candidate))
        except (IllegalSchedule, PlanError) as error:
            return no_energy(str(error))

    def _energy_mj(self, problem: Problem, candidate: Candidate) -> float:
        """The energy of one run, millijoules: from a model, like its times."""
        workload = problem.workload
        work_j = workload.compulsory_bytes * DRAM_J_PER_BYTE + workload.num_flops * TENSOR_J_PER_FLOP
        joules = STATIC_W * self.true_us(problem, candidate) / 1e6 + work_j
        return 1e3 * joules * math.exp(abs(self._random("energy", candidate).gauss(0, ENERGY_ERROR)))

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> ArtifactFiles:
        """Source, plans and manifest; nothing is compiled, so there is no cubin."""
        if candidate.schedule is None:
            raise ValueError("the library's calls have no files: ask for a generated kernel")
        workload, gpu, spin_limit_cycles = problem.workload, self._target.gpu, self._limits.spin_limit_cycles
        plans = plans_for(workload, gpu, candidate)
        own = own_kernels(workload, gpu, candidate, spin_limit_cycles=spin_limit_cycles)
        source = render(plans[0].graph.workload, candidate.schedule.tiling) if plans else ""
        environment = self.environment()
        return assemble(problem, candidate, plans, source, None, environment, extra, spin_limit_cycles, own=own)

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        """The counters from the model of the L2 and the DRAM; nothing is counted."""
        check_metrics(metrics or ())
        fault = self._fault(candidate, {})
        if fault:
            return no_counters(fault.reason)
        try:
            time_us = self.true_us(problem, candidate)
        except (IllegalSchedule, PlanError) as error:
            return no_counters(str(error))
        plans = plans_for(problem.workload, self._target.gpu, candidate) if candidate.schedule else ()
        return count(problem.workload, self._target.gpu, plans, time_us, metrics)

    def trace(self, problem: Problem, candidate: Candidate) -> Trace:
        """The forecast's timeline, stretched to the simulated GPU's time."""
        fault = self._fault(candidate, {})
        if candidate.schedule is None or fault:
            return no_trace(fault.reason if fault else "the library's kernels carry no stamps", simulated=True)
        try:
            return forecast_trace(problem.workload, self._target.gpu, candidate, self.slowdown(candidate))
        except (IllegalSchedule, PlanError) as error:
            return no_trace(str(error), simulated=True)

    def close(self) -> None:
        """Does nothing: there are no processes."""
