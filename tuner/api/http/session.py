"""Sessions of the dashboard: a signed cookie that names a token, and what protects its forms."""

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
#: Where a request's scope has who sends it, and his session.
CALLER = "tuner.caller"
SESSION = "tuner.session"
#: The header by which a page's script proves that it is ours; forms have a field `csrf` for it.
CSRF_HEADER = "X-CSRF-Token"


@dataclass(frozen=True, kw_only=True)
class Session:
    """What a browser is signed in as."""

    #: Empty where a proxy says who it is.
    token_id: str
    #: Token of this session alone against cross-site requests; only its pages know it.
    csrf: str

    def is_ours(self, csrf: str | None) -> bool:
        """Whether a request that carries `csrf` was sent by a page of this session."""
        return hmac.compare_digest((csrf or "").encode(), self.csrf.encode())


def session_of(connection: HTTPConnection) -> Session | None:
    """The session that a request was let in by; None where it was a token's, or needed none."""
    session: Session | None = connection.scope.get(SESSION)
    return session


def _cookie_path() -> str:
    """Other services of the same site are not sent the cookie."""
    return root_path() or "/"


def _signer(key: bytes) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(key, salt="tuner.session")


def read_session(connection: HTTPConnection, key: bytes) -> Session | None:
    """The session that a request's cookie names; None where there is none, or it is forged or too old."""
    cookie = connection.cookies.get(COOKIE)
    if not cookie:
        return None
    try:
        token_id, csrf = _signer(key).loads(cookie, max_age=SESSION_S)
    except (BadSignature, ValueError, TypeError):
        return None
    return Session(token_id=token_id, csrf=csrf)


def begin_session(response: Response, connection: HTTPConnection, token: Token, key: bytes) -> None:
    """Has the browser keep a session; scripts cannot read it, and other sites' forms do not send it."""
    value = _signer(key).dumps([token.id, secrets.token_urlsafe(16)])
    is_secure = connection.url.scheme == "https"
    response.set_cookie(
        COOKIE, str(value), SESSION_S, httponly=True, samesite="lax", secure=is_secure, path=_cookie_path()
    )


def end_session(response: Response) -> None:
    """Has the browser forget its session."""
    response.delete_cookie(COOKIE, path=_cookie_path(), httponly=True, samesite="lax")
