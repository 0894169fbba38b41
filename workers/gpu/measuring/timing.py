"""Times chains of launches in graphs, alternating with the library round by round.

A sample is a graph launch of `chain_length` runs on distinct weights, between two events, or several under sustained
load. A delay kernel before the first event hides the host's launch latency; a sample that was launched after the delay
is repeated. Its time divided by the number of runs is the time of one run. Every SM's cycle counter and the global
timer are read before the delay and after the second event: they give the sample's clock.

The L2's contents (`Cold`, `Warm`) and the card's power state (`Burst`, `Sustained`) are objects that a timer receives;
no other code knows how they are produced.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import cupy

from tuner.core.problem.objective import CacheState, Procedure, Regime
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import WorkerError

from ...timing.clocks import Sample, mean_clock_mhz
from ...timing.turns import turns
from ..library.runners import CapturesItself, Runner
from ..tensors.data import ProblemData
from .card import CardView

#: SM clock cycles of the delay before a sample: about 50 us, which the host needs for a graph launch in C. PyTorch's
#: replay takes longer: a timer whose samples are late twice in a row doubles its delay.
_DELAY_CYCLES = 90_000
#: Maximum attempts at a sample, the last of which has 128 times the delay: about 6 ms.
_MAX_TAKES = 9
#: Idle time before a round in burst, seconds.
_BURST_PAUSE_S = 0.002
#: Seconds of load by the same graph before every sample under sustained load: the card settles at its power limit.
_SUSTAINED_LOAD_S = 0.04
#: Maximum seconds of load after a candidate under sustained load while the next one is awaited: after about 40 ms
#: without load the power limiter lets the clocks rise, and they oscillate afterwards. Builds may take a second or two.
_BETWEEN_LOAD_S = 2.0
#: Seconds of load before the rounds of finals under sustained load: after an idle period the power limiter overshoots,
#: and the clocks oscillate for as long (docs/findings/README.md).
_SETTLING_LOAD_S = 4.0
#: Seconds of load before a sample of a preview: clocks and temperature are still high from the previous candidate.
_PREVIEW_LOAD_S = 0.008
#: Length of a sample under sustained load, microseconds: the cycles of a run are the same to 0.3 %, but the clock
#: oscillates about its mean at the power limit. So samples are as long as possible.
_SUSTAINED_SAMPLE_US = 40_000.0
_FLUSH_CTAS = 1024
#: Maximum SMs in a reading; further SMs of a larger card are left out, by `%smid`.
_MAX_SMS = 256


class L2State(Protocol):
    """Brings the L2 into its state before a sample."""

    def enqueue(self, timer: Timer, graph: Any) -> None:
        """Enqueues the preparation on the current stream; `graph` is what will be sampled."""
        ...


class Cold:
    """A cold L2: the chain's weights rotate; if they are smaller than three times the L2, that much other memory is
    read.
    """

    def enqueue(self, timer: Timer, graph: Any) -> None:
        """Enqueues the read, if it is needed."""
        if timer.data.needs_flush:
            timer.enqueue_flush()


class Warm:
    """The L2's content after a run of the same chain."""

    def enqueue(self, timer: Timer, graph: Any) -> None:
        """Enqueues the chain once, not timed."""
        graph.launch(timer.stream)


class PowerState(Protocol):
    """Brings the card into its power state."""

    #: Whether a sample takes so long that one sample of the library is used for two rounds of a trial.
    is_dear: bool
    #: Maximum seconds for which the card is kept in its state until the next candidate arrives.
    between_s: float
    #: Seconds of load until the clocks of an idle card have settled.
    settling_s: float

    def before_round(self, timer: Timer, first: Any) -> None:
        """Called once per round; `first` is the first graph of all rounds."""
        ...

    def before_sample(self, timer: Timer, graph: Any, chain_us: float) -> None:
        """Called before each sample of `graph`, which takes `chain_us`, unless the previous sample was of the same
        graph."""
        ...

    def num_launches(self, chain_us: float) -> int:
        """Number of launches in a sample of a graph that takes `chain_us`."""
        ...

    def event_bits(self, timer: Timer) -> int:
        """The driver's reasons for the clocks, read while a sample runs; 0 if they do not matter."""
        ...


class Burst:
    """After an idle pause, with high clocks."""

    is_dear = False
    between_s = 0.0
    settling_s = 0.0

    def before_round(self, timer: Timer, first: Any) -> None:
        """Pauses, and then raises the clocks by an uncounted sample."""
        time.sleep(_BURST_PAUSE_S)
        timer.sample_us(first)

    def before_sample(self, timer: Timer, graph: Any, chain_us: float) -> None:
        """Does nothing: the round's samples follow each other without a pause."""

    def num_launches(self, chain_us: float) -> int:
        """One, since a longer sample would heat the card."""
        return 1

    def event_bits(self, timer: Timer) -> int:
        """Returns 0: the clock itself is enough."""
        return 0


class Sustained:
    """Under load by the same graph, at the power limit, since each graph reaches it by its own load."""

    is_dear = True
    between_s = _BETWEEN_LOAD_S
    settling_s = _SETTLING_LOAD_S

    def before_round(self, timer: Timer, first: Any) -> None:
        """Does nothing: every sample has its load."""

    def before_sample(self, timer: Timer, graph: Any, chain_us: float) -> None:
        """Loads the card."""
        timer.enqueue_load(graph, _SUSTAINED_LOAD_S, chain_us)

    def num_launches(self, chain_us: float) -> int:
        """Enough to average over the limiter's oscillations."""
        return max(1, round(_SUSTAINED_SAMPLE_US / chain_us))

    def event_bits(self, timer: Timer) -> int:
        """A thermal slowdown spoils a sample; the power cap does not."""
        timer.wait_for_sample()
        return timer.card.clock_event_bits() if timer.card else 0


def _num_launches(seconds: float, chain_us: float) -> int:
    """Number of launches that take at least `seconds`, of a graph that takes `chain_us`."""
    return math.ceil(1e6 * seconds / chain_us)


L2_STATES: dict[CacheState, L2State] = {CacheState.COLD: Cold(), CacheState.WARM: Warm()}
POWER_STATES: dict[Regime, PowerState] = {Regime.BURST: Burst(), Regime.SUSTAINED: Sustained()}


class Timer:
    """Times runners over one problem's slots, by the procedure of its objective."""

    def __init__(self, data: ProblemData, tools: Any, card: CardView | None = None) -> None:
        """`tools` is the module of tools.cu; `card` reports why clocks are low, if that is checked."""
        self.data = data
        self.card = card
        self.stream = cupy.cuda.Stream(non_blocking=True)
        objective = data.problem.objective
        self._l2, self._power = L2_STATES[objective.l2], POWER_STATES[objective.regime]
        self._delay = tools.get_function("tuner_delay")
        self._delay_cycles = _DELAY_CYCLES
        self._flush = tools.get_function("tuner_flush")
        self._read_clocks = tools.get_function("tuner_read_clocks")
        self._num_sms = int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["multiProcessorCount"])
        #: [before or after][SM][sample, cycles, ns]
        self._readings = cupy.zeros((2, _MAX_SMS, 3), dtype=cupy.uint64)
        self._num_samples = 0
        self._sink = cupy.zeros(1, dtype=cupy.uint32)
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        cupy.cuda.Device().synchronize()  # the zeros are written on another stream

    def procedure(self, kind: PlanKind) -> Procedure:
        """The measurement procedure of a plan kind's times."""
        objective = self.data.problem.objective
        return Procedure(
            l2=objective.l2,
            regime=objective.regime,
            launch=kind.launch_style,
            chain_length=self.data.chain_length,
        )

    def capture(self, runner: Runner) -> Any:
        """The chain of `runner` as a graph, captured by the runner itself if it can."""
        if isinstance(runner, CapturesItself):
            return runner.captured()
        with self.stream:
            self.stream.begin_capture()
            try:
                for slot in range(self.data.chain_length):
                    runner.enqueue(self.data.slot_ops(slot), self.stream.ptr)
            finally:
                graph = self.stream.end_capture()
        return graph

    def lead_in(self, *, flush: bool) -> None:
        """Enqueues on the current stream what comes before a sample: a read of three times the L2, if `flush`, and
        the delay."""
        if flush:
            self.enqueue_flush()
        self._delay((1,), (1,), (cupy.int64(self._delay_cycles),))

    def enqueue_flush(self) -> None:
        """Enqueues a read of three times the L2 on the current stream."""
        vectors = self.data.flush_buffer.nbytes // 16
        self._flush((_FLUSH_CTAS,), (256,), (self.data.flush_buffer, cupy.int64(vectors), self._sink))

    def sample(self, graph: Any, power: PowerState | None = None, num_launches: int = 1) -> Sample:
        """One sample; `power` reads the driver's reasons while it runs. If the L2 must be prepared before every chain,
        a sample is one launch.

        Raises:
            WorkerError: the host was late with every launch.
        """
        num_launches = 1 if self.data.needs_flush else num_launches
        for take in range(_MAX_TAKES):
            sample, is_late = self.take(graph, power, num_launches)
            if not is_late:
                return sample
            if take > 0:  # the first time may be chance
                self._delay_cycles *= 2
        raise WorkerError(f"the host launched too late {_MAX_TAKES} times in a row: other programs keep its cores busy")

    def take(self, graph: Any, power: PowerState | None = None, num_launches: int = 1) -> tuple[Sample, bool]:
        """A raw sample, and whether its delay had ended before the graph was launched: then its time includes the
        host's latency."""
        self._num_samples += 1
        with self.stream:
            self._l2.enqueue(self, graph)
            self._enqueue_reading(0)
            self.lead_in(flush=False)
            self._begin.record(self.stream)
            graph.launch(self.stream)
            is_late = self._begin.done
            for _ in range(num_launches - 1):
                graph.launch(self.stream)
            self._end.record(self.stream)
            self._enqueue_reading(1)
            event_bits = power.event_bits(self) if power else 0
            front, behind = self._readings.get()
        self._end.synchronize()
        elapsed_us = 1e3 * float(cupy.cuda.get_elapsed_time(self._begin, self._end))
        sample = Sample(
            time_us=elapsed_us / (num_launches * self.data.chain_length),
            clock_mhz=mean_clock_mhz(front, behind, self._num_samples),
            event_bits=event_bits,
        )
        return sample, is_late

    def _enqueue_reading(self, side: int) -> None:
        args = (self._readings[side], cupy.uint32(_MAX_SMS), cupy.uint64(self._num_samples))
        self._read_clocks((self._num_sms,), (32,), args)

    def sample_us(self, graph: Any) -> float:
        """Time of one run of the chain, microseconds."""
        return self.sample(graph).time_us

    def rounds(
        self,
        graphs: Sequence[Any],
        is_over: Callable[[list[list[Sample]], float], bool],
        *,
        shares_first: bool = False,
    ) -> list[list[Sample]]:
        """[graph][round] samples, every graph once per round, in alternating order.

        With two graphs, each round begins with the graph that was sampled last, which has kept the GPU busy until then.
        With `shares_first`, a sample of the first one is used for two rounds, if it is slow. `is_over` gets the samples
        so far and the seconds since the start.
        """
        chains_us = [
            self.sample_us(graph) * self.data.chain_length for graph in graphs
        ]  # also loads what is loaded lazily
        tracks: list[list[Sample]] = [[] for _ in graphs]
        start, shares_first = time.perf_counter(), shares_first and self._power.is_dear
        while not is_over(tracks, time.perf_counter() - start):
            self._power.before_round(self, graphs[0])
            for turn in list(turns(len(graphs), len(tracks[0]), shares_first=shares_first)):
                i = turn.index
                if turn.is_shared:
                    tracks[i].append(tracks[i][-1])
                    continue
                if not turn.is_loaded or self.data.needs_flush:  # a sample of one launch is not a load
                    self._power.before_sample(self, graphs[i], chains_us[i])
                num_launches = self._power.num_launches(chains_us[i])
                tracks[i].append(self.sample(graphs[i], self._power, num_launches))
        return tracks

    def preview(self, graphs: Sequence[Any], is_over: Callable[[list[list[Sample]]], bool]) -> list[list[Sample]]:
        """[graph][round] samples of one launch after a short load, every graph once per round, until `is_over`
        returns true for those so far."""
        tracks: list[list[Sample]] = [[] for _ in graphs]
        chains_us = [
            self.sample_us(graph) * self.data.chain_length for graph in graphs
        ]  # also loads what is loaded lazily
        while not is_over(tracks):
            first = len(tracks[0]) % len(graphs)
            for i in [*range(first, len(graphs)), *range(first)]:
                self.enqueue_load(graphs[i], _PREVIEW_LOAD_S, chains_us[i])
                tracks[i].append(self.sample(graphs[i]))
        return tracks

    def enqueue_load(self, graph: Any, seconds: float, chain_us: float) -> None:
        """Enqueues `seconds` of load by a graph that takes `chain_us`, before a sample of it; does not wait."""
        for _ in range(_num_launches(seconds, chain_us)):
            graph.launch(self.stream)

    def wait_for_sample(self) -> None:
        """Waits until the enqueued sample begins."""
        self._begin.synchronize()

    def await_busily(self, graph: Any, is_there: Callable[[], bool]) -> None:
        """Keeps the card in its power state with `graph` until the next candidate `is_there`, or as long as that is
        useful. At most two launches are still running afterwards."""
        self._load(graph, self._power.between_s, is_there)

    def settle(self, graph: Any) -> None:
        """Brings an idle card into the power state of its samples with `graph`, for as long as its clocks oscillate.
        At most two launches are still running afterwards."""
        self._load(graph, self._power.settling_s)

    def _load(self, graph: Any, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        end, launches = time.perf_counter() + seconds, self.keep_busy(graph)
        while time.perf_counter() < end and not is_over():
            next(launches)

    def rest(self) -> None:
        """Waits for the launches that are still running."""
        self.stream.synchronize()

    def keep_busy(self, graph: Any, launches_a_turn: int = 1) -> Iterator[int]:
        """Yields the number of finished launches, for as long as the caller continues; the next launches are always
        queued, so that the card never idles. When the caller stops, queued launches are still running."""
        done = cupy.cuda.Event(), cupy.cuda.Event()
        turn = 0
        self._enqueue_turn(graph, launches_a_turn, done[0])
        while True:
            self._enqueue_turn(graph, launches_a_turn, done[(turn + 1) % 2])
            done[turn % 2].synchronize()
            turn += 1
            yield turn * launches_a_turn

    def _enqueue_turn(self, graph: Any, num_launches: int, done: Any) -> None:
        for _ in range(num_launches):
            graph.launch(self.stream)
        done.record(self.stream)
