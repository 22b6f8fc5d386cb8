"""The events of a recorded run are the same from every adapter, streamed or not, each class in its place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from orchestrator import Agent, Limits, MemoryJournal, ToolContext, tool
from orchestrator.events import (
    BudgetWarning,
    ChildRunFinished,
    ChildRunStarted,
    EventsDropped,
    ModelRequestFinished,
    ModelRequestRetried,
    ModelRequestStarted,
    QuestionAnswered,
    QuestionAsked,
    ReasoningDelta,
    RunCreated,
    RunEvent,
    RunFinished,
    RunResumed,
    RunSuspended,
    StateChanged,
    TextDelta,
    ToolArgumentsDelta,
    ToolFinished,
    ToolStarted,
)
from orchestrator.llm.run_event import RUN_EVENTS
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.openai import OpenAI
from tests.providers import anthropic_words as words
from tests.providers.loopback import Loopback, Reply, json_reply, stream_reply
from tests.runtime.stage import NO_WAIT, until


class Said(NamedTuple):
    """An answer of the model, whatever the API."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    tokens: int = 2


PARENT_FIRST = Said("Let me look.", "Two steps.", (("look", {"at": 1}), ("dig", {"task": "down"})), tokens=30)
CHILD = Said("From below.", tokens=30)
ANSWERS = (PARENT_FIRST, CHILD, Said(calls=(("pay", {"sum": 3}),)), Said("All done."))
"""In the order of their requests."""

ORDER = (
    *(RunCreated, StateChanged, ModelRequestStarted, ModelRequestFinished, StateChanged),
    *(ToolStarted, ToolStarted, ChildRunStarted, StateChanged),
    *(ToolFinished, ChildRunFinished, ToolFinished, StateChanged, StateChanged, BudgetWarning),
    *(ModelRequestStarted, ModelRequestFinished, StateChanged, QuestionAsked, StateChanged, RunSuspended),
    *(RunResumed, QuestionAnswered, ToolStarted, ToolFinished, StateChanged, StateChanged),
    *(ModelRequestStarted, ModelRequestFinished, StateChanged, StateChanged, StateChanged, RunFinished),
)
"""The journalled events of the parent run."""


def threes(text: str) -> list[str]:
    return words.threes(text)


# ---- chat completions ----


def chat(said: Said) -> dict[str, Any]:
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for at, (name, given) in enumerate(said.calls)
    ]
    message = {"role": "assistant", "content": said.text or None, "reasoning_content": said.thought or None}
    choice = {"index": 0, "message": {**message, "tool_calls": calls}, "finish_reason": "stop"}
    return {
        "model": "m-1",
        "choices": [choice],
        "usage": {"prompt_tokens": said.tokens, "completion_tokens": 2},
    }


def chat_stream(said: Said) -> Iterator[dict[str, Any]]:
    def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
        return {"model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    for name, text in (("reasoning_content", said.thought), ("content", said.text)):
        yield from (chunk(**{name: piece}) for piece in threes(text))
    for at, (name, given) in enumerate(said.calls):
        yield chunk(tool_calls=[{"index": at, "id": f"c{at}", "function": {"name": name, "arguments": ""}}])
        for piece in threes(json.dumps(given)):
            yield chunk(tool_calls=[{"index": at, "function": {"arguments": piece}}])
    yield chunk("stop")
    yield {**chat(said), "choices": []}


# ---- Responses ----


def items(said: Said) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if said.thought:
        found.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": said.thought}]})
    if said.text:
        found.append({"type": "message", "content": [{"type": "output_text", "text": said.text}]})
    for at, (name, given) in enumerate(said.calls):
        arguments = json.dumps(given)
        found.append({"type": "function_call", "call_id": f"c{at}", "name": name, "arguments": arguments})
    return found


def responses(said: Said) -> dict[str, Any]:
    usage = {"input_tokens": said.tokens, "output_tokens": 2}
    return {"model": "m-1", "status": "completed", "output": items(said), "usage": usage}


def responses_stream(said: Said) -> Iterator[dict[str, Any]]:
    kinds = {
        "reasoning": ("response.reasoning_summary_text.delta", said.thought),
        "message": ("response.output_text.delta", said.text),
    }
    for index, item in enumerate(items(said)):
        place = {"output_index": index}
        yield {"type": "response.output_item.added", "item": {**item, "arguments": ""}, **place}
        arguments = ("response.function_call_arguments.delta", item.get("arguments", ""))
        kind, text = kinds.get(item["type"], arguments)
        yield from ({"type": kind, "delta": piece, **place} for piece in threes(text))
        yield {"type": "response.output_item.done", "item": item, **place}
    yield {"type": "response.completed", "response": responses(said)}


# ---- messages ----


def messages(said: Said) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    if said.thought:
        blocks.append({"type": "thinking", "thinking": said.thought, "signature": "s"})
    if said.text:
        blocks.append(words.text_block(said.text))
    blocks += [words.use(f"c{at}", name, **given) for at, (name, given) in enumerate(said.calls)]
    return words.message(*blocks, usage={"input_tokens": said.tokens, "output_tokens": 2})


def streamed_reply(form: str, said: Said) -> Reply:
    if form == "messages":
        return stream_reply(words.events(messages(said)))
    chunks = chat_stream(said) if form == "chat" else responses_stream(said)
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return stream_reply(text + "data: [DONE]\n\n")


FORMS = {"chat": chat, "responses": responses, "messages": messages}
BUSY = json_reply({"error": {"message": "busy", "type": "overloaded_error"}}, status=503)


def replies(form: str, *, streamed: bool) -> list[Reply]:
    made = FORMS[form]
    said = [streamed_reply(form, one) if streamed else json_reply(made(one)) for one in ANSWERS]
    return [BUSY, *said]


def model(form: str, url: str) -> Any:
    if form == "messages":
        return Anthropic("m", base_url=url, api_key="sk-test", timeout=60.0)
    api: Any = form
    return OpenAI("m", base_url=url, api_key="sk-test", api=api, timeout=60.0)


# ---- the run ----


@tool(effect="pure")
async def look(context: ToolContext, at: int) -> str:
    """Look at a place."""
    context.progress("looking")
    return f"{at} is fine"


@tool(approval=True)
async def pay(sum: int) -> str:  # noqa: A002 - what the model says
    """Pay."""
    return f"paid {sum}"


async def recorded(form: str, *, streamed: bool) -> tuple[list[RunEvent], list[RunEvent]]:
    """Run the scenario; return what the stream said, if there was one, and what the journal has."""
    journal, came = MemoryJournal(), []
    async with Loopback(replies(form, streamed=streamed)) as server, model(form, server.url) as llm:
        child = Agent(llm, observers=(), name="digger", retry=NO_WAIT)
        limits = Limits(max_input_tokens=70)
        tools = [look, pay, child.as_tool("dig", "Dig.")]
        agent = Agent(llm, tools=tools, journal=journal, observers=(), retry=NO_WAIT, limits=limits)
        if streamed:
            async for event in agent.stream("Go.", run_id="p"):
                came.append(event)
                if isinstance(event, QuestionAsked):
                    await agent.runs.approve("p", by="ann")
        else:
            await answered(agent, agent.run("Go.", run_id="p"))
        return came, [event async for event in agent.runs.events("p")]


async def answered(agent: Agent, going: Any) -> None:
    """Drive a run that has no reader, and answer its question."""
    task = asyncio.ensure_future(going)

    def asks() -> bool:
        run = agent._service.live.find("p")
        return task.done() or (run is not None and run.cursor.parked)

    await until(asks)
    await agent.runs.approve("p", by="ann")
    await task


@pytest.mark.parametrize("form", sorted(FORMS))
async def test_the_journalled_events_are_the_same_streamed_or_not(form: str) -> None:
    came, streamed = await recorded(form, streamed=True)
    _, whole = await recorded(form, streamed=False)
    assert [type(event) for event in streamed] == list(ORDER)
    assert [event for event in came if event.run_id == "p" and event.id] == streamed
    timeless = {"at", "digest", "expires_at", "seconds"}
    assert [members(event, timeless) for event in whole] == [members(event, timeless) for event in streamed]
    first = next(event for event in whole if isinstance(event, ModelRequestFinished))
    assert (first.text, first.reasoning, first.input_tokens) == ("Let me look.", "Two steps.", 30)
    given = [(event.tool, json.loads(event.arguments)) for event in whole if isinstance(event, ToolStarted)]
    assert given == [("look", {"at": 1}), ("dig", {"task": "down"}), ("pay", {"sum": 3})]
    results = [event.result for event in whole if isinstance(event, ToolFinished)]
    assert results == ["1 is fine", "From below.", "paid 3"]


def members(event: RunEvent, without: set[str]) -> dict[str, Any]:
    names = [name for one in type(event).__mro__ for name in getattr(one, "__slots__", ())]
    return {"type": type(event).__name__} | {
        name: getattr(event, name) for name in names if name not in without
    }


@pytest.mark.parametrize("form", sorted(FORMS))
async def test_text_reasoning_and_arguments_come_in_pieces_between_start_and_end_of_their_request(
    form: str,
) -> None:
    came, _ = await recorded(form, streamed=True)
    own = [event for event in came if event.run_id == "p"]
    for said, start, end in zip((PARENT_FIRST, *ANSWERS[2:]), *requests(own), strict=True):
        pieces = own[start + 1 : end]
        assert all(isinstance(one, DELTAS) for one in pieces)
        assert text_of(pieces, TextDelta) == said.text
        assert text_of(pieces, ReasoningDelta) == said.thought
        for position, (name, given) in enumerate(said.calls):
            mine = [one for one in pieces if isinstance(one, ToolArgumentsDelta) and one.position == position]
            assert {one.tool for one in mine} == {name}
            assert json.loads(text_of(mine, ToolArgumentsDelta)) == given
            assert len(mine) > 1
    below = [event for event in came if event.run_id == "p:1:1"]
    assert text_of(below, TextDelta) == CHILD.text
    assert [type(one) for one in below if one.id and not isinstance(one, StateChanged)] == [
        *(RunCreated, ModelRequestStarted, ModelRequestFinished, RunFinished),
    ]


DELTAS = (TextDelta, ReasoningDelta, ToolArgumentsDelta, ModelRequestRetried)


def requests(events: list[RunEvent]) -> tuple[list[int], list[int]]:
    """Return the positions at which requests start and finish."""
    kinds = ModelRequestStarted, ModelRequestFinished
    first, last = ([at for at, one in enumerate(events) if isinstance(one, kind)] for kind in kinds)
    return first, last


def text_of(events: Sequence[Any], kind: type[Any]) -> str:
    return "".join(event.text for event in events if type(event) is kind)


async def test_every_class_of_events_is_seen_in_the_recorded_run() -> None:
    came, _ = await recorded("messages", streamed=True)
    assert {type(event) for event in came} == {*RUN_EVENTS} - {EventsDropped}
