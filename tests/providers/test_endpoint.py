"""The guard bites: a connection to anywhere else is stopped, noted, and fails the test that made it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request
from orchestrator.providers.openai import OpenAI
from tests.providers.endpoint import ForbiddenConnection, Guard, closed_port
from tests.providers.loopback import Loopback, json_reply

HELLO = Request((Message("user", "hello"),))
ANSWER = json_reply({"choices": [{"message": {"content": "hi"}}]})


def broken(guard: Guard) -> list[str]:
    """What was broken, taken off the record: here that is what is wanted."""
    found, guard.broken = guard.broken, []
    return found


def test_an_address_that_nobody_allowed_is_not_connected_to(guard: Guard) -> None:
    with (
        socket.socket() as one,
        pytest.raises(ForbiddenConnection, match=r"socket.connect to 192\.0\.2\.1:443"),
    ):
        one.connect(("192.0.2.1", 443))
    assert broken(guard) == ["socket.connect to 192.0.2.1:443"]


def test_a_name_that_nobody_allowed_is_not_looked_up(guard: Guard) -> None:
    with pytest.raises(ForbiddenConnection):
        socket.getaddrinfo("api.openai.com", 443)
    with pytest.raises(ForbiddenConnection):
        socket.gethostbyname("api.anthropic.com")
    assert broken(guard) == [
        "socket.getaddrinfo of api.openai.com",
        "socket.gethostbyname of api.anthropic.com",
    ]


def test_another_port_of_this_machine_is_not_connected_to_either(guard: Guard) -> None:
    with closed_port(), socket.socket() as one, pytest.raises(ForbiddenConnection):
        one.connect(("127.0.0.1", 9))
    assert broken(guard) == ["socket.connect to 127.0.0.1:9"]


def test_threads_and_other_libraries_are_watched_too(guard: Guard) -> None:
    def ask() -> None:
        with pytest.raises(ForbiddenConnection):
            urllib.request.urlopen("http://models.test/")

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert broken(guard) == ["socket.getaddrinfo of models.test"]


async def test_a_model_that_goes_where_it_should_not_is_caught(guard: Guard) -> None:
    async with OpenAI("m", api_key="sk-test", base_url="https://api.openai.com/v1") as llm:
        with pytest.raises((LLMError, ForbiddenConnection)):
            await llm.complete(HELLO)
    assert broken(guard) == ["socket.getaddrinfo of api.openai.com"]


async def test_the_configured_server_is_connected_to_and_nothing_else(guard: Guard) -> None:
    async with Loopback([ANSWER]) as server, OpenAI("m", api_key="sk-test", base_url=server.url) as llm:
        assert (await llm.complete(HELLO)).content == "hi"
        assert guard.seen == [("127.0.0.1", server.port)]
        assert guard.allowed == {("127.0.0.1", server.port)}
    assert guard.allowed == set()
    with socket.socket() as one, pytest.raises(ForbiddenConnection):  # a server that is gone is no endpoint
        one.connect(("127.0.0.1", server.port))
    assert len(broken(guard)) == 1


async def test_what_stays_on_the_machine_without_a_port_is_no_concern(guard: Guard, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with await asyncio.start_unix_server(lambda _, writer: writer.close(), path):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()
    assert guard.broken == []


def test_a_test_that_swallowed_the_error_fails_all_the_same(guard: Guard) -> None:
    with (
        guard.allow("192.0.2.1", 443),
        pytest.raises(ForbiddenConnection, match=r"192\.0\.2\.1:443"),
        Guard().watching(),
        contextlib.suppress(Exception),
        socket.socket() as one,
    ):
        one.connect(("192.0.2.1", 443))


def test_nothing_is_stopped_where_nobody_watches() -> None:
    idle = Guard()
    with idle.watching():
        pass
    with closed_port() as port, socket.socket() as one, pytest.raises(ConnectionRefusedError):
        one.connect(("127.0.0.1", port))
    assert idle.seen == []
