"""The pages as an ASGI and as a WSGI application. Rendering takes milliseconds, so ASGI uses threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import CollectorRegistry

from orchestrator.telemetry.exposition.page import (
    Check,
    Heartbeat,
    LiveSource,
    PageRequest,
    Pages,
    is_one_of_several,
    warn_of_workers,
)

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_THREADS = 4


def asgi_app(
    registry: CollectorRegistry | None = None,
    *,
    token: str | None = None,
    live: LiveSource | None = None,
    heartbeat: Heartbeat | None = None,
    ready: Mapping[str, Check] | None = None,
) -> App:
    """Return an application with the pages of the package; arguments as for `Pages`. Raises ConfigError.

    Mount it below any path, or run it alone. Its threads start with the first request.

    Example:
        app.mount("/ops", asgi_app(token=os.environ["METRICS_TOKEN"]))
    """
    if is_one_of_several():
        warn_of_workers()
    return _App(Pages(registry, token=token, live=live, heartbeat=heartbeat, ready=ready))


class _App:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._threads: ThreadPoolExecutor | None = None
        self._making = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            request = _request(scope)
            if self._pages.is_quick(request.path):
                answer = self._pages.answer(request)
            else:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._pool(), self._pages.answer, request)
            headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
            await send(
                {"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body}
            )
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def _pool(self) -> ThreadPoolExecutor:
        with self._making:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="orchestrator metrics")
            return self._threads


def _request(scope: Scope) -> PageRequest:
    path, root = str(scope["path"]), str(scope.get("root_path") or "").rstrip("/")
    if root and (
        path == root or path.startswith(f"{root}/")
    ):  # some servers include the path of a mount, others do not
        path = path[len(root) :]
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    client = scope.get("client")
    return PageRequest(
        scope["method"],
        path,
        scope["query_string"].decode("latin-1"),
        headers,
        str(client[0]) if client else "",
        asyncio.get_running_loop(),
    )


def wsgi_app(
    registry: CollectorRegistry | None = None,
    *,
    token: str | None = None,
    live: LiveSource | None = None,
    heartbeat: Heartbeat | None = None,
    ready: Mapping[str, Check] | None = None,
) -> WSGIApplication:
    """Return an application with the pages of the package; arguments as for `Pages`. Raises ConfigError.

    Example:
        application = wsgi_app(token=os.environ["METRICS_TOKEN"])
    """
    pages = Pages(registry, token=token, live=live, heartbeat=heartbeat, ready=ready)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("wsgi.multiprocess"):
            warn_of_workers()
        request = _wsgi_request(environ)
        status, headers, body = pages.answer(request)
        # The connection is the server's: a WSGI application may not close it.
        named = [header for header in headers if header[0] != "Connection"]
        start_response(f"{status.value} {status.phrase}", named)
        return [] if request.method == "HEAD" else [body]

    return app


def _wsgi_request(environ: WSGIEnvironment) -> PageRequest:
    text: Callable[[str], str] = lambda name: str(environ.get(name) or "")  # noqa: E731
    headers = {
        name[5:].replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    if length := text("CONTENT_LENGTH"):
        headers["content-length"] = length
    return PageRequest(
        text("REQUEST_METHOD"), text("PATH_INFO"), text("QUERY_STRING"), headers, text("REMOTE_ADDR")
    )
