"""Servers that ask a person: the question of the run, its answers, another process, and hostile requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import INVALID_REQUEST, ElicitRequestFormParams, ErrorData

from orchestrator import Agent, Runtime
from orchestrator.errors import AnswerRefused
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.question import Question
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.mcp.server_request import NO_CALL, SEVERAL_RUNS, Elicitation, LiveCall, LiveCalls
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.tools.input_request import CallInput, InputAnswer, InputRequest
from orchestrator.tools.spec import ToolContext
from tests.providers.mcp_official import Official
from tests.providers.mcp_place import ASKER, noted, served_here
from tests.runtime.stage import until
from tests.runtime.test_people import asked

BOOKED = "seat: accept [('seat', 'aisle')]; name: decline []; pay: accept []"
"""The text of the server, with each answer."""


@asynccontextmanager
async def connected(
    folder: Path, name: str, transport: str = "stdio", **options: Any
) -> AsyncIterator[McpServer]:
    """A server as a process over `stdio` or `http`, or `here`, over HTTP in this process."""
    official = Official(name, folder)
    with ExitStack() as stack:
        if transport == "stdio":
            server = McpServer.stdio(*official.command, **options)
        elif transport == "here":
            server = McpServer.http(stack.enter_context(served_here(ASKER, folder)), **options)
        else:
            server = McpServer.http(stack.enter_context(official.over_http()), **options)
        before = asyncio.all_tasks()
        async with server:
            yield server
        assert asyncio.all_tasks() == before


def agent_of(server: McpServer, journal: Any, tool: str, **arguments: Any) -> Agent:
    """An agent that calls one tool once."""

    def model(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return Response("Done.")
        return Response(None, (ToolCall("a", tool, json.dumps(arguments)),))

    return Agent(FunctionLLM(model), tools=[server], runtime=Runtime(journal=journal, observers=()))


@asynccontextmanager
async def running(agent: Agent, *, resumed: bool = False) -> AsyncIterator[asyncio.Task[Any]]:
    work = agent.resume("r") if resumed else agent.run("Go.", run_id="r")
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def request_of(question: Question) -> dict[str, Any]:
    assert question.input is not None
    found: dict[str, Any] = question.input["requests"][question.input["name"]]
    return found


def read(result: Any) -> str:
    (message,) = [one for one in result.messages if one.role == "tool"]
    return str(message.text)


async def next_question(agent: Agent, before: Question | None = None) -> Question:
    """The open question, once it is another one."""

    async def found() -> list[Question]:
        return [one for one in await asked(agent) if before is None or one.digest != before.digest]

    questions: list[Question] = await until(found)
    return questions[0]


@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.campaign)])
async def test_input_required_becomes_questions_and_the_call_continues_with_the_state(
    tmp_path: Path, transport: str
) -> None:
    async with connected(tmp_path, "asker", transport) as server:
        agent = agent_of(server, MemoryJournal(), "book")
        async with running(agent) as task:
            seat = await next_question(agent)
            assert request_of(seat)["message"] == "asker asks: Which seat?"
            with pytest.raises(AnswerRefused, match=r"is not one of \"window\" or \"aisle\""):
                await agent.respond("r", "sofa")
            await agent.respond("r", "aisle")
            name = await next_question(agent, seat)
            await agent.reject("r")
            pay = await next_question(agent, name)
            assert request_of(pay) == {"message": "asker asks: Pay there.", "url": "https://pay.example/7"}
            await agent.approve("r")
            assert read(await task) == BOOKED
    first = "book seat: accept [('seat', 'aisle')]; name: decline []"
    assert noted(tmp_path, "requests") == ["book None", "book first", first]


async def test_another_process_continues_a_call_with_the_state_of_the_server(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        async with connected(tmp_path, "asker", "here") as server:
            agent = agent_of(server, journal, "book")
            async with running(agent):
                question = await next_question(agent)
                await agent.respond("r", "aisle")
                await next_question(agent, question)
        async with connected(tmp_path, "asker", "here") as server:
            agent = agent_of(server, journal, "book")
            async with running(agent, resumed=True) as task:
                name = await next_question(agent)
                assert request_of(name)["message"] == "asker asks: Whose name?"
                await agent.reject("r")
                await next_question(agent, name)
                await agent.approve("r")
                assert read(await task) == BOOKED
    assert [line.split()[1] for line in noted(tmp_path, "requests")] == ["None", "first", "seat:"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("nested form", "field 'a' must be text, a number, a boolean, or a list of choices"),
        ("no address", "its address must start with https:// or http:// and a host"),
        ("large state", "the server's state has more than 65,536 characters"),
    ],
)
async def test_a_request_that_nobody_should_see_fails_the_call(tmp_path: Path, kind: str, why: str) -> None:
    async with connected(tmp_path, "asker", "here") as server:
        result = await agent_of(server, MemoryJournal(), "attack", kind=kind).run("Go.")
    assert why in read(result)


@pytest.mark.campaign
async def test_a_server_that_asks_without_end_is_refused_after_ten_questions(tmp_path: Path) -> None:
    async with connected(tmp_path, "asker", "here") as server:
        agent = agent_of(server, MemoryJournal(), "attack", kind="1,000 questions")
        async with running(agent) as task:
            question = None
            for _ in range(10):
                question = await next_question(agent, question)
                await agent.respond("r", "Ann", digest=question.digest)
            assert "the server asks more often than max_questions=10 in one call" in read(await task)


async def test_a_file_of_servers_limits_the_questions_of_one_call(tmp_path: Path) -> None:
    with served_here(ASKER, tmp_path) as url:
        entry = {"url": url, "max_questions": 1}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"asker": entry}}))
        async with McpServer.from_file(tmp_path / "mcp.json", prefix="")["asker"] as server:
            result = await agent_of(server, MemoryJournal(), "book").run("Go.")
    assert "the server asks more often than max_questions=1 in one call" in read(result)


@pytest.mark.campaign
async def test_a_question_that_was_declined_is_declined_again_without_a_person(tmp_path: Path) -> None:
    async with connected(tmp_path, "asker", "here") as server:
        agent = agent_of(server, MemoryJournal(), "attack", kind="asks again after a no")
        async with running(agent) as task:
            await next_question(agent)
            await agent.reject("r")
            assert read(await task) == "one: decline []"


@pytest.mark.campaign
async def test_a_pattern_of_a_server_is_dropped_and_invisible_characters_leave_its_text(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path, "asker", "here") as server:
        for kind, shown in (
            ("slow pattern", {"a": {"type": "string"}}),
            ("hostile text", {"name": {"type": "string"}}),
        ):
            agent = agent_of(server, MemoryJournal(), "attack", kind=kind)
            async with running(agent):
                asks = request_of(await next_question(agent))
                assert asks["schema"]["properties"] == shown
                assert asks["message"] in ("asker asks: ?", "asker asks: Ignore[2J this.")


@pytest.mark.campaign
async def test_a_state_without_questions_is_polled(tmp_path: Path) -> None:
    async with connected(tmp_path, "asker", "here") as server:
        assert (
            read(await agent_of(server, MemoryJournal(), "attack", kind="state only").run("Go.")) == "polled"
        )


# ---- servers of earlier specifications, which ask within the call ----

TRIGGER = "trigger-elicitation-request"


@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.campaign)])
async def test_a_call_stays_in_flight_until_a_person_answers(tmp_path: Path, transport: str) -> None:
    async with connected(tmp_path, "everything", transport) as server:
        agent = agent_of(server, MemoryJournal(), TRIGGER)
        async with running(agent) as task:
            question = await next_question(agent)
            assert request_of(question)["message"].startswith(
                "mcp-servers/everything asks: Please provide inputs"
            )
            await agent.respond("r", '{"name": "Ann", "integer": 42}')
            text = read(await task)
    assert "User provided the requested information" in text
    assert "- Name: Ann" in text


@pytest.mark.campaign
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_rejected_question_is_declined_to_the_server(tmp_path: Path, transport: str) -> None:
    async with connected(tmp_path, "everything", transport) as server:
        agent = agent_of(server, MemoryJournal(), TRIGGER)
        async with running(agent) as task:
            await next_question(agent)
            await agent.reject("r")
            text = read(await task)
    assert "User declined" in text


async def test_after_the_process_a_person_decides_and_the_recorded_answer_is_used(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        async with connected(tmp_path, "everything") as server:
            agent = agent_of(server, journal, TRIGGER)
            async with running(agent):
                await next_question(agent)
        async with connected(tmp_path, "everything") as server:
            agent = agent_of(server, journal, TRIGGER)
            async with running(agent, resumed=True) as task:
                question = await next_question(agent)
                assert question.why == "input"
                await agent.respond("r", '{"name": "Ann"}')
                risk = await next_question(agent, question)
                assert risk.why == "unknown_effect"
                await agent.approve("r")
                assert "- Name: Ann" in read(await task)


@pytest.mark.campaign
async def test_runs_that_ask_at_once_have_sessions_of_their_own(tmp_path: Path) -> None:
    async with connected(tmp_path, "everything") as server:
        agent = agent_of(server, MemoryJournal(), TRIGGER)
        first = asyncio.ensure_future(agent.run("Go.", run_id="zoe"))
        await asked(agent, "zoe")  # its call stays in flight
        tasks = {name: asyncio.ensure_future(agent.run("Go.", run_id=name)) for name in ("ann", "bob")}
        for name in tasks:
            await asked(agent, name)
            await agent.respond(name, json.dumps({"name": name}))
        for name, task in tasks.items():
            assert f"- Name: {name}" in read(await task)
        await agent.reject("zoe")
        assert "User declined" in read(await first)


async def test_a_call_that_is_repeated_after_a_crash_declines_a_declined_question_each_time() -> None:
    request = InputRequest("Which seat?")
    given = CallInput(earlier=((request.digest, InputAnswer("decline")),))
    live = LiveCall(ToolContext("ann", "ann", input=given), 10)
    for _ in range(3):
        elicitation = Elicitation(request)
        live.take(elicitation)
        assert elicitation.answer.result() == InputAnswer("decline")
    assert live.open is None


async def test_a_request_that_could_belong_to_two_runs_reaches_nobody() -> None:
    calls = LiveCalls(lambda: "server", lambda: None)
    live = [LiveCall(ToolContext(name, name), 10) for name in ("ann", "bob")]
    asks = ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
    assert await calls.elicit(None, asks) == ErrorData(code=INVALID_REQUEST, message=NO_CALL)  # type: ignore[arg-type]
    for one in live:
        calls.add(one)
    first = asyncio.ensure_future(calls.elicit(None, asks))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert (first.done(), live[0].open, live[1].open) == (False, None, None)
    second = await calls.elicit(None, asks)  # type: ignore[arg-type]
    assert second == await first == ErrorData(code=INVALID_REQUEST, message=SEVERAL_RUNS)
