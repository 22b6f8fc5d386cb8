"""The span of a model request or a tool is the current one while the call runs: spans of a host's client are below."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from orchestrator import Agent, Limits, LLMError, RetryPolicy, tool
from orchestrator.kernel.fact import Call, Fact
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.rlm import Rlm
from orchestrator.telemetry import ParkNotice
from orchestrator.testing import ScriptedLLM
from tests.telemetry.test_otel import AT, Stand, attributes, completed, started


class Server(BaseHTTPRequestHandler):
    """Answers with the traceparent of the request: the span that the client had."""

    def do_GET(self) -> None:
        body = self.headers.get("traceparent", "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


class Host:
    """A host whose HTTP clients are instrumented as OpenTelemetry's packages do: a client span for each request."""

    def __init__(self, stand: Stand, address: str) -> None:
        self.tracer = stand.provider.get_tracer("host")
        self.address = address

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        return headers

    async def get(self, path: str) -> str:
        url = f"{self.address}/{path}"
        with self.tracer.start_as_current_span(f"GET /{path}", kind=SpanKind.CLIENT):
            async with httpx2.AsyncClient() as client:
                return (await client.get(url, headers=self._headers())).text

    def get_sync(self, path: str) -> str:
        with self.tracer.start_as_current_span(f"GET /{path}", kind=SpanKind.CLIENT):
            request = urllib.request.Request(f"{self.address}/{path}", headers=self._headers())  # noqa: S310
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return str(answer.read().decode())


def tools_of(host: Host) -> list[Any]:
    @tool(effect="pure")
    async def fetch(path: str) -> str:
        """Fetch a path."""
        return await host.get(path)

    @tool(effect="pure")
    def read(path: str) -> str:
        """Read a path in a thread."""
        return host.get_sync(path)

    @tool(effect="pure", timeout=30)
    async def hurry(path: str) -> str:
        """Fetch a path within a time limit, in a task of its own."""
        return await asyncio.create_task(host.get(path))

    return [fetch, read, hurry]


class Model:
    """A model behind HTTP: its adapter makes a request of the instrumented client for each answer."""

    model = "remote"

    def __init__(self, host: Host, name: str) -> None:
        self.host, self.name, self.answers = host, name, 0

    async def complete(self, request: Request) -> Response:
        self.answers += 1
        await self.host.get(f"{self.name}/model/{self.answers}")
        if self.answers > 2:
            return Response("done")
        calls = [
            ToolCall(f"{self.answers}{kind}", kind, f'{{"path": "{self.name}/{kind}/{self.answers}"}}')
            for kind in ("fetch", "read", "hurry")
        ]
        return Response(tool_calls=tuple(calls), usage=Usage(7, 5))


def by_id(stand: Stand) -> dict[int, ReadableSpan]:
    return {span.context.span_id: span for span in stand.ended if span.context is not None}


def parent_of(stand: Stand, span: ReadableSpan) -> ReadableSpan:
    assert span.parent is not None, span.name
    return by_id(stand)[span.parent.span_id]


async def test_every_http_span_of_two_concurrent_runs_is_below_the_right_tool_or_request(
    address: str,
) -> None:
    stand = Stand()
    host = Host(stand, address)
    runs = [
        Agent(Model(host, name), name=name, version="3", tools=tools_of(host), observers=[stand.spans]).run(
            "go", conversation_id=f"talk-{name}"
        )
        for name in ("ann", "bob")
    ]
    results = await asyncio.gather(*runs)
    assert [result.outcome for result in results] == ["completed", "completed"]
    requests = [span for span in stand.ended if span.name.startswith("GET ")]
    assert len(requests) == 2 * (3 + 2 * 3)
    for span in requests:
        _, owner, kind, turn = span.name.split("/")
        above = parent_of(stand, span)
        assert above.name == ("chat remote" if kind == "model" else f"execute_tool {kind}")
        assert attributes(above)["orchestrator.iteration"] == int(turn)
        assert attributes(above)["gen_ai.agent.name"] == owner
        named = {"gen_ai.request.model": "remote"} if kind == "model" else {"gen_ai.tool.name": kind}
        assert {
            key: attributes(above)[key]
            for key in ("gen_ai.request.model", "gen_ai.tool.name")
            if key in attributes(above)
        } == named
        run = parent_of(stand, above)
        assert run.name == "invoke_workflow llm_loop"
        for one in (run, above):
            assert attributes(one)["gen_ai.agent.version"] == "3"
            assert attributes(one)["gen_ai.conversation.id"] == f"talk-{owner}"
        assert above.start_time is not None
        assert span.start_time is not None
        assert above.start_time <= span.start_time
    texts = [message.content for message in results[0].messages if message.role == "tool"]
    sent = {f"{span.context.span_id:016x}" for span in requests if span.context is not None}
    assert {str(text).split("-")[2] for text in texts} <= sent  # the server saw these spans
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_child_run_is_below_the_tool_call_that_started_it_and_its_requests_below_its_own_tools(
    address: str,
) -> None:
    stand = Stand()
    host = Host(stand, address)
    child = Agent(Model(host, "child"), name="child", tools=tools_of(host), observers=[stand.spans])
    llm = ScriptedLLM([[ToolCall("1", "ask", '{"task": "go"}')], "done"])
    parent = Agent(
        llm, name="parent", tools=[child.as_tool(name="ask", description="Ask.")], observers=[stand.spans]
    )
    assert (await parent.run("go")).outcome == "completed"
    outer, inner = sorted(stand.named("invoke_workflow llm_loop"), key=lambda span: span.start_time or 0)
    assert parent_of(stand, inner).name == "execute_tool ask"
    assert parent_of(stand, parent_of(stand, inner)) is outer
    (request,) = stand.named("GET /child/read/2")
    assert parent_of(stand, parent_of(stand, request)) is inner
    assert attributes(parent_of(stand, request))["gen_ai.agent.name"] == "child"


async def test_tools_of_the_rlm_are_current_too(address: str) -> None:
    stand = Stand()
    host = Host(stand, address)
    rlm = Rlm(Model(host, "rlm"), mode="tools", tools=tools_of(host), observers=[stand.spans])
    assert (await rlm.run("go", "some text")).outcome == "completed"
    for span in [span for span in stand.ended if span.name.startswith("GET ")]:
        kind = span.name.split("/")[2]
        above = "chat remote" if kind == "model" else f"execute_tool {kind}"
        assert parent_of(stand, span).name == above


async def test_each_attempt_of_a_request_is_current_only_while_it_runs() -> None:
    stand, seen = Stand(), []

    class Flaky(ScriptedLLM):
        async def complete(self, request: Request) -> Response:
            seen.append(trace.get_current_span().get_span_context().span_id)
            return await super().complete(request)

    llm = Flaky([LLMError("busy", kind="rate_limited"), "done"])
    retry = RetryPolicy(base=0.0, jitter=0.0)
    assert (await Agent(llm, retry=retry, observers=[stand.spans]).run("go")).outcome == "completed"
    first, second = stand.named("chat scripted")
    assert seen == [span.context.span_id for span in (first, second) if span.context is not None]
    assert attributes(first)["error.type"] == "rate_limited"
    assert "error.type" not in attributes(second)
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_log_line_of_a_tool_has_the_span_of_the_tool() -> None:
    stand, seen = Stand(), []

    @tool(effect="pure")
    def note() -> str:
        """Note."""
        seen.append(stand.spans.trace())
        return "ok"

    llm = ScriptedLLM([[ToolCall("1", "note", "{}")], "done"])
    await Agent(llm, tools=[note], observers=[stand.spans]).run("go")
    (span,) = stand.named("execute_tool note")
    assert span.context is not None
    assert seen == [{"trace_id": f"{span.context.trace_id:032x}", "span_id": f"{span.context.span_id:016x}"}]


async def test_a_tool_that_ignores_its_time_limit_leaves_no_span_current(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand, release = Stand(), asyncio.Event()

    @tool(effect="pure", timeout=0.01)
    async def stubborn() -> str:
        """Ignore a cancellation."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    seen = []

    class Model(ScriptedLLM):
        async def complete(self, request: Request) -> Response:
            seen.append(trace.get_current_span().get_span_context().span_id)
            return await super().complete(request)

    llm = Model([[ToolCall("1", "stubborn", "{}")], "done"])
    limits = Limits(cancel_seconds=0.01)
    agent = Agent(llm, tools=[stubborn], limits=limits, observers=[stand.spans])
    assert (await agent.run("go")).outcome == "completed"
    release.set()
    (span,) = stand.named("execute_tool stubborn")
    assert attributes(span)["error.type"] == "timeout"
    assert seen == [one.context.span_id for one in stand.named("chat scripted") if one.context is not None]
    assert not trace.get_current_span().get_span_context().is_valid
    assert "detach" not in caplog.text


async def test_finished_calls_of_a_turn_that_waits_for_a_person_have_one_span_each(tmp_path: object) -> None:
    stand = Stand()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    llm = ScriptedLLM([[ToolCall("1", "look", "{}"), ToolCall("2", "pay", "{}")], "done"])
    asked = asyncio.Event()
    notice = ParkNotice(lambda _: asked.set())
    agent = Agent(llm, tools=[look, pay], observers=[stand.spans, notice])
    running = asyncio.create_task(agent.run("go", run_id="r"))
    await asked.wait()
    (early,) = stand.named("execute_tool look")
    assert attributes(early)["orchestrator.outcome"] == "ok"
    await agent.approve("r", by="ann")
    assert (await running).outcome == "completed"
    assert stand.named("execute_tool look") == [early]
    (paid,) = stand.named("execute_tool pay")
    assert parent_of(stand, paid) is stand.named("invoke_workflow llm_loop")[1]


def test_calls_that_have_not_ended_with_their_run_are_abandoned_and_others_say_how_they_ended() -> None:
    stand = Stand().tell(started())
    with stand.spans.around(Call("loop", "r", "tool", "good", 1, 0, AT)):
        pass
    with pytest.raises(KeyError), stand.spans.around(Call("loop", "r", "tool", "bad", 1, 1, AT)):
        raise KeyError
    with stand.spans.around(Call("loop", "r", "tool", "slow", 1, 2, AT)):
        stand.tell(completed())
    keys = ("orchestrator.outcome", "error.type", "orchestrator.abandoned")
    found = {span.name: {key: attributes(span).get(key) for key in keys} for span in stand.ended[:3]}
    assert found == {
        "execute_tool good": dict(zip(keys, ("ok", None, None), strict=True)),
        "execute_tool bad": dict(zip(keys, (None, "KeyError", None), strict=True)),
        "execute_tool slow": dict(zip(keys, (None, None, True), strict=True)),
    }


class Broken:
    """An observer whose context managers fail."""

    def __init__(self, *, at_exit: bool) -> None:
        self.at_exit = at_exit

    def observe(self, fact: Fact, /) -> None:
        """Ignore facts."""

    def around(self, call: Call) -> Broken:
        if not self.at_exit:
            raise KeyError(call.name)
        return self

    def __enter__(self) -> None:
        """Succeed."""

    def __exit__(self, *_: object) -> bool:
        raise KeyError("exit")


@pytest.mark.parametrize("at_exit", [False, True])
async def test_an_observer_that_fails_around_a_call_is_counted_and_changes_nothing(*, at_exit: bool) -> None:
    stand = Stand()
    agent = Agent(ScriptedLLM(["done"]), observers=[Broken(at_exit=at_exit), stand.spans])
    assert (await agent.run("go")).outcome == "completed"
    assert agent._service.driver.observer_errors == {"Broken": 1}
    assert len(stand.named("chat scripted")) == 1


async def test_the_genai_metrics_are_an_option_of_the_observer() -> None:
    reader = InMemoryMetricReader()
    stand = Stand(meter=MeterProvider([reader]).get_meter("test"))

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        raise ValueError("no")

    llm = ScriptedLLM(
        [
            LLMError("busy", kind="rate_limited"),
            Response(tool_calls=(ToolCall("1", "look", "{}"),), usage=Usage(70, 5)),
            Response("done", usage=Usage(90, 6)),
        ]
    )
    retry = RetryPolicy(base=0.0, jitter=0.0)
    assert (
        await Agent(llm, tools=[look], retry=retry, observers=[stand.spans]).run("go")
    ).outcome == "completed"
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {
            tuple(sorted(dict(point.attributes or {}).items())): point for point in metric.data.data_points
        }
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    request = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "_unknown",
        "gen_ai.request.model": "scripted",
    }

    def point(name: str, **labels: str) -> Any:
        return found[name][
            tuple(sorted({key.replace("__", "."): value for key, value in labels.items()}.items()))
        ]

    usage = "gen_ai.client.token.usage"
    assert point(usage, **request, **{"gen_ai.token.type": "input"}).sum == 160
    assert point(usage, **request, **{"gen_ai.token.type": "output"}).sum == 11
    duration = "gen_ai.client.operation.duration"
    assert point(duration, **request).count == 2
    assert point(duration, **request, **{"error.type": "rate_limited"}).count == 1
    failed = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "error.type": "error"}
    assert point(duration, **failed).count == 1
