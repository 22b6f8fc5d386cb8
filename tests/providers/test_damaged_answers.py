"""Whatever JSON a provider sends, an adapter gives an answer that can be stored, or an error of its own kind.

The recorded exchanges are damaged at random: values of any type in any place, also those that Python's own JSON reader
refuses or lets through (5,000 digits, NaN, a thousand levels).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request, Response, Usage, encodable
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import classify
from orchestrator.providers import fault
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.openai import OpenAI
from tests.providers.exchange import FILES
from tests.providers.loopback import Loopback, Reply, json_reply, stream_reply

DEEP = "[" * 400 + "]" * 400
LITERALS = [
    *(
        "null",
        "true",
        "-1",
        "0",
        "1.5",
        "1e999",
        "NaN",
        "-Infinity",
        "9" * 5_000,
        "1" + "0" * 30,
        "[]",
        "{}",
        "[[]]",
    ),
    *(
        '""',
        '"text"',
        '"\\ud800"',
        '[{"type": "text"}]',
        '{"index": []}',
        '[{"type": []}]',
        DEEP,
        "[" * 5_000,
    ),
    *(
        '{"type": "text", "text": {"a": 1}}',
        '[{"type": "text", "text": 5}, {"type": "text"}]',
        '[["a"], {"a": {}}]',
    ),
    *('{"error": {"message": {"a": 1}, "code": [1]}}', '{"prompt_tokens": 1e400, "cost": NaN}'),
]
MARK = "@@damaged@@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def damaged(value: Any, draw: random.Random) -> str:
    """Return a JSON text with one to three values replaced."""
    whole = {"": copy.deepcopy(value)}
    for _ in range(draw.randint(1, 3)):
        *above, last = ("", *draw.choice(list(places(whole[""]))))
        holder: Any = whole
        for key in above:
            holder = holder[key]
        holder[last] = MARK
    text = json.dumps(whole[""])
    while MARK in text:
        text = text.replace(f'"{MARK}"', draw.choice(LITERALS), 1)
    return text


def damaged_stream(text: str, draw: random.Random) -> str:
    """Return a stream of which one event in four is damaged."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if line.startswith("data: {") and draw.random() < 0.25:
            lines[at] = "data: " + damaged(json.loads(line[6:]), draw)
    return "\n".join(lines)


def damaged_reply(response: dict[str, Any], draw: random.Random) -> Reply:
    if "sse" in response:
        return stream_reply(damaged_stream(response["sse"], draw))
    body = damaged(response.get("body", response.get("body_text")), draw)
    return Reply(response["status"], {"content-type": "application/json"}, (body.encode(),))


def recorded(api: str) -> list[dict[str, Any]]:
    return [one["response"] for file in FILES.values() if file["api"] == api for one in file["exchanges"]]


def model(api: str, url: str) -> LLM:
    if api == "anthropic-messages":
        return Anthropic("m", base_url=url, api_key="k")
    return OpenAI("m", base_url=url, api_key="k", api="chat" if api == "openai-chat" else "responses")


async def check(llm: LLM, *, streamed: bool) -> str:
    """Ask once. Returns how it ended; anything but an answer and an LLMError is raised."""
    heard: list[str] = []
    try:
        response = await llm.complete(
            Request((Message("user", "hi"),), on_delta=heard.append if streamed else None)
        )
    except LLMError as error:
        return classify(error).kind
    assert isinstance(response, Response)
    assert all(isinstance(piece, str) for piece in heard)
    sent = response.encodable()
    orjson.dumps(encodable([sent.message().to_openai(), sent.finish_reason, sent.model]))
    usage = sent.usage or Usage()
    assert (
        min(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens) >= 0
    )
    assert usage.cost is None or usage.cost >= 0
    orjson.dumps([usage.input_tokens, usage.output_tokens, usage.cost])
    return "answer"


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic-messages"])
async def test_no_raw_exception_leaves_an_adapter(api: str, seed: int, campaign: Any) -> None:
    draw = random.Random(f"{seed} {api}")
    replies: list[Reply] = []
    came: set[str] = set()
    async with Loopback(lambda _: replies[-1]) as server:
        llm = model(api, server.url)
        for _ in range(campaign(150, 5_000)):
            response = draw.choice(recorded(api))
            replies.append(damaged_reply(response, draw))
            try:
                came.add(await check(llm, streamed="sse" in response))
            except Exception as error:
                error.add_note(f"the reply was {b''.join(replies[-1].chunks)[:3_000]!r}")
                raise
        await llm.aclose()  # type: ignore[attr-defined]
    assert {"answer", "malformed"} <= came


CHAT = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
PIECE = '{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": %s, "function": {"name": "f"}}]}}]}'
UNTYPED = '{"choices": [{"index": 0, "delta": {"content": [{"type": {}}]}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    ("reply", "streamed", "ended"),
    [
        (
            Reply(200, {"content-type": "application/json"}, (b'{"created": ' + b"9" * 5_000 + b"}",)),
            False,
            "malformed",
        ),
        (Reply(200, {"content-type": "application/json"}, (b"[" * 100_000,)), False, "malformed"),
        (Reply(200, {"content-type": "application/json"}, (b"\xff\xfe{",)), False, "malformed"),
        (json_reply({**CHAT, "usage": {"prompt_tokens": 10**400, "cost": 1e300}}), False, "answer"),
        (json_reply({**CHAT, "usage": {"prompt_tokens": -5}}), False, "answer"),
        (json_reply({"choices": [{"message": {"content": {"a": 1}}}]}), False, "answer"),
        (
            json_reply({"choices": [{"message": {"content": [{"type": "x", "n": 10**30}]}}]}),
            False,
            "malformed",
        ),
        (stream_reply(f"data: {PIECE % '[1]'}\n\ndata: [DONE]\n\n"), True, "answer"),
        (stream_reply(f"data: {PIECE % '{}'}\n\ndata: [DONE]\n\n"), True, "answer"),
        (stream_reply(f"data: {'9' * 5_000}\n\ndata: [DONE]\n\n"), True, "malformed"),
        (json_reply({"error": {"message": 10**30, "code": [1], "status": {}}}, 429), False, "rate_limited"),
        (json_reply({"error": [[[[1]]]]}, 500), False, "server_error"),
        (
            json_reply({"choices": [{"message": {"content": [{"type": [], "text": "hi"}]}}]}),
            False,
            "malformed",
        ),
        (json_reply({"choices": [{"message": {"content": [{"text": ""}, {"type": "x"}]}}]}), False, "answer"),
        (stream_reply(f"data: {UNTYPED}\n\ndata: [DONE]\n\n"), True, "malformed"),
    ],
    ids=range(15),
)
async def test_known_oddities_are_an_answer_or_an_error(reply: Reply, streamed: bool, ended: str) -> None:
    async with Loopback([reply]) as server, OpenAI("m", base_url=server.url, api_key="k") as llm:
        assert await check(llm, streamed=streamed) == ended


@pytest.mark.parametrize("kind", [[], {}, None, 5])
async def test_a_block_of_anthropic_whose_type_is_not_a_word_is_a_malformed_answer(kind: Any) -> None:
    body = {"content": [{"type": kind, "text": "hi"}], "stop_reason": "end_turn"}
    async with (
        Loopback([json_reply(body)]) as server,
        Anthropic("m", base_url=server.url, api_key="k") as llm,
    ):
        assert await check(llm, streamed=False) == "malformed"


def test_every_body_of_an_error_is_classified(seed: int, campaign: Any) -> None:
    draw = random.Random(seed)
    bodies = [
        one["body"] for api in ("openai-chat", "anthropic-messages") for one in recorded(api) if "body" in one
    ]
    for _ in range(campaign(500, 20_000)):
        try:
            body = json.loads(damaged(draw.choice(bodies), draw))
        except (ValueError, RecursionError):
            continue
        status = draw.choice([None, 200, 400, 413, 429, 500, 529])
        assert isinstance(
            fault.of_answer(status, {"retry-after": draw.choice(["1e999", "nan", "-1", "x"])}, body), LLMError
        )
