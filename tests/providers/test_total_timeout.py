"""A server that sends something now and then does not extend the total timeout of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Message, Request
from orchestrator.llm.retry import classify
from orchestrator.providers import Anthropic, Fallback, OpenAI, PydanticAIModel
from orchestrator.providers.scripted import ScriptedLLM
from tests.passing_time import pass_time
from tests.providers.endpoint import GUARD
from tests.runtime.stage import until

ENDLESS = {
    "pings": (b"text/event-stream", b": ping\n\n"),
    "one byte": (b"application/json", b" "),
    "ping events": (b"text/event-stream", b'event: ping\ndata: {"type": "ping"}\n\n'),
}
"""What a server sends without an end, after its headers."""

MODELS: dict[str, Any] = {
    "chat": lambda url, **options: OpenAI("m", base_url=url, api_key="k", **options),
    "responses": lambda url, **options: OpenAI("m", base_url=url, api_key="k", api="responses", **options),
    "anthropic": lambda url, **options: Anthropic("m", base_url=url, api_key="k", **options),
    "pydantic-ai": lambda url, **options: PydanticAIModel("openai:m", base_url=url, api_key="k", **options),
}


@asynccontextmanager
async def endless(kind: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the address of a server that never ends an answer, and the pieces that it has sent."""
    form, piece = ENDLESS[kind]
    sent: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: " + form + b"\r\n\r\n"
            )
            while not writer.is_closing():
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
                sent.append(piece)
                await asyncio.sleep(0.01)
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with GUARD.allow("127.0.0.1", port):
            yield f"http://127.0.0.1:{port}", sent
    finally:
        server.close()
        for one in [*tasks]:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [
        ("chat", "pings"),
        ("chat", "one byte"),
        ("responses", "ping events"),
        ("anthropic", "ping events"),
        ("anthropic", "one byte"),
        ("pydantic-ai", "pings"),
    ],
)
async def test_a_request_whose_answer_never_ends_is_a_timeout_that_is_retried(
    vendor: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[object] = []
    async with endless(kind) as (url, sent), MODELS[vendor](url, total_timeout=300) as model:
        for request in (
            Request([Message("user", "go")]),
            Request([Message("user", "go")], on_delta=pieces.append),
        ):
            sent.clear()
            asking = asyncio.create_task(model.complete(request))
            await until(lambda: len(sent) > 3)
            pass_time(monkeypatch, 300)
            with pytest.raises(LLMError, match="gave no answer within 300 s in all") as raised:
                await asking
            assert (raised.value.kind, classify(raised.value).retryable) == ("timeout", True)
    assert pieces == []


async def test_a_fallback_model_answers_instead_of_one_that_never_ends() -> None:
    async with endless("one byte") as (url, _), MODELS["chat"](url, total_timeout=0.2) as model:
        both = Fallback([model, ScriptedLLM(["done"])], on=("timeout",))
        request = Request([Message("user", "go")])
        with pytest.raises(LLMError, match="scripted is asked next"):
            await both.complete(request)
        assert (await both.complete(request)).content == "done"


@pytest.mark.parametrize("vendor", MODELS)
@pytest.mark.parametrize("value", [0, -1.0, float("inf")])
def test_a_total_timeout_that_is_no_time_is_refused(vendor: str, value: float) -> None:
    with pytest.raises(ConfigError, match=r"total_timeout is .*; possible: seconds, more than 0, or None"):
        MODELS[vendor]("http://127.0.0.1:1", total_timeout=value)
