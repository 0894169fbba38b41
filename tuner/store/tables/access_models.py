"""The tables of authorization: tokens, quotas, ended sessions, the audit log."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from tuner.store.tables.models import Base


class TokenRow(Base):
    """A bearer token, without its secret."""

    __tablename__ = "tokens"

    #: The order in which tokens were created.
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
    """The limits of an owner or a project."""

    __tablename__ = "quotas"

    #: ``owner`` or ``project``.
    scope: Mapped[str] = mapped_column(String(16), primary_key=True)
    #: The owner's or the project's name; ``*`` stands for all that have no quota of their own.
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    open_jobs: Mapped[int | None]
    card_hours_per_day: Mapped[float | None]


class EndedSessionRow(Base):
    """An ended session of the dashboard; open ones need no row, only their cookie."""

    __tablename__ = "ended_sessions"

    #: SHA-256 of the session's random word, hex.
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    ended_at: Mapped[float]


class AuditRow(Base):
    """Who changed what, and when; written with the change, and never modified."""

    __tablename__ = "audit"
    __table_args__ = ({"sqlite_autoincrement": True},)

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    owner: Mapped[str] = mapped_column(String(64))
    token_id: Mapped[str] = mapped_column(String(32))
    address: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(64))
