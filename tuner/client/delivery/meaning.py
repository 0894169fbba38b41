"""Checks that a response is what was requested; digests and signatures do not ensure that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.client.delivery.artifact import check_is
from tuner.client.errors import Refused
from tuner.client.options.pair_options import pair_body
from tuner.core.problem.asked import workload_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import CacheState, Objective, Regime, default_regime
from tuner.errors import InvalidInput
from tuner.packs.contents import Entry
from tuner.packs.read import Pack
from tuner.packs.shapes import AnyShape, Shape, shape_kinds, shape_of, sizes_of

Json = Mapping[str, Any]
#: The only plan kind without a generated kernel.
LIBRARY = str(PlanKind.LIBRARY)


def asked_workload(pair: Json) -> Workload:
    """The workload of a requested pair, or of a reported one.

    Raises:
        Refused: it is not a workload.
    """
    try:
        return workload_of(pair)
    except InvalidInput as error:
        raise Refused(f"pair.{error}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Refused(f"this client does not know such a pair: {error}") from error


def asked_objective(workload: Workload, l2: str | None, regime: str | None) -> dict[str, str]:
    """The objective of a query: by default cold, and the regime that fits the rows."""
    objective = Objective(
        l2=CacheState(l2 or CacheState.COLD),
        regime=Regime(regime) if regime else default_regime(workload),
    )
    return {name: str(value) for name, value in asdict(objective).items()}


def check_kernel(
    manifest: Json,
    *,
    job_ids: Collection[str],
    target: str,
    kinds: Collection[str],
    workload: Workload | None = None,
    objective: Mapping[str, str] | None = None,
) -> None:
    """Checks that a kernel belongs to the expected job, target and plan kind, and to the workload and objective if
    given.

    Args:
        manifest: from the artifact, whose digests were checked.
        job_ids: the jobs that it may belong to.
        target: their target.
        kinds: plan kinds in these jobs' finals.
        workload: the requested one.
        objective: the requested `l2` and `regime`.

    Raises:
        Refused: it belongs to a different one, which the message names.
    """
    try:
        spec = manifest["spec"]
        facts = {"job": manifest["job_id"], "target": spec["target_id"], "plan kind": manifest["plan_kind"]}
        found_workload, found_objective = manifest["workload"], manifest["objective"]
        named = Workload.from_json(found_workload) if workload is not None else None
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise Refused(
            "the kernel's manifest does not say which workload it is for; tune it again with this version"
        ) from error
    for name, asked in (("job", job_ids), ("plan kind", kinds)):
        check_is("the kernel", name, facts[name], facts[name] if facts[name] in asked else " or ".join(asked))
    check_is("the kernel", "target", facts["target"], target)
    if named is not None and workload is not None:
        # The digests too, since two chains may have the same text.
        check_is("the kernel", "workload", *(f"{one.describe()} ({one.digest})" for one in (named, workload)))
    if objective is not None:
        for name, asked_value in objective.items():
            check_is("the kernel", f"objective.{name}", found_objective.get(name), asked_value)


def check_jobs(
    jobs: Sequence[Json], pairs: Sequence[Json], *, target: str | None, l2: str | None, regime: str | None = None
) -> None:
    """Checks that the jobs of a batch are exactly those of the requested pairs.

    Args:
        jobs: as reported by the service.
        pairs: in the form of `POST /jobs`.
        target: None if the server's own was requested.
        l2: cold by default.
        regime: None if it depends on the rows.

    Raises:
        Refused: they differ; the message says which.
    """
    asked, found = (_by_digest(of) for of in (pairs, [job["pair"] for job in jobs]))
    check_is("the batch", "list of workloads", _all_but(found, asked), _all_but(asked, found))
    for job in jobs:
        check_is("a job of the batch", "target", job["target"], target or job["target"])
        check_is("a job of the batch", "objective.l2", job["objective"]["l2"], l2 or str(CacheState.COLD))
        if regime is not None:
            check_is("a job of the batch", "objective.regime", job["objective"]["regime"], regime)


def _by_digest(pairs: Sequence[Json]) -> dict[str, str]:
    """The workloads of pairs as text, by digest."""
    return {one.digest: one.describe() for one in map(asked_workload, pairs)}


def _all_but(some: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """The texts of workloads that are not among the others."""
    return sorted(words for digest, words in some.items() if digest not in others)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The request: the result of a job, or the best result for a query."""

    #: None for a query.
    job_id: str | None
    #: The parameters of `GET /best`; unused with a job.
    question: Json

    def check_result(self, best: Json, *, is_exact: bool) -> None:
        """Checks that a result, in the form of `GET /jobs/{id}/best`, is the requested one.

        Raises:
            Refused: it is a different one.
        """
        if self.job_id is not None:
            check_is("the result", "job", best["job_id"], self.job_id)
            return
        if (target := self.question.get("target")) is not None:
            check_is("the result", "target", best["target"], target)
        workload = self._workload()
        family, _, _ = workload.describe().partition(" ")  # the kind of a launch op, or of the workload
        if is_exact or not best["workload"].startswith(f"{family} "):
            check_is("the result", "workload", best["workload"], workload.describe())

    def check(self, manifest: Json, best: Json, *, is_exact: bool) -> None:
        """Checks that a kernel belongs to such a result and to the request. If a weaker match was accepted, its
        workload must be the one in the result.

        Raises:
            Refused: it belongs to another result or request.
        """
        kinds = [row["candidate"]["plan_kind"] for row in best["finals"]]
        kinds = [best["winner"]] if best["winner"] != LIBRARY else [kind for kind in kinds if kind != LIBRARY]
        is_asked = self.job_id is None and is_exact
        workload = self._workload() if is_asked else None
        objective = None
        if workload is not None:
            objective = asked_objective(workload, self.question.get("l2"), self.question.get("regime"))
        check_kernel(
            manifest,
            job_ids=[best["job_id"]],
            target=best["target"],
            kinds=kinds,
            workload=workload,
            objective=objective,
        )
        check_is("the kernel", "workload", described(manifest), best["workload"])

    def _workload(self) -> Workload:
        names = ("target", "l2", "regime", "match", "max_distance")
        pair = {name: value for name, value in self.question.items() if name not in names}
        return asked_workload(pair_body(pair))


def described(manifest: Json) -> str:
    """A kernel's workload, in one line.

    Raises:
        Refused: its manifest has no workload.
    """
    try:
        return Workload.from_json(manifest["workload"]).describe()
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise Refused("the kernel's manifest has no workload; fetch it again") from error


def check_pack(pack: Pack, order: Json) -> None:
    """Checks that a pack is what was ordered: target, objective, shapes and sizes.

    Args:
        pack: with checked digests.
        order: the body of `POST /packs`.

    Raises:
        Refused: they differ, with the difference.
    """
    try:
        asked = _asked(order)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise Refused(f"this client does not know the pack's order of sums: {error}") from error
    about = pack.document["provenance"]
    for name in ("target", "l2", "min_gain", "regime"):
        if name in order:
            check_is("the pack", name, about.get(name), order[name])
    promised = any(entry.invariant_rows for entry in pack.entries)
    check_is("the pack", "batch_invariant", promised, bool(order.get("batch_invariant")))
    for section in shape_kinds():
        found, wanted = [one.shape for one in pack.section(section)], [one for one in asked if one.section == section]
        check_is("the pack", section, *(sorted(one.name for one in of) for of in (found, wanted)))
        if set(found) != set(wanted):  # a name shows only six digits of a number
            check_is("the pack", section, *([one.to_json() for one in of] for of in (found, wanted)))
    for entry in pack.entries:
        _check_sizes(entry, asked[entry.shape], about.get("rows"))
    _check_kernels(pack, order)


def _check_sizes(entry: Entry, asked: set[tuple[int, int]], rows: Any) -> None:
    """Checks that the tuned sizes are the requested ones. Packs of older services do not list their rows; for these,
    the last row of each kernel must be a requested one."""
    if not entry.shape.by_rows:
        found = sorted((rung.m_hi, rung.max_length) for rung in entry.rungs)
        check_is("the pack", f"sequences and contexts of {entry.shape}", found, sorted(asked))
        return
    wanted = sorted(m for m, _ in asked)
    if isinstance(rows, dict):
        check_is("the pack", f"rows of {entry.shape}", rows.get(entry.shape.name), wanted)
    elif strange := [rung.m_hi for rung in entry.rungs if rung.kernel and rung.m_hi not in wanted]:
        check_is("the pack", f"rows of {entry.shape}", strange, wanted)


def _check_kernels(pack: Pack, order: Json) -> None:
    """Checks that every kernel has the target and the objective: only their manifests contain these."""
    for kernel in (rung.kernel for entry in pack.entries for rung in entry.rungs):
        if kernel is None or "spec" not in kernel.manifest:
            continue
        if "target" in order:
            check_is("a kernel of the pack", "target", kernel.manifest["spec"].get("target_id"), order["target"])
        for name in ("l2", "regime"):
            if name in order:
                found = kernel.manifest["objective"].get(name)
                check_is("a kernel of the pack", f"objective.{name}", found, order[name])


def _asked(order: Json) -> dict[AnyShape, set[tuple[int, int]]]:
    """The requested sizes by shape: rows, or sequences, and the longest context."""
    found: dict[AnyShape, set[tuple[int, int]]] = {}
    for one in order["shapes"]:
        shape = Shape(**{name: value for name, value in one.items() if name != "rows"})
        found.setdefault(shape, set()).update((rows, 0) for rows in one["rows"])
    for pair in (pair for section in shape_kinds() if section != Shape.section for pair in order.get(section, ())):
        workload = workload_of(pair).to_json()
        found.setdefault(shape_of(workload), set()).add(sizes_of(workload))
    return found
