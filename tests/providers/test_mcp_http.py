"""A real MCP server over streamable HTTP on loopback: used, killed and started again, forgetful, slow, or not there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from orchestrator import Agent
from orchestrator.errors import ConfigError
from orchestrator.llm.message import Request
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.scripted import Item, ScriptedLLM
from tests.engines.stage import until
from tests.ports import free_port
from tests.providers.mcp_place import address, answers, by_http, call, noted, ran, results

LOST = (
    '{"error":"the connection to the tool\'s server was lost during the call; whether it ran is not known",'
    '"type":"SessionLost"}'
)
UNSENT = '{"error":"MCP server \'shop\' cannot be reached; the call was not sent","type":"SessionLost"}'
KINDS = pytest.mark.parametrize("words", [(), ("legacy",)], ids=["2026", "older"])


@asynccontextmanager
async def connected(folder: Path, **options: Any) -> AsyncIterator[McpServer]:
    """A client of the program; no task of it is left afterwards."""
    before = asyncio.all_tasks()
    async with McpServer.http(address(folder), **options) as server:
        yield server
    assert asyncio.all_tasks() == before


@pytest.mark.canary("2026")
@pytest.mark.campaign
@KINDS
async def test_a_run_uses_the_tools_of_an_address_and_a_hanging_call_is_cancelled(
    tmp_path: Path, words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    token = {"Authorization": SecretStr("Bearer the-token")}
    async with by_http(tmp_path, *words), connected(tmp_path, headers=token, prefix="web_") as server:
        script: list[Item] = [
            [call("web_add", '{"a": 2, "b": 3}'), call("web_pay", '{"amount": "much"}'), call("web_broken")],
            [call("web_grow"), call("web_headers")],
            call("web_grown"),
            "Done.",
        ]
        result = await ran(server.tools, script)
        (added, refused, broken, grown, headers, unknown) = results(result)
        assert (added, grown) == (("5", False), ("grown", False))
        assert refused == (
            r'{"error":"amount: \"much\" is not of type \"number\"","type":"BadArguments"}',
            True,
        )
        assert broken == (
            '{"error":"Error executing tool broken: the till is empty","type":"ToolFailed"}',
            True,
        )
        assert json.loads(headers[0])["authorization"] == "Bearer the-token"
        assert "there is no tool 'web_grown'" in unknown[0]
        agent = Agent(ScriptedLLM([call("web_hang")]), tools=[*server.tools], observers=())
        running = asyncio.create_task(agent.run("Go.", run_id="r"))
        await until(lambda: bool(noted(tmp_path, "hang")))
        await agent.cancel("r")
        assert (await running).outcome == "cancelled"
        await until(lambda: noted(tmp_path, "hang") == ["began", "cancelled"])
        assert answers(await ran(server.tools, [call("web_add", '{"a": 4}'), "Done."])) == ["5"]
    said = [record.getMessage() for record in caplog.records if record.name == "orchestrator.mcp"]
    assert said == [
        "tool 'grown' of MCP server 'shop' is new since its tools were allowed, so it is disabled"
    ]


@pytest.mark.campaign
@KINDS
async def test_a_server_killed_in_mid_call_costs_one_error_result_and_the_run_goes_on_with_the_next_one(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    async with by_http(tmp_path, *words) as first, connected(tmp_path) as server:
        port = int(noted(tmp_path, "port")[0])

        async def kill() -> None:
            await until(lambda: noted(tmp_path, "pay") == ["-1.0"])
            first.kill()
            await first.wait()

        async def down(_: Request) -> Any:
            await killing
            return call("pay", '{"amount": 1}')

        killing = asyncio.create_task(kill())
        result = await ran(server.tools, [call("pay", '{"amount": -1}'), down, "It is down."])
        # The SDK tells a refused connection like one that was cut, so the second call may have run for all we know.
        assert results(result)[0] == (LOST, True)
        assert results(result)[1] in {(LOST, True), (UNSENT, True)}
        async with by_http(tmp_path, *words, port=port):
            script: list[Item] = [call("add", '{"a": 1}'), call("pay", '{"amount": 7}'), "Paid."]
            assert answers(await ran(server.tools, script)) == ["2", "paid 7"]
        assert noted(tmp_path, "pay") == ["-1.0", "7.0"]


@pytest.mark.campaign
async def test_a_server_that_forgot_the_session_gets_a_new_one_and_only_a_pure_call_is_sent_again(
    tmp_path: Path,
) -> None:
    async with by_http(tmp_path, "legacy") as first, connected(tmp_path) as server:
        assert answers(await ran(server.tools, [call("add", '{"a": 1}'), "Done."])) == ["2"]
        first.kill()
        await first.wait()
        async with by_http(tmp_path, "legacy", port=int(noted(tmp_path, "port")[0])):
            both = [call("add", '{"a": 1}'), call("pay", '{"amount": 7}')]
            script: list[Item] = [both, call("pay", '{"amount": 8}'), "Done."]
            result = await ran(server.tools, script)
            assert results(result) == [("2", False), (LOST, True), ("paid 8", False)]
        assert noted(tmp_path, "pay") == ["8.0"]


# ---- an address that is none ----


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server on loopback that gives the same bytes to whatever it is asked; none are no answer at all."""
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.read(1)
        if answer:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in held:
            writer.close()
        await server.wait_closed()


def plain(status: str, body: str = "no") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (plain("404 Not Found"), "http://%s/mcp is not an MCP server, or refuses us (HTTP 404): Not Found"),
        (
            plain("401 Unauthorized"),
            "http://%s/mcp is not an MCP server, or refuses us (HTTP 401): Server returned an error response",
        ),
        (
            plain("200 OK", "<html>"),
            "http://%s/mcp is not an MCP server, or refuses us: Unexpected content type:",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http://%s/mcp does not answer (RemoteProtocolError: "),
        (b"", "it gave no answer within 0.2 s"),
    ],
)
async def test_an_address_that_is_no_mcp_server_is_one_sentence(
    answer: bytes, said: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    before = asyncio.all_tasks()
    patience = 30 if answer else 0.2  # what does answer may be slow where much else runs
    async with answering(answer) as place:
        with pytest.raises(ConfigError) as caught:
            async with McpServer.http(
                f"http://u:secret@{place}/mcp?key=secret", name="it", connect_timeout=patience
            ):
                pytest.fail("it is no MCP server")
        text = str(caught.value)
        assert text.startswith("MCP server 'it' cannot be used: " + said.replace("%s", place))
        assert "secret" not in text
        assert "\n" not in text
    await until(
        lambda: asyncio.all_tasks() == before
    )  # the server here may learn late that its client has left
    assert capfd.readouterr() == ("", "")


async def test_an_address_where_nobody_listens_is_one_sentence() -> None:
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        ConfigError, match=rf"^MCP server 'it' cannot be used: http://{place}/ does not answer \("
    ):
        async with McpServer.http(f"http://{place}/", name="it"):
            pytest.fail("nobody listens")


async def test_a_host_that_gives_up_while_connecting_is_cancelled_at_once() -> None:
    before = asyncio.all_tasks()
    async with answering(b"") as place:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), McpServer.http(f"http://{place}/mcp"):
                pytest.fail("it does not answer")
    await until(lambda: asyncio.all_tasks() == before)


async def test_no_session_is_opened_but_to_the_address_itself(tmp_path: Path) -> None:
    async with answering(b"") as elsewhere:
        moved = (
            f"HTTP/1.1 307 Moved\r\nLocation: http://{elsewhere}/mcp\r\nContent-Length: 0\r\n\r\n".encode()
        )
        async with answering(moved) as place:
            with pytest.raises(ConfigError, match="cannot be used"):
                async with McpServer.http(f"http://{place}/mcp", connect_timeout=20):
                    pytest.fail("not followed")


def test_the_sdks_log_lines_stay_off_a_terminal_that_nobody_configured() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("mcp").handlers)
