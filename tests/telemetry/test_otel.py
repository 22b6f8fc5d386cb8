"""Spans from facts, as OpenTelemetry's own SDK exports them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError, LLMError
from orchestrator.kernel.fact import (
    EventFailed,
    Fact,
    GuardEvaluated,
    LLMCall,
    OperationAttempt,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolExecution,
    Transition,
)
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Response
from orchestrator.llm.message import ToolCall as Asked
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry import semconv
from orchestrator.telemetry.exposition.page import rendered
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.otel import RecentRuns, Spans
from orchestrator.tools.spec import tool
from tests.telemetry.loop import CANARY, Context, Deps, Event, Rig

AT = 1_700_000_000.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Stand:
    """An SDK that keeps what is exported, and the observer under test on it."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.spans = Spans(self.tracer, now=lambda: self.now, **options)
        self.now = AT

    def tell(self, *facts: Fact) -> Stand:
        for fact in facts:
            self.now = max(self.now, getattr(fact, "at", self.now))
            self.spans.observe(fact)
        return self

    @property
    def ended(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]


def started(run_id: str = "r", at: float = AT, origin: str = "new", parent: str | None = None) -> RunStarted:
    return RunStarted("loop", run_id, at, origin, parent)


def moved(
    seq: int, at: float, *, source: str = "begin", dest: str = "think", run_id: str = "r"
) -> Transition:
    return Transition("loop", run_id, seq, "go", source, dest, 0.5, at, 1)


def completed(run_id: str = "r", at: float = AT + 9, outcome: str = "completed", **more: Any) -> RunCompleted:
    reason = more.pop("reason", "none")
    return RunCompleted("loop", run_id, "done", outcome, reason, at, 9.0, 4, 2, **more)


def parked(run_id: str = "r", at: float = AT + 5) -> RunParked:
    return RunParked("loop", run_id, "ask", "approval", at)


def answered(seconds: float = 2.0, outcome: str = "ok", **more: Any) -> LLMCall:
    return LLMCall("loop", "r", "think", 1, "gpt-x", outcome, seconds, **more)


def ran(outcome: str = "ok", seconds: float = 1.0, **more: Any) -> ToolExecution:
    return ToolExecution("loop", "r", 1, more.pop("position", 0), "search", outcome, seconds, **more)


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return round(span.start_time / 1e9 - AT, 6), round(span.end_time / 1e9 - AT, 6)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# ---- the run ----


def test_a_run_is_one_span_from_its_start_to_its_end_with_its_totals() -> None:
    stand = Stand().tell(started(), moved(1, AT + 1), completed())
    (span,) = stand.ended
    assert (span.name, span.kind, span.parent) == ("invoke_workflow loop", SpanKind.INTERNAL, None)
    assert seconds(span) == (0.0, 9.0)
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "loop",
        "orchestrator.machine": "loop",
        "orchestrator.run_id": "r",
        "orchestrator.origin": "new",
        "orchestrator.outcome": "completed",
        "orchestrator.reason": "none",
        "orchestrator.state": "done",
        "orchestrator.transitions": 4,
        "orchestrator.iterations": 2,
    }


def test_transitions_are_events_of_the_runs_span_at_their_times() -> None:
    allowed = Transition("loop", "r", 2, "again", "act", "think", 0.5, AT + 2, 3, guard="turns")
    (span,) = Stand().tell(started(), moved(1, AT + 1), allowed, completed()).ended
    assert [(event.name, event.timestamp / 1e9 - AT) for event in span.events] == [
        ("orchestrator.transition", 1.0),
        ("orchestrator.transition", 2.0),
    ]
    assert dict(span.events[1].attributes or {}) == {
        "orchestrator.seq": 2,
        "orchestrator.from_state": "act",
        "orchestrator.event": "again",
        "orchestrator.to_state": "think",
        "orchestrator.iteration": 3,
        "orchestrator.guard": "turns",
    }


def test_what_failed_and_what_is_tried_again_are_events_without_any_text() -> None:
    failed = EventFailed(
        "loop", "r", "think", "go", "callback_error", AT + 1, 1, hook="enter_think", error=ValueError(CANARY)
    )
    again = OperationAttempt("loop", "r", "llm", 1, "retry", "rate_limited", 0.5)
    given_up = OperationAttempt("loop", "r", "llm", 2, "exhausted", "rate_limited")
    (span,) = Stand().tell(started(), failed, again, given_up, completed()).ended
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        (
            "orchestrator.event_failed",
            {
                "orchestrator.state": "think",
                "orchestrator.event": "go",
                "orchestrator.reason": "callback_error",
                "orchestrator.hook": "enter_think",
                "error.type": "ValueError",
            },
        ),
        (
            "orchestrator.llm.retry",
            {
                "orchestrator.operation": "llm",
                "orchestrator.reason": "rate_limited",
                "orchestrator.delay_seconds": 0.5,
            },
        ),
    ]


@pytest.mark.parametrize(
    ("outcome", "error", "status", "kind"),
    [
        ("failed", LLMError(CANARY, kind="timeout"), StatusCode.ERROR, "LLMError"),
        ("failed", None, StatusCode.ERROR, "llm_error"),
        ("budget_exceeded", None, StatusCode.UNSET, None),
        ("cancelled", None, StatusCode.UNSET, None),
    ],
)
def test_a_failed_run_is_an_error_and_other_ends_are_not(
    outcome: str, error: Exception | None, status: StatusCode, kind: str | None
) -> None:
    (span,) = Stand().tell(started(), completed(outcome=outcome, reason="llm_error", error=error)).ended
    assert span.status.status_code is status
    assert span.status.description == ("llm_error" if status is StatusCode.ERROR else None)
    assert attributes(span).get("error.type") == kind


# ---- calls ----


def test_a_request_is_a_clients_span_below_the_run_that_ends_when_it_is_told() -> None:
    stand = Stand()
    stand.spans.declare(None, model="gpt-x", provider="openai")
    stand.tell(started())
    stand.now = AT + 3
    fact = answered(
        2.0,
        cost=0.25,
        input_tokens=10,
        output_tokens=5,
        cached_input_tokens=4,
        reasoning_tokens=3,
        finish_reason="stop",
    )
    stand.tell(fact, completed())
    llm, run = stand.ended
    assert (llm.name, llm.kind) == ("chat gpt-x", SpanKind.CLIENT)
    assert seconds(llm) == (1.0, 3.0)
    assert llm.parent is not None
    assert run.context is not None
    assert llm.parent.span_id == run.context.span_id
    assert attributes(llm) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "orchestrator.state": "think",
        "orchestrator.iteration": 1,
        "orchestrator.outcome": "ok",
        "orchestrator.cost": 0.25,
    }


def test_a_request_that_failed_is_an_error_and_a_cancelled_one_is_not() -> None:
    stand = Stand().tell(started(), answered(outcome="rate_limited"), answered(outcome="cancelled"))
    failed, cancelled = stand.ended
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "rate_limited")
    assert attributes(failed)["error.type"] == "rate_limited"
    assert cancelled.status.status_code is StatusCode.UNSET
    assert "error.type" not in attributes(cancelled)


@pytest.mark.parametrize("reason", [f"because {CANARY}", "unheard_of"])
def test_a_finish_reason_that_no_vendor_is_known_to_give_is_other(reason: str) -> None:
    (span,) = Stand().tell(started(), answered(finish_reason=reason)).ended
    assert attributes(span)["gen_ai.response.finish_reasons"] == ("_other",)


def test_tool_calls_begin_when_they_began_and_last_as_long_as_they_did() -> None:
    stand = Stand().tell(started(), moved(1, AT + 2, dest="act"))
    stand.now = AT + 10  # all of a turn are told at its end
    first, queued = ran(seconds=8.0, at=AT + 2), ran(seconds=1.5, queued=3.0, position=2, at=AT + 5)
    stand.spans.observe(first)
    stand.spans.observe(ran(seconds=1.0, position=1))
    stand.spans.observe(queued)
    assert [seconds(span) for span in stand.ended] == [(2.0, 10.0), (2.0, 3.0), (5.0, 6.5)]
    (one, _, other) = stand.ended
    assert (one.name, one.kind) == ("execute_tool search", SpanKind.INTERNAL)
    assert attributes(one) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "orchestrator.iteration": 1,
        "orchestrator.position": 0,
        "orchestrator.result_chars": 0,
        "orchestrator.outcome": "ok",
    }
    assert attributes(other)["orchestrator.queued_seconds"] == 3.0


@pytest.mark.parametrize(
    ("outcome", "bad"),
    [
        ("ok", False),
        ("error", True),
        ("timeout", True),
        ("invalid_args", True),
        ("denied", False),
        ("result_unreadable", False),
        ("cancelled", False),
    ],
)
def test_a_tool_call_that_went_wrong_is_an_error_and_one_that_was_not_allowed_is_not(
    outcome: str, bad: bool
) -> None:
    (span,) = Stand().tell(started(), ran(outcome)).ended
    assert (span.status.status_code is StatusCode.ERROR) is bad
    assert attributes(span).get("error.type") == (outcome if bad else None)


# ---- whose child ----


def test_a_run_begins_below_the_hosts_present_span() -> None:
    stand = Stand()
    with stand.tracer.start_as_current_span("request") as host:
        stand.tell(started(), completed())
    (run,) = stand.named("invoke_workflow loop")
    assert run.parent is not None
    assert run.parent.span_id == host.get_span_context().span_id


def test_a_run_that_another_run_started_is_below_that_one() -> None:
    stand = Stand().tell(
        started("outer"), started("inner", parent="outer"), completed("inner"), completed("outer")
    )
    inner, outer = stand.ended
    assert outer.context is not None
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert attributes(inner)["orchestrator.parent_run_id"] == "outer"


def test_runs_side_by_side_do_not_get_each_others_calls() -> None:
    stand = Stand().tell(started("r"), started("s"), answered(), completed("s"), completed("r"))
    llm, _, run = stand.ended
    assert llm.parent is not None
    assert run.context is not None
    assert attributes(run)["orchestrator.run_id"] == "r"
    assert llm.parent.span_id == run.context.span_id


# ---- parking and resuming ----


def test_a_parked_run_ends_its_span_and_goes_on_in_a_new_trace_with_a_link() -> None:
    stand = Stand()
    with stand.tracer.start_as_current_span("request"):
        stand.tell(started(), parked())
    with stand.tracer.start_as_current_span("answer"):
        stand.tell(started(at=AT + 100, origin="resumed"), completed(at=AT + 101))
    before, after = stand.named("invoke_workflow loop")
    assert seconds(before) == (0.0, 5.0)
    assert attributes(before)["orchestrator.parked"] == "approval"
    assert seconds(after) == (100.0, 101.0)
    assert after.parent is None
    assert before.context is not None
    assert after.context is not None
    assert after.context.trace_id != before.context.trace_id
    (link,) = after.links
    assert (link.context.trace_id, link.context.span_id) == (before.context.trace_id, before.context.span_id)
    assert dict(link.attributes or {}) == {"orchestrator.link": "resumed"}
    assert attributes(after)["orchestrator.origin"] == "resumed"


def test_a_run_resumed_by_another_process_has_no_link_unless_the_host_keeps_them() -> None:
    assert Stand().tell(started(origin="resumed"), completed()).ended[0].links == ()
    kept: dict[str, str] = {}
    first = Stand(links=kept).tell(started(), parked())
    assert first.ended[0].context is not None
    assert kept["r"].split("-")[2] == f"{first.ended[0].context.span_id:016x}"
    (link,) = Stand(links=kept).tell(started(origin="resumed"), completed()).ended[0].links
    assert link.context.span_id == first.ended[0].context.span_id
    assert link.context.is_remote
    assert kept == {}  # it completed: nobody will ask again


class Gone(dict[str, str]):
    """A store of links that is gone."""

    def get(self, *_: Any) -> Any:
        raise OSError(CANARY)

    def __setitem__(self, key: str, value: str) -> None:
        raise OSError(CANARY)

    def pop(self, *_: Any) -> Any:
        raise OSError(CANARY)


@pytest.mark.parametrize(
    "links", [Gone(), {"r": "nonsense"}, {"r": "01-a-b-c"}, {"r": f"00-{'0' * 32}-{'0' * 16}-01"}, {"r": ""}]
)
def test_a_link_that_cannot_be_had_costs_the_link_and_nothing_else(links: MutableMapping[str, str]) -> None:
    (span,) = Stand(links=links).tell(started(origin="resumed"), completed()).ended
    assert span.links == ()


def test_a_run_taken_up_again_without_having_parked_abandons_the_span_before() -> None:
    stand = Stand().tell(started(), started(at=AT + 50, origin="resumed"), completed(at=AT + 51))
    before, after = stand.ended
    assert attributes(before)["orchestrator.abandoned"] is True
    assert before.context is not None
    assert after.links[0].context.span_id == before.context.span_id


# ---- bounds ----


def test_runs_that_never_tell_their_end_are_ended_oldest_first() -> None:
    stand = Stand(most=100)
    for number in range(1_000):
        stand.tell(started(f"r{number}", AT + number))
    assert len(stand.spans._open) == 100
    assert [attributes(span)["orchestrator.run_id"] for span in stand.ended] == [f"r{n}" for n in range(900)]
    assert all(attributes(span)["orchestrator.abandoned"] is True for span in stand.ended)
    stand.tell(answered(), completed("r0"))  # what they tell later is nobody's
    assert len(stand.ended) == 900
    stand.spans.close()
    assert len(stand.ended) == 1_000


def test_the_links_that_are_remembered_are_bounded_too() -> None:
    recent = RecentRuns(2)
    for name in "abca":
        recent[name] = name
    assert dict(recent) == {"c": "c", "a": "a"}


def test_facts_of_runs_that_nobody_began_are_ignored() -> None:
    failed = EventFailed("loop", "x", "think", "go", "refused", AT, 1)
    stand = Stand().tell(moved(1, AT), answered(), ran(), failed, parked(), completed())
    assert stand.ended == []


def test_runs_told_from_several_threads_end_all_their_spans() -> None:
    stand = Stand(most=50)

    def work(number: int) -> None:
        for turn in range(200):
            run_id = f"{number}.{turn}"
            stand.spans.observe(started(run_id))
            stand.spans.observe(moved(1, AT, run_id=run_id))
            stand.spans.observe(completed(run_id))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stand.ended) == 800
    assert stand.spans._open == {}


# ---- exemplars ----


def test_the_span_of_the_last_fact_is_what_observers_behind_it_may_point_to() -> None:
    stand = Stand().tell(started())
    inside = Spans.trace()
    stand.tell(answered())
    llm_trace = Spans.trace()
    stand.tell(GuardEvaluated("loop", "r", "think", "go", "turns", "allow", 1, 2))
    assert Spans.trace() == inside
    stand.tell(completed())
    llm, run = stand.ended
    assert llm.context is not None
    assert run.context is not None
    assert llm_trace == {"trace_id": f"{llm.context.trace_id:032x}", "span_id": f"{llm.context.span_id:016x}"}
    assert inside == {"trace_id": f"{run.context.trace_id:032x}", "span_id": f"{run.context.span_id:016x}"}
    assert Spans.trace() == inside
    stand.tell(moved(1, AT, run_id="unknown"))
    assert Spans.trace() is None


def test_a_span_that_is_not_sampled_is_pointed_to_by_nobody() -> None:
    stand = Stand(ALWAYS_OFF).tell(started(), answered(), moved(1, AT))
    assert Spans.trace() is None
    stand.tell(completed())
    assert stand.ended == []


def test_metrics_carry_the_sampled_span_as_an_exemplar() -> None:
    stand, registry = Stand(), CollectorRegistry()
    metrics = Metrics(registry, exemplar=stand.spans.trace)
    for fact in (started(), answered(), completed()):
        stand.tell(fact)
        metrics.observe(fact)
    llm, _ = stand.ended
    assert llm.context is not None
    lines = [line for line in rendered(registry, OPENMETRICS).body.decode().splitlines() if " # {" in line]
    assert any(
        "llm_request_duration_seconds_bucket" in line and f'span_id="{llm.context.span_id:016x}"' in line
        for line in lines
    )


# ---- with real runs ----


@tool(effect="pure")
async def search(query: str) -> str:
    """Search."""
    if query == "boom":
        raise ValueError(f"no {CANARY}")
    return f"found {CANARY}"


async def test_a_real_run_is_a_tree_of_spans_and_none_has_any_content() -> None:
    stand, registry = Stand(), CollectorRegistry()
    llm = ScriptedLLM(
        [
            LLMError(f"Bearer {CANARY}", kind="rate_limited"),
            Response(
                content=CANARY,
                tool_calls=(
                    Asked("1", "search", json.dumps({"query": CANARY})),
                    Asked("2", "search", '{"query": "boom"}'),
                    Asked(CANARY, CANARY, CANARY),
                ),
            ),
            Response(f"The answer is {CANARY}."),
        ]
    )
    agent = Agent(
        llm,
        tools=[search],
        limits=Limits(),
        instructions=CANARY,
        retry=RetryPolicy(base=0.0, jitter=0.0),
        observers=[stand.spans, Metrics(registry, exemplar=stand.spans.trace)],
    )
    result = await agent.run(f"What about {CANARY}?", conversation_id="talk")
    assert result.outcome == "completed"
    (run,) = stand.named("invoke_workflow llm_loop")
    assert run.context is not None
    children = [span for span in stand.ended if span is not run]
    assert {span.parent.span_id for span in children if span.parent} == {run.context.span_id}
    assert sorted(span.name for span in children) == [
        "chat scripted",
        "chat scripted",
        "chat scripted",
        "execute_tool _unregistered",
        "execute_tool search",
        "execute_tool search",
    ]
    states = [event for event in run.events if event.name == "orchestrator.transition"]
    assert len(states) == len(result.transitions)
    assert [dict(event.attributes or {})["orchestrator.seq"] for event in states] == list(
        range(1, len(result.transitions) + 1)
    )
    assert CANARY not in "".join(span.to_json() for span in stand.ended)
    assert CANARY not in rendered(registry, OPENMETRICS).body.decode()


async def test_every_attribute_is_in_the_table_of_names() -> None:
    stand = Stand()
    llm = ScriptedLLM([Response(tool_calls=(Asked("1", "search", '{"query": "boom"}'),)), Response("done")])
    await Agent(llm, tools=[search], observers=[stand.spans]).run("hi")
    stand.tell(started(), answered(input_tokens=1, cost=0.5), ran("timeout", cut=True), parked())
    names = semconv.VERSIONS[semconv.DEFAULT]
    allowed = {value for value in vars(semconv).values() if isinstance(value, str)}
    allowed |= {str(getattr(names, name)) for name in names.__slots__}
    found = {name for span in stand.ended for name in attributes(span)}
    found |= {
        name
        for span in stand.ended
        for event in span.events
        for name in (event.name, *(event.attributes or {}))
    }
    assert found <= allowed
    content = (
        "input.messages",
        "output.messages",
        "system_instructions",
        "arguments",
        "result",
        "definitions",
    )
    assert not [name for name in allowed if name.startswith("gen_ai.") and name.endswith(content)]


async def test_a_run_of_ones_own_machine_that_fails_in_a_hook_ends_as_an_error() -> None:
    stand = Stand()

    async def act(run: Run[Context, Deps]) -> Event | None:
        raise KeyError(CANARY)

    rig = Rig([stand.spans])
    await rig.drive(act=act)
    (span,) = stand.ended
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "KeyError"
    assert CANARY not in span.to_json()


async def test_a_run_that_waits_for_somebody_is_two_spans() -> None:
    stand = Stand()

    async def act(run: Run[Context, Deps]) -> Event | None:
        return Event.WAIT

    rig = Rig([stand.spans])
    run = rig.run(act=act)
    driver = rig.driver()
    await driver.drive(run)
    run.mailbox.post(Signal(Event.ANSWER))
    run.ctx.rounds = 0
    await driver.drive(run)
    before, after = stand.ended
    assert before.context is not None
    assert after.links[0].context.span_id == before.context.span_id


# ---- the extra ----


def test_without_a_provider_nothing_is_recorded_and_nothing_fails() -> None:
    spans = Spans(trace.NoOpTracer())
    for fact in (
        started(),
        moved(1, AT),
        answered(),
        ran(),
        parked(),
        started(origin="resumed"),
        completed(),
    ):
        spans.observe(fact)
    assert Spans.trace() is None
    assert dict(spans._links._spans) == {}


def test_a_provider_that_is_set_up_later_gets_the_spans() -> None:
    script = """
from orchestrator.kernel.fact import RunCompleted, RunStarted
from orchestrator.telemetry.otel import Spans
import sys
assert "opentelemetry" not in sys.modules
spans = Spans()
assert "opentelemetry.sdk" not in sys.modules
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
spans.observe(RunStarted("loop", "r", 1.0))
spans.observe(RunCompleted("loop", "r", "done", "completed", "none", 2.0, 1.0, 1, 1))
(span,) = exporter.get_finished_spans()
assert span.instrumentation_scope.name == "orchestrator", span.instrumentation_scope
assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_extra_the_error_names_the_install_line() -> None:
    script = """
import sys
sys.modules["opentelemetry"] = None
from orchestrator.telemetry.otel import Spans
try:
    Spans()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    install = "pip install 'fsm-orchestrator[otel]'; see `orchestrator docs operations`"
    assert done.stdout == f"opentelemetry-api is not installed: {install}\n"


def test_an_unknown_version_of_the_names_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown version '9' of the conventions; known: 1\.41"):
        Spans(conventions="9")


async def test_concurrent_runs_of_one_agent_each_have_a_tree_of_their_own(
    campaign: Callable[[int, int], int],
) -> None:
    stand, count = Stand(), campaign(20, 500)

    def agent() -> Agent:
        llm = ScriptedLLM([Response(tool_calls=(Asked("1", "search", '{"query": "a"}'),)), Response("done")])
        return Agent(llm, tools=[search], observers=[stand.spans])

    await asyncio.gather(*[agent().run("hi", run_id=f"run-{number}") for number in range(count)])
    runs = {span.context.span_id: span for span in stand.named("invoke_workflow llm_loop") if span.context}
    assert len(runs) == count
    for span in stand.ended:
        if span.parent is not None and span.context is not None:
            assert runs[span.parent.span_id].context is not None
            assert span.context.trace_id == span.parent.trace_id
    assert len(stand.ended) == count * 4
