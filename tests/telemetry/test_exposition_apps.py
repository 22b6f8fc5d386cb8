"""The pages inside a host's own server: as an ASGI and as a WSGI application."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.errors import ConfigError
from orchestrator.telemetry.exposition import asgi_app, page, wsgi_app
from orchestrator.telemetry.exposition.server import App
from tests.telemetry.serving import SAMPLE, TOKEN, Got, ask, bearer, counted, got, live_runs

# ---- ASGI ----


async def call(app: App, path: str = "/metrics", method: str = "GET", **scope: Any) -> Got:
    """Be the smallest server that an ASGI application can have."""
    sent: list[MutableMapping[str, Any]] = []
    headers = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in scope.pop("headers", {}).items()
    ]
    asked = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **scope,
    }

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(asked, receive, send)
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert all(name == name.lower() for name, _ in start["headers"])
    return got(
        start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]
    )


async def test_asgi_has_every_page() -> None:
    app = asgi_app(counted(), live=live_runs, heartbeat=lambda: 0.0, ready={"accepting": lambda: False})
    assert SAMPLE in (await call(app)).text
    assert (await call(app, "/healthz")).status == 200
    assert (await call(app, "/readyz")).status == 503
    assert json.loads((await call(app, "/debug/runs")).text)["count"] == 3
    assert "test_asgi_has_every_page" in (await call(app, "/debug/stacks")).text
    assert (await call(app, "/metrics", "HEAD")).text == ""
    assert (await call(app, "/metrics", "POST")).status == 405
    assert (await call(app, "/nothing")).status == 404


async def test_asgi_negotiates_format_and_compression_and_takes_repeated_headers_together() -> None:
    app = asgi_app(counted())
    answer = await call(
        app, headers={"Accept": "application/openmetrics-text; version=1.0.0", "Accept_Encoding": "gzip"}
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.headers["content-encoding"] == "gzip"


async def test_asgi_wants_the_token_and_compares_all_of_it() -> None:
    app = asgi_app(counted(), token=TOKEN)
    assert (await call(app)).status == 401
    assert (await call(app, headers=bearer("wrong"))).status == 401
    assert (await call(app, headers=bearer())).status == 200


@pytest.mark.parametrize("client", [("192.0.2.7", 1), None])
async def test_asgi_debug_pages_are_for_this_machine_or_the_token(client: object) -> None:
    assert (await call(asgi_app(), "/debug/runs", client=client)).status == 403
    assert (await call(asgi_app(token=TOKEN), "/debug/runs", client=client)).status == 401
    assert (await call(asgi_app(token=TOKEN), "/debug/runs", client=client, headers=bearer())).status == 200


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/ops/metrics", "/ops"),
        ("/ops/metrics", "/ops/"),
        ("/metrics", "/ops"),  # servers that take the mount's path off
        ("/metrics", "/metrics"),  # mounted at /metrics itself
        ("/metrics/", "/metrics"),
        ("/", "/metrics"),
    ],
)
async def test_asgi_can_be_mounted_below_any_path(path: str, root: str) -> None:
    assert SAMPLE in (await call(asgi_app(counted()), path, root_path=root)).text


class Slow(Collector):
    """Renders until it is let go, and says from which thread."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.go_on.wait(30)
        yield GaugeMetricFamily("slow", "Slow.", value=1)


async def test_asgi_renders_in_a_thread_so_that_the_event_loop_goes_on() -> None:
    slow, registry = Slow(), CollectorRegistry()
    registry.register(slow)
    app = asgi_app(registry)
    scrape = asyncio.create_task(call(app))
    assert await asyncio.to_thread(slow.begun.wait, 30)
    assert (await call(app, "/healthz")).status == 200
    assert not scrape.done()
    slow.go_on.set()
    assert "slow 1.0" in (await scrape).text
    assert slow.thread is not threading.main_thread()


async def test_asgi_uses_few_threads_however_many_scrapes() -> None:
    app = asgi_app(counted())
    before = threading.active_count()
    answers = await asyncio.gather(*[call(app) for _ in range(30)])
    assert {answer.status for answer in answers} == {200}
    assert threading.active_count() <= before + 4


async def test_asgi_goes_along_with_a_servers_start_and_stop() -> None:
    told = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": next(told)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await asgi_app()({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]
    sent.clear()
    await asgi_app()({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


@contextmanager
def under_uvicorn(app: App) -> Iterator[int]:
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < end
        time.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_asgi_works_under_a_real_server() -> None:
    with under_uvicorn(asgi_app(counted(3), token=TOKEN, live=live_runs)) as port:
        assert ask(port).status == 401
        answer = ask(port, Accept_Encoding="gzip", **bearer())
        assert f'{SAMPLE}{{agent="_none",machine="loop",origin="new"}} 3.0' in answer.text
        assert answer.headers["content-encoding"] == "gzip"
        assert ask(port, "/metrics", "HEAD", **bearer()).text == ""
        assert ask(port, "/healthz").status == 200
        assert json.loads(ask(port, "/debug/runs").text)["count"] == 3
        # uvicorn takes the address from a proxy on this machine: then it is no longer this machine's
        assert ask(port, "/debug/runs", X_Forwarded_For="192.0.2.7").status == 401


# ---- WSGI ----


def wsgi(app: Any, path: str = "/metrics", method: str = "GET", **environ: str) -> Got:
    """Call an application as PEP 3333 says, with somebody watching that both sides do."""
    about: dict[str, Any] = {
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "REMOTE_ADDR": "127.0.0.1",
        "QUERY_STRING": "",
    }
    setup_testing_defaults(about)
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> Any:
        started.extend((status, headers))
        return lambda data: None

    found = validator(app)({**about, **environ}, start_response)
    try:
        body = b"".join(found)
    finally:
        found.close()  # type: ignore[attr-defined]
    status, headers = started
    return got(int(status.split()[0]), dict(headers), body)


def test_wsgi_has_every_page_and_keeps_to_the_letter_of_the_standard() -> None:
    app = wsgi_app(counted(), live=live_runs, heartbeat=lambda: 9.0, ready={"accepting": lambda: True})
    assert SAMPLE in wsgi(app).text
    assert wsgi(app, "/healthz").status == 503
    assert wsgi(app, "/readyz").status == 200
    assert json.loads(wsgi(app, "/debug/runs").text)["count"] == 3
    assert "no event loop" in wsgi(app, "/debug/stacks").text
    assert wsgi(app, "/metrics", "HEAD").text == ""
    assert wsgi(app, "/metrics", "POST").status == 405
    assert wsgi(app, "/nothing").status == 404


def test_wsgi_refuses_a_request_with_two_lengths_or_a_huge_one() -> None:
    app = wsgi_app(counted())
    assert wsgi(app, CONTENT_LENGTH="5", HTTP_TRANSFER_ENCODING="chunked").status == 400
    assert wsgi(app, CONTENT_LENGTH="2000001").status == 413
    assert wsgi(app, CONTENT_LENGTH="").status == 200


def test_wsgi_negotiates_wants_the_token_and_keeps_debug_pages_here() -> None:
    app = wsgi_app(counted(), token=TOKEN)
    shown = f"Bearer {TOKEN}"
    assert wsgi(app).status == 401
    assert wsgi(app, HTTP_AUTHORIZATION="Bearer wrong").status == 401
    answer = wsgi(app, HTTP_AUTHORIZATION=shown, HTTP_ACCEPT_ENCODING="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert wsgi(app, "/debug/runs").status == 200
    assert wsgi(app, "/debug/runs", REMOTE_ADDR="192.0.2.7").status == 401
    assert wsgi(app, "/debug/runs", REMOTE_ADDR="").status == 401
    assert wsgi(app, "/debug/runs", HTTP_X_FORWARDED_FOR="192.0.2.7").status == 401
    assert wsgi(app, "/debug/runs", REMOTE_ADDR="192.0.2.7", HTTP_AUTHORIZATION=shown).status == 200


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_wsgi_works_under_a_real_server() -> None:
    with make_server("127.0.0.1", 0, validator(wsgi_app(counted(3))), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            assert (
                f'{SAMPLE}{{agent="_none",machine="loop",origin="new"}} 3.0' in ask(server.server_port).text
            )
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("make", [asgi_app, wsgi_app])
def test_an_empty_token_is_refused_when_the_app_is_made(make: Any) -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        make(token="")


def test_several_workers_without_a_common_folder_are_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_warned", [])
    app = wsgi_app(CollectorRegistry())
    for workers in (False, True, True):
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/healthz",
            "wsgi.multiprocess": workers,
        }
        app(environ, lambda *_: lambda _: None)
    assert [record.message.startswith("several workers share this port") for record in caplog.records] == [
        True
    ]


def test_several_workers_of_asgi_are_named_once_by_the_variable_that_counts_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_warned", [])
    for workers, named in (("", 0), ("0", 0), ("1", 0), ("2", 1), ("2", 1)):
        monkeypatch.setenv("WEB_CONCURRENCY", workers)
        asgi_app(CollectorRegistry())
        assert caplog.text.count("several workers share this port") == named
