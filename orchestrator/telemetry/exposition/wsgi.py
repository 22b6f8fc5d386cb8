"""The pages as a WSGI application, for hosts under gunicorn and similar servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from orchestrator.telemetry.exposition.debug import LiveSource
from orchestrator.telemetry.exposition.health import Check, Heartbeat
from orchestrator.telemetry.exposition.page import PageRequest, Pages
from orchestrator.telemetry.exposition.render import warn_of_workers

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


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
        request = _request(environ)
        status, headers, body = pages.answer(request)
        # The connection is the server's: a WSGI application may not close it.
        named = [header for header in headers if header[0] != "Connection"]
        start_response(f"{status.value} {status.phrase}", named)
        return [] if request.method == "HEAD" else [body]

    return app


def _request(environ: WSGIEnvironment) -> PageRequest:
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
