"""The measured decoder layers, as data: their parts in the order in which a step runs them.

A whole layer begins with its attention, and ends with the next layer's qkv, which rotates queries and keys and writes
to that layer's cache. If ranks share a layer, an all-reduce follows o_proj and down, so a rank has two runs: norm, qkv,
attention, o_proj; and norm, gate_up, down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tests.support.presets import LayerRun, decoder_layer
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.errors import InvalidInput

BATCHES, CONTEXTS = (1, 16), (512, 2048)
#: Read rate assumed for the floor if the card's own is unknown, bytes per second.
BANDWIDTH = 4.4e12
#: Runs whose time depends on the context.
_ATTENDING = (LayerRun.ATTENTION, LayerRun.LAYER, LayerRun.QKV_ATTENTION, LayerRun.FROM_QKV)
#: Maximum seconds of a job's search.
_SECONDS_PER_JOB = 300.0
#: Minimum geometric mean of the library's time divided by the verdict's.
MEAN_BAR = 1.20


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """A layer, or a run of its ops, for a number of sequences with equally long contexts."""

    model: str
    tp: int
    #: Runs that are searched separately, each as a job.
    runs: tuple[LayerRun, ...]
    batch: int
    #: Context length in tokens; 0 if there is no attention.
    context: int
    #: Tokens per page of the cache; None if the cache is contiguous.
    page_tokens: int | None = None
    #: The storage format of all weights, if they have fewer bits.
    weights: WeightFormat | None = None

    @property
    def name(self) -> str:
        """The name for ``--row``."""
        what = "-".join(str(run) for run in self.runs)
        return self._named(what) + (self._of_cache if self.context else "")

    @property
    def _of_cache(self) -> str:
        return f"/{self.context}" + (f"/pages{self.page_tokens}" if self.page_tokens else "")

    def _named(self, what: str) -> str:
        shard = f"-tp{self.tp}" if self.tp > 1 else ""
        stored = f"-{self.weights}" if self.weights else ""
        return f"{self.model}{stored}{shard}/{what}/{self.batch}"

    @property
    def named_parts(self) -> dict[str, Workload]:
        """The parts by the names of their winners, in the order of a step. Only an attention's time depends on the
        context, so one job serves all contexts of any other run."""
        found = {}
        for run in self.runs:
            has_attention = run in _ATTENDING
            name = self._named(str(run)) + (self._of_cache if has_attention else "")
            length = self.context if has_attention else max(CONTEXTS)
            found[name] = decoder_layer(
                self.model,
                sequences=self.batch,
                max_length=length,
                tp=self.tp,
                dtype=Dtype.BF16,
                run=run,
                page_tokens=self.page_tokens if has_attention else None,
                weights=self.weights,
            )
        return found

    @property
    def parts(self) -> tuple[Workload, ...]:
        """Parts in the order of a step."""
        return tuple(self.named_parts.values())

    def floor_us(self, bandwidth: float = BANDWIDTH) -> float:
        """The time to read weights and caches once."""
        return sum(part.rotated_bytes for part in self.parts) / bandwidth * 1e6


def spec_of(workload: Workload, target_id: str, trials: int) -> JobSpec:
    """The job of a part, cold, in burst."""
    return JobSpec(
        workload=workload,
        target_id=target_id,
        objective=Objective(l2=CacheState.COLD, regime=Regime.BURST),
        budget=Budget(trials=trials, seconds=_SECONDS_PER_JOB),
        seed=0,
    )


def _rows() -> tuple[LayerRow, ...]:
    found = []
    for batch, context in product(BATCHES, CONTEXTS):
        found.append(LayerRow(model="llama3-8b", tp=1, runs=(LayerRun.LAYER,), batch=batch, context=context))
    for batch, context in product(BATCHES, CONTEXTS):
        runs = (LayerRun.QKV, LayerRun.ATTENTION)
        found.append(LayerRow(model="llama3-70b", tp=8, runs=runs, batch=batch, context=context))
    found += [LayerRow(model="llama3-70b", tp=8, runs=(LayerRun.MLP,), batch=batch, context=0) for batch in BATCHES]
    return tuple(found)


ROWS = _rows()
#: Rows that are not part of the mean, measured only on request: norm, qkv, attention and o_proj as one job; also with
#: pages.
ONE_JOB_ROWS = tuple(
    LayerRow(model=model, tp=tp, runs=(LayerRun.QKV_ATTENTION,), batch=batch, context=context, page_tokens=page_tokens)
    for page_tokens in (None, 16)
    for model, tp in (("llama3-70b", 8), ("llama3-8b", 1))
    for batch, context in product(BATCHES, CONTEXTS)
)

#: Same as above, for an attention with its projection.
PAIR_ROWS = tuple(
    LayerRow(model=model, tp=tp, runs=(LayerRun.ATTENTION,), batch=batch, context=context)
    for model, tp in (("llama3-8b", 1), ("llama3-70b", 8))
    for batch, context in product((*BATCHES, 64), (*CONTEXTS, 8192))
)
#: Whole layers with weights of few bits.
STORED_ROWS = tuple(
    LayerRow(model="llama3-8b", tp=1, runs=(LayerRun.LAYER,), batch=batch, context=2048, weights=WeightFormat.INT4_G128)
    for batch in BATCHES
)

#: Rows that are not part of the mean.
OTHER_ROWS = (*ONE_JOB_ROWS, *PAIR_ROWS, *STORED_ROWS)


def choose_rows(names: Sequence[str] = ()) -> tuple[LayerRow, ...]:
    """The rows with the given names or prefixes; rows with pages need their full names. By default, all rows of the
    mean.

    Raises:
        InvalidInput: there is no such row.
    """
    known = (*ROWS, *OTHER_ROWS) if names else ROWS
    chosen = tuple(row for row in known if not names or any(_is_called(row, name) for name in names))
    if not chosen:
        raise InvalidInput("row", f"no row is called {' '.join(names)}", f"rows have names like {ROWS[0].name}")
    return chosen


def _is_called(row: LayerRow, name: str) -> bool:
    return row.name == name if row.page_tokens else row.name.startswith(name)
