"""The tasks, one entry of the table each: jobs, the contests after them, and a ladder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.common.rows import Row, choose_rows
from benchmarks.search.bench import Bench, candidate_json, candidate_of, loss_of
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import LIBRARY
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective, PriorsChoice
from tuner.ops.gemm.pairs import ffn_pair

Entry = dict[str, Any]
Table = Mapping[str, Entry]

#: The eight shapes in burst whose jobs of 60 trials are evaluated by their seconds.
BURST = (
    "decode-plain/llama3-8b/m16",
    "decode-swiglu/llama3-8b/m32",
    "decode-plain/gpt3-tp8/m64",
    "decode-swiglu/llama65b-tp8/m64",
    "decode-plain/llama3-70b/m1",
    "decode-swiglu/llama3-70b-tp8/m1",
    "middle/gpt3-tp8/m192",
    "middle/llama3-8b-swiglu/m128",
)
#: Rows under sustained load: 512 and 2048 rows.
SUSTAINED = ("prefill-swiglu/llama3-70b-tp8/m512", "prefill-plain/llama3-8b/m2048")
#: Judged only by their results.
MORE = ("decode-plain/llama3-8b/m64", "middle/llama3-70b-tp8-swiglu/m96")
#: The rows whose quality is evaluated.
QUALITY = (*BURST, *SUSTAINED, *MORE)
#: The job of 300 trials, and the job of ten seeds, whose seed 0 is the entry of `BURST`.
LONG, SEEDS = "decode-swiglu/llama3-8b/m16", BURST[0]
NUM_SEEDS = 10
NUM_TRIALS, NUM_LONG, NUM_WITH_PRIORS = 60, 300, 20
#: Number of a row's kept winners in its contest.
NUM_KEPT = 4

#: The ladder: width and hidden width of a gated pair (Llama-2-13B) that no row of the benchmarks has, and its rows.
LADDER_DIMS = (5120, 13824)
LADDER_MS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512)
#: The m at which the ladder's kernel is compared with that of a separate job, with the ends and the middle first.
OWN_MS = (1, 512, 64, 16, 192, 4, 32, 256, 128, 8, 384, 48, 2, 96, 320, 24)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The measurement of one entry."""

    #: The entry's name.
    name: str
    part: str
    #: Expected seconds on an H200 with 16 cores: the task does not start if less time is left.
    seconds: float
    run: Callable[[Bench, Table], Entry]
    #: Entries that the task needs.
    needs: tuple[str, ...] = ()


def _row(name: str) -> Row:
    (row,) = choose_rows(names=[name])
    return row


def run_cold(name: str, num_trials: int, bench: Bench, table: Table) -> Entry:
    """Runs a job without priors and without cubins, then a contest with the known winners."""
    row = _row(name)
    bench.forget_builds()
    timed = bench.run(bench.spec(row.problem, num_trials))
    entry = {"row": name, "m": row.m, "regime": str(row.regime), **timed.figures()}
    return entry | _beside_kept(bench, row, entry)


def run_with_priors(name: str, bench: Bench, table: Table) -> Entry:
    """Runs a job of few trials that starts with the nearest winners, except those of its own row."""
    row = _row(name)
    timed = bench.run(bench.spec(row.problem, NUM_WITH_PRIORS, priors=PriorsChoice.NEAREST), without=name)
    entry = {"row": name, "m": row.m, "regime": str(row.regime), **timed.figures()}
    return entry | _beside_kept(bench, row, entry)


def _beside_kept(bench: Bench, row: Row, entry: Entry) -> Entry:
    """Runs one finals of the library, the job's fastest kernel and the kept winners."""
    found, kept = candidate_of(entry["fastest"]), bench.kept_winners(row, NUM_KEPT)
    times_us, reasons = bench.contest(row.problem, [found, *kept])
    loss = loss_of(found, times_us, or_library=True)
    return {"loss": loss, "num_kept": sum(one in times_us for one in kept), **_times(times_us), "reasons": reasons}


def _times(times_us: Mapping[Any, Sequence[float]]) -> Entry:
    """A contest's times, by candidate, and its samples."""
    return {"contest": [{**candidate_json(one), "times_us": [round(t, 3) for t in us]} for one, us in times_us.items()]}


def run_seed(seed: int, bench: Bench, table: Table) -> Entry:
    """Runs the job of ten seeds with the seed `seed`."""
    row = _row(SEEDS)
    return {"row": SEEDS, "seed": seed, **bench.run(bench.spec(row.problem, NUM_TRIALS, seed=seed)).figures()}


def run_seeds_contest(bench: Bench, table: Table) -> Entry:
    """Runs one finals of the winners of all seeds."""
    names = [f"burst/{SEEDS}", *(f"seed/{seed}" for seed in range(1, NUM_SEEDS))]
    winners = [candidate_of(table[name]["winner"]) for name in names]
    times_us, reasons = bench.contest(_row(SEEDS).problem, winners)
    alone = [loss_of(one, times_us) for one in winners]
    verdicts = [table[name]["verdict"] for name in names]
    return {"row": SEEDS, "losses": alone, "verdicts": verdicts, **_times(times_us), "reasons": reasons}


def ladder_problem(m: int) -> Problem:
    """A rung of the ladder, in burst."""
    width, hidden = LADDER_DIMS
    workload = ffn_pair(m=m, d_in=width, d_hidden=hidden, d_out=width, activation=Activation.SILU, gated=True)
    return Problem(workload=workload, objective=Objective(l2=CacheState.COLD, regime=Regime.BURST))


def run_ladder(bench: Bench, table: Table) -> Entry:
    """Runs the batch, and keeps the kernel of its result at each m."""
    bench.forget_builds()
    specs = [bench.spec(ladder_problem(m), NUM_TRIALS, priors=PriorsChoice.NEAREST) for m in LADDER_MS]
    batch, took_s, spent_s = bench.run_batch(specs)
    ladder = bench.jobs.service.batches.ladders(batch.id)[0]
    kernels = [candidate_json(kernel.candidate) for kernel in ladder.kernels]
    rungs = {rung.m_hi: rung for rung in ladder.rungs if rung.job_id is not None}
    return {
        "batch_s": round(took_s, 2),
        "trials": batch.num_trials,
        "search_s": round(batch.search_s, 2),
        "spent_s": spent_s,
        "num_kernels": len(kernels),
        "least": ladder.least,
        "kernels": kernels,
        "rungs": [
            {
                "m": m,
                "kernel": rungs[m].kernel,
                "time_us": rungs[m].time_us,
                "library_us": rungs[m].library_us,
                "loss": rungs[m].loss,
            }
            for m in LADDER_MS
        ],
    }


def run_own(m: int, bench: Bench, table: Table) -> Entry:
    """Runs a separate job at one m of the ladder; then compares the ladder's kernel, the job's kernel and the library
    in one finals."""
    ladder, problem = table["ladder"], ladder_problem(m)
    (rung,) = (rung for rung in ladder["rungs"] if rung["m"] == m)
    ladders = LIBRARY if rung["kernel"] is None else candidate_of(ladder["kernels"][rung["kernel"]])
    timed = bench.run(bench.spec(problem, NUM_TRIALS))
    entry = {"m": m, **timed.figures()}
    found = candidate_of(entry["fastest"])
    times_us, reasons = bench.contest(problem, [ladders, found])
    loss = loss_of(ladders, times_us)
    return entry | {"loss": loss, **_times(times_us), "reasons": reasons}


def all_tasks() -> tuple[Task, ...]:
    """All tasks in order of importance."""
    seeds = [f"seed/{seed}" for seed in range(1, NUM_SEEDS)]
    return (
        *(_job("burst", name, 20.0) for name in BURST),
        _job("long", LONG, 55.0, NUM_LONG),
        *(_job("sustained", name, 90.0) for name in SUSTAINED),
        *(_job("more", name, 20.0) for name in MORE),
        *(
            Task(
                name=f"priors/{name}",
                part="priors",
                seconds=45.0 if name in SUSTAINED else 12.0,
                run=partial(run_with_priors, name),
            )
            for name in QUALITY
        ),
        *(
            Task(name=name, part="seeds", seconds=15.0, run=partial(run_seed, seed))
            for seed, name in enumerate(seeds, 1)
        ),
        Task(name="seeds", part="seeds", seconds=15.0, run=run_seeds_contest, needs=(f"burst/{SEEDS}", *seeds)),
        Task(name="ladder", part="ladder", seconds=170.0, run=run_ladder),
        *(_own(m) for m in OWN_MS),
    )


def _job(part: str, name: str, seconds: float, num_trials: int = NUM_TRIALS) -> Task:
    return Task(name=f"{part}/{name}", part=part, seconds=seconds, run=partial(run_cold, name, num_trials))


def _own(m: int) -> Task:
    return Task(name=f"own/{m}", part="own", seconds=20.0, run=partial(run_own, m), needs=("ladder",))
