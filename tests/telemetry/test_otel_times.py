"""When spans of calls begin and end: as the calls did, by the clock of the run."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orchestrator import Agent, Limits, LLMError, RetryPolicy, SqliteJournal, ToolContext, tool
from orchestrator.llm.message import ToolCall
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.otel import Spans
from orchestrator.testing import ScriptedLLM
from orchestrator.testing.clock import FakeClock

BEGAN = FakeClock().time()


class Times(NamedTuple):
    """Seconds since the run began."""

    start: float
    end: float


class Stand:
    """An SDK that keeps what is exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = Spans(provider.get_tracer("test"))

    def times(self, name: str) -> list[Times]:
        """Return the times of the spans of that name, in the order in which they ended here."""
        return [_times(span) for span in self.exporter.get_finished_spans() if span.name == name]


def _times(span: ReadableSpan) -> Times:
    assert span.start_time is not None
    assert span.end_time is not None
    return Times(round(span.start_time / 1e9 - BEGAN, 3), round(span.end_time / 1e9 - BEGAN, 3))


@tool(effect="pure")
async def wait(ctx: ToolContext, seconds: float) -> str:
    """Take so many seconds."""
    await ctx.clock.sleep(seconds)
    return "done"


def waits(*seconds: float) -> list[ToolCall]:
    return [ToolCall(f"c{number}", "wait", f'{{"seconds": {each}}}') for number, each in enumerate(seconds)]


async def driven(agent: Agent, clock: FakeClock) -> str:
    """Let time pass until a run is over."""
    running = asyncio.create_task(agent.run("go"))
    while not running.done():
        await clock.advance(0.5)
    return (await running).outcome


async def test_tools_of_one_turn_overlap_and_one_that_waits_for_a_slot_begins_when_it_gets_it() -> None:
    stand, clock = Stand(), FakeClock()
    llm = ScriptedLLM([waits(3, 1, 2), "done"], latency=2.0, clock=clock)
    limits = Limits(max_concurrent_tools=2)
    agent = Agent(llm, tools=[wait], limits=limits, runtime=Runtime(observers=[stand.spans], clock=clock))
    assert await driven(agent, clock) == "completed"
    assert stand.times("execute_tool wait") == [(2, 5), (2, 3), (3, 5)]
    assert stand.times("chat scripted") == [(0, 2), (5, 7)]
    assert stand.times("invoke_workflow llm_loop") == [(0, 7)]


async def test_each_try_of_a_request_has_its_own_time_and_the_pause_between_is_nobodys() -> None:
    stand, clock = Stand(), FakeClock()
    llm = ScriptedLLM([LLMError("busy", kind="rate_limited"), "done"], latency=1.0, clock=clock)
    retry = RetryPolicy(attempts=3, base=4.0, jitter=0.0)
    agent = Agent(llm, retry=retry, runtime=Runtime(observers=[stand.spans], clock=clock))
    assert await driven(agent, clock) == "completed"
    assert stand.times("chat scripted") == [(0, 1), (5, 6)]


async def test_a_call_that_never_ran_has_a_span_where_its_turn_begins() -> None:
    stand, clock = Stand(), FakeClock()
    llm = ScriptedLLM([[*waits(2), ToolCall("x", "invented", "{}")], "done"], latency=1.0, clock=clock)
    agent = Agent(llm, tools=[wait], runtime=Runtime(observers=[stand.spans], clock=clock))
    assert await driven(agent, clock) == "completed"
    assert stand.times("execute_tool wait") == [(1, 3)]
    assert stand.times("execute_tool _unregistered") == [(1, 1)]


async def test_spans_of_a_slow_journal_still_have_the_times_of_their_calls(tmp_path: object) -> None:
    stand = Stand()
    llm = ScriptedLLM([waits(0.2, 0.2), "done"], latency=0.1)
    async with SqliteJournal(f"{tmp_path}/journal.db") as journal:
        agent = Agent(llm, tools=[wait], journal=journal, observers=[stand.spans])
        assert (await agent.run("go")).outcome == "completed"
    first, second = stand.times("execute_tool wait")
    (run,) = stand.times("invoke_workflow llm_loop")
    asked = stand.times("chat scripted")
    assert max(first.start, second.start) < min(first.end, second.end)
    assert min(each.end - each.start for each in (first, second)) > 0.19
    assert asked[0].end <= min(first.start, second.start) + 0.001
    assert asked[1].start >= max(first.end, second.end) - 0.001
    assert all(run.start <= each.start and each.end <= run.end for each in (*asked, first, second))
