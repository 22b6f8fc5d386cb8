"""Features of MCP with the official servers: each row is a feature, each case one server over one transport."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Runtime
from orchestrator.errors import ConfigError
from orchestrator.events import ToolFinished, ToolProgress
from orchestrator.llm.message import kind_of
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing import FakeClock
from tests.engines.stage import until
from tests.providers.mcp_official import Official, repository
from tests.providers.mcp_place import Shop, answers, call, ran, results, shared

TRANSPORTS = {
    "everything": ("stdio", "http"),
    "filesystem": ("stdio",),
    "memory": ("stdio",),
    "git": ("stdio", "http"),
    "time": ("stdio", "http"),
}
"""The servers and the transports that each of them has."""

Check = Callable[["Place"], Awaitable[None]]
CELLS: list[Any] = []
"""One case for each feature, server and transport."""


@dataclass(frozen=True)
class Place:
    """One connected server."""

    name: str
    shop: Shop

    @property
    def server(self) -> McpServer:
        return self.shop.server

    @property
    def folder(self) -> Path:
        return self.shop.folder

    async def call(self, tool: str, **arguments: Any) -> str:
        """Let a run call a tool once; return what the model reads."""
        (text,) = answers(await ran(self.server.tools, [call(tool, json.dumps(arguments)), "Done."]))
        return text


def feature(*servers: str, slow: bool = False) -> Callable[[Check], Check]:
    """Mark a coroutine as a row of the table, with the servers that have it; if `slow`, it is in the campaign only."""

    def mark(check: Check) -> Check:
        for name in servers:
            for transport in TRANSPORTS[name]:
                case = f"{check.__name__}-{name}-{transport}"
                first = transport == "stdio" and name in ("everything", "filesystem") and not slow
                marks = (pytest.mark.canary, pytest.mark.campaign) if first else (pytest.mark.campaign,)
                CELLS.append(pytest.param(check, name, transport, id=case, marks=marks))
        return check

    return mark


@dataclass
class Servers:
    """The connected servers of this file, each started once."""

    folder: Path
    stack: ExitStack
    known: dict[tuple[str, str], Place] = field(default_factory=dict)

    def at(self, name: str, transport: str) -> Place:
        """Return a connected server."""
        if (name, transport) not in self.known:
            folder = self.folder / f"{name}-{transport}"
            folder.mkdir(exist_ok=True)  # a test before this one may have been skipped for want of the server
            official = Official(name, folder)
            if transport == "stdio":
                server = McpServer.stdio(*official.command, env=official.environment)
            else:
                server = McpServer.http(self.stack.enter_context(official.over_http()))
            self.known[name, transport] = Place(name, self.stack.enter_context(shared(folder, server)))
        return self.known[name, transport]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers").resolve(), stack)


# ---- rows ----


@feature("everything", "filesystem", "memory", "git", "time")
async def name_and_tools(place: Place) -> None:
    names = {
        "everything": ("mcp-servers/everything", 12),
        "filesystem": ("secure-filesystem-server", 14),
        "memory": ("memory-server", 9),
        "git": ("mcp-git", 12),
        "time": ("mcp-time", 2),
    }
    assert place.server.name == names[place.name][0]
    assert len([tool for tool in place.server.tools if tool.kind == "mcp"]) >= names[place.name][1]


@feature("everything", "filesystem", "memory", "git", "time")
async def effects_from_annotations(place: Place) -> None:
    found = {tool.name: tool.effect for tool in place.server.tools}
    expected: dict[str, tuple[tuple[str, str], ...]] = {
        "everything": (
            ("echo", "pure"),
            ("gzip-file-as-resource", "idempotent"),
            ("toggle-simulated-logging", "irreversible"),
        ),
        "filesystem": (
            ("read_text_file", "pure"),
            ("create_directory", "idempotent"),
            ("edit_file", "irreversible"),
        ),
        "memory": (("read_graph", "pure"), ("create_entities", "irreversible")),
        "git": (("git_log", "pure"), ("git_add", "idempotent"), ("git_commit", "irreversible")),
        "time": (("convert_time", "pure"),),
    }
    for tool, effect in expected[place.name]:
        assert found[tool] == effect, tool


@feature("everything", "filesystem", "memory", "git", "time")
async def results_once(place: Place) -> None:
    if place.name == "everything":
        assert await place.call("echo", message="hello") == "Echo: hello"
    elif place.name == "filesystem":
        text = "".join(f"line {number:>5}: the quick fox\n" for number in range(280))
        (place.folder / "large.txt").write_text(text)
        assert await place.call("read_text_file", path=str(place.folder / "large.txt")) == text
    elif place.name == "memory":
        entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
        said = await place.call("create_entities", entities=[entity])
        assert json.loads(said) == [entity]
        assert (await place.call("read_graph")).count("likes tea") == 1
    elif place.name == "git":
        said = await place.call("git_log", repo_path=str(repository(place.folder)))
        assert said.count("Add notes") == 1
    else:
        said = await place.call(
            "convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"
        )
        assert json.loads(said)["target"]["datetime"].endswith("T21:00:00+09:00")
        assert said.count("+9.0h") == 1


@feature("everything")
async def structured_content(place: Place) -> None:
    said = json.loads(await place.call("get-structured-content", location="Chicago"))
    assert said == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}


@feature("everything", "filesystem")
async def images(place: Place) -> None:
    png = base64.b64decode(PIXEL)
    if place.name == "everything":
        asked = call("get-tiny-image")
    else:
        (place.folder / "pixel.png").write_bytes(png)
        asked = call("read_media_file", json.dumps({"path": str(place.folder / "pixel.png")}))
    result = await ran(place.server.tools, [asked, "Done."])
    (message,) = [message for message in result.messages if message.role == "tool"]
    assert isinstance(message.content, list)
    assert [kind_of(part) for part in message.content].count("image") == 1
    assert "base64" not in "".join(str(part.get("text", "")) for part in message.content)
    # A model that reads only text gets type and size, and the run does not fail.
    llm = ScriptedLLM([asked, "Done."])
    llm.reads = ("text",)  # type: ignore[attr-defined]
    plain = await Agent(llm, tools=[*place.server.tools], observers=()).run("Go.")
    (message,) = [message for message in plain.messages if message.role == "tool"]
    assert isinstance(message.content, str)
    assert "[image image/png, " in message.content


@feature("everything")
async def resource_links_and_embedded_resources(place: Place) -> None:
    said = await place.call("get-resource-links", count=2)
    assert said.count("[link ") == 2
    assert "demo://resource/dynamic/" in said
    text = await place.call("get-resource-reference", resourceType="Text", resourceId=1)
    assert "[resource demo://resource/dynamic/text/1]\n" in text


@feature("everything", "filesystem", "git", "time")
async def errors_of_a_tool(place: Place) -> None:
    wrong = {
        "everything": call("get-resource-reference", '{"resourceType": "Text", "resourceId": -1}'),
        "filesystem": call("read_text_file", '{"path": "/etc/passwd"}'),
        "git": call("git_log", '{"repo_path": "/"}'),
        "time": call("get_current_time", '{"timezone": "Nowhere/Land"}'),
    }
    ((text, failed),) = results(await ran(place.server.tools, [wrong[place.name], "Done."]))
    assert failed
    assert len(text) > 20


@feature("everything")
async def a_tool_that_needs_a_task_is_not_offered(place: Place) -> None:
    assert "simulate-research-query" not in {tool.name for tool in place.server.tools}


@feature("everything", "memory")
async def resources(place: Place) -> None:
    tools = {tool.name: tool for tool in place.server.tools}
    assert tools["list_resources"].effect == tools["read_resource"].effect == "pure"
    listed = await place.call("list_resources")
    if place.name == "memory":
        assert "[resource " in await place.call("read_resource", uri=listed.partition(" - ")[0])
        return
    assert "demo://resource/static/document/architecture.md - architecture.md (text/markdown)" in listed
    assert "demo://resource/dynamic/text/{resourceId}" in listed
    read = await place.call("read_resource", uri="demo://resource/static/document/features.md")
    assert read.startswith("[resource demo://resource/static/document/features.md]\n")
    ((text, failed),) = results(
        await ran(place.server.tools, [call("read_resource", '{"uri": "demo://no"}'), "Done."])
    )
    assert failed
    assert "demo://no" in text


@feature("filesystem", "git", "time")
async def no_resource_tools_without_resources(place: Place) -> None:
    assert not {"list_resources", "read_resource"} & {tool.name for tool in place.server.tools}


@feature("everything")
async def prompts(place: Place) -> None:
    known = {prompt.name: prompt for prompt in await place.server.prompts()}
    assert (known["args-prompt"].required, known["args-prompt"].optional) == (("city",), ("state",))
    (message,) = await place.server.prompt("args-prompt", {"city": "Oslo"})
    assert (message.role, message.text) == ("user", "What's weather in Oslo?")
    given = {"resourceType": "Text", "resourceId": "1"}
    assert len(await place.server.prompt("resource-prompt", given)) == 2
    with pytest.raises(ConfigError, match="needs the argument 'city'; its arguments: city, state"):
        await place.server.prompt("args-prompt")
    with pytest.raises(ConfigError, match="has no prompt 'none'; it has: args-prompt, "):
        await place.server.prompt("none")


@feature("filesystem", "memory", "git", "time")
async def no_prompts(place: Place) -> None:
    assert await place.server.prompts() == []


@feature("everything", slow=True)
async def progress_is_an_event_and_extends_the_timeout(place: Place) -> None:
    clock = FakeClock()
    tools = [
        replace(tool, timeout=10)
        for tool in place.server.tools
        if tool.name == "trigger-long-running-operation"
    ]
    llm = ScriptedLLM([call("trigger-long-running-operation", '{"duration": 2, "steps": 4}'), "Done."])
    agent = Agent(llm, tools=tools, runtime=Runtime(observers=(), clock=clock))
    events = []
    async with agent.stream("Go.") as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, ToolProgress):
                await clock.advance(9)
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert (finished.outcome, finished.result[:30]) == ("ok", "Long running operation complet")
    said = [event for event in events if isinstance(event, ToolProgress)]
    assert [(one.tool, one.text) for one in said] == [
        ("trigger-long-running-operation", f"{step} of 4") for step in range(1, 5)
    ]


@feature("everything")
async def progress_does_not_extend_the_total_timeout(place: Place) -> None:
    clock = FakeClock()
    tools = [
        replace(tool, timeout=10, total_timeout=20)
        for tool in place.server.tools
        if tool.name == "trigger-long-running-operation"
    ]
    llm = ScriptedLLM([call("trigger-long-running-operation", '{"duration": 600, "steps": 1200}'), "Done."])
    agent = Agent(llm, tools=tools, runtime=Runtime(observers=(), clock=clock))
    async with agent.stream("Go.") as stream:
        async for event in stream:
            if isinstance(event, ToolProgress):
                await clock.advance(9)
            if isinstance(event, ToolFinished):
                assert (event.outcome, event.seconds) == ("timeout", 20)
                assert "no answer within 20 s in all" in event.result
        assert (await stream.result()).output == "Done."


@feature("everything", slow=True)
async def log_messages_become_log_lines(place: Place) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("orchestrator.mcp")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        await place.call("toggle-simulated-logging")
        await until(lambda: any("-level message" in line or "Info-level" in line for line in lines), 30)
        await place.call("toggle-simulated-logging")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(("check", "name", "transport"), CELLS)
def test_a_feature_works_with_a_server_over_a_transport(
    servers: Servers, check: Check, name: str, transport: str
) -> None:
    place = servers.at(name, transport)
    place.shop.run(check(place))  # type: ignore[arg-type]
