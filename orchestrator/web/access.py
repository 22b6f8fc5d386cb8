"""Tokens, and the people behind them, for every HTTP surface.

A right token always passes. Wrong ones are counted for each address, and after ATTEMPTS in WINDOW seconds the next
wrong ones of that address get 429. The count decides nothing about the right token: behind a proxy all clients have one
address, and with a lockout one client could keep out all others by a wrong token every few seconds. A lockout would
protect nothing, because a token of SHORTEST random characters is not found by trying.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError
from orchestrator.web.limits import App, Receive, Scope, Send, header_of, send_sentence

ATTEMPTS: Final = 5
WINDOW: Final = 60.0
SHORTEST: Final = 16
"""Fewest characters of a token."""
OPERATOR: Final = "operator"
"""The person whose token has no name."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
"""Names of this machine."""
_MOST: Final = 1_000
"""Most addresses with wrong tokens that are remembered."""
_LOG: Final = logging.getLogger("orchestrator.web")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host, given by its address or as `localhost`."""
    return host.lower() == "localhost" or is_loopback_address(host.strip("[]"))


def is_loopback_address(text: str) -> bool:
    """Return whether a text is an address of this machine only."""
    with suppress(ValueError):
        address = ipaddress.ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback
    return False


def checked_token(token: str, source: str = "the token") -> str:
    """Return a token. Raises ConfigError if it is too short to be secret."""
    if len(token) < SHORTEST:
        raise ConfigError(
            f"{source} has {len(token)} characters; it must have at least {SHORTEST}, for example of "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
        )
    return token


def checked_proxies(proxies: Sequence[str]) -> list[str]:
    """Return the addresses and networks of trusted proxies. Raises ConfigError if one is neither."""
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise ConfigError(
                f"trusted proxy {proxy!r}: {error}; give the address of the proxy or its network, for example "
                "127.0.0.1 or 10.0.0.0/8"
            ) from error
    return list(proxies)


def is_known_host(header: str, hosts: Collection[str]) -> bool:
    """Return whether a header `Host` names one of the hosts, or an address.

    A page that another site redirects here by DNS sends the name of that site. An address cannot be redirected.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name in hosts


class HostGuard:
    """ASGI middleware that answers to known names of this host only.

    Args:
        app: The application.
        hosts: Returns the names, without ports; `*` allows every name.
        option: How a person adds a name.
    """

    def __init__(self, app: App, hosts: Callable[[], Collection[str]], option: str) -> None:
        self._app = app
        self._hosts = hosts
        self._option = option

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        hosts = self._hosts()
        if scope["type"] != "http" or "*" in hosts or is_known_host(header_of(scope, b"host") or "", hosts):
            await self._app(scope, receive, send)
            return
        await send_sentence(
            send, 400, f"this server does not answer to this host name; name it with {self._option}"
        )


def parse_tokens(text: str, source: str) -> dict[str, str]:
    """Return person -> token of a text like `ann:TOKEN,bob:TOKEN`; a token alone is that of `operator`.

    Raises:
        ConfigError: A token is too short, or a person has two.
    """
    tokens: dict[str, str] = {}
    for entry in text.split(","):
        name, mark, token = entry.strip().rpartition(":")
        name = name.strip() if mark else OPERATOR
        if not name or name in tokens:
            raise ConfigError(
                f"{source} has {'two tokens' if name else 'a token'} for {name!r}; the form is NAME:TOKEN,…"
            )
        tokens[name] = checked_token(token.strip(), source)
    return tokens


@dataclass(slots=True)
class AttemptLimiter:
    """Counts wrong tokens, in all and for each address."""

    now: Callable[[], float] = time.monotonic
    wrong: int = 0
    """Wrong tokens since the start."""
    _times: dict[str, deque[float]] = field(default_factory=dict)

    def fail(self, address: str) -> float:
        """Count a wrong token.

        Returns:
            Seconds until a wrong token is checked again; 0 below the limit.
        """
        self.wrong += 1
        now = self.now()
        times = self._times.pop(address, None) or deque(maxlen=ATTEMPTS + 1)
        times.append(now)
        self._times[address] = times  # the addresses that failed last are at the end
        if len(self._times) > _MOST:
            del self._times[next(iter(self._times))]
        return max(0.0, times[0] + WINDOW - now) if len(times) > ATTEMPTS else 0.0


class Bearers:
    """The people whose requests have a token, as `Authorization: Bearer TOKEN`.

    Args:
        tokens: Name of a person -> their token.

    Raises:
        ConfigError: A token is too short.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._digests = {name: _digest(checked_token(token).encode()) for name, token in tokens.items()}

    def actor(self, scope: Scope) -> str | None:
        """Return who sends a request, or None. Each token is compared, in constant time."""
        scheme, _, shown = (header_of(scope, b"authorization") or "").partition(" ")
        digest, found = _digest(shown.strip().encode()), None
        for name, expected in self._digests.items():
            if hmac.compare_digest(digest, expected):
                found = name
        return found if scheme.lower() == "bearer" else None


class Authentication:
    """ASGI middleware that passes on requests of known people only, with their name in `scope["state"]["actor"]`.

    Args:
        app: The application.
        actor: Returns the name of the person who sends a request; None refuses it.
        public: Paths that need no name.
    """

    def __init__(self, app: App, actor: Callable[[Scope], str | None], public: Collection[str] = ()) -> None:
        self._app = app
        self._actor = actor
        self._public = frozenset(public)
        self.limiter = AttemptLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http" or (
            str(scope["path"]).removeprefix(scope.get("root_path", "")) in self._public
        ):
            await self._app(scope, receive, send)
        elif (actor := self._actor(scope)) is not None:
            scope.setdefault("state", {})["actor"] = actor
            await self._app(scope, receive, send)
        else:
            client = scope.get("client")
            address = str(client[0]) if client else ""
            shown = bool(header_of(scope, b"authorization"))
            wait = self.limiter.fail(address) if shown else 0.0
            if wait:
                status, text = (
                    429,
                    "too many wrong tokens came from this address; the right one is accepted at any time",
                )
                more = [(b"retry-after", f"{wait:.0f}".encode())]
            else:
                status, text = 401, "give a token, as `Authorization: Bearer TOKEN`"
                more = [(b"www-authenticate", b"Bearer")]
                if shown:
                    _LOG.warning(
                        "a wrong token was refused, address %s, %d in all", address, self.limiter.wrong
                    )
            body = json.dumps({"error": text}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),  # the body of the request is not read
                *more,
            ]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})


def _digest(token: bytes) -> bytes:
    """Return a text of the same length for each token, so that the comparison does not disclose the length."""
    return hashlib.sha256(token).digest()
