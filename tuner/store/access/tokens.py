"""Tokens: created, found by the digest of their secret, and revoked. The secret itself is never stored."""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.core.access.caller import Role, Token
from tuner.core.access.names import is_name
from tuner.errors import InvalidInput, NotFound
from tuner.store.tables.access_models import TokenRow

#: The prefix of every secret, by which secret scanners find published ones.
SECRET_PREFIX = "tuner_"
_SECRET_BYTES = 32


def digest_of(secret: str) -> str:
    """SHA-256, hex. A slow hash is unnecessary for a secret of 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _to_token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        owner=row.owner,
        role=Role(row.role),
        note=row.note,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


def create(
    session: Session, owner: str, role: Role, now: float, *, note: str = "", expires_at: float | None = None
) -> tuple[Token, str]:
    """A new token and its secret, which cannot be read again.

    Raises:
        InvalidInput: the owner or the note is too long, or the owner is not a plain name.
    """
    if not is_name(owner):
        raise InvalidInput(
            "owner", f"{owner[:80]!r} is not a valid name", ("use 1 to 64 printable characters, e.g. `alice`")
        )
    if len(note) > 255:
        raise InvalidInput("note", f"has {len(note)} characters", "use at most 255")
    secret = SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = TokenRow(
        id=f"tok-{secrets.token_hex(6)}",
        digest=digest_of(secret),
        owner=owner,
        role=str(role),
        note=note,
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
    )
    session.add(row)
    session.flush()
    return _to_token(row), secret


def find(session: Session, secret: str) -> Token | None:
    """The token that has a secret, even if it is revoked or expired."""
    row = session.scalar(select(TokenRow).where(TokenRow.digest == digest_of(secret)))
    return _to_token(row) if row else None


def get(session: Session, token_id: str) -> Token | None:
    """A token by its id."""
    row = session.scalar(select(TokenRow).where(TokenRow.id == token_id))
    return _to_token(row) if row else None


def every(session: Session) -> list[Token]:
    """All tokens ever created, oldest first."""
    return [_to_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.seq))]


def has_any(session: Session) -> bool:
    """Whether a token was ever created. From then on one is required, even if all are revoked or expired."""
    return session.scalar(select(TokenRow.seq).limit(1)) is not None


def revoke(session: Session, token_id: str, now: float) -> Token:
    """Revokes a token; an already revoked one stays unchanged.

    Raises:
        NotFound: no such token.
    """
    row = session.scalar(select(TokenRow).where(TokenRow.id == token_id))
    if row is None:
        raise NotFound(f"there is no token {token_id[:80]!r}; `tuner token list` lists all tokens")
    if row.revoked_at is None:
        row.revoked_at = now
    return _to_token(row)
