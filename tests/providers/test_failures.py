"""What providers and networks do that nobody recorded: each as an error of its kind, and as a run that goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai
import pytest

from orchestrator import Agent, tool
from orchestrator.errors import LLMError
from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.port import LLM, SystemClock
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers.openai import OpenAI
from orchestrator.runtime.service.runtime import Runtime
from tests.passing_time import pass_time
from tests.ports import free_port
from tests.providers.endpoint import GUARD, Guard, closed_port
from tests.providers.exchange import Failed
from tests.providers.loopback import SILENCE, Loopback, Reply, json_reply, stream_reply
from tests.runtime.stage import until

HELLO = Request((Message("user", "hello"),))


def completion(text: str | None, *calls: tuple[str, str]) -> dict[str, Any]:
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": given}}
        for number, (name, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {
        "model": "m-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }


def chunk(text: str, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


HALF = chunk("Once upon") + chunk(" a time")
WHOLE = HALF + chunk(".", finish_reason="stop") + "data: [DONE]\n\n"


def error(status: int, body: object = None, **headers: str) -> Reply:
    return json_reply(body or {}, status, {name.replace("_", "-"): value for name, value in headers.items()})


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
QUOTA = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota", "type": "x"}}
PAGE = Reply(504, {"content-type": "text/html"}, (b"<html>504 Gateway Time-out</html>",))


@dataclass(frozen=True)
class Case:
    reply: Reply
    expected: Failed
    streamed: bool = False
    partial: str = ""


CASES = {
    "529 without a delay": Case(error(529, OVERLOADED), Failed("server_error", 529, None, True)),
    "529 with a delay": Case(error(529, OVERLOADED, retry_after="3"), Failed("server_error", 529, 3.0, True)),
    "529, told to try": Case(error(529, x_should_retry="true"), Failed("server_error", 529, None, True)),
    "529, told to stop": Case(error(529, x_should_retry="false"), Failed("server_error", 529, None, False)),
    "503 without a delay": Case(error(503), Failed("server_error", 503, None, True)),
    "503 with milliseconds": Case(error(503, retry_after_ms="40"), Failed("server_error", 503, 0.04, True)),
    "503 until a date": Case(
        error(503, retry_after="Sun, 22 Nov 2026 08:00:09 GMT", date="Sun, 22 Nov 2026 08:00:00 GMT"),
        Failed("server_error", 503, 9.0, True),
    ),
    "a page of a gateway": Case(PAGE, Failed("server_error", 504, None, True)),
    "a quota that is used up": Case(error(429, QUOTA), Failed("rate_limited", 429, None, False)),
    "no answer": Case(SILENCE, Failed("timeout", None, None, True)),
    "closed without an answer": Case(Reply(None, then="closed"), Failed("connection", None, None, True)),
    "reset without an answer": Case(Reply(None, then="reset"), Failed("connection", None, None, True)),
    "closed in the body": Case(
        Reply(200, {"content-type": "application/json"}, (b'{"choices": [',), "closed"),
        Failed("connection", None, None, True),
    ),
    "half a JSON": Case(
        Reply(200, {"content-type": "application/json"}, (b'{"choices": [',)), Failed("malformed", None, None, True)
    ),
    "a page instead of JSON": Case(
        Reply(200, {"content-type": "text/html"}, (b"<p>",)), Failed("malformed", None, None, True)
    ),
    "no object": Case(json_reply(["hello"]), Failed("malformed", None, None, True)),
    "nothing": Case(Reply(200), Failed("malformed", None, None, True)),
    "no choice": Case(json_reply({"choices": []}), Failed("malformed", None, None, True)),
    "no message": Case(json_reply({"choices": [{"finish_reason": "stop"}]}), Failed("malformed", None, None, True)),
    "a stream reset": Case(
        stream_reply(HALF, "reset"), Failed("connection", None, None, True), True, "Once upon a time"
    ),
    "a stream closed": Case(
        stream_reply(HALF, "closed"), Failed("connection", None, None, True), True, "Once upon a time"
    ),
    "a stream that just ends": Case(
        stream_reply(HALF), Failed("connection", None, None, True), True, "Once upon a time"
    ),
    "a stream that ends inside an event": Case(
        stream_reply(HALF + 'data: {"choices": [{"delta": {"con'),
        Failed("connection", None, None, True),
        True,
        "Once upon a time",
    ),
    "a stream that falls silent": Case(
        stream_reply(HALF, "held"), Failed("timeout", None, None, True), True, "Once upon a time"
    ),
    "an error in a stream": Case(
        stream_reply(HALF + 'data: {"error": {"code": 502, "message": "upstream is gone"}}\n\n'),
        Failed("server_error", 502, None, True),
        True,
        "Once upon a time",
    ),
    "a stream broken off": Case(
        stream_reply(HALF + chunk("", finish_reason="error") + "data: [DONE]\n\n"),
        Failed("server_error", None, None, True),
        True,
        "Once upon a time",
    ),
    "no JSON in a stream": Case(
        stream_reply(HALF + "data: Internal Server Error\n\n"),
        Failed("malformed", None, None, True),
        True,
        "Once upon a time",
    ),
    "no text in a stream": Case(
        Reply(200, {"content-type": "text/event-stream"}, (HALF.encode(), b"data: \xff\xfe\n\n")),
        Failed("malformed", None, None, True),
        True,
        "Once upon a time",
    ),
    "an empty stream": Case(stream_reply("data: [DONE]\n\n"), Failed("malformed", None, None, True), True),
    "a refused stream": Case(error(503, OVERLOADED), Failed("server_error", 503, None, True), True),
    "an error instead of a stream": Case(json_reply(QUOTA), Failed("rate_limited", None, None, False), True),
}  # fmt: skip


SECONDS = 60.0
"""How long a client waits for a byte."""


def model(url: str) -> OpenAI:
    return OpenAI("m", base_url=url, api_key="sk-test", timeout=SECONDS)


async def expire(
    server: Loopback, case: Case, pieces: Sequence[str], monkeypatch: pytest.MonkeyPatch, requests: int = 1
) -> None:
    """Let the client's time run out in each of these requests, if the server holds its reply back.

    That is once the client has everything which comes before, so that it may take its time for that.
    """
    for number in range(1, 1 + requests * (case.reply.then == "held")):
        await until(lambda: (len(server.held), "".join(pieces)) == (number, case.partial * number))  # noqa: B023
        pass_time(monkeypatch, SECONDS)


@pytest.mark.parametrize("name", CASES)
async def test_each_failure_is_an_error_of_its_kind_with_what_had_come(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, pieces = CASES[name], list[str]()
    request = replace(HELLO, on_delta=pieces.append) if case.streamed else HELLO
    async with Loopback([case.reply]) as server, model(server.url) as llm:
        with pytest.raises(LLMError) as caught:
            await asyncio.gather(llm.complete(request), expire(server, case, pieces, monkeypatch))
        assert Failed.of(caught.value) == case.expected
        assert caught.value.partial == "".join(pieces) == case.partial
        assert caught.value.sent
        assert len(server.asked) == 1  # the SDK's own retries are off


async def test_a_server_that_answers_a_stream_whole_is_understood() -> None:
    pieces: list[str] = []
    async with Loopback([json_reply(completion("All at once."))]) as server, model(server.url) as llm:
        response = await llm.complete(replace(HELLO, on_delta=pieces.append))
    assert (response.content, pieces) == ("All at once.", ["All at once."])


async def test_a_refused_connection_and_a_name_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        async with model(f"http://127.0.0.1:{port}/v1") as llm:
            with pytest.raises(LLMError, match=r"failed at http://127\.0\.0\.1:") as caught:
                await llm.complete(HELLO)
    assert (Failed.of(caught.value), caught.value.sent) == (Failed("connection", None, None, True), False)

    def unknown(*args: object, **options: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with model("https://models.test/v1") as llm:
        with pytest.raises(LLMError, match=r"models\.test/.*Name or service not known") as caught:
            await llm.complete(HELLO)
    assert (Failed.of(caught.value), caught.value.sent) == (Failed("connection", None, None, True), False)


async def test_tls_against_a_server_that_speaks_none() -> None:
    def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with GUARD.allow("127.0.0.1", port):
            async with model(f"https://127.0.0.1:{port}/v1") as llm:
                with pytest.raises(LLMError, match="SSL") as caught:
                    await llm.complete(HELLO)
    assert (Failed.of(caught.value), caught.value.sent) == (Failed("connection", None, None, True), False)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_to_where_nobody_pointed(status: int, guard: Guard) -> None:
    elsewhere = {"location": "https://elsewhere.test/v1/chat/completions?token=x"}
    async with Loopback([Reply(status, elsewhere)]) as server, model(server.url) as llm:
        with pytest.raises(
            LLMError, match=r"redirect \(HTTP 30\d\) to https://elsewhere\.test/v1/\S+s, which"
        ) as caught:
            await llm.complete(HELLO)
        assert guard.seen == [("127.0.0.1", server.port)]
    assert Failed.of(caught.value) == Failed("client_error", status)
    assert "token" not in str(caught.value)


KEY = "sk-a-key-that-nobody-may-see"
REPEATED = {"error": {"message": f"no such key: {KEY}", "type": "auth"}}
LONG = {"error": {"message": "x" * 460 + KEY, "type": "auth"}}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "reply",
    [
        json_reply(REPEATED, 401),
        json_reply(REPEATED),
        json_reply(LONG, 401),
        json_reply(LONG),
        stream_reply(f"data: {json.dumps(REPEATED)}\n\n"),
        stream_reply(f"data: {json.dumps(LONG)}\n\n"),
    ],
    ids=["401", "under 200", "long 401", "long under 200", "in a stream", "long in a stream"],
)
async def test_no_error_has_the_key_in_it_whatever_the_server_repeats(reply: Reply, streamed: bool) -> None:
    request = replace(HELLO, on_delta=lambda _: None) if streamed else HELLO
    async with Loopback([reply]) as server, OpenAI("m", base_url=server.url, api_key=KEY) as llm:
        with pytest.raises(LLMError) as caught:
            await llm.complete(request)
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY[:12] not in shown


async def test_a_page_in_place_of_a_stream_is_no_answer_and_no_cut_stream() -> None:
    page = Reply(200, {"content-type": "text/html"}, (b"<html>Welcome</html>",))
    async with Loopback([page]) as server, model(server.url) as llm:
        with pytest.raises(LLMError, match="it is an HTML page") as caught:
            await llm.complete(replace(HELLO, on_delta=lambda _: None))
    assert Failed.of(caught.value) == Failed("malformed", None, None, True)


class Broken(httpx2.AsyncBaseTransport):
    """A transport under the SDK that fails as told before it lets anything through."""

    def __init__(self, *failures: Exception, then: httpx2.AsyncBaseTransport) -> None:
        self.failures = list(failures)
        self.then = then

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.failures:
            raise httpx2.ConnectError("All connection attempts failed") from self.failures.pop(0)
        return await self.then.handle_async_request(request)

    async def aclose(self) -> None:
        await self.then.aclose()


def over(url: str, *failures: Exception) -> tuple[openai.AsyncOpenAI, OpenAI]:
    transport = Broken(*failures, then=httpx2.AsyncHTTPTransport())
    http = httpx2.AsyncClient(transport=transport)
    client = openai.AsyncOpenAI(api_key="sk-test", base_url=url, http_client=http)
    return client, OpenAI("m", client=client)


async def test_a_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    client, llm = over("https://models.test/v1", ssl.SSLCertVerificationError(1, "self-signed certificate"))
    async with client:
        with pytest.raises(LLMError, match="self-signed") as caught:
            await llm.complete(HELLO)
    assert Failed.of(caught.value) == Failed("connection", None)


# ---- whole runs ----


class Hurried(SystemClock):
    """The real clock, on which waiting takes no time and is noted."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Facts:
    component = "facts"

    def __init__(self) -> None:
        self.attempts: list[OperationAttempt] = []

    def observe(self, fact: object) -> None:
        if isinstance(fact, OperationAttempt):
            self.attempts.append(fact)


class InTurn:
    """Models that are asked one after the other, and over again: one for failures, one for answers."""

    model = "m"

    def __init__(self, *models: LLM) -> None:
        self._next = itertools.cycle(models)

    async def complete(self, request: Request) -> Response:
        return await next(self._next).complete(request)


class Streamed:
    """A model that is always asked for a stream."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.model = "m"
        self.pieces: list[str] = []

    async def complete(self, request: Request) -> Response:
        return await self.llm.complete(replace(request, on_delta=self.pieces.append))


@tool(effect="pure")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is fine"


POLICY = RetryPolicy(attempts=3, base=0.5, jitter=0)


def agent(llm: LLM, clock: Hurried, facts: Facts) -> Agent:
    return Agent(llm, tools=[look], retry=POLICY, runtime=Runtime(observers=[facts], clock=clock))


def answers(*, streamed: bool) -> list[Reply]:
    """A call of the tool, then an answer."""
    if not streamed:
        return [json_reply(completion(None, ("look", '{"at": "it"}'))), json_reply(completion("Fine."))]
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    told = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    return [
        stream_reply(f"data: {json.dumps(told)}\n\ndata: [DONE]\n\n"),
        stream_reply(chunk("Fine.", finish_reason="stop") + "data: [DONE]\n\n"),
    ]


RETRIED = [name for name, case in CASES.items() if case.expected.retryable]


@pytest.mark.parametrize("name", RETRIED)
async def test_a_run_goes_on_after_each_failure_that_may_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, clock, facts = CASES[name], Hurried(), Facts()
    first, second = answers(streamed=case.streamed)
    async with (
        Loopback([case.reply, first, case.reply, second]) as server,
        model(server.url) as failing,
        model(server.url) as answering,
    ):
        llm = InTurn(failing, answering)
        streamed = Streamed(llm)
        asked = streamed if case.streamed else llm
        result, _ = await asyncio.gather(
            agent(asked, clock, facts).run("Look at it."),
            expire(server, case, streamed.pieces, monkeypatch, requests=2),
        )
        assert (result.outcome, result.output) == ("completed", "Fine.")
        assert [message.text for message in result.messages if message.role == "tool"] == ["it is fine"]
        assert len(server.asked) == 4
    told = case.expected
    assert [(one.number, one.outcome, one.reason) for one in facts.attempts] == [(1, "retry", told.kind)] * 2
    assert clock.slept == [told.retry_after or 0.5] * 2


@pytest.mark.parametrize("name", [name for name in CASES if name not in RETRIED])
async def test_a_run_gives_up_at_once_where_no_try_would_help(name: str) -> None:
    case, clock, facts = CASES[name], Hurried(), Facts()
    async with Loopback([case.reply]) as server, model(server.url) as llm:
        asked = Streamed(llm) if case.streamed else llm
        result = await agent(asked, clock, facts).run("Look at it.")
        assert (result.outcome, result.reason) == ("failed", "llm_error")
        assert isinstance(result.error, LLMError)
        assert Failed.of(result.error) == case.expected
        assert (len(server.asked), clock.slept) == (1, [])


async def test_a_run_goes_on_when_names_can_be_looked_up_again() -> None:
    clock, facts = Hurried(), Facts()
    lost = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution") for _ in range(2)]
    async with Loopback(answers(streamed=False)) as server:
        client, llm = over(server.url, *lost)
        async with client:
            result = await agent(llm, clock, facts).run("Look at it.")
    assert (result.outcome, result.output) == ("completed", "Fine.")
    assert [(one.reason, one.delay) for one in facts.attempts] == [("connection", 0.5), ("connection", 1.0)]


async def test_a_run_goes_on_when_the_server_is_back() -> None:
    """Nobody listens at first; the server starts while the run waits for its next try."""
    facts = Facts()
    port = free_port()
    gone = GUARD.allow("127.0.0.1", port)
    started: list[Loopback] = []

    class Starting(Hurried):
        async def sleep(self, seconds: float) -> None:
            started.append(await Loopback(answers(streamed=False), port=port).__aenter__())

    with gone:
        async with model(f"http://127.0.0.1:{port}") as llm:
            result = await agent(llm, Starting(), facts).run("Look at it.")
    await started[0].__aexit__(None, None, None)
    assert (result.outcome, result.output) == ("completed", "Fine.")
    assert [one.reason for one in facts.attempts] == ["connection"]


async def test_a_run_with_no_tries_left_keeps_the_last_error() -> None:
    clock, facts = Hurried(), Facts()
    replies = [error(503), error(429, retry_after="2"), stream_reply(HALF, "reset")]
    async with Loopback(replies) as server, model(server.url) as llm:
        result = await agent(llm, clock, facts).run("Look at it.")
    assert (result.outcome, result.reason) == ("failed", "llm_error")
    assert [(one.outcome, one.reason) for one in facts.attempts] == [
        ("retry", "server_error"),
        ("retry", "rate_limited"),
        ("exhausted", "connection"),
    ]
    assert clock.slept == [0.5, 2.0]


async def test_a_listener_that_raises_is_not_taken_for_the_provider() -> None:
    def listen(text: str) -> None:
        raise TimeoutError("the listener is late")

    async with Loopback([stream_reply(WHOLE)]) as server, model(server.url) as llm:
        with pytest.raises(TimeoutError, match="listener"):
            await llm.complete(replace(HELLO, on_delta=listen))
        await server.until(lambda one: one.open == 0)
