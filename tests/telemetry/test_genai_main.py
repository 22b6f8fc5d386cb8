"""The row `genai-main` of the conventions: its names, its choice, and the spans and metrics of each machine."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    server_attributes,
)
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from orchestrator import Agent, tool
from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import ConfigError
from orchestrator.llm.message import Response, ToolCall
from orchestrator.providers import Fallback
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.telemetry.otel import Spans
from orchestrator.telemetry.semconv import DEFAULT, VERSIONS
from tests.endings_table import ENDINGS, clock_of
from tests.providers.family import FAMILIES
from tests.providers.loopback import Reply
from tests.providers.test_model_families import script
from tests.providers.wire import CHAT, GEMINI, MESSAGES, RESPONSES, Call

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
MAIN = VERSIONS["genai-main"]
NEWER = {MAIN.agent_duration, MAIN.tool_duration}
"""Names of the successor repository that opentelemetry-semantic-conventions does not have yet."""
AGENT, TOOL, REQUEST = (
    "gen_ai.invoke_agent.duration",
    "gen_ai.execute_tool.duration",
    "gen_ai.client.operation.duration",
)


class Recorded:
    """What the SDK exports of the runs of one observer."""

    def __init__(self, conventions: str | None = "genai-main") -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        meter = MeterProvider([self._reader]).get_meter("test")
        self.observer = Spans(provider.get_tracer("test"), meter=meter, conventions=conventions)

    def spans(self, operation: str) -> list[ReadableSpan]:
        """Return the ended spans of an operation."""
        ended = self._exporter.get_finished_spans()
        return [span for span in ended if attributes(span)["gen_ai.operation.name"] == operation]

    def metrics(self) -> dict[str, list[HistogramDataPoint]]:
        """Return metric -> its points."""
        data = self._reader.get_metrics_data()
        scopes = [] if data is None else data.resource_metrics[0].scope_metrics
        return {
            metric.name: [one for one in metric.data.data_points if isinstance(one, HistogramDataPoint)]
            for scope in scopes
            for metric in scope.metrics
        }


def attributes(one: ReadableSpan | HistogramDataPoint) -> dict[str, Any]:
    return dict(one.attributes or {})


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


# ---- names ----


def test_the_names_are_those_of_the_package_that_the_sdk_brings() -> None:
    modules = (gen_ai_attributes, gen_ai_metrics, server_attributes, error_attributes)
    known = {text for module in modules for text in vars(module).values() if isinstance(text, str)}
    known |= {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    ours = {getattr(MAIN, name) for name in MAIN.__slots__} - {None}
    assert ours - known == NEWER, (
        f"opentelemetry-semantic-conventions {version('opentelemetry-semantic-conventions')}"
    )


def test_the_default_has_none_of_the_new_names() -> None:
    default = VERSIONS[DEFAULT]
    new = [name for name in MAIN.__slots__ if getattr(MAIN, name) != getattr(default, name)]
    assert len(new) == 9
    assert {getattr(default, name) for name in new if name != "schema_url"} == {None}


# ---- the choice ----


@pytest.mark.parametrize(
    ("variable", "chosen"),
    [
        (None, DEFAULT),
        ("", DEFAULT),
        ("http,database/dup", DEFAULT),
        ("genai-main", DEFAULT),
        ("gen_ai_latest_experimental", "genai-main"),
        ("http, gen_ai_latest_experimental ,unheard_of", "genai-main"),
    ],
)
def test_the_variable_of_opentelemetry_chooses_and_its_unknown_values_are_ignored(
    variable: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPT_IN, raising=False)
    if variable is not None:
        monkeypatch.setenv(OPT_IN, variable)
    assert Spans()._names is VERSIONS[chosen]


def test_the_option_wins_over_the_variable_and_refuses_an_unknown_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OPT_IN, "gen_ai_latest_experimental")
    assert Spans(conventions="1.41")._names is VERSIONS["1.41"]
    with pytest.raises(ConfigError, match=r"unknown version 'gen_ai_latest_experimental'.*1\.41, genai-main"):
        Spans(conventions="gen_ai_latest_experimental")


# ---- an agent ----


@tool(effect="pure")
def look(at: str) -> str:
    """Look."""
    if at == "nothing":
        raise ValueError(at)
    return at


async def test_a_run_of_an_agent_is_its_invocation_and_its_tools_have_a_metric_of_their_own() -> None:
    recorded = Recorded()
    calls = (ToolCall("call-1", "look", '{"at": "sky"}'), ToolCall("call-2", "look", '{"at": "nothing"}'))
    llm = ScriptedLLM([Response(tool_calls=calls, model="m-dated"), "done"])
    await Agent(llm, name="watcher", version="7", tools=[look], observers=[recorded.observer]).run("go")
    (run,) = recorded.spans("invoke_agent")
    assert run.name == "invoke_agent watcher"
    assert attributes(run)["gen_ai.agent.name"] == "watcher"
    assert attributes(run)["gen_ai.request.model"] == "scripted"
    assert "gen_ai.workflow.name" not in attributes(run)
    tools = recorded.spans("execute_tool")
    assert [attributes(span)["gen_ai.tool.call.id"] for span in tools] == ["call-1", "call-2"]
    assert [attributes(span)["gen_ai.response.model"] for span in recorded.spans("chat")][:1] == ["m-dated"]
    metrics = recorded.metrics()
    assert {attributes(point)["gen_ai.operation.name"] for point in metrics[REQUEST]} == {"chat"}
    called = {attributes(point).get("error.type"): point for point in metrics[TOOL]}
    about = {"gen_ai.tool.name": "look", "gen_ai.tool.type": "function", "gen_ai.agent.name": "watcher"}
    assert {error: attributes(point) for error, point in called.items()} == {
        None: about,
        "error": about | {"error.type": "error"},
    }
    (invoked,) = metrics[AGENT]
    assert attributes(invoked) == {"gen_ai.agent.name": "watcher"}
    assert invoked.count == 1
    assert invoked.sum == pytest.approx(seconds(run), abs=1e-5)


async def test_the_default_has_the_spans_and_metrics_it_had() -> None:
    recorded = Recorded(DEFAULT)
    llm = ScriptedLLM(
        [Response(tool_calls=(ToolCall("1", "look", '{"at": "sky"}'),), model="m-dated"), "done"]
    )
    await Agent(llm, name="watcher", tools=[look], observers=[recorded.observer]).run("go")
    assert recorded.spans("invoke_agent") == []
    assert [span.name for span in recorded.spans("invoke_workflow")] == ["invoke_workflow llm_loop"]
    assert not {AGENT, TOOL} & recorded.metrics().keys()
    operations = {attributes(point)["gen_ai.operation.name"] for point in recorded.metrics()[REQUEST]}
    assert operations == {"chat", "execute_tool"}
    new = {MAIN.tool_call, MAIN.response_model, MAIN.server_address}
    spans = [*recorded.spans("chat"), *recorded.spans("execute_tool")]
    assert not [span.name for span in spans if new & attributes(span).keys()]


# ---- every machine ----


def test_every_machine_is_tried() -> None:
    assert set(ENDINGS) == set(SHIPPED)


@pytest.mark.parametrize("graph", ENDINGS)
async def test_the_runs_of_each_machine_are_those_of_an_agent_or_of_a_workflow(graph: str) -> None:
    for ending, run in ENDINGS[graph]().items():
        recorded = Recorded()
        await run(observers=(recorded.observer,), **clock_of(ending))
        agents, others = recorded.spans("invoke_agent"), recorded.spans("invoke_workflow")
        mine = [span for span in (*agents, *others) if attributes(span)["orchestrator.machine"] == graph]
        assert mine, ending
        for span in agents:
            assert span.name == f"invoke_agent {attributes(span)['gen_ai.agent.name']}"
        for span in others:
            assert span.name == f"invoke_workflow {attributes(span)['gen_ai.workflow.name']}"
            assert "gen_ai.agent.name" not in attributes(span)
        metrics = recorded.metrics()
        ended = [span for span in agents if "orchestrator.outcome" in attributes(span)]
        assert sum(point.count for point in metrics.get(AGENT, [])) == len(ended), ending
        failed = [span for span in ended if "error.type" in attributes(span)]
        counted = [point.count for point in metrics.get(AGENT, []) if "error.type" in attributes(point)]
        assert sum(counted) == len(failed), ending
        called = recorded.spans("execute_tool")
        assert sum(point.count for point in metrics.get(TOOL, [])) == len(called), ending
        assert all(attributes(span)["gen_ai.tool.call.id"] for span in called), ending
        asked = {attributes(point)["gen_ai.operation.name"] for point in metrics.get(REQUEST, [])}
        assert asked <= {"chat"}, ending


# ---- servers ----

IDS = {CHAT: "chat-1", RESPONSES: "resp_1", MESSAGES: "msg_1", GEMINI: "r1"}
SERVED = ("openai", "openai-responses", "anthropic", "pydantic-ai:anthropic", "pydantic-ai:google")


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_request_names_its_server_and_the_answers_model_and_id(name: str, *, streamed: bool) -> None:
    family = FAMILIES[name]
    recorded = Recorded()
    async with family.server(script(family.wire, Call("look", {"at": "sky"}), "done")) as server:
        agent = Agent(family.llm(server.url), name="watcher", tools=[look], observers=[recorded.observer])
        if streamed:
            async with agent.stream("go") as stream:
                await stream.result()
        else:
            await agent.run("go")
    spans = [attributes(span) for span in recorded.spans("chat")]
    assert [span["gen_ai.response.id"] for span in spans] == [IDS[family.wire]] * 2
    (model,) = {span["gen_ai.response.model"] for span in spans}
    shared = {"server.address": "127.0.0.1", "server.port": server.port, "gen_ai.response.model": model}
    (point,) = recorded.metrics()[REQUEST]
    for labels in (*spans, attributes(point)):
        assert shared.items() <= labels.items()
    assert "gen_ai.response.id" not in attributes(point)


async def test_a_failed_attempt_names_its_server_and_its_successor_does_not() -> None:
    recorded = Recorded()
    family = FAMILIES["openai"]
    async with family.server(lambda _: Reply(503)) as server:
        llm = Fallback([family.llm(server.url), ScriptedLLM(["done"], model="other")])
        await Agent(llm, name="watcher", observers=[recorded.observer]).run("go")
    spans = {attributes(span)["gen_ai.request.model"]: attributes(span) for span in recorded.spans("chat")}
    assert spans["m"]["server.address"] == "127.0.0.1"
    assert "server.address" not in spans["other"]
    assert "gen_ai.response.id" not in spans["m"]
