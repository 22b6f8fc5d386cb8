"""Calls that need input from a person: the question, the answers that count, and the attempt that reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.input_request import (
    EffectUnknown,
    InputAnswer,
    InputRequest,
    InputRequired,
    read_answer,
)
from orchestrator.tools.spec import ToolContext, ToolSpec, tool
from orchestrator.tools.tool_set import ToolSet
from tests.runtime.stage import until
from tests.runtime.test_people import asked, waiting
from tests.with_runtime import with_runtime

SEAT = {
    "type": "object",
    "properties": {"seat": {"type": "string", "enum": ["window", "aisle"]}},
    "required": ["seat"],
}
MEAL = {
    "type": "object",
    "properties": {"meal": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
    "required": ["count"],
}
Say = Callable[[Agent], Any]


def model(request: Request) -> Response:
    """Call the tool once."""
    if request.messages[-1].role == "tool":
        return Response("Done.")
    return Response(None, (ToolCall("a", "book", '{"flight": "X1"}'),))


class Airline:
    """A tool that asks for a seat and a meal before it books."""

    def __init__(self, *, effect: Any = "irreversible", approval: bool = False, both: bool = False) -> None:
        self.seen: list[dict[str, Any]] = []
        self.effect = effect
        self.approval = approval
        self.hangs = False
        self.requests = {"seat": InputRequest("Which seat?", SEAT)}
        if both:
            self.requests["meal"] = InputRequest("Which meal?", MEAL)

    def tool(self) -> ToolSpec:
        @tool(effect=self.effect, approval=self.approval)
        async def book(context: ToolContext, flight: str) -> str:
            given = context.input
            self.seen.append({name: (one.action, dict(one.content)) for name, one in given.answers.items()})
            if not given.answers:
                raise InputRequired(self.requests, {"hold": 7})
            if self.hangs:
                await asyncio.Event().wait()
            assert given.state == {"hold": 7}
            return f"{flight}: {given.answers['seat'].action} {given.answers['seat'].content.get('seat')}"

        return book

    def agent(self, journal: Any, **options: Any) -> Agent:
        return Agent(
            FunctionLLM(model), tools=[self.tool()], **with_runtime(journal=journal, observers=(), **options)
        )


async def until_why(agent: Agent, why: str) -> None:
    """Wait for a question of a kind."""

    async def found() -> bool:
        return [one.why for one in await agent.pending("r")] == [why]

    await until(found)


def result_of(result: Any) -> str:
    (text,) = [message.text for message in result.messages if message.role == "tool"]
    return str(text)


async def test_a_call_runs_again_with_the_answers_and_the_state_of_the_tool() -> None:
    airline = Airline(both=True)
    agent = airline.agent(MemoryJournal())
    async with waiting(agent) as (task, question):
        assert (question.why, question.tool, question.arguments) == ("input", "book", '{"flight": "X1"}')
        assert question.input is not None
        assert question.input["requests"]["seat"] == {"message": "Which seat?", "schema": SEAT}
        await agent.respond("r", '{"seat": "aisle"}', digest=question.digest)
        (second,) = await asked(agent)
        assert second.digest != question.digest
        await agent.respond("r", '{"meal": "fish", "count": 2}')
        result = await task
    assert (result.outcome, result_of(result)) == (Outcome.COMPLETED, "X1: accept aisle")
    assert airline.seen == [
        {},
        {"seat": ("accept", {"seat": "aisle"}), "meal": ("accept", {"meal": "fish", "count": 2})},
    ]


async def test_a_call_that_runs_again_has_arguments_that_its_first_attempt_did_not_change() -> None:
    seen: list[list[str]] = []

    @tool
    async def book(context: ToolContext, flights: list[str]) -> str:
        seen.append(list(flights))
        flights.clear()
        if not context.input.answers:
            raise InputRequired({"seat": InputRequest("Which seat?", SEAT)})
        return "booked"

    def model(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return Response("Done.")
        return Response(None, (ToolCall("a", "book", '{"flights": ["X1", "X2"]}'),))

    agent = Agent(FunctionLLM(model), tools=[book], **with_runtime(journal=MemoryJournal(), observers=()))
    async with waiting(agent) as (task, _):
        await agent.respond("r", "window")
        assert result_of(await task) == "booked"
    assert seen == [["X1", "X2"], ["X1", "X2"]]


@pytest.mark.parametrize("effect", ["irreversible", "idempotent"])
async def test_another_process_asks_the_same_question_and_continues_with_its_answer(
    tmp_path: Path, effect: str
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        async with waiting(Airline(effect=effect).agent(journal)) as (_, before):
            pass
        airline = Airline(effect=effect)
        agent = airline.agent(journal)
        (question,) = await agent.pending("r")
        assert question == before
        await agent.respond("r", "window")
        result = await agent.resume("r")
    assert result_of(result) == "X1: accept window"
    assert airline.seen == [{"seat": ("accept", {"seat": "window"})}]


@pytest.mark.parametrize(("effect", "asks"), [("irreversible", ["unknown_effect"]), ("idempotent", [])])
async def test_a_call_that_is_interrupted_after_its_answer_keeps_the_answer(
    tmp_path: Path, effect: str, asks: list[str]
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        killed = Airline(effect=effect)
        killed.hangs = True
        agent = killed.agent(journal)
        async with waiting(agent):
            await agent.respond("r", "window")
            await until(lambda: len(killed.seen) > 1)
        airline = Airline(effect=effect)
        other = airline.agent(journal)
        task = asyncio.create_task(other.resume("r"))
        if asks:
            (question,) = await asked(other)
            assert [question.why] == asks
            await other.approve("r")
        result = await task
    assert result_of(result) == "X1: accept window"
    assert airline.seen == [{"seat": ("accept", {"seat": "window"})}]


async def test_a_person_can_decline_and_the_tool_reads_it() -> None:
    airline = Airline(both=True)
    agent = airline.agent(MemoryJournal())
    async with waiting(agent) as (task, _):
        await agent.reject("r", why="no seat")
        await asked(agent)
        with pytest.raises(
            AnswerRefused, match=r"the answer must be a JSON object with 'meal' \(optional\), 'count'"
        ):
            await agent.respond("r", "2")
        await agent.reject("r")
        result = await task
    assert result_of(result) == "X1: decline None"


async def test_an_unanswered_request_is_cancelled_when_it_expires() -> None:
    airline, clock = Airline(), FakeClock()
    agent = airline.agent(MemoryJournal(), clock=clock, limits=Limits(approval_seconds=60))
    async with waiting(agent) as (task, question):
        assert question.expires_at == clock.time() + 60
        await clock.advance(61)
        result = await task
    assert result_of(result) == "X1: cancel None"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            "sofa",
            'the answer does not fit the form: seat: "sofa" is not one of "window" or "aisle"; it has \'seat\'',
        ),
        ("{}", "the answer does not fit the form: \"seat\" is a required property; it has 'seat'"),
        ("[1]", "the answer does not fit the form"),
        ("", "the answer does not fit the form"),
    ],
)
async def test_an_answer_that_does_not_fit_the_form_is_refused_and_the_question_stays(
    content: str, why: str
) -> None:
    agent = Airline().agent(MemoryJournal())
    async with waiting(agent) as (_, question):
        with pytest.raises(AnswerRefused) as refused:
            await agent.respond("r", content)
        assert why in str(refused.value)
        assert refused.value.kind == "input"
        with pytest.raises(AnswerRefused, match="does not fit the form"):
            await agent.approve("r")
        with pytest.raises(AnswerRefused, match="the arguments of the call cannot be edited"):
            await agent.approve("r", arguments='{"flight": "X2"}')
        assert await agent.pending("r") == [question]


async def test_a_call_that_needed_approval_is_not_approved_again_for_its_input(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        async with waiting(Airline(approval=True).agent(journal)) as (_, question):
            agent = Airline(approval=True).agent(journal)
            assert question.why == "approval"
            await agent.approve("r", digest=question.digest)
            await until_why(agent, "input")
        other = Airline(approval=True).agent(journal)
        await other.respond("r", "aisle")
        assert result_of(await other.resume("r")) == "X1: accept aisle"


async def test_rejecting_with_the_end_ends_the_run() -> None:
    agent = Airline().agent(MemoryJournal())
    async with waiting(agent) as (task, _):
        await agent.reject("r", end=True)
        assert (await task).outcome is Outcome.REJECTED


async def test_a_tool_says_that_its_effect_is_unknown_and_a_person_decides() -> None:
    tries: list[bool] = []

    @tool(effect="pure")
    def risky(context: ToolContext) -> str:
        tries.append(context.input.again)
        if len(tries) == 1:
            raise EffectUnknown("the line was cut")
        return "sent"

    llm = ScriptedLLM([[ToolCall("a", "risky", "{}")], "Done."])
    agent = Agent(llm, tools=[risky], **with_runtime(journal=MemoryJournal(), observers=()))
    async with waiting(agent) as (task, question):
        assert question.why == "unknown_effect"
        await agent.approve("r")
        assert result_of(await task) == "sent"


async def test_a_tool_outside_a_run_gets_an_error() -> None:
    book = Airline().tool()
    result = await ToolSet([book]).execute(
        ToolCall("a", "book", '{"flight": "X"}'), 0, lambda *_: ToolContext("r", "r:1:0")
    )
    assert json.loads(result.content) == {
        "error": "the tool needs input from a person, who cannot be asked here",
        "type": "InputRequired",
    }


def test_a_request_with_a_schema_that_cannot_be_checked_is_a_config_error() -> None:
    for schema, why in (
        ({"type": "string"}, "describes 'string'"),
        ({"type": "object", "properties": {"a": {"pattern": "(?=a)"}}}, "cannot be used"),
        ({"type": "object", "properties": {"a": {"$ref": "http://a.example/b"}}}, "cannot be used"),
    ):
        with pytest.raises(ConfigError, match=why):
            InputRequest("?", schema)
    with pytest.raises(ConfigError, match="at least one request"):
        InputRequired({})


@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        ("integer", "5", 5),
        ("number", "2.5", 2.5),
        ("boolean", "yes", True),
        ("boolean", "false", False),
        ("string", "5", "5"),
        ("string", '"quoted"', '"quoted"'),
        ("array", '["a"]', ["a"]),
    ],
)
def test_the_answer_to_a_form_of_one_field_is_its_value(kind: str, content: str, value: object) -> None:
    request = InputRequest("?", {"type": "object", "properties": {"it": {"type": kind}}})
    assert read_answer(request, {"decision": "respond", "content": content}) == InputAnswer(
        "accept", {"it": value}
    )


def test_a_question_without_a_form_is_approved_or_rejected() -> None:
    request = InputRequest("Sign in there.", url="https://bank.example/consent")
    assert read_answer(request, {"decision": "approve"}) == InputAnswer("accept")
    assert read_answer(request, {"decision": "reject"}) == InputAnswer("decline")
    assert read_answer(request, {"decision": "respond", "content": "x"}) == (
        "this question has no form; approve or reject it"
    )
