"""What a result is found by: digests of what was asked and of what measured it, and the sizes of its ops."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import JobSpec
from tuner.store.models import ResultKeyRow

#: m, n and k of the first two ops, as powers of two. A pair has no more, and only pairs are asked for.
_SIZES: tuple[InstrumentedAttribute[float], ...] = (
    ResultKeyRow.first_m,
    ResultKeyRow.first_n,
    ResultKeyRow.first_k,
    ResultKeyRow.second_m,
    ResultKeyRow.second_n,
    ResultKeyRow.second_k,
)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def form_digest(workload: Workload) -> str:
    """16 hex digits that workloads share which differ in sizes alone."""
    data = workload.to_json()
    return _digest({**data, "ops": [{**op, "m": 1, "n": 1, "k": 1} for op in data["ops"]]})


def environment_digest(environment: Environment) -> str:
    """16 hex digits that name an environment; what it does not know is left out, so that new fields change none."""
    return _digest({name: value for name, value in asdict(environment).items() if value})


def _log_sizes(workload: Workload) -> list[float]:
    sizes = [math.log2(size) for op in workload.ops[:2] for size in (op.m, op.n, op.k)]
    return [*sizes, *[0.0] * (len(_SIZES) - len(sizes))]


def key_of(seq: int, job_id: str, spec: JobSpec, environment: Environment) -> ResultKeyRow:
    """The row of a new result; `seq` is its job's."""
    sizes = {column.key: size for column, size in zip(_SIZES, _log_sizes(spec.workload), strict=True)}
    return ResultKeyRow(
        seq=seq,
        job_id=job_id,
        form_digest=form_digest(spec.workload),
        workload_digest=spec.workload.digest,
        environment_digest=environment_digest(environment),
        target_id=spec.target_id,
        is_simulated=spec.target_id.startswith(SIMULATED_PREFIX),
        **sizes,
    )


def closest_job(session: Session, workload: Workload, target_id: str, environment: Environment | None) -> str | None:
    """The id of the job whose result fits best; None where no result is like what is asked.

    That is the newest exact fit on the target, else the nearest shape there, else the nearest on another target.
    """
    exact = select(ResultKeyRow.job_id).where(
        ResultKeyRow.workload_digest == workload.digest, ResultKeyRow.target_id == target_id
    )
    if environment is not None:
        exact = exact.where(ResultKeyRow.environment_digest == environment_digest(environment))
    found = session.scalar(exact.order_by(ResultKeyRow.seq.desc()).limit(1))
    if found is None:
        found = session.scalar(_nearest(workload, target_id, ResultKeyRow.target_id == target_id))
    if found is None:
        found = session.scalar(_nearest(workload, target_id, ResultKeyRow.target_id != target_id))
    return found


def distance_to(workload: Workload) -> ColumnElement[float]:
    """How far off a result's sizes are from those of a workload, by the factors between them."""
    return sum(
        (func.abs(column - size) for column, size in zip(_SIZES[1:], _log_sizes(workload)[1:], strict=True)),
        start=func.abs(_SIZES[0] - _log_sizes(workload)[0]),
    )


def _nearest(workload: Workload, target_id: str, where: ColumnElement[bool]) -> Select[str]:
    """The newest of the results whose sizes are nearest."""
    return (
        select(ResultKeyRow.job_id)
        .where(
            ResultKeyRow.form_digest == form_digest(workload),
            ResultKeyRow.is_simulated == target_id.startswith(SIMULATED_PREFIX),
            where,
        )
        .order_by(func.round(distance_to(workload) * 1e6), ResultKeyRow.seq.desc())
        .limit(1)
    )
