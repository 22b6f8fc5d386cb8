"""Parallel calls from every server: never merged, split or lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.llm.message import Message, Request, Response, ToolCall
from orchestrator.providers.openai import OpenAI, PartialCall
from orchestrator.providers.vendor_model import SdkModel
from tests.providers.anthropic_words import model as anthropic
from tests.providers.loopback import Loopback, Reply, stream_reply
from tests.providers.shapes_calls import LEFT, Fragment, X, Y, fragment
from tests.tiers import examples

BOTH = (ToolCall("a", "f", X), ToolCall("b", "g", Y))


def chat_stream(fragments: Sequence[Fragment]) -> Reply:
    """The fragments as the stream of a server."""
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [fragment(*one)]}}]} for one in fragments]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (*chunks, end)) + "data: [DONE]\n\n"
    return stream_reply(text)


def in_chunks(text: str, size: int) -> Reply:
    whole, raw = stream_reply(text), text.encode()
    at = range(0, len(raw) + size, size) if size else (0, len(raw))
    return Reply(200, whole.headers, tuple(raw[a:b] for a, b in pairwise(at) if raw[a:b]))


async def streamed(llm: SdkModel) -> Response:
    async with llm:
        return await llm.complete(Request((Message("user", "Go."),), on_delta=lambda _: None))


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
    async with (
        Loopback([chat_stream(mixed), done]) as server,
        OpenAI("m", base_url=f"{server.url}/v1", api_key="k") as llm,
    ):
        agent = Agent(llm, tools=[pay], observers=())
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
        response = await streamed(OpenAI("m", base_url=server.url, api_key="k", api="responses"))
    assert response.tool_calls == BOTH


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
        response = await streamed(anthropic(server.url))
    assert response.message().text == "I look."
    assert response.tool_calls == BOTH


@pytest.mark.parametrize("index", [0, LEFT])
async def test_blocks_that_start_before_they_are_filled_are_told_apart_by_type(index: Any) -> None:
    start, call = blocks(index, index, index)[1:4], blocks(index, index, index)[4:7]
    opened = [start[0], call[0], start[1], call[1], start[2], call[2]]
    whole = [blocks(0, 0, 0)[0], *opened, *blocks(0, 0, 0)[-2:]]
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in whole)
    async with Loopback([stream_reply(text)]) as server:
        response = await streamed(anthropic(server.url))
    assert (response.message().text, response.tool_calls) == ("I look.", BOTH[:1])
