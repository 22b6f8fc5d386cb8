"""Notify the host when a run parks: by a callback, and by a POST to a web address.

A notice is a hint and may be lost with the process; the journal has the question (`agent.pending`, `orchestrator runs
list --status parked`). A notice has no prompts, arguments or results.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError
from orchestrator.kernel.record import Fact, RunParked
from orchestrator.llm.retry import RetryPolicy

_DELIVERY = RetryPolicy(attempts=3, base=0.0, deadline=0.0, jitter=0.0)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: it could send the token to another server."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class ParkNotice:
    """An observer that reports parked runs.

    The request is JSON: graph, run_id, state, reason, at (epoch seconds). It has three tries. The thread starts with
    the first notice and ends with `close()` or the process.

    Args:
        callback: Called with the fact on the event loop; must not block.
        url: Address to POST to, from a thread.
        token: Bearer token of the request.
        timeout: Seconds of each try.

    Raises:
        ConfigError: Neither callback nor url is given, or the address is not http or https.

    Example:
        agent = Agent(llm, tools=[pay], observers=[ParkNotice(url="https://ops.example/parked", token=secret)])
    """

    def __init__(
        self,
        callback: Callable[[RunParked], object] | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 5.0,
        most: int = 1_000,
    ) -> None:
        if callback is None and url is None:
            raise ConfigError("a ParkNotice needs a recipient: give a callback, a url, or both")
        if url is not None and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc):
            raise ConfigError(f"{url!r} is not an address to POST to; it must start with http:// or https://")
        self.lost = 0
        """Number of notices that could not be delivered to the url."""
        self._callback = callback
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout = timeout
        self._notices: queue.Queue[dict[str, Any] | None] = queue.Queue(most)
        self._thread: threading.Thread | None = None

    def observe(self, fact: Fact) -> None:
        """Report a parked run; ignore other facts."""
        if type(fact) is not RunParked:
            return
        if self._url is not None:
            self._hand_over(asdict(fact))
        if self._callback is not None:
            self._callback(fact)

    def close(self) -> None:
        """Deliver the queued notices and end the thread."""
        if self._thread is not None:
            self._notices.put(None)
            self._thread.join()
            self._thread = None

    def _hand_over(self, notice: dict[str, Any]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, name="orchestrator notices", daemon=True)
            self._thread.start()
        try:
            self._notices.put_nowait(notice)
        except queue.Full:
            self._failed("too many notices wait")

    def _deliver(self) -> None:
        while (notice := self._notices.get()) is not None:
            try:
                _DELIVERY.call_sync(self._post, notice, may_retry=lambda _: True)
            except Exception as error:  # noqa: BLE001 - no server may stop the runs
                self._failed(type(error).__name__)

    def _post(self, notice: dict[str, Any]) -> None:
        body = json.dumps(notice).encode()
        request = urllib.request.Request(str(self._url), body, self._headers)  # noqa: S310 - checked above
        try:
            with _OPENER.open(request, timeout=self._timeout):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def _failed(self, why: str) -> None:
        self.lost += 1
        if self.lost == 1:  # once: a server that is down must not flood the log
            logging.getLogger("orchestrator").error("a notice of a parked run was not delivered: %s", why)
