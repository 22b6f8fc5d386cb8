"""A webhook receiver that can fail in every way: it answers 500, hangs, drops the connection, stops and restarts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from orchestrator.notification import verify_webhook
from tests.ports import free_port

SECRET = "whsec_dGhlIGtleSBvZiB0aGUgdGVzdHM="  # noqa: S105 - it opens nothing
HANG = 30.0


class Receiver:
    """Checks signatures and stores what arrives. `behave` chooses the answer: a status, `hang` or `drop`."""

    def __init__(self, behave: Callable[[], object] = lambda: 204) -> None:
        self.behave = behave
        self.requests: list[str] = []
        """Ids of all requests, in order."""
        self.accepted: list[dict[str, Any]] = []
        """Bodies that were answered with 204."""
        self.faults: list[str] = []
        self.released = threading.Event()
        self.port = free_port()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/questions"

    @property
    def ids(self) -> set[str]:
        return {body["id"] for body in self.accepted}

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = False  # so that closing it waits for them
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and wait until every request that arrived before has been taken."""
        self.released.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.released = threading.Event()

    def _take(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers["Content-Length"])
        body = request.rfile.read(length)
        if len(body) < length:  # its sender was killed in the middle
            request.close_connection = True
            return
        try:
            found = verify_webhook(dict(request.headers.items()), body, SECRET)
        except ValueError as error:
            self.faults.append(str(error))
            return
        told = json.loads(body)
        if not found == told["id"] == request.headers["Idempotency-Key"]:
            self.faults.append("the ids differ")
        self.requests.append(found)
        answer = self.behave()
        if answer == "hang":
            self.released.wait(HANG)
        if answer in {"hang", "drop"}:
            request.close_connection = True
            return
        if answer == 204:
            self.accepted.append(told)
        request.send_response(int(str(answer)))
        request.end_headers()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition in a thread that is not an event loop."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
