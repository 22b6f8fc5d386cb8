"""The actors of the console and their rights: from the hook of a host, by a token, or by a one-time code.

Without one of them nothing is read: pages show arguments and messages of runs, and other users of this machine reach
its ports, while the journal is a file that only its owner reads. `orchestrator console` prints an address with a
code that signs in one browser, once, within CODE_SECONDS. A service gets a token, which signs in any number of people.
A cookie then names the session, and its secret never leaves this process. A host that mounts the console does the
authentication, and its hook returns the actor.

Every page sets a session cookie. A form carries a token derived from it and from the name of the actor, so that a page
of another site can post nothing. Wrong tokens are counted, and never lock out the holder of the right one
(`orchestrator.web.access`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.web.access import AttemptLimiter

LASTS: Final = 12 * 3_600.0
"""Seconds that a person stays signed in."""
CODE_SECONDS: Final = 300.0
"""Seconds in which a one-time code signs in."""
_MOST: Final = 1_000
"""Most sessions that are remembered."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person who uses the console.

    Args:
        name: Recorded as the actor of each answer and request.
        may_operate: Whether they may answer questions, start runs, and cancel, pause and resume them.
        may_read_content: Whether they may read messages, arguments and results.
        tenant: The tenant of the runs that they start. They run only runs of this tenant again, and fork only those;
            empty for any. It hides no run: give each tenant a journal for that.
    """

    name: str
    may_operate: bool = False
    may_read_content: bool = True
    tenant: str = ""


Hook: TypeAlias = Callable[[Request], "Actor | None"]
"""Returns the authenticated actor of a request; None refuses it."""


@dataclass(slots=True)
class SignInCode:
    """A secret that signs in one browser, once, within CODE_SECONDS."""

    now: Callable[[], float] = time.monotonic
    value: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _ends: float = field(init=False)

    def __post_init__(self) -> None:
        self._ends = self.now() + CODE_SECONDS

    def matches(self, text: str) -> bool:
        """Return whether a text is the code, valid or not."""
        return hmac.compare_digest(text.encode(), self.value.encode())

    def redeem(self) -> bool:
        """Use the code; return whether it was valid."""
        valid = self.now() < self._ends
        self._ends = 0.0
        return valid


class SignInRefused(Exception):
    """A sign-in with a wrong token, or with a code that signs in no more.

    Args:
        status: The status of the answer.
        text: The problem and the next step.
        wait: Seconds after which another wrong token gets the answer to a wrong token again.
    """

    def __init__(self, status: int, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.wait = wait


@dataclass(slots=True)
class Access:
    """Decides about each request.

    Args:
        local: The actor of a stand-alone console.
        hook: Of the host; it replaces the others.
        token: Signs in any number of people.
        code: Signs in one browser, once.
    """

    local: Actor
    hook: Hook | None = None
    token: str | None = None
    code: SignInCode | None = None
    limiter: AttemptLimiter = field(default_factory=AttemptLimiter)
    now: Callable[[], float] = time.monotonic
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _signed_in: dict[str, float] = field(default_factory=dict)
    """Session -> its end."""

    def actor(self, request: Request) -> Actor | None:
        """Return the actor of a request; None if they must sign in, or the host refuses them."""
        if self.hook is not None:
            return self.hook(request)
        return self.local if self._signed_in.get(session_of(request), 0.0) > self.now() else None

    def sign_in(self, shown: str, address: str) -> str:
        """Return a new session for a token or a code.

        Raises:
            SignInRefused: Neither is right. A wrong token was counted; the right one is accepted at any time.
        """
        shown = shown.strip()
        by_token = self.token is not None and hmac.compare_digest(shown.encode(), self.token.encode())
        if not by_token:
            if self.code is None or not self.code.matches(shown):
                wait = self.limiter.fail(address)
                if wait:
                    raise SignInRefused(429, "Too many wrong tokens came from this address.", wait)
                raise SignInRefused(403, "This is not the token.")
            if not self.code.redeem():
                raise SignInRefused(
                    403,
                    "This address was used, or is older than 5 minutes. Stop the console and start it again: it "
                    "prints another one.",
                )
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
