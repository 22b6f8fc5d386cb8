"""How much is read of an answer: bodies, events and streams, also compressed, and bodies of errors."""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.retry import classify
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.connection import DEFAULT_BYTES
from orchestrator.providers.openai import OpenAI
from tests.providers.loopback import Loopback, Reply, json_reply, stream_reply

READER = Path(__file__).parent / "bomb_reader.py"
MIB = 2**20


def request(heard: list[str] | None = None) -> Request:
    return Request((Message("user", "hi"),), on_delta=None if heard is None else heard.append)


def completion(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


def delta(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n"


def bomb(before: bytes = b"", unit: bytes = b"x") -> tuple[bytes, ...]:
    """Return a gzip stream of 1 GiB, the unit over and over, as 1,024 chunks that are all the same."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    head = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(unit * (MIB // len(unit))) + packer.flush(zlib.Z_FULL_FLUSH)
    return (head, *[piece] * 1_024)


async def ended(url: str, *arguments: str) -> Mapping[str, Any]:
    """Run the reader against a server of this process."""
    reader = await asyncio.create_subprocess_exec(
        sys.executable,
        str(READER),
        *arguments,
        url,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    said, _ = await reader.communicate()
    assert reader.returncode == 0
    found: Mapping[str, Any] = json.loads(said)
    return found


JSON = {"content-type": "application/json", "content-encoding": "gzip"}
EVENTS = {"content-type": "text/event-stream", "content-encoding": "gzip"}
TEXT = b'{"choices": [{"message": {"content": "'
SENTENCE = (
    "malformed None False: the provider's answer has more than 33,554,432 bytes and was not read to its end; "
    "raise max_response_bytes of the model where such answers are expected (0 = no limit)"
)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "way", "status", "headers", "body", "sentence"),
    [
        ("openai", "whole", 200, JSON, (TEXT,), SENTENCE),
        ("anthropic", "whole", 200, JSON, (TEXT,), SENTENCE),
        ("responses", "streamed", 200, JSON, (TEXT,), SENTENCE),
        ("openai", "streamed", 200, EVENTS, (b"data: ",), SENTENCE),
        ("openai", "streamed", 200, EVENTS, (b"", delta("x" * 9_000).encode()), SENTENCE),
        ("openai", "whole", 500, JSON, (b'{"error": {"message": "',), "server_error 500 True"),
        ("anthropic", "whole", 400, JSON, (b"bad: ",), "client_error 400 False"),
        ("mcp", "whole", 200, JSON, (TEXT,), "MCP"),
        ("mcp", "whole", 200, EVENTS, (b"data: ",), "MCP"),
    ],
)
async def test_a_bomb_of_1_gb_takes_less_memory_than_twice_the_limit(
    kind: str, way: str, status: int, headers: Mapping[str, str], body: tuple[bytes, ...], sentence: str
) -> None:
    reply = Reply(status, headers, bomb(*body), then="closed")
    async with Loopback(lambda _: reply) as server:
        found = await ended(server.url, kind, way)
    assert found["came_to"].startswith(sentence)
    assert found["bytes"] < 2 * DEFAULT_BYTES


@pytest.mark.parametrize("size", [999, 1_000, 1_001])
async def test_a_body_may_have_as_many_bytes_as_the_limit(size: int) -> None:
    text = json.dumps(completion("x" * (size - len(json.dumps(completion("")))))).encode()
    assert len(text) == size
    reply = Reply(200, {"content-type": "application/json"}, (text[:500], text[500:]))
    async with Loopback([reply]) as server, small(server.url) as llm:
        if size <= 1_000:
            assert isinstance(await llm.complete(request()), Response)
        else:
            with pytest.raises(LLMError, match="more than 1,000 bytes") as failed:
                await llm.complete(request())
            assert (failed.value.kind, classify(failed.value).retryable) == ("malformed", False)


async def test_the_limit_works_before_the_body_is_complete() -> None:
    endless = Reply(200, {"content-type": "application/json"}, (b"x" * 1_001,), then="held")
    async with Loopback([endless, json_reply(completion("ok"))]) as server, small(server.url) as llm:
        with pytest.raises(LLMError, match="more than 1,000 bytes"):
            await llm.complete(request())
        assert (await llm.complete(request())).content == "ok"  # on a connection of its own


async def test_a_stream_may_have_more_bytes_than_the_limit_but_keeps_no_more() -> None:
    heard: list[str] = []
    wrapped = ": " + "x" * 300 + "\n" + delta("ab")
    short = stream_reply(wrapped * 10 + "data: [DONE]\n\n")
    long = stream_reply(delta("ab") * 20 + "data: [DONE]\n\n")
    async with Loopback([short, long]) as server, small(server.url) as llm:
        assert (await llm.complete(request([]))).content == "ab" * 10
        with pytest.raises(LLMError, match="more than 1,000 bytes") as failed:
            await llm.complete(request(heard))
    assert heard == ["ab"] * 15
    assert (failed.value.partial, classify(failed.value).retryable) == ("", False)


async def test_one_event_has_the_limit_of_a_body() -> None:
    stream = stream_reply("data: " + "x" * 1_000 + "\n\n")
    async with Loopback([stream]) as server, small(server.url) as llm:
        with pytest.raises(LLMError, match="more than 1,000 bytes"):
            await llm.complete(request([]))


async def test_no_limit_is_0() -> None:
    async with (
        Loopback([json_reply(completion("x" * 100_000))]) as server,
        OpenAI("m", base_url=server.url, api_key="k", max_response_bytes=0) as llm,
    ):
        assert (await llm.complete(request())).content == "x" * 100_000


@pytest.mark.parametrize("limit", [-1, 1.5, True, None])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit: Any) -> None:
    for kind in (OpenAI, Anthropic):
        with pytest.raises(
            ConfigError, match=r"max_response_bytes is .*; possible: bytes, 1 or more, or 0 for no limit"
        ):
            kind("m", api_key="k", max_response_bytes=limit)


async def test_a_clients_own_requests_see_whole_errors_and_ours_only_their_beginning() -> None:
    long = {"error": {"message": "x" * 3 * MIB, "code": "nope"}}
    async with Loopback(lambda _: json_reply(long, 400), strict=False) as server:
        client = openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0)
        async with client:
            for _ in range(2):  # a second model adds no second hook
                llm = OpenAI("m", client=client)
            with pytest.raises(LLMError) as failed:
                await llm.complete(request())
            with pytest.raises(openai.BadRequestError) as whole:
                await client.chat.completions.create(model="m", messages=[])
    assert (failed.value.kind, failed.value.status) == ("client_error", 400)
    assert len(str(failed.value)) < 1_000
    assert whole.value.code == "nope"


def small(url: str) -> OpenAI:
    return OpenAI("m", base_url=url, api_key="k", max_response_bytes=1_000)
