"""Recorded conversations over HTTP: the recorded replies come from a server, through a vendor's SDK and our adapter.

Each conversation that a replay in this process reproduces is played twice, in the process and over HTTP, and must end
alike: messages, outcome, transitions. How a server writes an answer is a `Wire`; another vendor joins with one more.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestrator import Agent
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.llm.port import LLM
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.reading import is_reported
from orchestrator.providers.replay import (
    REPRODUCED,
    ProviderRecord,
    ReplayLLM,
    ReplayTools,
    expectation,
    load,
    scan,
    split_runs,
)
from orchestrator.runtime.llm_loop.result import Result
from tests.providers.loopback import Asked, Loopback, Reply, json_reply, stream_reply

CORPUS = Path(__file__).parents[3] / "shared/data/trajectories"
SELECTION = Path(__file__).parents[1] / "data/trajectories/selection.jsonl"
RUNS, REQUESTS = (87, 89, 93, 84), (179, 190, 201, 197)
"""Of each quarter of the conversations: two are played here by default, two in Anthropic's form, all with SOAK."""


# ---- how vendors write ----


@dataclass(frozen=True)
class Wire:
    """One way to speak to a model: the adapter, how its server writes an answer, and what it reads of a question."""

    name: str
    llm: Callable[[str], AbstractAsyncContextManager[LLM]]
    reply: Callable[[Response], Reply]
    read: Callable[[Asked], list[Message]]
    """The messages of a request, in our words."""
    carried: Callable[[Message], Message]
    """What of a message this way of speaking has words for."""
    streamed: bool = False


def _completion(response: Response) -> dict[str, Any]:
    used = response.usage or Usage()
    message = {**response.message().to_openai(), "role": "assistant"}
    return {
        "object": "chat.completion",
        "model": response.model,
        "choices": [{"index": 0, "message": message, "finish_reason": response.finish_reason}],
        "usage": {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cached_input_tokens},
            "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
            **({"cost": used.cost} if used.cost is not None else {}),
        },
    }


def _chunks(response: Response) -> Iterator[dict[str, Any]]:
    """Yield the completion in pieces: text by words, arguments in two halves, usage last and without a choice."""
    whole = _completion(response)
    (choice,), usage = whole.pop("choices"), whole.pop("usage")
    message = choice.pop("message")

    def piece(**delta: Any) -> dict[str, Any]:
        return {**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None}

    content, calls = message.pop("content"), message.pop("tool_calls", ())
    yield piece(**message, content="" if content is not None else None)
    yield from (piece(content=word) for word in re.findall(r"\S+\s*|\s+", content or ""))
    for index, call in enumerate(calls):
        given = call["function"]["arguments"]
        named = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield piece(tool_calls=[named])
        for half in (given[: len(given) // 2], given[len(given) // 2 :]):
            yield piece(tool_calls=[{"index": index, "function": {"arguments": half}}])
    yield {**whole, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {**whole, "choices": [], "usage": usage}


def _chat_stream(response: Response) -> Reply:
    events = (f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in _chunks(response))
    return stream_reply("".join(events) + "data: [DONE]\n\n")


def _chat_read(asked: Asked) -> list[Message]:
    return [Message.from_openai(message) for message in asked.json["messages"]]


def _chat_carried(message: Message) -> Message:
    empty = message.content is None and not message.tool_calls and message.refusal is None
    return replace(message, reasoning=None, is_error=False, content="" if empty else message.content)


@asynccontextmanager
async def _chat(url: str) -> AsyncIterator[LLM]:
    async with OpenAI("recorded", base_url=url, api_key="sk-test") as llm:
        yield llm


class Streamed:
    """A model that is always asked for a stream, and whose pieces must add up."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    async def complete(self, request: Request) -> Response:
        pieces: list[str] = []
        response = await self.llm.complete(replace(request, on_delta=pieces.append))
        assert "".join(pieces) == response.message().text
        return response


WIRES = (
    Wire("chat", _chat, lambda response: json_reply(_completion(response)), _chat_read, _chat_carried),
    Wire("chat-streamed", _chat, _chat_stream, _chat_read, _chat_carried, streamed=True),
)


# ---- playing ----


class Kept:
    """A model that keeps what it was asked and what it gave. Usage that was not recorded is not reported.

    Nor is the number of tokens written to a cache, if the wire has no field for it.
    """

    def __init__(self, llm: LLM, model: str, *, has_cache_writes: bool = True) -> None:
        self.llm, self.model, self.has_cache_writes = llm, model, has_cache_writes
        self.asked: list[list[Message]] = []
        self.given: list[Response] = []

    async def complete(self, request: Request) -> Response:
        self.asked.append(list(request.messages))
        response = await self.llm.complete(request)
        response = response if is_reported(response) else replace(response, usage=None)
        if response.usage is not None and not self.has_cache_writes:
            response = replace(response, usage=replace(response.usage, cache_write_tokens=0))
        self.given.append(response)
        return response


async def played(record: ProviderRecord, llm: LLM) -> list[Result]:
    """Run the whole conversation, each run from what the one before left."""
    agent = Agent(llm, tools=ReplayTools(record), limits=OFF, observers=())
    results: list[Result] = []
    scripts = split_runs(record)
    ours: Sequence[Message] = scripts[0].history
    for script in scripts:
        results.append(await agent.run([*ours, *script.prompt]))
        ours = results[-1].messages[: script.stop]
    return results


def end(results: Sequence[Result]) -> list[Mapping[str, Any]]:
    """What must be alike."""
    return [
        {
            "outcome": result.outcome,
            "reason": result.reason,
            "output": result.output,
            "messages": result.messages,
            "usage": result.usage,
            "error": result.error,
            "transitions": [
                (step.seq, step.event, step.source, step.dest, step.iteration, step.guard, step.internal)
                for step in result.transitions
            ],
        }
        for result in results
    ]


async def check(records: Sequence[ProviderRecord], wire: Wire) -> tuple[int, int]:
    """Play each conversation both ways; return how many runs and requests there were."""
    runs = requests = 0
    awaited: list[Response] = []

    def answer(asked: Asked) -> Reply:
        return wire.reply(awaited.pop(0))

    async with Loopback(answer) as server, wire.llm(server.url) as remote:
        for record in records:
            kept = Kept(ReplayLLM(record), record.model or "recorded", has_cache_writes=False)
            here = await played(record, kept)
            # The server knows no more than the replies, in the order in which they were given here.
            awaited[:] = kept.given
            server.asked.clear()
            there = await played(record, Streamed(remote) if wire.streamed else remote)
            assert end(there) == end(here), record.id
            assert awaited == [], record.id
            sent = [wire.read(asked) for asked in server.asked]
            assert sent == [[wire.carried(message) for message in asked] for asked in kept.asked], record.id
            runs, requests = runs + len(here), requests + len(sent)
        assert server.accepted == 1
    return runs, requests


def reproduced(records: Sequence[ProviderRecord]) -> list[ProviderRecord]:
    return [record for record in records if expectation(record) == REPRODUCED]


@pytest.mark.campaign
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_every_reproduced_conversation_ends_over_http_as_in_the_process(
    wire: Wire, absent: Callable[[str], NoReturn], campaign: Callable[[int, int], int]
) -> None:
    if not CORPUS.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    records = reproduced([one for one in scan(CORPUS) if isinstance(one, ProviderRecord)])
    assert len(records) == 204
    quarter = WIRES.index(wire)
    records = records[campaign(quarter, 0) :: campaign(4, 1)]
    assert await check(records, wire) == (campaign(RUNS[quarter], 353), campaign(REQUESTS[quarter], 767))


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_the_selection_in_this_repository_does_too(wire: Wire) -> None:
    records = reproduced(list(load(SELECTION)))
    assert len(records) == 11
    runs, requests = await check(records, wire)
    assert (runs, requests) == (17, 44)


async def test_the_comparison_sees_a_difference() -> None:
    record = next(one for one in reproduced(list(load(SELECTION))) if any(m.tool_calls for m in one.messages))

    def spoilt(response: Response) -> Reply:
        return json_reply(_completion(replace(response, usage=Usage(1, 1))))

    with pytest.raises(AssertionError, match=record.id):
        await check([record], replace(WIRES[0], reply=spoilt))
