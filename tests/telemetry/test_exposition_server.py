"""The server of our own, over real sockets: nobody who connects can hold it up, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.errors import ConfigError
from orchestrator.telemetry.exposition import MetricsServer, serve_metrics
from orchestrator.telemetry.exposition import server as server_module
from orchestrator.web.limits import MAX_HEAD
from tests.ports import free_port
from tests.telemetry.serving import SAMPLE, TOKEN, ask, bearer, counted, live_runs

PATIENCE = 60.0
"""Seconds that anything may take on a machine that is busy with other work; most of it takes none."""


@pytest.fixture(autouse=True)
def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers look often whether they are to end."""
    monkeypatch.setattr(server_module, "_POLL", 0.01)


def until(done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def ours() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("orchestrator metrics")]


def talk(server: MetricsServer, said: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
        line.sendall(said)
        heard = b""
        while part := line.recv(65536):
            heard += part
        return heard


def test_it_serves_on_this_machine_and_says_where() -> None:
    with serve_metrics(counted(3), port=0) as server:
        assert server.host == "127.0.0.1"
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        answer = ask(server.port)
        assert answer.status == 200
        assert answer.headers["server"] == "orchestrator"
        assert f'{SAMPLE}{{agent="_none",machine="loop",origin="new"}} 3.0' in answer.text


def test_every_page_is_there_and_head_has_the_headers_only() -> None:
    with serve_metrics(counted(), port=0, live=live_runs, heartbeat=lambda: 0.1) as server:
        for path in ("/metrics", "/healthz", "/readyz", "/debug/runs", "/debug/stacks"):
            assert ask(server.port, path).status == 200
            head = ask(server.port, path, "HEAD")
            assert (head.status, head.text) == (200, "")
            assert int(head.headers["content-length"]) > 0
        assert json.loads(ask(server.port, "/debug/runs").text)["count"] == 3
        assert ask(server.port, "/metrics", "POST").status == 405
        assert ask(server.port, "/etc/passwd").status == 404


def test_a_wrong_token_is_a_401_and_the_right_one_is_not() -> None:
    with serve_metrics(counted(), port=0, token=TOKEN) as server:
        assert ask(server.port).status == 401
        assert ask(server.port, **bearer("wrong")).status == 401
        assert ask(server.port, **bearer()).status == 200
        assert ask(server.port, "/healthz").status == 200


def test_a_page_of_the_web_cannot_read_debug_pages_under_a_name_of_its_own() -> None:
    with serve_metrics(counted(), port=0) as server:
        assert ask(server.port, "/debug/stacks", Host="evil.example").status == 403


def test_clients_that_say_nothing_hold_nobody_up() -> None:
    with serve_metrics(counted(), port=0) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
        assert ask(server.port).status == 200
        for line in silent:
            line.close()


def test_a_connection_too_many_is_turned_away_and_the_silent_are_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner, name in ((server_module, "LONGEST"), (server_module._Handler, "timeout")):
        monkeypatch.setattr(owner, name, 10 * PATIENCE)
    with serve_metrics(counted(), port=0) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(server_module.MOST)]
        until(lambda: len(ours()) == server_module.MOST + 1)
        assert talk(server, b"").startswith(b"HTTP/1.0 503")
        monkeypatch.setattr(server_module, "LONGEST", 0.1)
        for line in silent:
            line.settimeout(PATIENCE)
            assert line.recv(1) == b""  # hung up on
            line.close()
        until(lambda: len(ours()) == 1)
        assert ask(server.port).status == 200


def test_a_client_that_says_a_letter_at_a_time_is_hung_up_on_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LONGEST", 0.1)
    with serve_metrics(counted(), port=0) as server, socket.socket() as line:
        line.connect(("127.0.0.1", server.port))
        line.sendall(b"GET /metrics HTTP/1.1\r\nX-Long: ")

        def hung_up() -> bool:
            try:
                line.sendall(b"a")
            except OSError:
                return True
            return False

        until(hung_up)
        monkeypatch.setattr(server_module, "LONGEST", 10 * PATIENCE)
        assert ask(server.port).status == 200


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(200)) + b"\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",  # TLS
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=2.\r\n x\r\n\r\n",
    ],
    ids=lambda said: repr(said[:24]),
)
def test_nonsense_harms_nobody(said: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with serve_metrics(counted(), port=0) as server:
        line = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        with line, contextlib.suppress(ConnectionError):  # a reset, if there was more than the server reads
            line.sendall(said)
            with contextlib.suppress(OSError):  # hung up on already
                line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
        assert ask(server.port).status == 200
    assert capfd.readouterr() == ("", "")


def test_a_head_beyond_the_limit_is_not_read(capfd: pytest.CaptureFixture[str]) -> None:
    fits, large = (b"X: " + b"x" * size + b"\r\n" for size in (MAX_HEAD - 100, MAX_HEAD))
    line = b"GET /healthz HTTP/1.1\r\n"
    with serve_metrics(counted(), port=0) as server:
        assert b"200 OK" in talk(server, line + fits + b"\r\n")
        for head in (line + large, line + b"X: y\r\n" * 5_000, b"GET /" + b"x" * 60_000):
            with contextlib.suppress(ConnectionError):
                assert b"200 OK" not in talk(server, head + b"\r\n\r\n")
        assert ask(server.port).status == 200
    assert capfd.readouterr().err == ""


def test_a_client_that_leaves_in_the_middle_of_the_answer_is_no_news(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serve_metrics(counted(), port=0) as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as line:
                line.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        until(lambda: len(ours()) == 1)
        assert ask(server.port).status == 200
    assert capfd.readouterr() == ("", "")


def test_closing_ends_every_thread_frees_the_port_and_waits_for_no_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner, name in ((server_module, "LONGEST"), (server_module._Handler, "timeout")):
        monkeypatch.setattr(owner, name, 10 * PATIENCE)  # what a silent client is given otherwise
    server = serve_metrics(counted(), port=free_port())
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    until(lambda: len(ours()) == 6)
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < PATIENCE
    until(lambda: ours() == [])
    server.close()  # a second time is no error
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    with serve_metrics(counted(), port=server.port) as again:
        assert ask(again.port).status == 200
    for line in silent:
        line.close()


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_are_one_sentence() -> None:
    with serve_metrics(counted(), port=0) as server:
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}: Address already in use"
        ):
            serve_metrics(counted(), port=server.port)
        assert len(ours()) == 1
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        serve_metrics(counted(), host="192.0.2.1", port=0)
    with pytest.raises(ConfigError, match="port is 99999; it must be from 0"):
        serve_metrics(counted(), port=99_999)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as line:
        line.bind(("::1", 0))
        return True
    return False


def test_it_serves_on_ipv6_as_well_or_says_that_this_machine_has_none() -> None:
    host, shown = ("::1", "[::1]") if has_ipv6() else ("127.0.0.1", "127.0.0.1")
    if host != "::1":
        with pytest.raises(ConfigError, match=r"cannot listen on .*::1"):
            serve_metrics(counted(), host="::1", port=0)
    with serve_metrics(counted(), host=host, port=0) as server:
        assert server.url == f"http://{shown}:{server.port}/metrics"
        with socket.create_connection((host, server.port)) as line:
            line.sendall(b"GET /debug/stacks HTTP/1.0\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.campaign
def test_hundreds_of_scrapes_grow_neither_memory_nor_threads(campaign: Callable[[int, int], int]) -> None:
    with serve_metrics(counted(), port=0, live=live_runs) as server:

        def scrape(number: int) -> int:
            path = "/debug/runs" if number % 10 == 0 else "/metrics?name[]=orchestrator_runs_started_total"
            return ask(server.port, path).status

        tracemalloc.start()
        try:
            assert {scrape(number) for number in range(100)} == {200}
            gc.collect()
            before, threads = tracemalloc.get_traced_memory()[0], threading.active_count()
            assert {scrape(number) for number in range(campaign(300, 20_000))} == {200}
            until(lambda: threading.active_count() <= threads)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown < 200_000, f"{grown:,} bytes more"


@pytest.mark.campaign
def test_scrapes_side_by_side_all_get_their_answer() -> None:
    with serve_metrics(counted(), port=0) as server, ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask(server.port).status, range(80))) == {200}


async def test_a_server_begun_on_an_event_loop_shows_its_tasks_and_renders_beside_it() -> None:
    with serve_metrics(counted(), port=0) as server:
        text = (await asyncio.to_thread(ask, server.port, "/debug/stacks")).text
        assert "test_a_server_begun_on_an_event_loop_shows_its_tasks" in text
        assert "thread 'orchestrator metrics'" in text


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # of fork with threads: that is the test
def test_a_forked_child_does_not_keep_the_port() -> None:
    server = serve_metrics(counted(), port=free_port())
    read, write = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.write(begins, b"x")
        os.read(read, 1)  # until the parent is done
        os._exit(0)
    os.close(read)
    try:
        os.read(begun, 1)  # what a child does after a fork is done
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
    finally:
        for end in (write, begun, begins):
            os.close(end)
        os.waitpid(child, 0)


def test_importing_and_making_apps_starts_no_thread_and_listens_nowhere() -> None:
    script = (
        "import threading, socket\n"
        "def refuse(*_): raise AssertionError('a socket')\n"
        "socket.socket.bind = refuse\n"
        "from orchestrator.telemetry.exposition import asgi_app, wsgi_app, serve_metrics, Batch\n"
        "asgi_app(); wsgi_app()\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
