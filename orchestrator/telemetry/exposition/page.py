"""The pages, without a transport: a request in, an answer out. A call may block, so use a thread."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError
from orchestrator.telemetry.exposition import debug
from orchestrator.telemetry.exposition.debug import LiveSource
from orchestrator.telemetry.exposition.health import Check, HealthCheck, Heartbeat
from orchestrator.telemetry.exposition.render import rendered
from orchestrator.web.access import is_loopback_address
from orchestrator.web.limits import framing_fault

_PATIENCE = 10.0
"""Seconds that a scrape waits for the one before it. Scrapes run one at a time: concurrent ones slow each other down,
and a collector that hangs must not take a thread for each scrape."""

_PASSED_ON = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of proxies: with one of them the address is the proxy's and does not identify the client."""

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request. `headers` by lower-case name; `client` is the address of the client, or empty."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    client: str = ""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that received the request, if any."""


class PageAnswer(NamedTuple):
    """The answer to a request. It has a body also for HEAD; the transport omits it."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Pages:
    """The pages, shared by all servers.

    Args:
        registry: Registry of the metrics; None is the default one.
        token: Token that bearers need for the metrics, and that opens the debug pages to other hosts.
        live: Returns the live runs.
        heartbeat: Returns the seconds since the event loop last moved.
        ready: Checks of readiness by name.
        loop: Event loop whose tasks /debug/stacks shows.

    Raises:
        ConfigError: The token is empty.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        token: str | None = None,
        live: LiveSource | None = None,
        heartbeat: Heartbeat | None = None,
        ready: Mapping[str, Check] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if token is not None and not token.strip():
            raise ConfigError("the token is empty: give one that cannot be guessed, or None for no token")
        self._registry = registry
        self._token = None if token is None else token.encode()
        self._live = live
        self._health = HealthCheck(heartbeat, ready)
        self._loop = loop
        self._now = now
        self._rendering = threading.Lock()
        self._pages: dict[
            str, tuple[Callable[[PageRequest], HTTPStatus | None], Callable[[PageRequest], PageAnswer]]
        ] = {
            "": (self._scraper, self._metrics),
            "/metrics": (self._scraper, self._metrics),
            "/healthz": (_anybody, self._alive),
            "/readyz": (_anybody, self._ready),
            "/debug/runs": (self._operator, self._runs),
            "/debug/stacks": (self._operator, self._stacks),
        }

    def answer(self, request: PageRequest) -> PageAnswer:
        """Answer a request; an internal error becomes a 500 that quotes nothing."""
        headers = request.headers
        if fault := framing_fault(headers.get("content-length"), headers.get("transfer-encoding")):
            return _sentence(HTTPStatus(fault[0]), fault[1], ("Connection", "close"))
        return self._page(request)

    def _page(self, request: PageRequest) -> PageAnswer:
        page = self._pages.get(request.path.rstrip("/"))
        if page is None:
            return _sentence(HTTPStatus.NOT_FOUND, f"there are: {', '.join(sorted(self._pages)[1:])}")
        if request.method not in {"GET", "HEAD"}:
            return _sentence(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", ("Allow", "GET, HEAD"))
        admits, gives = page
        refused = admits(request)
        if refused is HTTPStatus.UNAUTHORIZED:
            return _sentence(
                refused, "a bearer token is needed", ("WWW-Authenticate", 'Bearer realm="metrics"')
            )
        if refused is not None:
            return _sentence(refused, "only from this host, or with the token of the server")
        try:
            return gives(request)
        except Exception as error:  # noqa: BLE001 - a collector or a source may raise anything
            return _broken(request.path, error)

    @staticmethod
    def is_quick(path: str) -> bool:
        """Return whether a page is answered from memory at once, so that an event loop may render it."""
        return path.rstrip("/") == "/healthz"

    # ---- access ----

    def _scraper(self, request: PageRequest) -> HTTPStatus | None:
        return None if self._token is None or self._bears_token(request) else HTTPStatus.UNAUTHORIZED

    def _operator(self, request: PageRequest) -> HTTPStatus | None:
        if _is_local(request) or self._bears_token(request):
            return None
        return HTTPStatus.FORBIDDEN if self._token is None else HTTPStatus.UNAUTHORIZED

    def _bears_token(self, request: PageRequest) -> bool:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if self._token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(shown.strip().encode(errors="replace"), self._token)

    # ---- pages ----

    def _metrics(self, request: PageRequest) -> PageAnswer:
        names = parse_qs(request.query).get("name[]", ())
        if not self._rendering.acquire(timeout=_PATIENCE):
            return _sentence(HTTPStatus.SERVICE_UNAVAILABLE, "earlier scrapes have not finished")
        try:
            headers = request.headers
            found = rendered(
                self._registry, headers.get("accept", ""), headers.get("accept-encoding", ""), list(names)
            )
        finally:
            self._rendering.release()
        zipped = (("Content-Encoding", "gzip"),) if found.zipped else ()
        return _answer(
            HTTPStatus.OK, found.content_type, found.body, *zipped, ("Vary", "Accept, Accept-Encoding")
        )

    def _alive(self, _: PageRequest) -> PageAnswer:
        return _data(*self._health.alive())

    def _ready(self, _: PageRequest) -> PageAnswer:
        return _data(*self._health.ready())

    def _runs(self, _: PageRequest) -> PageAnswer:
        return _data(True, debug.runs(self._live, self._now()))  # noqa: FBT003

    def _stacks(self, request: PageRequest) -> PageAnswer:
        return _answer(HTTPStatus.OK, _TEXT, debug.stacks(request.loop or self._loop).encode())


def _broken(path: str, error: Exception) -> PageAnswer:
    """Answer for a page that failed. Its text may quote anything, so the answer names only its type."""
    logging.getLogger("orchestrator").error("%s failed: %s", path, type(error).__name__)
    return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__} inside")


def _anybody(_: PageRequest) -> HTTPStatus | None:
    return None


def _is_local(request: PageRequest) -> bool:
    """Return whether the client is on this host, and not behind a proxy or a foreign host name.

    A web page can send requests to a loopback port under a name of its own (DNS rebinding); the Host header reveals
    that.
    """
    if any(name in request.headers for name in _PASSED_ON):
        return False
    return is_loopback_address(request.client) and _named_locally(request.headers.get("host", ""))


def _named_locally(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    return not host or name.lower() == "localhost" or is_loopback_address(name)


def _data(well: bool, data: Mapping[str, Any]) -> PageAnswer:  # noqa: FBT001
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return _answer(status, _JSON, json.dumps(data).encode() + b"\n")


def _sentence(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> PageAnswer:
    return _answer(status, _TEXT, f"{status.value} {status.phrase}: {text}\n".encode(), *headers)


def _answer(status: HTTPStatus, kind: str, body: bytes, *headers: tuple[str, str]) -> PageAnswer:
    always = (
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    )
    return PageAnswer(status, (*always, *headers), body)
