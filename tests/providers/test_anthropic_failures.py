"""What Anthropic's API and networks do that nobody recorded: each as an error of its kind, and a run that goes on."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Request
from orchestrator.providers.anthropic import Anthropic
from tests.providers.anthropic_words import HELLO, events, message, model, text_block, use
from tests.providers.endpoint import Guard, closed_port
from tests.providers.exchange import Failed
from tests.providers.loopback import SILENCE, Loopback, Reply, json_reply, stream_reply
from tests.providers.test_failures import (
    PAGE,
    SECONDS,
    Case,
    Facts,
    Hurried,
    InTurn,
    Streamed,
    agent,
    error,
    expire,
)


def fault(kind: str, text: str = "Sorry") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}


def event(body: dict[str, Any]) -> str:
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n"


OVERLOADED = fault("overloaded_error", "Overloaded")
HALF = events(message(text_block("Once upon a time"))).partition("event: content_block_stop")[0]
CUT = Failed("connection", None, None, True)
JSON = {"content-type": "application/json"}

CASES = {
    "529 without a delay": Case(error(529, OVERLOADED), Failed("server_error", 529, None, True)),
    "529 with a delay": Case(error(529, OVERLOADED, retry_after="3"), Failed("server_error", 529, 3.0, True)),
    "529, told to stop": Case(
        error(529, OVERLOADED, x_should_retry="false"), Failed("server_error", 529, None, False)
    ),
    "503 without a delay": Case(error(503), Failed("server_error", 503, None, True)),
    "503 with a delay": Case(error(503, retry_after_ms="40"), Failed("server_error", 503, 0.04, True)),
    "a page of a gateway": Case(PAGE, Failed("server_error", 504, None, True)),
    "a rate limit": Case(
        error(429, fault("rate_limit_error"), retry_after="12", x_should_retry="true"),
        Failed("rate_limited", 429, 12.0, True),
    ),
    "no money": Case(error(402, fault("billing_error")), Failed("rate_limited", 402, None, False)),
    "no permission": Case(error(403, fault("permission_error")), Failed("auth", 403)),
    "an unknown model": Case(error(404, fault("not_found_error")), Failed("client_error", 404)),
    "a request too large": Case(error(413, fault("request_too_large")), Failed("client_error", 413)),
    "a timeout there": Case(error(504, fault("timeout_error")), Failed("timeout", 504, None, True)),
    "an error of theirs": Case(error(500, fault("api_error")), Failed("server_error", 500, None, True)),
    "an error under 200": Case(json_reply(OVERLOADED), Failed("server_error", None, None, True)),
    "no answer": Case(SILENCE, Failed("timeout", None, None, True)),
    "closed without an answer": Case(Reply(None, then="closed"), CUT),
    "reset without an answer": Case(Reply(None, then="reset"), CUT),
    "closed in the body": Case(Reply(200, JSON, (b'{"content": [',), "closed"), CUT),
    "half a JSON": Case(Reply(200, JSON, (b'{"content": [',)), Failed("malformed", None, None, True)),
    "no object": Case(json_reply(["hello"]), Failed("malformed", None, None, True)),
    "no content": Case(json_reply({"type": "message"}), Failed("malformed", None, None, True)),
    "a stream reset": Case(stream_reply(HALF, "reset"), CUT, True, "Once upon a time"),
    "a stream closed": Case(stream_reply(HALF, "closed"), CUT, True, "Once upon a time"),
    "a stream that just ends": Case(stream_reply(HALF), CUT, True, "Once upon a time"),
    "a stream that ends inside an event": Case(
        stream_reply(HALF + 'event: content_block_delta\ndata: {"type": "content_bl'), CUT, True, "Once upon a time"
    ),
    "a stream that falls silent": Case(
        stream_reply(HALF, "held"), Failed("timeout", None, None, True), True, "Once upon a time"
    ),
    "overloaded in a stream": Case(
        stream_reply(HALF + event(OVERLOADED)), Failed("server_error", None, None, True), True, "Once upon a time"
    ),
    "overloaded before a stream": Case(
        stream_reply(event(OVERLOADED)), Failed("server_error", None, None, True), True
    ),
    "a refused stream": Case(error(529, OVERLOADED), Failed("server_error", 529, None, True), True),
    "an error instead of a stream": Case(json_reply(OVERLOADED), Failed("server_error", None, None, True), True),
    "no JSON in a stream": Case(
        stream_reply(HALF + "data: upstream connect error\n\n"),
        Failed("malformed", None, None, True),
        True,
        "Once upon a time",
    ),
    "an empty stream": Case(stream_reply(event({"type": "ping"})), CUT, True),
    "a stream of nothing but its end": Case(
        stream_reply(event({"type": "message_stop"})), Failed("malformed", None, None, True), True
    ),
}  # fmt: skip


def asked(case: Case, pieces: list[str]) -> Request:
    return replace(HELLO, on_delta=pieces.append) if case.streamed else HELLO


@pytest.mark.parametrize("name", CASES)
async def test_each_failure_is_an_error_of_its_kind_with_what_had_come(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, pieces = CASES[name], list[str]()
    async with Loopback([case.reply]) as server, model(server.url, timeout=SECONDS) as llm:
        with pytest.raises(LLMError) as caught:
            await asyncio.gather(llm.complete(asked(case, pieces)), expire(server, case, pieces, monkeypatch))
        assert Failed.of(caught.value) == case.expected
        assert caught.value.partial == "".join(pieces) == case.partial
        assert len(server.asked) == 1  # the SDK's own retries are off


async def test_a_redirect_is_not_followed_to_where_nobody_pointed(guard: Guard) -> None:
    elsewhere = {"location": "https://elsewhere.test/v1/messages"}
    async with Loopback([Reply(307, elsewhere)]) as server, model(server.url) as llm:
        with pytest.raises(
            LLMError, match=r"redirect \(HTTP 307\) to https://elsewhere\.test/v1/messages"
        ) as caught:
            await llm.complete(HELLO)
        assert guard.seen == [("127.0.0.1", server.port)]
    assert Failed.of(caught.value) == Failed("client_error", 307)


async def test_a_refused_connection_and_a_name_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        async with model(f"http://127.0.0.1:{port}") as llm:
            with pytest.raises(LLMError, match=r"failed at http://127\.0\.0\.1:") as caught:
                await llm.complete(HELLO)
    assert Failed.of(caught.value) == CUT

    def unknown(*args: object, **options: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with model("https://models.test") as llm:
        with pytest.raises(LLMError, match=r"models\.test/.*Name or service not known") as caught:
            await llm.complete(HELLO)
    assert Failed.of(caught.value) == CUT


class Unresolved(httpx2.AsyncBaseTransport):
    """A transport under the SDK that finds no address the first time."""

    def __init__(self) -> None:
        self.then = httpx2.AsyncHTTPTransport()
        self.tried = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.tried += 1
        if self.tried == 1:
            unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            raise httpx2.ConnectError("All connection attempts failed") from unknown
        return await self.then.handle_async_request(request)

    async def aclose(self) -> None:
        await self.then.aclose()


def answers(*, streamed: bool) -> list[Reply]:
    """A call of the tool, then an answer."""
    made = [message(use("c", at="it"), stop="tool_use"), message(text_block("Fine."))]
    return [stream_reply(events(one)) if streamed else json_reply(one) for one in made]


async def test_a_run_goes_on_after_a_name_was_not_found_below_the_sdk() -> None:
    import anthropic  # late, as in test_anthropic.py

    clock, facts, transport = Hurried(), Facts(), Unresolved()
    async with (
        Loopback(answers(streamed=False)) as server,
        httpx2.AsyncClient(transport=transport) as http,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="k", http_client=http) as client,
    ):
        result = await agent(Anthropic("m", client=client), clock, facts).run("Look at it.")
    assert (result.outcome, result.output, transport.tried) == ("completed", "Fine.", 3)
    assert [(one.number, one.outcome, one.reason) for one in facts.attempts] == [(1, "retry", "connection")]


RETRIED = [name for name, case in CASES.items() if case.expected.retryable]


@pytest.mark.parametrize("name", RETRIED)
async def test_a_run_goes_on_after_each_failure_that_may_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, clock, facts = CASES[name], Hurried(), Facts()
    first, second = answers(streamed=case.streamed)
    async with (
        Loopback([case.reply, first, case.reply, second]) as server,
        model(server.url, timeout=SECONDS) as failing,
        model(server.url) as answering,
    ):
        llm = InTurn(failing, answering)
        streamed = Streamed(llm)
        result, _ = await asyncio.gather(
            agent(streamed if case.streamed else llm, clock, facts).run("Look at it."),
            expire(server, case, streamed.pieces, monkeypatch, requests=2),
        )
        assert (result.outcome, result.output) == ("completed", "Fine.")
        assert [one.text for one in result.messages if one.role == "tool"] == ["it is fine"]
        assert len(server.asked) == 4
    told = case.expected
    assert [(one.number, one.outcome, one.reason) for one in facts.attempts] == [(1, "retry", told.kind)] * 2
    assert clock.slept == [told.retry_after or 0.5] * 2


@pytest.mark.parametrize("name", [name for name in CASES if name not in RETRIED])
async def test_a_run_gives_up_at_once_where_no_try_would_help(name: str) -> None:
    case, clock, facts = CASES[name], Hurried(), Facts()
    async with Loopback([case.reply]) as server, model(server.url) as llm:
        result = await agent(llm, clock, facts).run("Look at it.")
        assert (result.outcome, result.reason) == ("failed", "llm_error")
        assert isinstance(result.error, LLMError)
        assert Failed.of(result.error) == case.expected
        assert (len(server.asked), clock.slept) == (1, [])
