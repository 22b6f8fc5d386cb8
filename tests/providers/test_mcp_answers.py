"""Errors and results of real MCP servers: an error is the server's, and a call that was answered has run."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.errors import ConfigError, ResultUnreadable
from orchestrator.journal.memory import MemoryJournal
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.mcp.server_request import LiveCall
from orchestrator.providers.scripted import Item
from orchestrator.tools.input_request import CallInput
from orchestrator.tools.result import ToolOutcome
from orchestrator.tools.spec import ToolContext
from orchestrator.tools.tool_set import ToolSet
from tests.providers.mcp_place import (
    PROGRAM,
    address,
    by_http,
    by_stdio,
    call,
    noted,
    ran,
    results,
    served_here,
)

ANSWERS = Path(__file__).with_name("mcp_answers.py")
LIMITED = ('{"error":"Rate limit: try in 10 s","type":"CallRefused"}', True)
LIMITED_CALLS = (call("limited", '{"code": -32000}'), call("limited", '{"code": -32001}'))
LOST = (
    '{"error":"the connection to the tool\'s server was lost during the call; whether it ran is not known",'
    '"type":"SessionLost"}'
)


@asynccontextmanager
async def answering(folder: Path, listing: str = "plain", **options: Any) -> AsyncIterator[McpServer]:
    async with McpServer.stdio(sys.executable, str(ANSWERS), str(folder), listing, **options) as server:
        yield server


async def called(folder: Path, *names: str) -> tuple[list[tuple[str, bool]], list[tuple[str, str, Any]]]:
    """Return what the model reads of calls one after the other, and outcome and stored type of each."""
    journal = MemoryJournal()
    async with answering(folder) as server:
        result = await ran([server], [*map(call, names), "Done."], journal=journal)
    done = [record.body for record in await journal.load(result.run_id) if record.kind == "done"]
    return results(result), [
        (one["tool"], one["outcome"], one.get("returned", {}).get("type")) for one in done
    ]


async def test_an_error_with_a_code_of_the_sdk_is_the_servers_and_ends_no_session(tmp_path: Path) -> None:
    read, done = await called(tmp_path, "closed", "timeout", "deep_text")
    assert read[:2] == [LIMITED, LIMITED]
    assert not read[2][1]
    assert [outcome for _, outcome, _ in done] == ["error", "error", "ok"]
    assert noted(tmp_path, "calls") == ["closed", "timeout", "deep_text"], "each was sent once"


async def test_a_server_that_dies_has_lost_the_session(tmp_path: Path) -> None:
    read, _ = await called(tmp_path, "dies", "timeout")
    assert read == [(LOST, True), LIMITED]
    assert noted(tmp_path, "calls") == ["dies", "timeout"]


UNREAD: dict[str, tuple[ToolOutcome, str]] = {
    "misfit": ("result_unreadable", "Invalid structured content returned by tool misfit"),
    "form": ("result_unreadable", "the server's answer cannot be read"),
    "deep": ("result_unreadable", "recursion limit exceeded"),
    "deep_last": ("result_unreadable", "recursion limit exceeded"),
    "surrogate": ("ok", "facture-?.pdf"),
    "nan": ("ok", "NaN"),
    "deep_text": ("ok", "[[["),
}


async def test_a_call_that_was_answered_has_run_whatever_its_result_is(tmp_path: Path) -> None:
    read, done = await called(tmp_path, *UNREAD)
    for (text, is_error), (name, outcome, _) in zip(read, done, strict=True):
        wanted, said = UNREAD[name]
        assert (is_error, outcome) == (False, wanted)
        assert said in text
        if wanted == "result_unreadable":
            assert json.loads(text)["ran"] is True
    assert noted(tmp_path, "calls") == [*UNREAD], "each was sent once"


async def test_lines_that_are_no_messages_are_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        read, _ = await called(tmp_path, "prints", "prints")
    assert read == [("printed", False)] * 2
    [warned] = [
        one for one in caplog.records if one.levelno >= logging.WARNING and "dangling" not in one.getMessage()
    ]
    assert warned.name == "orchestrator.mcp"
    assert warned.exc_info is None
    assert "writes lines to its standard output that are no messages of the protocol" in warned.getMessage()


async def test_names_that_would_be_cut_alike_get_a_digest_and_a_dangling_reference_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(tmp_path) as server:
        names = [tool.name for tool in server.tools if tool.name.startswith("long_")]
        result = await ran([server], [*map(call, names), "Done."])
    assert [len(name) for name in names] == [64, 64]
    assert len({name[:55] for name in names}) == 1
    assert results(result) == [("_read answers", False), ("write answers", False)]
    assert noted(tmp_path, "calls") == ["long_" + "x" * 60 + "_read", "long_" + "x" * 60 + "_write"]
    [refused] = [message for message in caplog.messages if "'dangling' is not offered" in message]
    assert "a $ref has no target in its document (Pointer '/$defs/Gone' does not exist)" in refused


async def test_a_cursor_that_is_repeated_ends_the_list_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(tmp_path, "again") as server:
        assert [prompt.name for prompt in await server.prompts()] == ["prompt None", "prompt 2"]
        assert Counter(tool.name for tool in server.tools) == Counter(["closed", "timeout", "dies", "misfit"])
    assert any(
        "repeats a cursor of its list of tools; the list ends after 2 pages" in one for one in caplog.messages
    )


async def test_a_server_that_refuses_to_start_is_named_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used: The license has expired"):
        async with answering(tmp_path, "refuses"):
            pytest.fail("not connected")


async def refused(server: McpServer, folder: Path) -> None:
    """Call a tool of the program twice and check that its errors are its own."""
    async with server:
        assert results(await ran([server], [*LIMITED_CALLS, "Done."])) == [LIMITED, LIMITED]
    assert noted(folder, "limited") == ["-32000", "-32001"], "each was sent once"


async def test_an_error_of_a_server_over_http_is_its_own_too(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    with served_here(PROGRAM, tmp_path) as url:
        await refused(McpServer.http(url), tmp_path)
    assert asyncio.all_tasks() == before


@pytest.mark.campaign
async def test_an_error_of_an_older_server_over_http_is_its_own_too(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with by_http(tmp_path, "legacy"):
        await refused(McpServer.http(address(tmp_path)), tmp_path)
    assert asyncio.all_tasks() == before


@pytest.mark.campaign
async def test_an_error_of_a_server_with_the_sdk_is_its_own(tmp_path: Path) -> None:
    script: list[Item] = [*LIMITED_CALLS, "Done."]
    async with by_stdio(tmp_path) as server:
        assert results(await ran([server], script)) == [LIMITED, LIMITED]
    assert noted(tmp_path, "limited") == ["-32000", "-32001"]


# ---- answers over HTTP, byte for byte ----

JSON, EVENTS = "application/json", "text/event-stream"
RAW: dict[str, tuple[str, str, ToolOutcome, str]] = {
    "refuses": (
        JSON,
        '{"jsonrpc":"2.0","id":%d,"error":{"code":-32000,"message":"Rate limit: try in 10 s"}}',
        "error",
        "Rate limit: try in 10 s",
    ),
    "surrogate": (
        JSON,
        '{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\udce9"}]}}',
        "result_unreadable",
        "Failed to parse JSON response",
    ),
    "surrogate_event": (
        EVENTS,
        'data: {"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\udce9"}]}}\n\n',
        "result_unreadable",
        "Failed to parse SSE message",
    ),
    "form": (
        JSON,
        '{"jsonrpc":"2.0","id":%d,"result":{"content":5}}',
        "result_unreadable",
        "validation error",
    ),
    "cut": (EVENTS, ": %d\n\n", "error", "whether it ran is not known"),
    "gateway": ("text/html", "<h1>Bad Gateway</h1>%d", "error", "(HTTP 502); whether it ran is not known"),
    "reading": (JSON, '{"busy":%d}', "error", "(HTTP 503); whether it ran is not known"),
    "accepted": (JSON, "%d", "error", "202 Accepted); whether it ran is not known"),
    "page": ("text/html", "<h1>Hello</h1>%d", "error", "text/html); whether it ran is not known"),
    "expired": (JSON, '{"detail":%d}', "error", '{"error":"Server returned an error response"'),
    "own": (
        JSON,
        '{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"No such invoice"}}',
        "error",
        '{"error":"No such invoice"',
    ),
}
"""Tool -> content type and body of its answer, the outcome of its call, and a part of what the model reads."""
STATUS = {"gateway": 502, "reading": 503, "accepted": 202, "expired": 401, "own": 500}
"""Tool -> HTTP status of its answer, if that is not 200."""


class RawServer(BaseHTTPRequestHandler):
    """A server of 2025-11-25 over HTTP."""

    calls: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number, method = request.get("id"), request["method"]
        if number is None:
            self._send(202, JSON, "")
        elif method == "tools/call":
            name = request["params"]["name"]
            self.calls.append(name)
            kind, body, _, _ = RAW[name]
            self._send(STATUS.get(name, 200), kind, body % number)
        elif method in {"initialize", "tools/list"}:
            tools: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in RAW]
            for tool in tools:
                tool["annotations"] = {"readOnlyHint": tool["name"] == "reading"}
            info = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
            result = {"protocolVersion": "2025-11-25", **info} if method == "initialize" else {"tools": tools}
            self._send(200, JSON, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}))
        else:
            error = {"code": -32601, "message": "Method not found"}
            self._send(200, JSON, json.dumps({"jsonrpc": "2.0", "id": number, "error": error}))

    def do_GET(self) -> None:
        self._send(405, JSON, "")

    do_DELETE = do_GET  # noqa: N815 - the name that http.server calls

    def _send(self, status: int, kind: str, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
        """Write nothing."""


async def test_over_http_an_answer_that_cannot_be_read_has_run_and_without_an_answer_that_is_unknown() -> (
    None
):
    RawServer.calls.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), RawServer) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        journal = MemoryJournal()
        try:
            async with McpServer.http(f"http://127.0.0.1:{httpd.server_port}/mcp") as server:
                result = await ran([server], [*map(call, RAW), "Done."], journal=journal)
        finally:
            httpd.shutdown()
            thread.join()
    done = [record.body for record in await journal.load(result.run_id) if record.kind == "done"]
    for (text, is_error), body in zip(results(result), done, strict=True):
        _, _, outcome, said = RAW[body["tool"]]
        assert (body["outcome"], is_error) == (outcome, outcome == "error"), body["tool"]
        assert said in text
    twice = [*RAW].index("reading")
    assert RawServer.calls == [*[*RAW][:twice], "reading", *[*RAW][twice:]], "only a pure call was sent again"


async def test_a_call_that_ended_unread_while_a_person_was_asked_has_run(tmp_path: Path) -> None:
    async with answering(tmp_path) as server:
        context = ToolContext("r", "r:1:0", input=CallInput(state={"live": True}))
        live = LiveCall(context, 0)

        async def ended() -> Any:
            raise ResultUnreadable("the server's answer cannot be read: no JSON")

        live.task = asyncio.ensure_future(ended())
        await asyncio.wait((live.task,))
        server._caller._waiting["r:1:0"] = live
        pay = next(tool for tool in server.tools if tool.name == "form")
        tools = ToolSet([pay])
        (result,) = await tools.execute_all([call("form")], lambda _, at: context)
    assert result.outcome == "result_unreadable"
    assert noted(tmp_path, "calls") == []
