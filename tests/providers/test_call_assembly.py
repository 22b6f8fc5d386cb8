"""Parallel calls from every server: never merged, split or lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.llm.port import LLM
from orchestrator.providers.call_assembly import PartialCall
from orchestrator.providers.openai import OpenAI
from tests.providers.anthropic_words import model as anthropic
from tests.providers.loopback import Loopback, Reply, stream_reply
from tests.tiers import examples

LEFT = None
"""A member that the server leaves out."""


def fragment(index: Any, id_: Any, name: Any, arguments: Any) -> dict[str, Any]:
    raw = {"index": index, "id": id_}
    function = {"name": name, "arguments": arguments}
    kept = {key: value for key, value in raw.items() if value is not LEFT}
    return {**kept, "function": {key: value for key, value in function.items() if value is not LEFT}}


X, Y = '{"x": 1}', '{"y": 2}'
BOTH = (ToolCall("a", "f", X), ToolCall("b", "g", Y))
SHAPES: dict[str, tuple[Sequence[tuple[Any, Any, Any, Any]], Sequence[tuple[str, str, str]]]] = {
    "as OpenAI": (
        [(0, "a", "f", ""), (0, LEFT, LEFT, X), (1, "b", "g", ""), (1, LEFT, LEFT, Y)],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "interleaved by index": (
        [
            *((0, "a", "f", ""), (1, "b", "g", ""), (0, LEFT, LEFT, X[:3]), (1, LEFT, LEFT, Y[:3])),
            *((0, LEFT, LEFT, X[3:]), (1, LEFT, LEFT, Y[3:])),
        ],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "index as text": (
        [("0", "a", "f", X[:3]), ("1", "b", "g", Y[:3]), ("0", LEFT, LEFT, X[3:]), (1, LEFT, LEFT, Y[3:])],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "index only in the first fragment": (
        [(0, "a", "f", ""), (LEFT, LEFT, LEFT, X), (1, "b", "g", ""), (LEFT, LEFT, LEFT, Y)],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "no index": (
        [(LEFT, "a", "f", X[:3]), (LEFT, LEFT, LEFT, X[3:]), (LEFT, "b", "f", Y)],
        [("a", "f", X), ("b", "f", Y)],
    ),
    "no index, interleaved by id": (
        [
            (LEFT, "a", "f", X[:3]),
            (LEFT, "b", "f", Y[:3]),
            (LEFT, "a", LEFT, X[3:]),
            (LEFT, "b", LEFT, Y[3:]),
        ],
        [("a", "f", X), ("b", "f", Y)],
    ),
    "all at index 0": (
        [(0, "a", "f", X), (0, "b", "g", Y[:3]), (0, LEFT, LEFT, Y[3:])],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "all at index 0, with their ids": (
        [(0, "a", "f", X[:3]), (0, "b", "f", Y[:3]), (0, "a", "f", X[3:]), (0, "b", "f", Y[3:])],
        [("a", "f", X), ("b", "f", Y)],
    ),
    "all at index 0, without ids": ([(0, LEFT, "f", X), (0, LEFT, "g", Y)], [("", "f", X), ("", "g", Y)]),
    "all at index 0, empty ids, one tool": ([(0, "", "f", X), (0, "", "f", Y)], [("", "f", X), ("", "f", Y)]),
    "one id for all": ([(0, "c", "f", X), (0, "c", "g", Y)], [("c", "f", X), ("c", "g", Y)]),
    "no arguments yet, another name": (
        [(0, "", "f", ""), (0, "", "g", "{}")],
        [("", "f", ""), ("", "g", "{}")],
    ),
    "a new id with each fragment": (
        [(0, "a", "f", X[:3]), (0, "b", LEFT, X[3:5]), (0, "c", LEFT, X[5:])],
        [("a", "f", X)],
    ),
    "a new id and the name with each fragment": (
        [(0, "a", "f", X[:3]), (0, "b", "f", X[3:5]), (0, "c", "f", X[5:])],
        [("a", "f", X)],
    ),
    "a new index with each fragment": ([(0, "a", "f", X[:3]), (1, "", "", X[3:])], [("a", "f", X)]),
    "id and name with each fragment": (
        [(0, "a", "f", X[:3]), (0, "a", "f", X[3:]), (0, "a", "f", "")],
        [("a", "f", X)],
    ),
    "the name with each fragment": ([(0, LEFT, "f", X[:3]), (0, LEFT, "f", X[3:])], [("", "f", X)]),
    "the name later": ([(0, "a", LEFT, ""), (0, LEFT, "f", X)], [("a", "f", X)]),
    "the id later": ([(0, LEFT, "f", X[:3]), (0, "a", LEFT, X[3:])], [("a", "f", X)]),
    "an index that is none": ([(True, "a", "f", X), ([], "b", "g", Y)], [("a", "f", X), ("b", "g", Y)]),
    "brackets in strings": (
        [(0, LEFT, "f", '{"a": "}\\"'), (0, LEFT, "f", '{\\\\"}'), (0, LEFT, "f", X)],
        [("", "f", '{"a": "}\\"{\\\\"}'), ("", "f", X)],
    ),
}


def chat_stream(fragments: Sequence[tuple[Any, Any, Any, Any]], size: int) -> Reply:
    """The fragments as the stream of a server, in chunks of some bytes."""
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [fragment(*one)]}}]} for one in fragments]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (*chunks, end)) + "data: [DONE]\n\n"
    return in_chunks(text, size)


def in_chunks(text: str, size: int) -> Reply:
    whole, raw = stream_reply(text), text.encode()
    at = range(0, len(raw) + size, size) if size else (0, len(raw))
    return Reply(200, whole.headers, tuple(raw[a:b] for a, b in pairwise(at) if raw[a:b]))


async def streamed(llm: LLM) -> tuple[ToolCall, ...]:

    response = await llm.complete(Request((Message("user", "Go."),), on_delta=lambda _: None))
    return response.tool_calls


@pytest.mark.parametrize("size", [1, 7, 0], ids=["bytes", "sevens", "whole"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_calls_of_a_stream_are_those_of_the_model(shape: str, size: int) -> None:
    fragments, calls = SHAPES[shape]
    async with Loopback([chat_stream(fragments, size)]) as server:
        found = await streamed(OpenAI("m", base_url=f"{server.url}/v1", api_key="k"))
    assert found == tuple(ToolCall(*call) for call in calls)


async def test_calls_that_cannot_be_told_apart_are_an_error_that_the_model_reads() -> None:
    """Fragments of two calls of one tool, interleaved, without index and id."""
    paid: list[int] = []

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    mixed = [(0, "", "pay", '{"cents"'), (0, "", "pay", '{"cents"'), (0, "", "", ": 1}"), (0, "", "", ": 2}")]
    end = {"choices": [{"index": 0, "delta": {"content": "Sorry."}, "finish_reason": "stop"}]}
    done = stream_reply(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n")
    async with Loopback([chat_stream(mixed, 0), done]) as server:
        agent = Agent(OpenAI("m", base_url=f"{server.url}/v1", api_key="k"), tools=[pay], observers=())
        async with agent.stream("Pay 1 and 2.") as running:
            result = await running.result()
    assert (result.output, paid) == ("Sorry.", [])
    (error,) = [message for message in result.messages if message.role == "tool"]
    assert error.is_error


def test_complete_arguments_are_recognized_however_they_are_cut(seed: int) -> None:
    random = Random(seed)
    letters = '{}[]",:\\x 1é'
    for _ in range(examples(200)):
        value = {"a": "".join(random.choices(letters, k=random.randrange(12))), "b": [{}, {"c": None}]}
        text = json.dumps(value)
        call = PartialCall(0)
        at = 0
        while at < len(text):
            assert not call.is_complete()
            size = random.randint(1, 4)
            call.pieces.append(text[at : at + size])
            at += size
        assert call.is_complete(), text
        assert call.arguments == text


# ---- Responses ----


@pytest.mark.parametrize("indices", [(0, 1), ("0", "1"), (LEFT, LEFT), (0, 0)])
async def test_calls_of_a_response_that_came_in_pieces_only_are_read(indices: tuple[Any, ...]) -> None:
    """The server leaves the output of its last event empty, and sends no finished items."""
    events: list[dict[str, Any]] = []
    for index, call in zip(indices, BOTH, strict=True):
        at = {} if index is LEFT else {"output_index": index}
        item = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": ""}
        events.append({"type": "response.output_item.added", **at, "item": item})
        halves = call.arguments[:3], call.arguments[3:]
        kind = "response.function_call_arguments.delta"
        events += [{"type": kind, **at, "delta": half} for half in halves]
    events.append({"type": "response.completed", "response": {"status": "completed", "output": []}})
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in events)
    async with Loopback([stream_reply(text)]) as server:
        found = await streamed(OpenAI("m", base_url=server.url, api_key="k", api="responses"))
    assert found == BOTH


# ---- Anthropic ----


def blocks(*indices: Any) -> list[dict[str, Any]]:
    """The events of a text and two calls, whose blocks have these indices."""
    contents = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "I look."}),
        *(
            (
                {"type": "tool_use", "id": id_, "name": name, "input": {}},
                {"type": "input_json_delta", "partial_json": given},
            )
            for id_, name, given in (("a", "f", X), ("b", "g", Y))
        ),
    ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"type": "message", "model": "m", "content": []}}
    ]
    for index, (start, delta) in zip(indices, contents, strict=True):
        at = {} if index is LEFT else {"index": index}
        events += [
            {"type": "content_block_start", **at, "content_block": start},
            {"type": "content_block_delta", **at, "delta": delta},
            {"type": "content_block_stop", **at},
        ]
    stop = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    return [*events, stop, {"type": "message_stop"}]


@pytest.mark.parametrize("size", [1, 7, 0], ids=["bytes", "sevens", "whole"])
@pytest.mark.parametrize(
    "indices", [(0, 1, 2), (0, 0, 0), ("0", "1", "2"), (LEFT,) * 3, (0, LEFT, LEFT), (1, 1, 0)]
)
async def test_blocks_with_any_index_are_all_read(indices: tuple[Any, ...], size: int) -> None:
    text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in blocks(*indices))
    async with Loopback([in_chunks(text, size)]) as server:
        llm = anthropic(server.url)

        response = await llm.complete(Request((Message("user", "Go."),), on_delta=lambda _: None))
    assert response.message().text == "I look."
    assert response.tool_calls == BOTH


@pytest.mark.parametrize("index", [0, LEFT])
async def test_blocks_that_start_before_they_are_filled_are_told_apart_by_type(index: Any) -> None:
    start, call = blocks(index, index, index)[1:4], blocks(index, index, index)[4:7]
    opened = [start[0], call[0], start[1], call[1], start[2], call[2]]
    whole = [blocks(0, 0, 0)[0], *opened, *blocks(0, 0, 0)[-2:]]
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in whole)
    async with Loopback([stream_reply(text)]) as server:
        response = await anthropic(server.url).complete(
            Request((Message("user", "Go."),), on_delta=lambda _: None)
        )
    assert (response.message().text, response.tool_calls) == ("I look.", BOTH[:1])
