"""The outermost layer: refuses hosts and forms of other sites, and sets the headers that keep a page harmless.

A browser that another site redirects to this address by DNS still sends that site's name as Host, so only known names
are answered. The policy allows no inline script or style, so text that a model or a tool wrote stays text even where an
escape were missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.web.access import is_known_host
from orchestrator.web.limits import send_sentence

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with `no-referrer` a browser sends `Origin: null` with our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Shield:
    """ASGI middleware around the console.

    Args:
        app: The application.
        hosts: Names of this host that a request may use, without a port; `*` allows every name.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sending = _with_headers(send, is_static="/static/" in scope["path"])
        fault = self._fault(scope["method"], Headers(scope=scope))
        if fault is not None:
            await send_sentence(sending, *fault)
            return
        await self._app(scope, receive, sending)

    def _fault(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if "*" not in self._hosts and not is_known_host(host, self._hosts):
            return 400, "this console does not answer to this host name; name it with --allow-host"
        if method in {"GET", "HEAD"}:
            return None
        return _fault_of_form(method, headers, host)


def _fault_of_form(method: str, headers: Headers, host: str) -> tuple[int, str] | None:
    if method != "POST":
        return 405, "only GET, HEAD and POST are answered"
    if not _same_site(headers, host):
        return 403, "the request comes from another site"
    return None


def _same_site(headers: Headers, host: str) -> bool:
    """Return whether a browser says that a page of ours sent the request; other clients send neither header."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return False
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _with_headers(send: Send, *, is_static: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            # Names of assets carry the version of the package.
            headers.setdefault("cache-control", "public, max-age=86400" if is_static else "no-store")
        await send(message)

    return sending
