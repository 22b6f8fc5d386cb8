"""The actors of the console and their rights: from the hook of a host, or by a token.

Stand-alone, a token is required to act and to listen at an address that other machines reach. The person pastes it into
a form once; a cookie then names the session, and its secret never leaves this process. A host that mounts the console
authenticates by itself, and its hook returns the actor.

Every page sets a session cookie. A form carries a token derived from it and from the name of the actor, so that a page
of another site can post nothing. Failed tokens are counted for each address: after ATTEMPTS in WINDOW seconds every
further one is refused until the window has passed, the right one too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

ATTEMPTS: Final = 5
WINDOW: Final = 60.0
LASTS: Final = 12 * 3_600.0
"""Seconds that a person stays signed in."""
SHORTEST: Final = 16
"""Fewest characters of a token."""
_MOST: Final = 1_000
"""Most sessions, and most addresses with failed attempts, that are remembered."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person who uses the console.

    Args:
        name: Recorded as the actor of each answer and request.
        may_operate: Whether they may answer questions, and cancel, pause and resume runs.
        may_read_content: Whether they may read messages, arguments and results.
    """

    name: str
    may_operate: bool = False
    may_read_content: bool = True


Hook: TypeAlias = Callable[[Request], "Actor | None"]
"""Returns the authenticated actor of a request; None refuses it."""


@dataclass(slots=True)
class AttemptLimiter:
    """Counts failed tokens of each address."""

    now: Callable[[], float] = time.monotonic
    _failed: dict[str, deque[float]] = field(default_factory=dict)

    def wait(self, address: str) -> float:
        """Return the seconds until another attempt is allowed; 0 if it is allowed now."""
        times = self._failed.get(address)
        if times is None or len(times) < ATTEMPTS:
            return 0.0
        return max(0.0, times[0] + WINDOW - self.now())

    def fail(self, address: str) -> None:
        """Count a failed attempt. Only the last ones count, and the addresses that failed last."""
        times = self._failed.pop(address, None) or deque(maxlen=ATTEMPTS)
        times.append(self.now())
        self._failed[address] = times
        if len(self._failed) > _MOST:
            del self._failed[next(iter(self._failed))]


@dataclass(slots=True)
class Access:
    """Decides about each request.

    Args:
        local: The actor of a stand-alone console.
        hook: Of the host; it replaces `local` and `token`.
        token: Required to sign in; None if no sign-in is needed.
    """

    local: Actor
    hook: Hook | None = None
    token: str | None = None
    limiter: AttemptLimiter = field(default_factory=AttemptLimiter)
    now: Callable[[], float] = time.monotonic
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _signed_in: dict[str, float] = field(default_factory=dict)
    """Session -> its end."""

    def actor(self, request: Request) -> Actor | None:
        """Return the actor of a request; None if they must sign in, or the host refuses them."""
        if self.hook is not None:
            return self.hook(request)
        if self.token is None or self._signed_in.get(session_of(request), 0.0) > self.now():
            return self.local
        return None

    def sign_in(self, given: str, address: str) -> str | None:
        """Return a new session if the token is right, else None. A failed attempt is counted."""
        right = self.token is not None and hmac.compare_digest(given.strip().encode(), self.token.encode())
        if not right or self.limiter.wait(address):
            self.limiter.fail(address)
            return None
        session = secrets.token_urlsafe(32)
        self._signed_in[session] = self.now() + LASTS
        if len(self._signed_in) > _MOST:
            del self._signed_in[next(iter(self._signed_in))]
        return session

    def sign_out(self, session: str) -> None:
        """End a session."""
        self._signed_in.pop(session, None)

    def form_token(self, session: str, actor: Actor | None) -> str:
        """Return the token that each form of a session carries."""
        name = "" if actor is None else actor.name
        return hmac.new(self._secret, f"{session}\n{name}".encode(), hashlib.sha256).hexdigest()

    def is_form_of(self, request: Request, actor: Actor | None, given: str) -> bool:
        """Return whether a form was sent by a page of this session."""
        session = session_of(request)
        return bool(session) and hmac.compare_digest(given.encode(), self.form_token(session, actor).encode())


def cookie_name(request: Request) -> str:
    """Return the name of the session cookie. Consoles on other ports of the machine have others."""
    port = request.url.port
    return f"orchestrator_console_{port}" if port else "orchestrator_console"


def session_of(request: Request) -> str:
    """Return the session of a request, or ""."""
    given = str(getattr(request.state, "session", "") or request.cookies.get(cookie_name(request), ""))
    return given if len(given) <= 100 else ""  # noqa: PLR2004 - ours have 43 characters


def with_session(request: Request, response: Response, session: str) -> Response:
    """Set the cookie of a session."""
    response.set_cookie(
        cookie_name(request),
        session,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response
