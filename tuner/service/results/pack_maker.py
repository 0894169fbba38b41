"""Makes packs from finished jobs: the best result for each shape and m, its kernel, and a signature."""

from __future__ import annotations

import io
import zipfile
from dataclasses import asdict, replace
from typing import Any

from tuner.core.access.caller import LOCAL, Caller
from tuner.core.problem import asked
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.trial.job import Objective, default_regime
from tuner.core.trial.questions import Machine, Question
from tuner.core.trial.records import Best, JobRecord, kernel_row
from tuner.errors import NotFound
from tuner.packs.contents import Kernel
from tuner.packs.invariant import make_invariant_entry
from tuner.packs.ladder import Found, make_entries, make_entry
from tuner.packs.order import MadePack, PackOrder
from tuner.packs.shapes import Shape, shape_of, sizes_of
from tuner.packs.signing import signing_key
from tuner.packs.write import pack_bytes
from tuner.service.results.matching import check_match
from tuner.store import Store
from tuner.store.access import audit
from tuner.store.results import bests, packs


def make_pack(
    store: Store, order: PackOrder, now: float, kernel_version: str | None = None, caller: Caller = LOCAL
) -> MadePack:
    """Makes and stores a pack; the same order and results give the same bytes.

    `caller` requested it. `kernel_version` is the current version of the kernels, whose results take priority over
    older ones, since older artifacts may not have what a pack needs.

    Raises:
        NotFound: a shape has no result at one of its m, or a workload has no result.
        InvalidInput: a kernel was made by an older version.
        SigningUnavailable: there is no key, and none can be created.
    """
    key = signing_key(store.directory)
    entries = []
    for shape, rows in order.shapes:
        results = [_found(store, order, shape, m, kernel_version) for m in sorted(set(rows))]
        if order.batch_invariant:
            entries.append(make_invariant_entry(shape, results))
        else:
            entries.append(make_entry(shape, results, min_gain=order.min_gain))
    about: dict[str, Any] = {"target": order.target_id, "l2": str(order.l2), "min_gain": order.min_gain}
    about |= {"regime": str(order.regime)} if order.regime else {}
    about |= {"rows": order.rows} if order.rows else {}
    about |= {"batch_invariant": True} if order.batch_invariant else {}
    others = [
        (shape_of(workload.to_json()), _of_workload(store, order, workload, kernel_version))
        for workload in order.workloads
    ]
    entries += make_entries(others, min_gain=order.min_gain)
    content = pack_bytes(entries, provenance=about, sign=key.sign)
    digest = store.artifacts.put(content)
    with store.write() as session:
        packs.insert(session, digest, len(content), order.to_json(), now)
        audit.append(session, caller, "pack.make", digest, now)
    simulated = order.target_id.startswith(SIMULATED_PREFIX)
    return MadePack(digest=digest, size_bytes=len(content), key=key.public, simulated=simulated)


def workload_of(shape: Shape, m: int) -> Workload:
    """The pair of ops for a shape at m rows."""
    return asked.workload_of({"kind": WorkloadKind.FFN, "m": m, **asdict(shape)})


def _found(store: Store, order: PackOrder, shape: Shape, m: int, kernel_version: str | None) -> Found:
    return _of_workload(store, order, workload_of(shape, m), kernel_version)


def _of_workload(store: Store, order: PackOrder, workload: Workload, kernel_version: str | None) -> Found:
    question = Question(
        workload=workload,
        target_id=order.target_id,
        objective=Objective(l2=order.l2, regime=order.regime or default_regime(workload)),
    )
    of_now = replace(question, machine=Machine(kernel_version=kernel_version))
    with store.read() as session:
        try:
            fit = check_match(bests.closest(session, of_now, store.shapes), of_now)
        except NotFound:
            fit = check_match(bests.closest(session, question, store.shapes), question)
    if order.batch_invariant and not fit.best.winner.is_ours:
        return _behind_the_library(store, workload, fit.job, fit.best)
    return _as_found(store, workload, fit.job, fit.best)


def _behind_the_library(store: Store, workload: Workload, job: JobRecord, best: Best) -> Found:
    """Our best kernel even if the library won: a batch-invariant ladder may need it."""
    found = _as_found(store, workload, job, best)
    if (kernel := _kernel(store, best.artifact_digest)) is None:
        return found
    schedule, kind = kernel.manifest["schedule_digest"], kernel.manifest["plan_kind"]
    row = next(
        row
        for row in best.finals
        if str(row.candidate.plan_kind) == kind and row.candidate.schedule and row.candidate.schedule.digest == schedule
    )
    provenance = {**found.provenance, "time_us": row.time_us}
    return replace(found, kernel=kernel, speedup=row.speedup, interval=row.speedup_ci95, provenance=provenance)


def _as_found(store: Store, workload: Workload, job: JobRecord, best: Best) -> Found:
    row = None if best.winner_row is None else best.finals[best.winner_row]
    if best.winner.is_ours:
        row = kernel_row(best.finals, best.winner, job.spec.energy_within_percent)
    provenance = {
        "job": job.id,
        "verdict": str(best.verdict),
        "winner": str(best.winner),
        "time_us": row.time_us if row else None,
        "timed_ours": any(one.candidate.plan_kind.is_ours and one.time_us is not None for one in best.finals),
        "gpu": best.environment.gpu_name,
        "driver": best.environment.driver,
    }
    libraries_us = (one.time_us for one in best.finals if not one.candidate.plan_kind.is_ours)
    rows, max_length = sizes_of(workload.to_json())
    return Found(
        m=rows,
        max_length=max_length,
        kernel=_kernel(store, best.artifact_digest) if best.winner.is_ours else None,
        speedup=row.speedup if row else None,
        time_us=row.time_us if row else None,
        library_us=next(libraries_us, None),
        best_speedup=row.speedup if row else None,
        interval=row.speedup_ci95 if row else None,
        library=best.library.to_json() if best.library else {},
        provenance=provenance,
    )


def _kernel(store: Store, digest: str | None) -> Kernel | None:
    """The files of an artifact from its zip; None if there is none, or if a pack's program cannot run it: on one
    stream."""
    if digest is None:
        return None
    with zipfile.ZipFile(io.BytesIO(store.artifacts.get(digest))) as archive:
        kernel = Kernel(files={name: archive.read(name) for name in archive.namelist()})
    return kernel if kernel.has_allowed_streams else None
