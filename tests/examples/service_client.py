"""A client of the service, as a browser is one: it reconnects with the id of the last event that it has."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx2

PATIENCE = 180.0
TOKEN = "token-" * 4
TOKENS = f"ann:{TOKEN},bob:{TOKEN[::-1]}"
"""The people who may use the service, as its environment has them."""


class Event(NamedTuple):
    id: str | None
    name: str
    data: dict[str, Any]


class Client:
    """Requests of a person, each on a connection of its own unless `http` is given."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._headers = {"Authorization": f"Bearer {token}"}

    def http(self) -> httpx2.Client:
        # The certificates that nobody needs here would take 40 ms to load, for each client.
        return httpx2.Client(base_url=self.url, timeout=PATIENCE, headers=self._headers, verify=False)

    def get(self, path: str, **options: Any) -> Any:
        with self.http() as http:
            return http.get(path, **options).json()

    def post(self, path: str, **body: Any) -> Any:
        with self.http() as http:
            return http.post(path, json=body).raise_for_status().json()

    def start(self, prompt: str) -> None:
        assert self.post("/runs", prompt=prompt, run_id=prompt) == {"run_id": prompt, "repeated": False}

    def at(self, wanted: Callable[[int], bool]) -> httpx2.Client:
        """A client with a connection to a process that `wanted` accepts."""
        ends = time.monotonic() + PATIENCE
        while True:
            http = self.http()
            if wanted(int(http.get("/healthz").headers["server-pid"])):
                return http
            http.close()
            assert time.monotonic() < ends, "no connection went to that process"

    def until(self, ready: Callable[[], object]) -> None:
        ends = time.monotonic() + PATIENCE
        while True:
            seen: object = None
            try:
                if seen := ready():
                    return
            except httpx2.TransportError as error:
                seen = error
            assert time.monotonic() < ends, f"it never came to that; the last answer was {seen!r}"
            time.sleep(0.01)


def read(response: httpx2.Response) -> Iterator[Event]:
    """The events of a stream, by the rules of server-sent events."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Event(fields.get("id"), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


class Stream(threading.Thread):
    """Reads the events of a run in a thread. With `reconnects` until the run has ended, as an EventSource."""

    def __init__(
        self, client: Client, run_id: str, http: httpx2.Client | None = None, *, reconnects: bool = True
    ) -> None:
        super().__init__(daemon=True)
        self._client, self._run_id, self._http, self._reconnects = client, run_id, http, reconnects
        self.events: list[Event] = []
        self.connections = 0
        self.error: Exception | None = None
        """Why the last connection ended, if it did not end as it should."""
        self.start()

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events if event.id is not None]

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def run(self) -> None:
        again = True
        while again:
            self.error = None
            http, self._http = self._http or self._client.http(), None
            try:
                again = self._read(http)
            except httpx2.TransportError as error:
                self.error, again = error, True
                time.sleep(0.05)
            finally:
                http.close()
            again = again and self._reconnects

    def _read(self, http: httpx2.Client) -> bool:
        """Read a connection to its end; whether the run has more events."""
        headers = {"Last-Event-ID": self.ids[-1]} if self.ids else {}
        with http.stream("GET", f"/runs/{self._run_id}/events", headers=headers) as response:
            response.raise_for_status()
            self.connections += 1
            for event in read(response):
                self.events.append(event)
        return response.status_code != httpx2.codes.NO_CONTENT

    def finished(self) -> list[Event]:
        self.join(PATIENCE)
        assert not self.is_alive(), f"the stream does not end after {self.names[-3:]}"
        return self.events
