"""Sessions of the dashboard: a signed cookie that identifies a token, and the protection of forms."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import HTTPConnection
from starlette.responses import Response

from tuner.core.access.caller import SESSION_S, Token
from tuner.wire.base.root_path import root_path

COOKIE = "tuner_session"
#: The keys under which a request's scope holds its sender and session.
CALLER = "tuner.caller"
SESSION = "tuner.session"
#: The header with which a page's script proves its origin; forms use the field `csrf` instead.
CSRF_HEADER = "X-CSRF-Token"


@dataclass(frozen=True, kw_only=True)
class Session:
    """A browser's login."""

    #: Empty if a proxy identifies the user.
    token_id: str
    #: The session's token against cross-site requests, known only to its pages.
    csrf: str

    def is_ours(self, csrf: str | None) -> bool:
        """Whether a request with `csrf` was sent by a page of this session."""
        return hmac.compare_digest((csrf or "").encode(), self.csrf.encode())


def session_of(connection: HTTPConnection) -> Session | None:
    """The session that authenticated a request; None if a token did, or none was required."""
    session: Session | None = connection.scope.get(SESSION)
    return session


def _cookie_path() -> str:
    """The path that the cookie is limited to: this service's."""
    return root_path() or "/"


def _signer(key: bytes) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(key, salt="tuner.session")


def read_session(connection: HTTPConnection, key: bytes) -> Session | None:
    """The session in a request's cookie; None if it is missing, forged or too old."""
    cookie = connection.cookies.get(COOKIE)
    if not cookie:
        return None
    try:
        token_id, csrf = _signer(key).loads(cookie, max_age=SESSION_S)
    except (BadSignature, ValueError, TypeError):
        return None
    return Session(token_id=token_id, csrf=csrf)


def begin_session(response: Response, connection: HTTPConnection, token: Token, key: bytes) -> None:
    """Sets the session cookie; scripts cannot read it, and other sites' forms do not send it."""
    value = _signer(key).dumps([token.id, secrets.token_urlsafe(16)])
    is_secure = connection.url.scheme == "https"
    response.set_cookie(
        COOKIE, str(value), SESSION_S, httponly=True, samesite="lax", secure=is_secure, path=_cookie_path()
    )


def end_session(response: Response) -> None:
    """Deletes the session cookie."""
    response.delete_cookie(COOKIE, path=_cookie_path(), httponly=True, samesite="lax")
