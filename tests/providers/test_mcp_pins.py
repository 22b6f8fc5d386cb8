"""Tools of an MCP server that are not as they were allowed are disabled: neither offered nor called."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import Tool, ToolAnnotations

from orchestrator.llm.message import Request
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.mcp.offer import digest_of
from orchestrator.providers.scripted import Item, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from tests.engines.stage import until
from tests.providers.mcp_place import (
    PROGRAM,
    address,
    answers,
    by_http,
    by_stdio,
    call,
    noted,
    ran,
    results,
    served_here,
)

REFUSED = (
    '{"error":"the tool has changed at its server since it was allowed; the call was not sent","type":"ToolDisabled"}',
    True,
)
NOTE = call("note", '{"text": "x"}')


def names(server: McpServer) -> set[str]:
    return {tool.name for tool in server.tools}


def tool(**members: Any) -> Tool:
    return Tool(**{"name": "a", "description": "Read.", "input_schema": {"type": "object"}, **members})


@pytest.mark.parametrize(
    "members",
    [
        {"description": "Read all."},
        {"description": None},
        {"title": "A"},
        {"input_schema": {"type": "object", "properties": {"key": {"type": "string"}}}},
        {"output_schema": {"type": "object"}},
        {"annotations": ToolAnnotations(read_only_hint=True)},
        {"name": "b"},
    ],
)
def test_the_digest_covers_what_the_model_reads_and_what_decides_how_a_tool_is_called(members: Any) -> None:
    assert digest_of(tool(**members)) != digest_of(tool())
    assert len(bytes.fromhex(digest_of(tool()))) == 32


def test_the_order_of_members_is_no_change() -> None:
    one, other = {"type": "object", "title": "x"}, {"title": "x", "type": "object"}
    assert digest_of(tool(input_schema=one)) == digest_of(tool(input_schema=other))


@asynccontextmanager
async def here(folder: Path, **options: Any) -> AsyncIterator[McpServer]:
    """The program over HTTP in this process."""
    with served_here(PROGRAM, folder) as url:
        async with McpServer.http(url, **options) as server:
            yield server


async def test_a_tool_that_has_changed_since_its_digest_was_stored_is_not_offered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with here(tmp_path) as server:
        stored = json.dumps(server.digests)
    (tmp_path / "other").touch()
    said: list[str] = []
    async with here(
        tmp_path, pins=json.loads(stored), on_disabled=said.append, include=["note", "add"]
    ) as server:
        assert names(server) == {"add"}
        assert answers(await ran(server.tools, [call("add", '{"a": 1}'), "Done."])) == ["2"]
    assert said == ["tool 'note' of MCP server 'shop' has changed since it was allowed, so it is disabled"]
    assert caplog.records == []


async def test_a_tool_that_has_changed_is_a_warning_where_the_host_is_not_told_and_offered_without_pins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with here(tmp_path) as server:
        pins, everything = dict(server.digests), names(server)
    (tmp_path / "other").touch()
    async with here(tmp_path, pins=pins) as server:
        assert names(server) == everything - {"note"}
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"tool 'note' of MCP server {server.name!r} has changed since it was allowed, so it is disabled"
    ]
    async with here(tmp_path) as server:
        assert names(server) == everything  # without pins the host allows what there is


async def test_a_tool_that_is_new_is_not_offered(tmp_path: Path) -> None:
    async with here(tmp_path) as server:
        pins = {name: digest for name, digest in server.digests.items() if name != "erase"}
    said: list[str] = []
    async with here(tmp_path, pins=pins, on_disabled=said.append) as server:
        assert "erase" not in names(server)
        assert "erase" in server.digests
    (sentence,) = said
    assert sentence.startswith("tool 'erase' of MCP server ")
    assert sentence.endswith(" is new since its tools were allowed, so it is disabled")


def announced(caplog: pytest.LogCaptureFixture, times: int, say: Item) -> Callable[[Request], Any]:
    """Return an answer of the model that waits until the server announced a change: it may come after a result."""

    async def answer(_: Request) -> Item:
        await until(lambda: sum("announces other tools" in text for text in caplog.messages) >= times)
        return say

    return answer


@pytest.mark.campaign
@pytest.mark.parametrize("what", ["description", "annotations"])
async def test_a_tool_that_changes_in_the_middle_of_a_run_is_not_called_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.mcp")
    said: list[str] = []
    async with (
        by_http(tmp_path, "legacy"),
        McpServer.http(address(tmp_path), on_disabled=said.append) as server,
    ):
        script: list[Item] = [
            NOTE,
            call("alter", json.dumps({"what": what})),
            announced(caplog, 1, [NOTE, NOTE]),
            call("add", '{"a": 1}'),
            call("alter", '{"what": "nothing"}'),
            announced(caplog, 2, NOTE),
            "Done.",
        ]
        assert results(await ran(server.tools, script)) == [
            ("kept", False),
            ("altered", False),
            REFUSED,
            REFUSED,
            ("2", False),
            ("altered", False),
            ("kept", False),  # it is again as it was allowed
        ]
    assert noted(tmp_path, "note") == ["x", "x"]
    assert said == ["tool 'note' of MCP server 'shop' has changed since it was allowed, so it is disabled"]


@pytest.mark.campaign
async def test_a_server_that_comes_back_with_another_tool_is_not_called(tmp_path: Path) -> None:
    said: list[str] = []
    async with (
        by_http(tmp_path, "legacy") as first,
        McpServer.http(address(tmp_path), on_disabled=said.append) as server,
    ):
        assert answers(await ran(server.tools, [NOTE, "Done."])) == ["kept"]
        first.kill()
        await first.wait()
        (tmp_path / "other").touch()
        async with by_http(tmp_path, "legacy", port=int(noted(tmp_path, "port")[0])):
            script: list[Item] = [call("pay", '{"amount": 1}'), NOTE, call("add", '{"a": 1}'), "Done."]
            (_, refused, added) = results(await ran(server.tools, script))
            assert (refused, added) == (REFUSED, ("2", False))
    assert noted(tmp_path, "note") == ["x"]
    assert len(said) == 1


@pytest.mark.campaign
async def test_calls_at_once_all_wait_for_the_comparison_after_an_announcement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.mcp")
    async with (
        by_http(tmp_path, "legacy"),
        McpServer.http(address(tmp_path), on_disabled=lambda _: None) as server,
    ):
        script: list[Item] = [call("alter", '{"what": "description"}'), announced(caplog, 1, "Done.")]
        await ran(server.tools, script)
        runs = (ran(server.tools, [[NOTE] * 5, "Done."]) for _ in range(4))
        found = [one for result in await asyncio.gather(*runs) for one in results(result)]
        assert found == [REFUSED] * 20
    assert noted(tmp_path, "note") == []


@pytest.mark.parametrize("way", ["stdio", pytest.param("older", marks=pytest.mark.campaign)])
async def test_the_next_turn_offers_a_new_tool_once_the_user_has_consented_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.mcp")
    said: list[str] = []
    consent: dict[str, str] = {}
    offered: list[bool] = []
    options: Any = {"pins": lambda: consent, "on_disabled": said.append}

    async def look(request: Request) -> Any:
        offered.append("grown" in {tool.name for tool in request.tools})
        return call("add", '{"a": 1}')

    async def agree(request: Request) -> Any:
        consent.update(server.digests)
        return await look(request)

    async def run(server: McpServer) -> None:
        script: list[Item] = [
            call("grow"),
            announced(caplog, 1, NOTE),
            look,
            agree,
            look,
            call("grown"),
            "Done.",
        ]
        llm = ScriptedLLM(script)
        result = await Agent(llm, tools=[server], observers=()).run("Go.")
        llm.assert_complete()
        assert answers(result) == ["grown", "kept", "2", "2", "2", "new"]
        assert offered == [False, False, True]
        assert said == [
            "tool 'grown' of MCP server 'shop' is new since its tools were allowed, so it is disabled"
        ]

    if way == "stdio":
        async with here(tmp_path) as first:
            consent.update(first.digests)
        async with by_stdio(tmp_path, **options) as server:
            await run(server)
    else:
        async with by_http(tmp_path, "legacy"):
            async with McpServer.http(address(tmp_path)) as first:
                consent.update(first.digests)
            async with McpServer.http(address(tmp_path), **options) as server:
                await run(server)
