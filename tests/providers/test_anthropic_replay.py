"""Recorded conversations over HTTP in Anthropic's form: they end as they do in this process.

Streamed answers carry arguments as they were written, whole ones as JSON objects: for these, conversations are spelt
beforehand as we spell JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pytest

from orchestrator.llm.message import Message, Response, Usage
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.replay import ProviderRecord, ReplayLLM, load, scan
from orchestrator.runtime.llm_loop.result import Result
from tests.providers.anthropic_words import events
from tests.providers.loopback import Asked, Loopback, Reply, json_reply, stream_reply
from tests.providers.test_http_replay import (
    CORPUS,
    REQUESTS,
    RUNS,
    SELECTION,
    Kept,
    Streamed,
    end,
    played,
    reproduced,
)

Item = tuple[str, Any]
MENDED = ("(The conversation begins with the assistant.)", "No result of this call was recorded.")


# ---- a server of Anthropic's form ----


def written(response: Response) -> dict[str, Any]:
    """An answer as the API would give it."""
    used = response.usage or Usage()
    blocks: list[dict[str, Any]] = []
    if response.reasoning is not None:
        blocks.append({"type": "thinking", "thinking": response.reasoning, "signature": "c2ln"})
    if response.content is not None:
        blocks.append({"type": "text", "text": response.content})
    blocks += (
        {"type": "tool_use", "id": call.id, "name": call.name, "input": parsed(call.arguments)}
        for call in response.tool_calls
    )
    return {
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": blocks,
        "stop_reason": response.finish_reason,
        "usage": {
            "input_tokens": used.input_tokens - used.cached_input_tokens - used.cache_write_tokens,
            "cache_read_input_tokens": used.cached_input_tokens,
            "cache_creation_input_tokens": used.cache_write_tokens,
            "output_tokens": used.output_tokens,
            "output_tokens_details": {"thinking_tokens": used.reasoning_tokens},
        },
    }


def parsed(arguments: str) -> Any:
    """What arguments say, or their text where they say no object."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def streamed(response: Response) -> Reply:
    """The stream of an answer, with the arguments as they are written."""
    texts = iter([call.arguments for call in response.tool_calls])
    raw = written(response)
    for block in raw["content"]:
        if block["type"] == "tool_use":
            block["input"] = next(texts)
    return stream_reply(events(raw))


# ---- comparing ----


def heard(messages: Iterable[Message]) -> list[Item]:
    """What messages say, piece by piece, what the system says first; blank texts say nothing."""
    items = [item for message in messages for item in _said(message)]
    system = [item for item in items if item[0] == "system"]
    return [*system, *(item for item in items if item[0] != "system")]


def _said(message: Message) -> Iterator[Item]:
    role = "system" if message.role == "developer" else message.role
    if role == "tool":
        yield "result", (message.text.strip(), message.is_error)
        return
    texts = (
        [message.content]
        if isinstance(message.content, str)
        else [part["text"] for part in message.content or ()]
    )
    yield from ((role, text) for text in texts if text.strip())
    if role == "assistant" and not any(text.strip() for text in texts) and message.refusal:
        yield role, message.refusal
    yield from (("call", (call.name, _input(call.arguments))) for call in message.tool_calls)


def _input(arguments: str) -> Any:
    said = parsed(arguments)
    if isinstance(said, dict):
        return said
    return {} if said.strip() in ("", "null") else {"unparsed_arguments": arguments}


def asked_of(asked: Asked) -> list[Item]:
    """The same of a request as it came in."""
    body = asked.json
    items: list[Item] = [("system", block["text"]) for block in body.get("system", ())]
    for message in body["messages"]:
        items += (
            _block(message["role"], block) for block in message["content"] if block["type"] != "thinking"
        )
    return [item for item in items if item[1] not in MENDED and item[1] != (MENDED[1], True)]


def _block(role: str, block: Mapping[str, Any]) -> Item:
    if block["type"] == "tool_use":
        return "call", (block["name"], block["input"])
    if block["type"] == "tool_result":
        return "result", (block.get("content", "").strip(), block.get("is_error", False))
    return role, block["text"]


def ended(results: Sequence[Result]) -> list[Mapping[str, Any]]:
    """How runs ended, without what this form has no words for: costs."""
    return [
        {**one, "messages": [*map(told, one["messages"])], "usage": replace(one["usage"], cost_micros=None)}
        for one in end(results)
    ]


def told(message: Message) -> Message:
    """A message with its content as text: thinking is kept beside it where it must go back."""
    if not isinstance(message.content, list):
        return message
    texts = [part["text"] for part in message.content if part["type"] == "text"]
    return replace(message, content="".join(texts) if texts else None)


def spelt(record: ProviderRecord) -> ProviderRecord:
    """A conversation whose arguments are spelt as we spell JSON."""
    messages = [
        replace(
            message,
            tool_calls=tuple(
                replace(call, arguments=json.dumps(parsed(call.arguments), ensure_ascii=False))
                for call in message.tool_calls
            ),
        )
        for message in record.messages
    ]
    return replace(record, messages=tuple(messages))


@dataclass(frozen=True)
class Way:
    """How the server answers."""

    name: str
    reply: Callable[[Response], Reply]
    streamed: bool


WAYS = (
    Way("whole", lambda response: json_reply(written(response)), streamed=False),
    Way("streamed", streamed, streamed=True),
)


def _counted(turn: Any) -> Any:
    """Count cached tokens as input, as everybody does but one client whose recordings are among these."""
    used = turn.usage
    cached = used.cached_input_tokens + used.cache_write_tokens
    return replace(turn, usage=replace(used, input_tokens=max(used.input_tokens, cached)))


def playable(records: Iterable[ProviderRecord], way: Way) -> list[ProviderRecord]:
    """The conversations in words that the form has."""
    counted = [replace(one, turns={at: _counted(turn) for at, turn in one.turns.items()}) for one in records]
    return counted if way.streamed else [*map(spelt, counted)]


async def check(records: Sequence[ProviderRecord], way: Way) -> tuple[int, int]:
    """Play each conversation both ways; return how many runs and requests there were."""
    runs = requests = 0
    awaited: list[Response] = []

    def reply(_: Asked) -> Reply:
        return way.reply(awaited.pop(0))

    async with Loopback(reply) as server, Anthropic("recorded", base_url=server.url, api_key="k") as remote:
        for record in records:
            kept = Kept(ReplayLLM(record), record.model or "recorded")
            here = await played(record, kept)
            # The server knows no more than the replies, in the order in which they were given here.
            awaited[:] = kept.given
            server.asked.clear()
            there = await played(record, Streamed(remote) if way.streamed else remote)
            assert ended(there) == ended(here), record.id
            assert awaited == [], record.id
            assert [*map(asked_of, server.asked)] == [*map(heard, kept.asked)], record.id
            runs, requests = runs + len(here), requests + len(server.asked)
        assert server.accepted == 1
    return runs, requests


@pytest.mark.campaign
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_every_reproduced_conversation_ends_over_http_as_in_the_process(
    way: Way, absent: Callable[[str], NoReturn], campaign: Callable[[int, int], int]
) -> None:
    if not CORPUS.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    records = reproduced([one for one in scan(CORPUS) if isinstance(one, ProviderRecord)])
    assert len(records) == 204
    quarter = 2 + WAYS.index(way)
    records = playable(records[campaign(quarter, 0) :: campaign(4, 1)], way)
    assert await check(records, way) == (campaign(RUNS[quarter], 353), campaign(REQUESTS[quarter], 767))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_the_selection_in_this_repository_does_too(way: Way) -> None:
    records = playable(reproduced(list(load(SELECTION))), way)
    runs, requests = await check(records, way)
    assert runs >= len(records) >= 10
    assert requests > runs


async def test_the_comparison_sees_a_difference() -> None:
    record = next(one for one in reproduced(list(load(SELECTION))) if any(m.tool_calls for m in one.messages))

    def spoilt(response: Response) -> Reply:
        return json_reply(written(replace(response, usage=Usage(1, 1))))

    with pytest.raises(AssertionError, match=record.id):
        await check([record], replace(WAYS[0], reply=spoilt))
