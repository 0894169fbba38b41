"""The tables of batches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from tuner.store.tables.models import Base


class BatchRow(Base):
    """Jobs that were submitted together."""

    __tablename__ = "batches"
    __table_args__ = (
        Index("ix_batches_digest", "digest", "seq"),
        Index("ix_batches_owner", "owner", "seq"),
    )

    #: Order of arrival.
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    #: Digest of all problems in the batch.
    digest: Mapped[str] = mapped_column(String(64))
    target_id: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(64))
    project: Mapped[str] = mapped_column(String(64))
    num_ladders: Mapped[int]
    created_at: Mapped[float]
    cancelled_at: Mapped[float | None]
    #: The client's key of the request, and the digest of its body.
    idempotency_key: Mapped[str | None] = mapped_column(String(255), unique=True)
    body_digest: Mapped[str] = mapped_column(String(64))


class BatchJobRow(Base):
    """A job of a batch. It may belong to another batch, or may have been submitted alone."""

    __tablename__ = "batch_jobs"
    __table_args__ = (Index("ix_batch_jobs_job", "job_seq"),)

    batch_seq: Mapped[int] = mapped_column(ForeignKey("batches.seq"), primary_key=True)
    job_seq: Mapped[int] = mapped_column(ForeignKey("jobs.seq"), primary_key=True)
    #: Index of its ladder within the batch.
    ladder: Mapped[int]
    #: Its position in the search order of the batch.
    position: Mapped[int]


class SingleRequestRow(Base):
    """A request for a single job; batches may contain the job, too."""

    __tablename__ = "single_requests"

    job_seq: Mapped[int] = mapped_column(ForeignKey("jobs.seq"), primary_key=True)
    #: Empty if the service had no tokens.
    owner: Mapped[str] = mapped_column(String(64), primary_key=True)


class BatchLadderRow(Base):
    """The result of a ladder."""

    __tablename__ = "batch_ladders"

    batch_seq: Mapped[int] = mapped_column(ForeignKey("batches.seq"), primary_key=True)
    ladder: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: Whether the ladder has a result; otherwise `reason` in the content says why not.
    has_rungs: Mapped[bool]
    created_at: Mapped[float]


class BatchKernelRow(Base):
    """An artifact that a ladder refers to, and that is therefore kept."""

    __tablename__ = "batch_kernels"

    batch_seq: Mapped[int] = mapped_column(ForeignKey("batches.seq"), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("artifacts.digest"), primary_key=True)
