"""The search keys of a result: digests of the request and of the measuring environment, and the sizes of its ops."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.orm import Session

from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.trial.job import JobSpec, Objective
from tuner.core.trial.questions import Question, log_sizes
from tuner.core.trial.records import Best
from tuner.core.trial.reports.same_kernels import alike
from tuner.store.results.shapes import NearShape, ShapeIndex, to_text
from tuner.store.tables.models import ResultKeyRow

#: Columns that are also fields of an environment.
_COMPARED = ("gpu_name", "driver", "cuda", "kernel_version")


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def form_digest(workload: Workload) -> str:
    """16 hex digits, equal for workloads that differ only in sizes, or, if they are chains, only in rows. So the
    distance between two workloads of the same form depends only on the sizes of two ops."""
    data, in_chain = workload.to_json(), workload.kind is WorkloadKind.CHAIN
    pairs = zip(workload.ops, data["ops"], strict=True)
    ops = [one | dict.fromkeys(op.FREE_IN_CHAIN if in_chain else op.FREE, 1) for op, one in pairs]
    if workload.turned_for is not None:  # its cache belongs to the attention
        ops = [op | {"rotary": op["rotary"] | {"max_length": 1}} if "rotary" in op else op for op in ops]
    return _digest({**data, "ops": ops})


def objective_key(
    objective: Objective, energy_within_percent: float | None = None, *, torch_compile: bool = False
) -> str:
    """The L2 state and the regime as one key word, how much slower the kernel with the least energy may be, and whether
    torch.compile may be the library."""
    energy = "" if energy_within_percent is None else f"/energy{energy_within_percent:g}"
    return f"{objective.l2}/{objective.regime}{energy}{'/torch-compile' if torch_compile else ''}"


def key_of(seq: int, job_id: str, spec: JobSpec, best: Best) -> ResultKeyRow:
    """The row of a new result; `seq` is that of its job."""
    environment = best.environment
    return ResultKeyRow(
        seq=seq,
        job_id=job_id,
        form_digest=form_digest(spec.workload),
        workload_digest=spec.workload.digest,
        target_id=spec.target_id,
        is_simulated=spec.target_id.startswith(SIMULATED_PREFIX),
        objective=objective_key(spec.objective, spec.energy_within_percent, torch_compile=spec.torch_compile),
        sure_speedup=best.sure_speedup,
        num_trials=spec.budget.trials,
        **{name: getattr(environment, name) for name in _COMPARED},
        sizes=to_text(log_sizes(spec.workload)),
    )


def closest_job(session: Session, question: Question, shapes: ShapeIndex) -> str | None:
    """The id of the job whose result fits best; None if no result is similar.

    The order is: the best exact match on the target, the nearest shape on it, the nearest shape on another target. A
    shape that is too far away is returned only if there is no other, so that a refusal can name it.
    """
    facts = _facts(question)
    known = tuple(name for name in _COMPARED if name in facts)
    found = session.scalar(_exact(known), facts)
    if found is not None:
        return found
    asked, refused = (facts["form_digest"], question.target_id, log_sizes(question.workload)), []
    for elsewhere in (False, True):
        shape = shapes.nearest(session, *asked, is_simulated=facts["is_simulated"], elsewhere=elsewhere)
        if shape is not None and shape.distance <= question.max_distance:
            return session.scalar(_best_of(known), facts | _facts_of(shape))
        refused += [shape] if shape is not None else []
    return session.scalar(_best_of(known), facts | _facts_of(refused[0])) if refused else None


#: Among results that fit equally well: the largest proven gain, then the larger budget, then the newest.
_BEST_FIRST = (ResultKeyRow.sure_speedup.desc(), ResultKeyRow.num_trials.desc(), ResultKeyRow.seq.desc())


def best_of_each() -> Select[str]:
    """Jobs whose result is the answer to an exact question: the best for a workload, target, objective and machine."""
    alike = (ResultKeyRow.workload_digest, ResultKeyRow.target_id, ResultKeyRow.objective,
             *(getattr(ResultKeyRow, name) for name in _COMPARED))  # fmt: skip
    rank = func.row_number().over(partition_by=alike, order_by=_BEST_FIRST).label("rank")
    ranked = select(ResultKeyRow.job_id, rank).subquery()
    return select(ranked.c.job_id).where(ranked.c.rank == 1)


def _facts(question: Question) -> dict[str, Any]:
    """The request by columns, with the known facts about the machine that will run the kernel."""
    simulated = question.target_id.startswith(SIMULATED_PREFIX)
    known: dict[str, Any] = dict(question.machine.known(simulated=simulated))
    if "kernel_version" in known:
        known["kernel_version"] = sorted(alike(known["kernel_version"]))
    return {
        "form_digest": form_digest(question.workload),
        "workload_digest": question.workload.digest,
        "target_id": question.target_id,
        "is_simulated": simulated,
        "objective": objective_key(question.objective),
        **known,
    }


def _facts_of(shape: NearShape) -> dict[str, Any]:
    return {"target_id": shape.target_id, "sizes": shape.sizes}


def _same(*names: str) -> list[ColumnElement[bool]]:
    """A condition for each of the columns `names`, which are named like the facts that they are compared with. For
    kernel versions, the facts contain all equivalent ones."""
    return [
        ResultKeyRow.kernel_version.in_(bindparam(name, expanding=True))
        if name == "kernel_version"
        else getattr(ResultKeyRow, name) == bindparam(name)
        for name in names
    ]


# Built once for each set of `known` columns of the machine, since building such a statement takes longer than executing
# it.


@lru_cache(maxsize=64)
def _exact(known: tuple[str, ...]) -> Select[str]:
    same = _same("workload_digest", "target_id", "objective", *known)
    return select(ResultKeyRow.job_id).where(*same).order_by(*_BEST_FIRST).limit(1)


@lru_cache(maxsize=64)
def _best_of(known: tuple[str, ...]) -> Select[str]:
    """The query for the best of a shape's results; results with the requested objective and for the machine come
    first."""
    same = _same("form_digest", "is_simulated", "target_id", "sizes")
    unlike = [~condition for condition in _same("objective", *known)]
    return select(ResultKeyRow.job_id).where(*same).order_by(*unlike, *_BEST_FIRST).limit(1)
