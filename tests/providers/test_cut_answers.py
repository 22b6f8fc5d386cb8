"""An answer that was cut at any byte is the whole answer, or an error: never less than the whole one."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.port import LLM
from orchestrator.providers.openai import OpenAI
from tests.passing_time import pass_time
from tests.providers.exchange import FILES
from tests.providers.family import FAMILIES, Family, every
from tests.providers.loopback import Asked, Loopback, Reply, recorded_reply
from tests.providers.shape import (
    CHAT_USAGE,
    DONE,
    STOP,
    block,
    chunk,
    completion,
    event,
    message,
    message_delta,
    message_start,
    output_text,
    response,
    response_end,
    text_events,
)
from tests.providers.test_family_failures import LIBRARIES
from tests.providers.wire import WEATHER
from tests.runtime.stage import until

HELLO = Request((Message("user", "Say hello."),))
PIECES = ("Hel", "lo ", "ü", "\u2028", "\n\n", '"}', "data: [DONE]", "🙂", "{", "there.")
ARGUMENTS = ('{"city": ', '"Oslo"', ', "x": [1, ', "2]}")


def pieces(draw: random.Random) -> list[str]:
    return ["Hi, ", *draw.choices(PIECES, k=draw.randint(0, 5))]


def chat(draw: random.Random) -> tuple[str, str]:
    """Return an answer of chat completions, streamed and whole, of one of the servers that end it differently."""
    texts, finish, unfinished = (
        pieces(draw),
        draw.choice(["stop", "length", "eclipse", None]),
        draw.choice([None, "", "null"]),
    )
    calls = [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": "weather", "arguments": "".join(ARGUMENTS)},
        }
        for at in range(draw.randint(0, 2))
    ]
    thought = draw.choice([[], ["H", "m."]])
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": one} for one in thought]
    deltas += [{"content": one} for one in texts]
    for at, call in enumerate(calls):
        start = {**call, "index": at, "function": {"name": "weather", "arguments": ""}}
        deltas.append({"tool_calls": [start]})
        deltas += [{"tool_calls": [{"index": at, "function": {"arguments": one}}]} for one in ARGUMENTS]
    if draw.random() < 0.5:
        deltas.append({})  # a finish reason alone in its chunk
    usage = draw.choice(["", event({"model": "m", "choices": [], "usage": CHAT_USAGE})])
    chunks = [chunk(one, unfinished) for one in deltas[:-1]]
    done = "" if finish is not None and draw.random() < 0.3 else DONE
    streamed = "".join(chunks) + chunk(deltas[-1], finish) + usage + done
    said = {
        "role": "assistant",
        "content": "".join(texts),
        "reasoning_content": "".join(thought),
        "tool_calls": calls,
    }
    return streamed, completion(said, finish)


def messages(draw: random.Random) -> tuple[str, str]:
    """Return an answer of the Messages API, streamed and whole."""
    texts, stop = pieces(draw), draw.choice(["end_turn", "max_tokens", "eclipse"])
    calls = [
        {"type": "tool_use", "id": f"call_{at}", "name": "weather", "input": {}}
        for at in range(draw.randint(0, 2))
    ]
    blocks = [block(*ARGUMENTS, index=at, start=call) for at, call in enumerate(calls, 1)]
    end = draw.choice([STOP, DONE, STOP + DONE, ""])
    streamed = message_start() + block(*texts) + "".join(blocks) + message_delta(stop) + end
    given = [{**call, "input": json.loads("".join(ARGUMENTS))} for call in calls]
    return streamed, message({"type": "text", "text": "".join(texts)}, *given, stop=stop)


def responses(draw: random.Random) -> tuple[str, str]:
    """Return an answer of the Responses API, streamed and whole."""
    texts = pieces(draw)
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "".join(ARGUMENTS)}
    output = [output_text("".join(texts)), *([call] if draw.random() < 0.5 else [])]
    done = [
        {"type": "response.output_item.done", "output_index": at, "item": item}
        for at, item in enumerate(output)
    ]
    last = response(*(output if draw.random() < 0.5 else []))  # some servers leave the last event empty
    end = response_end(last) + draw.choice(["", DONE])
    return text_events(*texts) + "".join(event(one, one["type"]) for one in done) + end, json.dumps(
        response(*output)
    )


ANSWERS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "openai": chat,
    "anthropic": messages,
    "openai-responses": responses,
}


async def come(llm: LLM, *, streamed: bool) -> Response | LLMError:
    try:
        return await llm.complete(replace(HELLO, on_delta=(lambda _: None) if streamed else None))
    except LLMError as error:
        return error


def cut(draw: random.Random, body: bytes, content_type: str) -> Reply:
    """Return a body that ends at any of its bytes, with or without an error of the connection.

    Its last bytes come in chunks of any size. The chunks before make no difference, says `test_wire_shapes.py`.
    """
    at = draw.choice([draw.randrange(len(body)), len(body) - draw.randrange(min(60, len(body)))])
    size = draw.choice([1, 7, max(1, at)])
    start = max(0, at - 30 * size)
    pieces = (body[place : min(place + size, at)] for place in range(start, at, size))
    chunks = (*([body[:start]] if start else []), *pieces)
    return Reply(200, {"content-type": content_type}, chunks, draw.choice(["end", "closed", "reset"]))


def check(came: Response | LLMError, whole: Response, about: object) -> bool:
    """Return whether an answer came of a cut one; it has everything but perhaps the usage."""
    if isinstance(came, LLMError):
        assert came.kind in ("connection", "malformed"), about
        return False
    assert replace(came, usage=None, model=None) == replace(whole, usage=None, model=None), about
    assert came.usage in (whole.usage, None), about
    return True


@pytest.mark.parametrize("rounds", [20, pytest.param(60, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_was_cut_is_never_less_than_the_whole_one(
    name: str, rounds: int, seed: int, campaign: Any
) -> None:
    draw = random.Random(f"{seed} {name}")
    left: list[Reply] = []
    used = 0
    async with Loopback(lambda _: left.pop()) as server:
        llm: Any = FAMILIES[name].llm(server.url)
        done = 0
        while done < campaign(rounds, 2_000) or not used:  # until a cut answer was complete enough to be used
            done += 1
            stream, body = ANSWERS[name](draw)
            form, kind = draw.choice([(stream, "text/event-stream"), (body, "application/json")])
            streamed = form is stream
            left.append(Reply(200, {"content-type": kind}, (form.encode(),)))
            whole = await come(llm, streamed=streamed)
            assert isinstance(whole, Response), form
            for _ in range(3):
                left.append(cut(draw, form.encode(), kind))
                used += check(await come(llm, streamed=streamed), whole, left)
        await llm.aclose()


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_finish_reason_in_each_chunk_ends_no_stream_whose_connection_breaks(size: int) -> None:
    stream = "".join(chunk(one, "stop") for one in ("Hello ", "there", ".")[:size])
    reply = Reply(200, {"content-type": "text/event-stream"}, (stream.encode(),), "closed")
    async with Loopback([reply]) as server:
        came = await come(FAMILIES["openai"].llm(server.url), streamed=True)
    assert isinstance(came, LLMError)
    assert (came.kind, came.partial) == ("connection", "Hello there."[: len(came.partial)])


async def test_an_answer_whose_connection_falls_silent_after_its_finish_reason_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = chunk("Hello there.") + chunk("", "stop")
    reply = Reply(200, {"content-type": "text/event-stream"}, (stream.encode(),), "held")
    pieces: list[str] = []
    async with (
        Loopback([reply]) as server,
        OpenAI("m", base_url=server.url, api_key="k", timeout=60.0) as llm,
    ):
        asking = asyncio.create_task(llm.complete(replace(HELLO, on_delta=pieces.append)))
        await until(lambda: pieces)
        pass_time(monkeypatch, 60)
        came = await asking
    assert (came.content, came.finish_reason) == ("Hello there.", "stop")


RECORDED = {
    "openai-chat": "openai",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic",
}


@pytest.mark.parametrize("api", RECORDED)
async def test_a_recorded_stream_that_was_cut_is_never_less(api: str, seed: int, campaign: Any) -> None:
    draw = random.Random(f"{seed} {api}")
    streams = [
        one["response"]
        for file in FILES.values()
        for one in file["exchanges"]
        if file["api"] == api and "sse" in one["response"]
    ]
    left: list[Reply] = []
    async with Loopback(lambda _: left.pop()) as server:
        llm: Any = FAMILIES[RECORDED[api]].llm(server.url)
        for recorded in streams:
            left.append(recorded_reply(recorded))
            whole = await come(llm, streamed=True)
            assert isinstance(whole, Response)
            body = recorded["sse"].encode()
            for _ in range(campaign(5, 200)):
                left.append(cut(draw, body, "text/event-stream"))
                check(await come(llm, streamed=True), whole, left)
        await llm.aclose()


def joined(chunks: Sequence[bytes]) -> bytes:
    return b"".join(chunks)


def parts_of(response: Response) -> str:
    """Return the text and the calls of an answer, without the ids that pydantic-ai draws for calls that have none."""
    return re.sub(r"pyd_ai_[0-9a-f]{32}", "pyd_ai", repr((response.content, response.tool_calls)))


@every(LIBRARIES)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_a_library_reads_is_never_less(
    family: Family, streamed: bool, seed: int, campaign: Any
) -> None:
    draw = random.Random(f"{seed} {streamed}")
    cuts: list[bool] = []
    said: Any = "Hello there."

    def answer(asked: Asked) -> Reply:
        whole = family.wire.reply(asked, said)
        return cut(draw, joined(whole.chunks), whole.headers["content-type"]) if cuts else whole

    async with family.server(answer) as server:
        llm: Any = family.llm(server.url)
        for one in ("Hello there.", WEATHER):
            said = one
            cuts.clear()
            whole = await come(llm, streamed=streamed)
            assert isinstance(whole, Response)
            for _ in range(campaign(5, 100)):
                cuts.append(True)
                came = await come(llm, streamed=streamed)
                if isinstance(came, Response):
                    assert parts_of(came) == parts_of(whole)
                    assert came.finish_reason == whole.finish_reason
        await llm.aclose()
