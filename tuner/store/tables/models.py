"""The tables. Domain values are read and written by the query modules, one per aggregate."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from tuner.core.trial.job import JobState

#: States of open jobs, as SQL for the partial index below.
_IS_OPEN = text("state in ({})".format(", ".join(f"'{state}'" for state in JobState if not state.is_final)))
_IS_DELETED, _IS_DUE = text("deleted_at is not null"), text("due_at is not null")


class Base(DeclarativeBase):
    """The base class of the models."""

    type_annotation_map = {float: Double, str: String, int: Integer, bool: Boolean, bytes: LargeBinary, dict: JSON}  # noqa: RUF012


def table_of(model: type[Base]) -> Table:
    """A model's table, for statements that create no objects."""
    table = model.__table__
    assert isinstance(table, Table)
    return table


class JobRow(Base):
    """One job: the request, its state, and running totals of its trials."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_one_open_per_problem", "problem_digest", unique=True, sqlite_where=_IS_OPEN,
              postgresql_where=_IS_OPEN),
        Index("ix_jobs_problem", "problem_digest", "state"),
        Index("ix_jobs_target", "target_id", "state"),
        Index("ix_jobs_project", "project", "seq"),
        Index("ix_jobs_deleted", "seq", sqlite_where=_IS_DELETED, postgresql_where=_IS_DELETED),
        Index("ix_jobs_finished", "finished_at"),
    )  # fmt: skip

    #: Order of arrival.
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    problem_digest: Mapped[str] = mapped_column(String(64))
    target_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    num_measured: Mapped[int] = mapped_column(default=0)
    num_rejected: Mapped[int] = mapped_column(default=0)
    num_failed: Mapped[int] = mapped_column(default=0)
    #: Time of our fastest candidate so far, by speed-up; for a succeeded job, its time in the finals.
    best_us: Mapped[float | None]
    library_us: Mapped[float | None]
    #: Speed-up of our fastest candidate: the median over its rounds.
    best_speedup: Mapped[float | None]
    search_s: Mapped[float] = mapped_column(default=0.0)
    #: Seconds for which the card was busy with its trials; null in jobs of older versions.
    card_s: Mapped[float | None]
    #: Seconds that its finals took; null before their end, and in jobs of older versions.
    finals_s: Mapped[float | None]
    #: Trials recorded since the last progress.
    since_progress: Mapped[int] = mapped_column(default=0, server_default="0")
    #: Size of all stored samples of its trials.
    samples_bytes: Mapped[int] = mapped_column(default=0, server_default="0")
    #: The priors of its search; null before it has started. Not loaded with the row, since listings read many rows.
    priors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    #: A higher number comes first.
    priority: Mapped[int] = mapped_column(default=0, server_default="0")
    project: Mapped[str] = mapped_column(String(64), default="", server_default="")
    #: When its search must end; null for no deadline.
    deadline_at: Mapped[float | None]
    is_paused: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    #: When it was deleted (its rows are then being removed); null for a job that is kept.
    deleted_at: Mapped[float | None]
    #: Kinds of its ops, without duplicates, separated by spaces; empty if all ops are products.
    op_kinds: Mapped[str] = mapped_column(Text, default="", server_default="")
    #: The batch that made it, and its progress with its ladder; null if it was submitted alone.
    batch_id: Mapped[str | None] = mapped_column(String(32))
    batch_step: Mapped[int | None]
    labels: Mapped[list[JobLabelRow]] = relationship(
        lazy="selectin", order_by="JobLabelRow.label", cascade="all, delete-orphan"
    )
    #: Who submitted it, in order.
    owners: Mapped[list[JobOwnerRow]] = relationship(
        lazy="selectin", order_by="JobOwnerRow.since, JobOwnerRow.owner", cascade="all, delete-orphan"
    )


class TrialRow(Base):
    """One candidate and its outcome; written once."""

    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_outcome", "job_id", "outcome", "number", "plan_kind", "failure_kind"),
        Index("ix_trials_time", "job_id", "time_us", "number"),
        Index("ix_trials_speedup", "job_id", "speedup", "number"),
        Index("ix_trials_kind", "job_id", "plan_kind", "time_us", "speedup", "number"),
        Index("ix_trials_prior", "job_id", "prior", sqlite_where=text("prior is not null"),
              postgresql_where=text("prior is not null")),
    )  # fmt: skip

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    plan_kind: Mapped[str] = mapped_column(String(32))
    schedule: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    #: measured, rejected or failed.
    outcome: Mapped[str] = mapped_column(String(16))
    #: The stage where it failed; null for measured.
    stage: Mapped[str | None] = mapped_column(String(16))
    failure_kind: Mapped[str | None] = mapped_column(String(32))
    #: Why it failed; for a measured trial, what limits the quality of its figures.
    reason: Mapped[str | None] = mapped_column(Text)
    time_us: Mapped[float | None]
    library_us: Mapped[float | None]
    speedup: Mapped[float | None]
    spread: Mapped[float | None]
    rel_error: Mapped[float | None]
    #: The rounds, packed; null once `gc` has dropped them.
    samples: Mapped[bytes | None] = mapped_column(LargeBinary)
    metrics: Mapped[list[list[Any]] | None] = mapped_column(JSON(none_as_null=True))
    stage_s: Mapped[dict[str, Any]] = mapped_column(JSON)
    started_at: Mapped[float]
    finished_at: Mapped[float]
    #: How the time was measured; null if it was not, and in rows of older versions.
    procedure: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    #: Whether its rounds ended early; null as for `procedure`.
    truncated: Mapped[bool | None]
    #: The number of trials that the search knew when it chose the candidate.
    num_known: Mapped[int]
    #: Index of the prior that it tried; null if it was not a prior.
    prior: Mapped[int | None]


class EventRow(Base):
    """One event of a job."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_job", "job_id", "id"),
        Index("ix_events_best", "job_id", "id", sqlite_where=text("kind = 'best'"),
              postgresql_where=text("kind = 'best'")),
        {"sqlite_autoincrement": True},
    )  # fmt: skip

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    kind: Mapped[str] = mapped_column(String(16))
    at: Mapped[float]
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


class ArtifactRow(Base):
    """A file under the data directory, named by its content."""

    __tablename__ = "artifacts"

    #: sha256, hex.
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    size_bytes: Mapped[int]
    created_at: Mapped[float]


class PackRow(Base):
    """A pack; never deleted, since lock files refer to it."""

    __tablename__ = "packs"

    digest: Mapped[str] = mapped_column(ForeignKey("artifacts.digest"), primary_key=True)
    order: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float]


class ImportedWinnerRow(Base):
    """One of the best candidates of an external search, used only as a prior of later jobs."""

    __tablename__ = "imported_winners"
    __table_args__ = (Index("ix_imported_winners_target", "target_id", "seq"),)

    seq: Mapped[int] = mapped_column(primary_key=True)
    #: sha256 of the target and the candidate with its figures, so that a repeated import is stored once.
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    target_id: Mapped[str] = mapped_column(String(64))
    found: Mapped[dict[str, Any]] = mapped_column(JSON)
    owner: Mapped[str] = mapped_column(String(64))
    imported_at: Mapped[float]


class BestRow(Base):
    """The result of a job."""

    __tablename__ = "bests"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(32))
    winner: Mapped[str] = mapped_column(String(32))
    artifact_digest: Mapped[str | None] = mapped_column(ForeignKey("artifacts.digest"))
    tie_band: Mapped[float]
    reference_us: Mapped[float]
    finals: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: How the finals were held, and the times of the policies; null in rows of older versions.
    procedure: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    policies: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    #: How the library was called; null if it is simulated, and in rows of older versions.
    library: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    #: PyTorch's time; null if it was not requested.
    torch: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    #: Times of a user's own programs; null if there are none.
    baselines: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))


class ResultKeyRow(Base):
    """The search keys of a result. The row is narrow, so that ten thousand can be scanned in milliseconds."""

    __tablename__ = "result_keys"
    __table_args__ = (
        Index("ix_result_keys_exact", "workload_digest", "target_id", "objective", "sure_speedup", "num_trials", "seq"),
        Index("ix_result_keys_form", "form_digest", "is_simulated", "target_id", "sizes"),
    )  # fmt: skip

    #: The job's number, in order of arrival.
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(String(32), ForeignKey("jobs.id"), unique=True)
    #: Digest of the workload without its sizes.
    form_digest: Mapped[str] = mapped_column(String(16))
    workload_digest: Mapped[str] = mapped_column(String(16))
    target_id: Mapped[str] = mapped_column(String(64))
    is_simulated: Mapped[bool]
    #: The objective: the L2 state and the regime.
    objective: Mapped[str] = mapped_column(String(32))
    #: The winner's minimum gain over the library, and the budget's trials; they decide between equally good results.
    sure_speedup: Mapped[float]
    num_trials: Mapped[int]
    #: The part of the environment that is compared with the machine that will run the kernel.
    gpu_name: Mapped[str] = mapped_column(String(100))
    driver: Mapped[str] = mapped_column(String(40))
    cuda: Mapped[str] = mapped_column(String(40))
    kernel_version: Mapped[str] = mapped_column(String(40))
    #: For finding near shapes: log2 of the sizes, as a JSON list.
    sizes: Mapped[str] = mapped_column(Text)


class IdempotencyKeyRow(Base):
    """A client's name for one of its requests."""

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    #: Digest of the request's body; the same key with a different body is refused.
    body_digest: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[float]


class JobOwnerRow(Base):
    """An owner of a job; several may share its run."""

    __tablename__ = "job_owners"
    __table_args__ = (Index("ix_job_owners_owner", "owner", "job_seq"),)

    #: The job's order of arrival.
    job_seq: Mapped[int] = mapped_column(ForeignKey("jobs.seq"), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), primary_key=True)
    since: Mapped[float]


class JobLabelRow(Base):
    """A label for finding a job."""

    __tablename__ = "job_labels"
    __table_args__ = (Index("ix_job_labels_label", "label", "job_seq"),)

    job_seq: Mapped[int] = mapped_column(ForeignKey("jobs.seq"), primary_key=True)
    label: Mapped[str] = mapped_column(String(64), primary_key=True)
    #: Who added it first, since the limit on labels is per owner.
    owner: Mapped[str] = mapped_column(String(64), default="", server_default="")


class ServedTargetRow(Base):
    """A target of the server that runs the jobs."""

    __tablename__ = "served_targets"

    #: The first is the default.
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    target_id: Mapped[str] = mapped_column(String(64))


class DeletedJobRow(Base):
    """A record of a deleted job."""

    __tablename__ = "deleted_jobs"

    job_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    deleted_at: Mapped[float]
    #: Who or which rule deleted it.
    reason: Mapped[str] = mapped_column(String(255))


class WebhookRow(Base):
    """An address that is notified when a job has ended."""

    __tablename__ = "webhooks"
    __table_args__ = (
        Index("ix_webhooks_job", "job_id", "owner", "url", unique=True),
        Index("ix_webhooks_due", "due_at", sqlite_where=_IS_DUE, postgresql_where=_IS_DUE),
        {"sqlite_autoincrement": True},
    )  # fmt: skip

    #: Order of the requests, and part of the delivery's name.
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(String(32), ForeignKey("jobs.id"))
    #: Who requested it; empty if the service had no tokens.
    owner: Mapped[str] = mapped_column(String(64))
    url: Mapped[str] = mapped_column(String(500))
    #: With its port, as in the URL; a host that does not respond must not delay others.
    host: Mapped[str] = mapped_column(String(500))
    #: waiting, due, delivered or failed.
    state: Mapped[str] = mapped_column(String(16))
    num_attempts: Mapped[int] = mapped_column(default=0)
    #: When it is sent next; null if it is not due.
    due_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    #: Why the last attempt failed.
    reason: Mapped[str] = mapped_column(String(255), default="")


class InspectionRow(Base):
    """An inspection of a trial: energy, counters or a trace, requested and then performed."""

    __tablename__ = "inspections"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "trial_number"], ["trials.job_id", "trials.number"]),
        Index("ix_inspections_trial", "job_id", "trial_number", "kind"),
        Index("ix_inspections_state", "state"),
    )

    #: The order of the requests.
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    trial_number: Mapped[int]
    #: energy, counters or trace.
    kind: Mapped[str] = mapped_column(String(16))
    #: Counters by name; null for the base set, and for the other kinds.
    metrics: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    state: Mapped[str] = mapped_column(String(16))
    #: Whether a client requested it, so that it is performed between two trials; otherwise when the GPU is idle.
    is_urgent: Mapped[bool]
    num_attempts: Mapped[int] = mapped_column(default=0)
    reason: Mapped[str] = mapped_column(Text, default="")
    #: Field, problem and remedy.
    refusal: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    #: [name, unit, value] of the figures that tables show.
    figures: Mapped[list[list[Any]] | None] = mapped_column(JSON(none_as_null=True))
    #: JSON compressed with zlib; not loaded with the row, since traces are large.
    result: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    result_bytes: Mapped[int] = mapped_column(default=0, server_default="0")
    asked_at: Mapped[float]
    finished_at: Mapped[float | None]
