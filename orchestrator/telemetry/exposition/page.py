"""The pages, without a transport: a request in, an answer out. A call may block, so use a thread.

They never show a prompt, an argument, a result or the value of a variable.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
import logging
import multiprocessing
import os
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qs

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from orchestrator.errors import ConfigError
from orchestrator.kernel.cancellation import abandoned_work
from orchestrator.telemetry.live import LiveRun, stacks
from orchestrator.telemetry.metrics import MULTIPROCESS, check_multiprocess_folder, encoded
from orchestrator.web.access import is_loopback_address
from orchestrator.web.limits import framing_fault

Check: TypeAlias = Callable[[], bool]
"""Returns whether one requirement of readiness is met. Called from a thread; an exception counts as no."""

Heartbeat: TypeAlias = Callable[[], float | None]
"""Returns the seconds since the event loop last moved; None if it is not watched. Must not block."""

STALE = 5.0
"""Age in seconds from which a heartbeat counts as lost."""

_PATIENCE = 2.0
"""Seconds to wait for checks of another request, and for a store to answer."""

_ROOM = 100 * 1024 * 1024


class HealthStore(Protocol):
    """The part of a store that a check calls; every journal has it."""

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the position of the store. Raises the error of a store that cannot be used."""
        ...


class HealthCheck:
    """Answers liveness and readiness."""

    def __init__(self, heartbeat: Heartbeat | None = None, ready: Mapping[str, Check] | None = None) -> None:
        self._heartbeat = heartbeat
        self._checks = dict(ready or {})
        self._asking = threading.Lock()

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the event loop moves, with details."""
        age = None if self._heartbeat is None else self._heartbeat()
        if age is None:
            return True, {"alive": True}
        alive = age < STALE
        return alive, {"alive": alive, "event_loop_age_seconds": round(age, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether every check succeeds, with each result.

        Only one caller runs the checks at a time: a check that hangs must not take a thread for each probe.
        """
        if not self._asking.acquire(timeout=_PATIENCE):
            return False, {"ready": False, "why": "earlier checks have not finished"}
        try:
            said = {name: _yes(check) for name, check in self._checks.items()}
        finally:
            self._asking.release()
        ready = all(said.values())
        return ready, {"ready": ready, "checks": said}


def _yes(check: Check) -> bool:
    try:
        return bool(check())
    except Exception:  # noqa: BLE001 - any error means not ready
        return False


def writable(path: str | Path, room: int = _ROOM) -> Check:
    """Return a check that a file, or its nearest existing folder, is writable and its disk has `room` bytes.

    Example:
        serve_metrics(ready={"disk": writable("runs.db")})
    """
    file = Path(path).absolute()

    def check() -> bool:
        place = next(one for one in (file, *file.parents) if one.exists())
        return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= room

    return check


def answers(
    store: HealthStore, loop: asyncio.AbstractEventLoop | None = None, patience: float = _PATIENCE
) -> Check:
    """Return a check that a journal answers a read within `patience` seconds, on the loop that uses it.

    `loop` None means the running loop; without one it raises RuntimeError. The check fails while that loop is
    blocked, and must not be called in its thread: pages inside a server on the same loop (`asgi_app`) call checks
    from others. One read proves neither room to write, as `writable` does, nor that a file is intact: SQLite answers
    from memory if it can, and `orchestrator doctor` verifies the rest.

    Example:
        serve_metrics(ready={"journal": answers(journal)})
    """
    home = loop or asyncio.get_running_loop()

    def check() -> bool:
        asking = store.news(-1)
        try:
            asked = asyncio.run_coroutine_threadsafe(asking, home)
        except RuntimeError:  # the loop is closed
            asking.close()
            return False
        try:
            asked.result(patience)
        finally:
            asked.cancel()
        return True

    return check


__all__ = ["MOST_RUNS", "LiveSource", "runs", "stacks"]

MOST_RUNS = 1_000
"""Maximum runs on a page; the counts include all."""

LiveSource: TypeAlias = Callable[[], Iterable[LiveRun]]
"""Returns the present runs of this process, like `telemetry.live.LiveRuns.standing`. Called from any thread."""


def runs(source: LiveSource | None, now: float) -> dict[str, Any]:
    """Return the live runs as plain data, those longest in their state first, and the abandoned work."""
    left = [
        {
            "run_id": fact.run_id,
            "machine": fact.graph,
            "agent": fact.agent,
            "state": fact.state,
            "kind": fact.kind,
            "name": fact.name,
            "since": fact.at,
            "age_seconds": round(max(now - fact.at, 0.0), 3),
        }
        for fact in abandoned_work()
    ]
    abandoned: dict[str, Any] = {"count": len(left), "work": left[:MOST_RUNS]}
    if source is None:
        return {"known": False, "count": 0, "parked": {}, "runs": [], "abandoned": abandoned}
    found = sorted(source(), key=lambda run: run.entered_at)
    return {
        "known": True,
        "count": len(found),
        "parked": Counter(run.parked for run in found if run.parked is not None),
        "runs": [
            {
                "run_id": run.run_id,
                "machine": run.machine,
                "agent": run.agent,
                "state": run.state,
                "age_seconds": round(max(now - run.entered_at, 0.0), 3),
                "run_age_seconds": round(max(now - run.started_at, 0.0), 3),
                "parked": run.parked,
            }
            for run in found[:MOST_RUNS]
        ],
        "abandoned": abandoned,
    }


_HEADER = re.compile(r"[\w.*/+;=,:\" -]{0,1000}", re.ASCII)
"""Accepted form of a header that chooses a format; parts of it are returned in the answer's content type."""


def is_one_of_several() -> bool:
    """Return whether WEB_CONCURRENCY names several workers, or this process is the second one of its parent.

    uvicorn does not tell its workers how many they are, but multiprocessing, by which it starts them, numbers them. The
    answer is true in the second one only, so a log has one warning. With `--reload` uvicorn replaces a single process,
    and its number grows.
    """
    if multiprocessing.parent_process() is None:
        return os.environ.get("WEB_CONCURRENCY", "1") not in {"", "0", "1"}
    return multiprocessing.current_process().name.endswith("Process-2") and "--reload" not in sys.argv


def warn_of_workers() -> None:
    """Log once that a page of several workers shows only one of them, if they have no folder in common."""
    if os.environ.get(MULTIPROCESS) or _warned:
        return
    _warned.append(True)
    logging.getLogger("orchestrator").warning(
        "several workers share this port, and each scrape shows another one: set %s to an empty folder, or give each "
        "worker a port of its own",
        MULTIPROCESS,
    )


_warned: list[bool] = []


class RenderedScrape(NamedTuple):
    """A rendered scrape. `zipped`: the body is compressed by gzip."""

    body: bytes
    content_type: str
    zipped: bool


def rendered(
    registry: CollectorRegistry | None, accept: str = "", encoding: str = "", names: Sequence[str] = ()
) -> RenderedScrape:
    """Render a registry; None is the default one, or in multiprocess mode that of all processes.

    `accept` and `encoding` are the headers of those names; `names` are the requested samples, none for all. Raises
    the errors of a collector.
    """
    source = registry if registry is not None else _default()
    try:
        encode, content_type = choose_encoder(accept if _HEADER.fullmatch(accept) else "")
    except (TypeError, ValueError):  # an invalid version
        encode, content_type = choose_encoder("")
    body = encode(source.restricted_registry(names)) if names else encoded(source, encode)
    if gzip_accepted(encoding):
        return RenderedScrape(gzip.compress(body, compresslevel=5), content_type, zipped=True)
    return RenderedScrape(body, content_type, zipped=False)


def _default() -> CollectorRegistry:
    if not os.environ.get(MULTIPROCESS):
        return prometheus_client.REGISTRY
    from prometheus_client import multiprocess

    check_multiprocess_folder()
    # A new one for each scrape: its collector reads the files of all processes.
    shared = CollectorRegistry(support_collectors_without_names=True)
    multiprocess.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared


_SCRAPE_PATIENCE = 10.0
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
        # Whether the client is on this host, and not behind a proxy or a foreign host name. A web page can send
        # requests to a loopback port under a name of its own (DNS rebinding); the Host header reveals that.
        if any(name in request.headers for name in _PASSED_ON):
            is_local = False
        else:
            is_local = is_loopback_address(request.client) and _named_locally(request.headers.get("host", ""))
        if is_local or self._bears_token(request):
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
        if not self._rendering.acquire(timeout=_SCRAPE_PATIENCE):
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
        return _data(True, runs(self._live, self._now()))  # noqa: FBT003

    def _stacks(self, request: PageRequest) -> PageAnswer:
        return _answer(HTTPStatus.OK, _TEXT, stacks(request.loop or self._loop).encode())


def _broken(path: str, error: Exception) -> PageAnswer:
    """Answer for a page that failed. Its text may quote anything, so the answer names only its type."""
    logging.getLogger("orchestrator").error("%s failed: %s", path, type(error).__name__)
    return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__} inside")


def _anybody(_: PageRequest) -> HTTPStatus | None:
    return None


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
