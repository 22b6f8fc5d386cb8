"""Channels of a Notifier: a signed webhook, a program, or a function of the host.

A channel delivers one notice or raises. The Notifier decides about retries.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import http.client
import inspect
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.thread import in_thread
from orchestrator.runtime.notification.notice import Notice

Body: TypeAlias = Callable[[Notice], object]
"""Makes what a channel sends: text or bytes as they are, anything else as JSON."""
NotifyFunction: TypeAlias = Callable[[Notice], Awaitable[object] | object]

_PREFIX = "whsec_"


class NotificationChannel(Protocol):
    """Delivers notices. `name` identifies it in the journal: a renamed channel sends open questions again."""

    name: str
    kind: str
    """`webhook`, `command` or `function`: label of the metric."""
    timeout: float
    """Seconds of each attempt."""

    async def send(self, notice: Notice, /) -> None:
        """Deliver a notice. Raises any exception if it may not have arrived."""
        ...


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: it could send the notice to another server."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


class _InTime(http.client.HTTPConnection):
    """Ends an answer that is not complete in time: a socket's timeout starts again with each byte."""

    def getresponse(self) -> http.client.HTTPResponse:
        late = threading.Event()

        def end() -> None:
            late.set()
            with suppress(OSError):  # closed by now
                self.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout or 0.0, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():  # also if the part that arrived looks like an answer
                raise TimeoutError(f"no answer within {self.timeout:g} s")


class _InTimeWithTls(_InTime, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_InTime, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_InTimeWithTls, req)


_OPENER = urllib.request.build_opener(_NoRedirects, _Http, _Https)


class Webhook:
    """A POST of the notice to a web address, signed as described by Standard Webhooks.

    The headers are `webhook-id` and `Idempotency-Key` (the id of the notice), `webhook-timestamp` (epoch seconds of
    this attempt) and `webhook-signature`: `v1,` and the Base64 form of HMAC-SHA256 over `id.timestamp.body`. Any
    answer 2xx means delivered.

    Args:
        url: The address, http or https. Redirects are errors.
        secret: Key of the signature; text that starts with `whsec_` is Base64. Without one nothing is signed.
        name: Name of the channel in the journal, if there are several webhooks.
        headers: Further headers.
        body: Makes the body; by default it is the notice as JSON.
        timeout: Seconds of each attempt.

    Raises:
        ConfigError: The address is not http or https, or the secret is invalid.

    Example:
        Webhook("https://ops.example/questions", secret=os.environ["WEBHOOK_SECRET"])
    """

    kind = "webhook"

    def __init__(
        self,
        url: str,
        secret: str | None = None,
        *,
        name: str = "webhook",
        headers: Mapping[str, str] | None = None,
        body: Body = Notice.body,
        timeout: float = 10.0,
    ) -> None:
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc:
            raise ConfigError(f"{url!r} is not an address to POST to; it must start with http:// or https://")
        if secret is not None:
            _key(secret)
        self.name, self.timeout = name, timeout
        self._url, self._secret, self._body = url, secret, body
        self._headers = {"Content-Type": "application/json", **(headers or {})}

    async def send(self, notice: Notice, /) -> None:
        """POST a notice. Raises the errors of urllib for any answer but 2xx."""
        body = _encoded(self._body(notice))
        _, error = await in_thread(partial(self._post, notice.id, body), f"notify-{self.name}")
        if error is not None:
            raise error

    def _post(self, notice_id: str, body: bytes) -> None:
        headers = self._headers | signed_headers(notice_id, body, self._secret, int(time.time()))
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - checked above
        try:
            with _OPENER.open(request, timeout=self.timeout):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise


def signed_headers(notice_id: str, body: bytes, secret: str | None, at: int) -> dict[str, str]:
    """Return the headers that identify and sign a webhook."""
    headers = {"webhook-id": notice_id, "Idempotency-Key": notice_id, "webhook-timestamp": str(at)}
    if secret is not None:
        headers["webhook-signature"] = f"v1,{_signature(notice_id, body, secret, at)}"
    return headers


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> str:
    """Check the signature of a received webhook and return the id of its notice.

    Args:
        headers: The headers of the request; capitals do not matter.
        body: The body as it was received.
        secret: The key of the sender.
        tolerance: Seconds by which the time of the attempt may differ from the present time.
        now: The present time (epoch seconds); None reads the clock.

    Raises:
        ValueError: A header is missing, the signature is wrong, or the time differs too much.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        notice_id, at = given["webhook-id"], int(given["webhook-timestamp"])
        signatures = given["webhook-signature"].split()
    except (KeyError, ValueError) as error:
        raise ValueError(f"the webhook has no valid header {error}") from None
    if abs((time.time() if now is None else now) - at) > tolerance:
        raise ValueError("the webhook is too old, or the clocks differ")
    wanted = f"v1,{_signature(notice_id, body, secret, at)}".encode()
    if not any(hmac.compare_digest(one.encode(), wanted) for one in signatures):
        raise ValueError("the signature of the webhook is wrong")
    return notice_id


def _signature(notice_id: str, body: bytes, secret: str, at: int) -> str:
    signed = b".".join((notice_id.encode(), str(at).encode(), body))
    return base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def _key(secret: str) -> bytes:
    """Return the key of a secret. Raises ConfigError for one that is empty or no Base64 although it says so."""
    try:
        coded = secret.startswith(_PREFIX)
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if coded else secret.encode()
    except binascii.Error:
        raise ConfigError(f"the secret starts with {_PREFIX}, but the rest is not Base64") from None
    if not key:
        raise ConfigError("the secret of the webhook is empty; give None to sign nothing")
    return key


class CommandChannel:
    """A program that gets the notice on its standard input. Exit status 0 means delivered.

    The program and its children are killed after the timeout.

    Args:
        name: Name of the channel in the journal, if there are several commands.
        body: Makes the input; by default it is the notice as one line of JSON.
        timeout: Seconds of each attempt.
        *argv: The program and its arguments. No shell reads them.

    Raises:
        ConfigError: No program is given.

    Example:
        CommandChannel("/usr/local/bin/page-oncall", "--team", "payments")
    """

    kind = "command"

    def __init__(
        self, *argv: str, name: str = "command", body: Body = Notice.body, timeout: float = 30.0
    ) -> None:
        if not argv:
            raise ConfigError(
                'a CommandChannel needs a program: CommandChannel("/usr/local/bin/page-oncall")'
            )
        self.name, self.timeout = name, timeout
        self._argv, self._body = argv, body

    async def send(self, notice: Notice, /) -> None:
        """Run the program. Raises RunError for another exit status than 0."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await process.communicate(_encoded(self._body(notice)) + b"\n")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise RunError(f"{self._argv[0]} ended with status {process.returncode}")


class FunctionChannel:
    """A function of the host as a channel: a coroutine function on the event loop, any other one in a thread."""

    kind = "function"

    def __init__(self, function: NotifyFunction, *, name: str = "", timeout: float = 30.0) -> None:
        self.name, self.timeout = name or getattr(function, "__name__", type(function).__name__), timeout
        self._function = function

    async def send(self, notice: Notice, /) -> None:
        """Call the function. Raises its errors."""
        if inspect.iscoroutinefunction(self._function):
            await self._function(notice)
            return
        value, error = await in_thread(partial(self._function, notice), f"notify-{self.name}")
        if error is not None:
            raise error
        if inspect.isawaitable(value):
            await value


def _encoded(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    return body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
