"""The tables of authorization: tokens, quotas, sessions that were ended, the audit log."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from tuner.store.tables.models import Base


class TokenRow(Base):
    """A bearer token, without its secret."""

    __tablename__ = "tokens"

    #: Order of making.
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    #: SHA-256 of the secret, hex.
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    owner: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(16))
    note: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class QuotaRow(Base):
    """The most that an owner or a project may have."""

    __tablename__ = "quotas"

    #: ``owner`` or ``project``.
    scope: Mapped[str] = mapped_column(String(16), primary_key=True)
    #: Whose; ``*`` for each that has none of its own.
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    open_jobs: Mapped[int | None]
    card_hours_per_day: Mapped[float | None]


class EndedSessionRow(Base):
    """A session of the dashboard that somebody ended; of the others their cookies tell."""

    __tablename__ = "ended_sessions"

    #: SHA-256 of its random word, hex.
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    ended_at: Mapped[float]


class AuditRow(Base):
    """Who changed what, and when; written with the change, and never again."""

    __tablename__ = "audit"
    __table_args__ = ({"sqlite_autoincrement": True},)

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    owner: Mapped[str] = mapped_column(String(64))
    token_id: Mapped[str] = mapped_column(String(32))
    address: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(64))
