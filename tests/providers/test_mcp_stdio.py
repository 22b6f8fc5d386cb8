"""A real MCP server as a program of ours: its tools in whole runs, killed, hanging, chatty, or not there at all."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from orchestrator import Agent
from orchestrator.errors import ConfigError
from orchestrator.llm.message import Request, audio_part, image_part, text_part
from orchestrator.providers.connection import SecretMask
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.mcp.transport import LineDecoder, LineLogger
from orchestrator.providers.scripted import Item, ScriptedLLM
from orchestrator.testing import FakeClock
from orchestrator.tools.spec import ToolSpec
from tests.engines.stage import until
from tests.providers.mcp_place import (
    PROGRAM,
    Shop,
    answers,
    by_stdio,
    call,
    living,
    noted,
    nothing_left,
    ran,
    results,
    shared,
)

LOST = (
    '{"error":"the connection to the tool\'s server was lost during the call; whether it ran is not known",'
    '"type":"SessionLost"}'
)
UNSENT = '{"error":"MCP server \'%s\' cannot be reached; the call was not sent","type":"SessionLost"}'
GIVEN_UP = (
    '{"error":"the tool gave no answer within 0.5 s; whether it took effect is not known","type":"Timeout"}'
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    environment: dict[str, str | SecretStr] = {"TOKEN": SecretStr("for the server"), "MODE": "quick"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "ours alone")
        server = McpServer.stdio(
            sys.executable, str(PROGRAM), str(folder), env=environment, prefix="shop_", exclude=["erase"]
        )
        with shared(folder, server) as opened:
            yield opened


def only(shop: Shop, name: str, **changed: Any) -> list[ToolSpec]:
    """One tool of the shared server, with other options."""
    return [replace(tool, **changed) if tool.name == name else tool for tool in shop.server.tools]


def kill_when(folder: Path, file: str, lines: int) -> asyncio.Task[None]:
    """SIGKILL the newest process of the program once it has noted so many lines."""

    async def wait_and_kill() -> None:
        await until(lambda: len(noted(folder, file)) >= lines)
        os.kill(int(noted(folder, "pid")[-1]), signal.SIGKILL)

    return asyncio.create_task(wait_and_kill())


# ---- a server that works ----


@pytest.fixture(autouse=True)
def _reaped() -> Iterator[None]:
    """The SDK kills a program that does not end, and does not wait for that: on a busy machine it may be dying yet."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_run_uses_the_tools_of_a_server_and_arguments_are_checked_before_they_are_sent(shop: Shop) -> None:
    effects = {tool.name: tool.effect for tool in shop.server.tools}
    wanted = {"shop_add": "pure", "shop_note": "idempotent", "shop_pay": "irreversible"}
    assert {name: effects[name] for name in wanted} == wanted
    assert "shop_erase" not in effects
    script: list[Item] = [
        [call("shop_add", '{"a": 2, "b": 3}'), call("shop_note", '{"text": "five"}')],
        [call("shop_pay", '{"amount": "much"}'), call("shop_pay", "{}"), call("shop_broken")],
        call("shop_pay", '{"amount": 5}'),
        "Done.",
    ]
    result = shop.run(ran(shop.server.tools, script))
    assert (result.outcome, result.output) == ("completed", "Done.")
    assert results(result) == [
        ("5", False),
        ("kept", False),
        (r'{"error":"amount: \"much\" is not of type \"number\"","type":"BadArguments"}', True),
        (r'{"error":"\"amount\" is a required property","type":"BadArguments"}', True),
        ('{"error":"Error executing tool broken: the till is empty","type":"ToolFailed"}', True),
        ("paid 5", False),
    ]
    assert (noted(shop.folder, "note"), noted(shop.folder, "pay")) == (["five"], ["5.0"])
    assert len(noted(shop.folder, "pid")) == 1


def test_a_call_that_gives_a_name_twice_is_not_sent_to_the_server(shop: Shop) -> None:
    before = noted(shop.folder, "pay")
    script: list[Item] = [call("shop_pay", '{"amount": 5, "amount": 5000}'), "Done."]
    result = shop.run(ran(shop.server.tools, script))
    error = "not run: 'amount' is given twice in one object; give each name once"
    assert results(result) == [(f'{{"error":"{error}","type":"DuplicateKeys"}}', True)]
    assert noted(shop.folder, "pay") == before


def test_what_a_model_reads_are_parts_and_the_rest_is_named_and_long_results_are_cut(shop: Shop) -> None:
    tools = only(shop, "shop_long", max_result_chars=400)
    script: list[Item] = [[call("shop_everything"), call("shop_long", '{"chars": 9000}')], "Done."]
    result = shop.run(ran(tools, script))
    parts, long = (message.content for message in result.messages if message.role == "tool")
    assert isinstance(parts, list)
    picture = b"\x89PNG" + bytes(96)
    assert parts == [
        text_part("two\nlines"),
        image_part(picture, "image/png"),
        audio_part(picture, "wav"),
        text_part(
            "[link manual: https://docs.example/manual]\n[resource file:///a.txt]\nthe text of a file\n"
            '[resource file:///a.bin application/zip, 100 bytes, not shown]\n{"count":2}'
        ),
    ]
    assert isinstance(long, str)
    assert (len(long), long[:3], long[-20:]) == (400, "yyy", "of 9,000 characters]")


def test_a_server_gets_what_is_safe_of_our_environment_and_what_it_is_given(shop: Shop) -> None:
    (text,) = answers(shop.run(ran(shop.server.tools, [call("shop_environment"), "Done."])))
    given = json.loads(text)
    assert (given["TOKEN"], given["MODE"], given["PATH"]) == ("for the server", "quick", os.environ["PATH"])
    assert given.keys() <= {"HOME", "LC_CTYPE", "LOGNAME", "MODE", "PATH", "SHELL", "TERM", "TOKEN", "USER"}


def test_standard_error_becomes_clean_log_lines_and_never_reaches_the_terminal(
    shop: Shop, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.mcp")

    async def listened() -> list[str]:
        noise = call("shop_noise", '{"lines": 2, "chars": 600}')
        assert answers(await ran(shop.server.tools, [noise, "Done."])) == ["written"]
        await until(lambda: len(caplog.records) >= 2)
        return [record.getMessage() for record in caplog.records]

    lines = shop.run(listened())
    name = shop.server.name
    assert lines == [f"MCP server {name!r} wrote: line {n} [31m" + "x" * 488 + "…" for n in (0, 1)]
    assert capfd.readouterr() == ("", "")


def test_a_tool_that_hangs_is_given_up_at_its_timeout_and_the_session_lives_on(shop: Shop) -> None:
    assert {tool.timeout for tool in shop.server.tools} == {60.0}
    before = len(noted(shop.folder, "hang"))

    async def hung() -> list[tuple[str, bool]]:
        tools, clock = only(shop, "shop_hang", timeout=0.5), FakeClock()
        script: list[Item] = [call("shop_hang"), call("shop_add", '{"a": 1}'), "Done."]
        running = asyncio.create_task(ran(tools, script, clock=clock))
        await until(lambda: noted(shop.folder, "hang")[before:] == ["began"])
        await clock.advance(0.5)
        result = await running
        await until(lambda: noted(shop.folder, "hang")[before:] == ["began", "cancelled"])
        return results(result)

    assert shop.run(hung()) == [(GIVEN_UP, True), ("2", False)]
    assert len(noted(shop.folder, "pid")) == 1


@pytest.mark.parametrize("way", ["run", "task", "timeout"])
def test_cancelling_a_run_cancels_the_request_and_is_not_swallowed(shop: Shop, way: str) -> None:
    before = len(noted(shop.folder, "hang"))
    agent = Agent(ScriptedLLM([call("shop_hang")]), tools=[*shop.server.tools], observers=())

    async def cancelled() -> None:
        running = asyncio.create_task(agent.run("Go.", run_id="r"))
        await until(lambda: len(noted(shop.folder, "hang")) > before)
        if way == "run":
            await agent.cancel("r")
            assert (await running).outcome == "cancelled"
        elif way == "task":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await running
        await until(lambda: noted(shop.folder, "hang")[before:] == ["began", "cancelled"])
        result = await ran(shop.server.tools, [call("shop_add", '{"a": 4}'), "Done."])
        assert answers(result) == ["5"]

    shop.run(cancelled())
    assert len(noted(shop.folder, "pid")) == 1


def test_a_call_from_another_event_loop_is_an_error_result(shop: Shop) -> None:
    result = asyncio.run(ran(shop.server.tools, [call("shop_add", '{"a": 1}'), "Done."]))
    assert results(result) == [(UNSENT % shop.server.name, True)]


# ---- a server that dies ----


@pytest.mark.campaign
async def test_a_server_killed_in_mid_call_costs_error_results_and_the_run_goes_on_with_a_new_one(
    tmp_path: Path,
) -> None:
    async with by_stdio(tmp_path) as server:
        killer = kill_when(tmp_path, "pay", 2)
        lost = [call("pay", '{"amount": -1}'), call("pay", '{"amount": -1}')]
        paid = [call("pay", '{"amount": 7}'), call("pay", '{"amount": 8}')]
        result = await ran(server.tools, [lost, paid, "Paid."])
        await killer
        assert result.outcome == "completed"
        assert results(result) == [(LOST, True), (LOST, True), ("paid 7", False), ("paid 8", False)]
        assert noted(tmp_path, "pay")[:2] == ["-1.0", "-1.0"]
        assert sorted(noted(tmp_path, "pay")[2:]) == ["7.0", "8.0"]  # what may have run was not sent again
        assert len(noted(tmp_path, "pid")) == 2  # and both calls share the new one


@pytest.mark.campaign
async def test_a_pure_call_that_was_interrupted_is_sent_once_more_to_a_new_session(tmp_path: Path) -> None:
    async with by_stdio(tmp_path) as server:
        killer = kill_when(tmp_path, "look", 1)
        result = await ran(server.tools, [call("look", '{"text": "it"}'), "Done."])
        await killer
        assert answers(result) == ["saw it"]
        assert noted(tmp_path, "look") == ["it", "it"]
        assert len(noted(tmp_path, "pid")) == 2


@pytest.mark.campaign
async def test_a_server_that_died_between_two_calls_is_started_again_before_the_next_one(
    tmp_path: Path,
) -> None:
    async with by_stdio(tmp_path, name="shop") as server:

        async def kill(_: Request) -> Any:
            session = server._pool._current
            assert session is not None
            os.kill(int(noted(tmp_path, "pid")[0]), signal.SIGKILL)
            await until(lambda: not session.usable)
            return call("pay", '{"amount": 2}')

        result = await ran(server.tools, [call("pay", '{"amount": 1}'), kill, "Done."])
        assert answers(result) == ["paid 1", "paid 2"]
        assert noted(tmp_path, "pay") == ["1.0", "2.0"]
    after = await ran(server.tools, [call("add", '{"a": 1}'), "Done."])
    assert results(after) == [(UNSENT % "shop", True)]


@pytest.mark.campaign
async def test_a_server_that_hangs_for_good_is_replaced_at_the_next_call(tmp_path: Path) -> None:
    async with by_stdio(tmp_path) as server:
        tools = [replace(tool, timeout=0.5) if tool.name == "hang" else tool for tool in server.tools]

        async def stop(_: Request) -> Any:
            os.kill(int(noted(tmp_path, "pid")[0]), signal.SIGSTOP)
            return call("hang")

        result = await ran(tools, [stop, call("pay", '{"amount": 7}'), "Paid."])
        assert results(result) == [(GIVEN_UP, True), ("paid 7", False)]
        assert noted(tmp_path, "pay") == ["7.0"]
        assert len(noted(tmp_path, "pid")) == 2


@pytest.mark.campaign
async def test_a_server_that_cannot_be_started_again_is_an_error_result_and_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = script(tmp_path / "once", f'rm "$0"\nexec "{sys.executable}" "{PROGRAM}" "{tmp_path}"')
    async with nothing_left(tmp_path), McpServer.stdio(str(program)) as server:
        killer = kill_when(tmp_path, "hang", 1)
        result = await ran(server.tools, [call("hang"), call("add", '{"a": 1}'), "I cannot."])
        await killer
    assert results(result) == [(LOST, True), (UNSENT % "shop", True)]
    assert result.outcome == "completed"
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == f"MCP server 'shop' cannot be used: there is no command {str(program)!r}"


@pytest.mark.campaign
async def test_a_cancellation_while_the_server_is_being_ended_is_raised_once_no_process_is_left(
    tmp_path: Path,
) -> None:
    real = f'"{sys.executable}" "{PROGRAM}" "{tmp_path}"'
    stubborn = script(tmp_path / "stubborn", f'echo $$ >> "{tmp_path}/pid"\n{real}\nexec sleep 600')
    ending = asyncio.Event()

    async def use() -> None:
        async with McpServer.stdio(str(stubborn)):
            ending.set()

    async with nothing_left(tmp_path):
        using = asyncio.create_task(use())
        await ending.wait()
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
    assert len(noted(tmp_path, "pid")) == 2


def script(path: Path, text: str) -> Path:
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


# ---- a server that never comes ----


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-command-anywhere"], "there is no command 'no-such-command-anywhere'"),
        (["/"], "the command '/' cannot be started: Permission denied"),
        ([sys.executable, "-c", ""], "the program ended before it answered"),
        (
            [sys.executable, "-c", "import sys; sys.exit('no licence\x1b[0m found')"],
            "the program ended before it answered; it wrote: no licence[0m found",
        ),
        (["sleep", "600"], "it gave no answer within 0.3 s"),
        (["yes", "no JSON"], "it gave no answer within 0.3 s"),
    ],
)
async def test_a_server_that_never_starts_is_one_sentence(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    command: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = "no answer" in said
    if silent:  # and does not end when its input does
        monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.1)
    server = McpServer.stdio(*command, name="it", connect_timeout=0.3 if silent else 30)
    async with nothing_left(tmp_path):
        with pytest.raises(ConfigError) as caught:
            async with server:
                pytest.fail("it is no MCP server")
    assert str(caught.value) == f"MCP server 'it' cannot be used: {said}"
    assert capfd.readouterr() == ("", "")


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no folder '{tmp_path}/nowhere' to start it in"):
        async with McpServer.stdio("sleep", "1", cwd=tmp_path / "nowhere"):
            pytest.fail("not started")


@pytest.mark.campaign
async def test_a_host_that_gives_up_while_connecting_leaves_no_process(tmp_path: Path) -> None:
    waiting = script(tmp_path / "waiting", f'echo $$ >> "{tmp_path}/pid"\nexec sleep 600')
    async with nothing_left(tmp_path):
        connecting = asyncio.create_task(McpServer.stdio(str(waiting)).__aenter__())
        await until(lambda: bool(noted(tmp_path, "pid")))
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting


@pytest.mark.campaign
async def test_an_unknown_name_in_an_option_refuses_the_server_and_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no tool 'serch', named in include"):
        async with by_stdio(tmp_path, include=["serch"]):
            pytest.fail("not connected")
    await until(lambda: not living(int(noted(tmp_path, "pid")[0])))


# ---- what a server writes ----


REPEATING = """
import base64, os, sys

token = os.environ["SHOP_TOKEN"]
print("started with", token, file=sys.stderr, flush=True)
if sys.argv[1:] == ["fails"]:
    sys.exit(1)

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop")

@server.tool()
def tool_error() -> str:
    raise ToolError(f"no such token: {token}")

@server.tool()
def protocol_error() -> str:
    raise MCPError(-32000, "Basic " + base64.b64encode(b"ann:" + token.encode()).decode())

server.run()
"""


async def test_a_secret_that_a_server_repeats_reaches_neither_model_nor_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.mcp")
    canary = "canary-of-the-shop-0123456789"
    (tmp_path / "repeating.py").write_text(REPEATING)
    program = (sys.executable, str(tmp_path / "repeating.py"))
    environment: dict[str, str | SecretStr] = {"SHOP_TOKEN": SecretStr(canary)}
    async with McpServer.stdio(*program, env=environment) as server:
        result = await ran(server.tools, [call("tool_error"), call("protocol_error"), "done"])
    assert all(failed and "**********" in text for text, failed in results(result))
    with pytest.raises(ConfigError, match=r"it wrote: started with \*\*\*\*") as failure:
        async with McpServer.stdio(*program, "fails", env=environment):
            pytest.fail("it ended")
    shown = f"{results(result)} {failure.value} {caplog.text}"
    assert caplog.text.count("started with **********") == 2
    assert canary not in shown
    assert base64.b64encode(f"ann:{canary}".encode()).decode()[4:-4] not in shown


def test_only_so_many_lines_are_logged_and_a_line_without_an_end_is_not_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.mcp")
    said: list[str] = []
    lines = LineLogger(lambda: "shop", said, SecretMask([]))
    for number in range(1_200):
        lines.data_received(f"{number}\n\n".encode())
    assert [record.getMessage() for record in caplog.records[-2:]] == [
        "MCP server 'shop' wrote: 999",
        "MCP server 'shop' wrote more than 1000 lines; the rest is dropped",
    ]
    for _ in range(100):
        lines.data_received(b"z" * 64 * 1024)
    assert len(lines._pending) == 64 * 1024
    lines.connection_lost(None)
    assert said == ["z" * 200]
    assert len(caplog.records) == 1_001


@pytest.mark.campaign
async def test_a_message_beyond_the_limit_closes_the_session_and_the_next_call_gets_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script: list[Item] = [call("long", '{"chars": 30000000}'), call("add", '{"a": 1}'), "Done."]
    with caplog.at_level(logging.WARNING, "orchestrator.mcp"):
        async with by_stdio(tmp_path, max_message_bytes=100_000) as server:
            result = await ran(server.tools, script)
    assert results(result) == [(LOST, True), ("2", False)]
    assert len(noted(tmp_path, "pid")) == 2
    assert "wrote a message of more than 100000 bytes; its session is closed" in caplog.text


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(1, 9), min_size=1))
def test_lines_are_the_same_however_they_are_cut_and_none_is_given_before_it_ends(
    parts: list[bytes], sizes: list[int]
) -> None:
    text = b"\n".join(parts)
    decoder, said, at = LineDecoder(), [], 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        said.append(decoder.decode(text[at : at + size]))
        assert said[-1] == "" or said[-1].endswith("\n")
        at += size
    assert "".join(said) + decoder.decode(b"", final=True) == text.decode(errors="replace")
