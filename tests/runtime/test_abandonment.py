"""Host code that ignores its cancellation: every kind of it, stopped in every way, ends within the grace period.

What it does later reaches nobody: not the journal, not the result, not the counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.engines import local_engine
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import AnswerRefused, RunUnknown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.cancellation import abandoned_work, here
from orchestrator.kernel.fact import LLMCall, RunCompleted, ToolExecution, WorkAbandoned
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopEvent
from orchestrator.machines.question import Question
from orchestrator.providers.mcp.session import McpSession
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.descendant import PendingQuestion
from orchestrator.telemetry.exposition import page
from orchestrator.telemetry.exposition.server import serve_metrics
from orchestrator.telemetry.live import stacks
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import ToolSpec, tool
from orchestrator_callbacks.llm_loop.admission import UNDECIDED
from tests.providers.mcp_place import by_stdio
from tests.runtime.stage import Facts, agent, faults, until
from tests.telemetry.sampling import sampled

T = TypeVar("T")

SOON = 0.05
"""Seconds of grace, and of limits that are to pass."""
KINDS = ("tool", "thread", "model", "mcp", "hook", "point", "memory")
WAYS = ("timeout", "cancel", "deadline", "drain")


class Stubborn:
    """Host code that ignores every cancellation until it is released."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.ended = asyncio.Event()
        self.let_go = threading.Event()
        self.cancelled = 0
        self._loop = asyncio.get_running_loop()

    async def __call__(self) -> None:
        self.reached.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        self.ended.set()

    def in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        self.let_go.wait()
        self._loop.call_soon_threadsafe(self.ended.set)

    async def release(self) -> None:
        """Let it end, and wait until it has."""
        self.released.set()
        self.let_go.set()
        await self.ended.wait()
        await until(lambda: not abandoned_work())


@asynccontextmanager
async def stubbornly() -> AsyncIterator[Stubborn]:
    """Give stubborn code that nothing is left of afterwards."""
    code = Stubborn()
    try:
        yield code
    finally:
        if code.reached.is_set():
            await code.release()
    assert abandoned_work() == []


@dataclass
class Place:
    """A run that stands in stubborn code."""

    runner: Agent
    stubborn: Stubborn
    facts: Facts
    journal: MemoryJournal
    clock: FakeClock
    kind: str
    """As the fact says it."""

    async def records(self) -> list[tuple[str, Any]]:
        return [(record.kind, record.body) for record in await self.journal.load("r")]


def _hooks(kind: str, code: Stubborn) -> list[object]:
    class Host:
        async def enter_evaluate_response(self, _: object) -> None:
            await code()

    class Point:
        async def before_llm_request(self, _: object, request: Request) -> Request:
            await code()
            return replace(request, params={"temperature": 1})

    found: dict[str, list[object]] = {"hook": [Host()], "point": [Point()]}
    return found.get(kind, [])


class _Memory:
    def __init__(self, code: Stubborn) -> None:
        self.code = code

    async def prepare(self, _: str, __: Sequence[Message]) -> Sequence[Message]:
        await self.code()
        return [Message("system", "too late")]

    async def store(self, *_: Any) -> None: ...
    async def store_failure(self, *_: Any) -> None: ...
    async def compact(self, *_: Any) -> None: ...


@asynccontextmanager
async def _tools(kind: str, code: Stubborn, seconds: float | None, folder: Path) -> AsyncIterator[list[Any]]:
    @tool(effect="pure", timeout=seconds)
    async def waits() -> str:
        await code()
        return "too late"

    @tool(name="waits", effect="pure", timeout=seconds)
    def blocks() -> str:
        code.in_thread()
        return "too late"

    if kind == "mcp":
        options = {"timeout": seconds or 60.0, "effects": {"hang": "pure"}}
        async with by_stdio(folder, **options) as server:
            yield [next(spec for spec in server.tools if spec.name == "hang")]
    else:
        yield [blocks if kind == "thread" else waits]


@pytest.fixture
def swallowing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Stubborn], None]:
    """Make calls of MCP servers ignore cancellations, as a broken client would."""

    def install(code: Stubborn) -> None:
        asked: Callable[..., Awaitable[Any]] = McpSession.call

        async def ignoring(self: McpSession, *arguments: Any) -> Any:
            asking = asyncio.ensure_future(asked(self, *arguments))
            await code()
            asking.cancel()
            return await asking

        monkeypatch.setattr(McpSession, "call", ignoring)

    return install


@asynccontextmanager
async def standing(
    kind: str, way: str, code: Stubborn, folder: Path, swallowing: Callable[[Stubborn], None]
) -> AsyncIterator[Place]:
    """Make the agent whose run `r` comes to stubborn code."""
    if kind == "mcp":
        swallowing(code)
    late = way == "timeout"
    facts, journal, clock = Facts(), MemoryJournal(), FakeClock()
    asked = 0

    async def model(request: Request) -> Any:
        nonlocal asked
        asked += 1
        if kind == "model" and asked == 1:
            await code()
            return "too late"
        if kind in {"tool", "thread", "mcp"} and request.messages[-1].role == "user":
            return [call("hang" if kind == "mcp" else "waits")]
        return "done"

    dwell = dict(LLM_LOOP.dwell or {})
    place = {"model": "await_llm", "point": "await_llm", "hook": "evaluate_response"}.get(kind)
    if late and place:
        state = next(one for one in LLM_LOOP.states if one.value == place)
        dwell[state] = (SOON, LoopEvent.FAILURE)
    async with _tools(kind, code, SOON if late else None, folder) as tools:
        runner = agent(
            FunctionLLM(model),
            tools=tools,
            observers=[facts],
            journal=journal,
            hooks=_hooks(kind, code),
            memory=_Memory(code) if kind == "memory" else None,
            graph=LLM_LOOP.extend(dwell=dwell),
            clock=clock,
            limits=Limits(cancel_seconds=SOON, memory_seconds=SOON if late else 30.0),
        )
        said = {"thread": "tool", "point": "hook"}.get(kind, kind)
        yield Place(runner, code, facts, journal, clock, said)


async def _in_time(clock: FakeClock, work: Awaitable[T]) -> T:
    """Move the clock until some work has ended."""
    waiting = asyncio.ensure_future(work)
    while not waiting.done():
        await clock.advance(SOON)
    return await waiting


async def _stopped(place: Place, way: str, monkeypatch: pytest.MonkeyPatch) -> Result | None:
    """Run to the stubborn code, stop it there in one way, and return what the caller gets: None for a run left."""
    if way == "drain":  # what SIGTERM does
        monkeypatch.setattr(local_engine, "SETTLE", SOON)
        async with LocalEngine(place.runner, grace=0.0) as engine:
            handle = await engine.submit("go", run_id="r")
            await place.stubborn.reached.wait()
            report = await _in_time(place.clock, engine.drain(0.0))
            assert (report.interrupted, report.ended) == (("r",), ())
            with pytest.raises(Suspended):
                await handle
        return None
    running = asyncio.create_task(
        place.runner.run("go", run_id="r", deadline=SOON * 10 if way == "deadline" else None)
    )
    await place.stubborn.reached.wait()
    if way == "cancel":
        await place.runner.cancel("r", why="enough")
    return await _in_time(place.clock, running)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.campaign if kind == "mcp" else ()) for kind in KINDS]
)
async def test_no_host_code_can_keep_its_run_from_ending(
    kind: str,
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    swallowing: Callable[[Stubborn], None],
) -> None:
    async with stubbornly() as stubborn, standing(kind, way, stubborn, tmp_path, swallowing) as place:
        result = await _stopped(place, way, monkeypatch)
        assert not stubborn.ended.is_set()

        (fact,) = place.facts.of(WorkAbandoned)
        assert (fact.kind, fact.run_id) == (place.kind, "r")
        assert abandoned_work() == [fact]
        assert len(place.facts.of(LLMCall)) == len({one.iteration for one in place.facts.of(LLMCall)})
        if result is not None:
            assert (result.outcome, result.reason) == _expected(kind, way)
            assert faults(result.messages) == []
        before, told = await place.records(), list(place.facts.all)

        await stubborn.release()  # a late result is nobody's
        assert await place.records() == before
        assert place.facts.all == told
        assert "too late" not in json.dumps(before, default=str)
        if result is None:
            await _goes_on(place)


def _expected(kind: str, way: str) -> tuple[Outcome, str]:
    if way == "cancel":
        return Outcome.CANCELLED, "caller"
    if way == "deadline":
        return Outcome.BUDGET_EXCEEDED, "time"
    if kind in {"tool", "thread", "mcp"}:
        return Outcome.COMPLETED, "none"
    return Outcome.FAILED, "memory_error" if kind == "memory" else "state_timeout"


async def _goes_on(place: Place) -> None:
    """What a drain has left is resumed like a run whose process died."""
    result = await place.runner.resume("r")
    assert result.outcome == Outcome.COMPLETED
    assert len(place.facts.of(RunCompleted)) == 1


# ---- effects that nobody knows ----


def _pay(effect: str, code: Stubborn, undone: list[str], tries: int = 1) -> ToolSpec:
    """A tool that ignores its cancellation, on its first `tries`."""
    left = [None] * tries

    async def pay() -> str:
        """Pay."""
        if left:
            left.pop()
            await code()
            return "paid too late"
        return "paid"

    undo = (lambda: undone.append("undo")) if effect == "compensable" else None
    return tool(effect=effect, timeout=SOON, undo=undo)(pay)  # type: ignore[call-overload, no-any-return]


async def _asked(runner: Agent) -> Question:
    async def questions() -> list[PendingQuestion]:
        with contextlib.suppress(RunUnknown):
            return await runner.pending("r")
        return []

    (question,) = await until(questions)
    assert (question.tool, question.why) == ("pay", "unknown_effect")
    found: Question = question
    return found


@pytest.mark.parametrize("resumed", [False, True])
async def test_an_abandoned_call_that_nobody_decided_about_is_answered_as_undecided(resumed: bool) -> None:
    async with stubbornly() as stubborn:
        journal = MemoryJournal()
        runner = agent(
            [call("pay"), "done"],
            [_pay("irreversible", stubborn, [])],
            observers=[],
            journal=journal,
            limits=Limits(cancel_seconds=SOON),
        )
        running = asyncio.create_task(runner.run("go", run_id="r"))
        await _asked(runner)
        await stubborn.release()
        if resumed:
            running.cancel()
            await asyncio.wait((running,))
            running = asyncio.create_task(runner.resume("r"))
            await until(lambda: runner.hosting.live("r"))
            await _asked(runner)
        await runner.cancel("r")
        result = await running
        assert result.outcome is Outcome.CANCELLED
        (said,) = [message.text for message in result.messages if message.role == "tool"]
        assert json.loads(said) == {"error": UNDECIDED, "type": "Undecided"}
        (done,) = [record.body for record in await journal.load("r") if record.kind == "done"]
        assert (done["outcome"], done["content"]) == ("cancelled", said)


@pytest.mark.parametrize("effect", ["irreversible", "compensable"])
async def test_a_person_is_asked_about_an_abandoned_call_whose_effect_is_not_known(effect: str) -> None:
    undone: list[str] = []
    async with stubbornly() as stubborn:
        facts, journal = Facts(), MemoryJournal()
        runner = agent(
            [call("pay"), "done"],
            [_pay(effect, stubborn, undone)],
            observers=[facts],
            journal=journal,
            limits=Limits(cancel_seconds=SOON),
        )
        running = asyncio.create_task(runner.run("go", run_id="r"))
        await _asked(runner)
        await stubborn.release()  # it ended well, too late: only a person can say so
        await runner.respond("r", "paid, says the bank", by="ann")
        result = await running
        said = [message.text for message in result.messages if message.role == "tool"]
        assert (said, undone) == (["paid, says the bank"], [])
        assert [fact.kind for fact in facts.of(WorkAbandoned)] == ["tool"]
        assert [fact.outcome for fact in facts.of(ToolExecution)] == ["ok"]
        kinds = [record.kind for record in await journal.load("r")]
        assert (kinds.count("asked"), kinds.count("done")) == (1, 1)


async def test_an_answer_to_one_abandoned_try_does_not_count_for_the_next_one() -> None:
    async with stubbornly() as stubborn:
        runner = agent(
            [call("pay"), "done"],
            [_pay("irreversible", stubborn, [], tries=2)],
            limits=Limits(cancel_seconds=SOON),
        )
        running = asyncio.create_task(runner.run("go", run_id="r"))
        first = await _asked(runner)
        await runner.approve("r", digest=first.digest, by="ann")
        await until(lambda: len(abandoned_work()) == 2)
        second = await _asked(runner)
        assert second.digest != first.digest
        with pytest.raises(AnswerRefused, match="other arguments"):
            await runner.approve("r", digest=first.digest, by="ann")
        await runner.approve("r", digest=second.digest, by="ann")
        result = await running
        assert [message.text for message in result.messages if message.role == "tool"] == ["paid"]


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_the_model_reads_that_a_call_without_such_an_effect_was_abandoned(effect: str) -> None:
    async with stubbornly() as stubborn:
        runner = agent(
            [call("pay"), "done"], [_pay(effect, stubborn, [])], limits=Limits(cancel_seconds=SOON)
        )
        result = await runner.run("go")
        (said,) = [json.loads(message.text) for message in result.messages if message.role == "tool"]
        assert said == {
            "error": "the tool gave no answer within 0.05 s; it did not stop when it was cancelled, "
            "was abandoned and may still be running",
            "type": "Timeout",
        }


# ---- several at once ----


async def test_calls_beside_an_abandoned_one_keep_their_results() -> None:
    async with stubbornly() as stubborn:

        @tool(effect="pure")
        async def quick() -> str:
            return "quick"

        runner = agent(
            [[call("quick"), call("pay"), call("quick")], "done"],
            [_pay("pure", stubborn, []), quick],
            limits=Limits(cancel_seconds=SOON),
        )
        result = await runner.run("go")
        said = [message for message in result.messages if message.role == "tool"]
        assert [message.is_error for message in said] == [False, True, False]


def page_at(url: str) -> Any:
    with urlopen(url) as answer:  # noqa: S310 - a server of ours
        return json.load(answer)


async def test_twenty_abandoned_calls_are_listed_and_counted_until_they_end() -> None:
    async with stubbornly() as stubborn:

        @tool(effect="pure", timeout=SOON)
        async def waits(number: int) -> str:
            await stubborn()
            return f"{number}"

        registry = CollectorRegistry()
        runner = agent(
            [[call("waits", number=number) for number in range(10)], "done"] * 2,
            [waits],
            name="helper",
            observers=[Metrics(registry)],
            limits=Limits(cancel_seconds=SOON, max_concurrent_tools=0, max_tool_errors=0),
        )
        for run_id in ("first", "second"):
            assert (await runner.run("go", run_id=run_id)).outcome == Outcome.COMPLETED

        with serve_metrics(CollectorRegistry(), port=0) as server:
            shown = await asyncio.to_thread(page_at, f"http://127.0.0.1:{server.port}/debug/runs")
        assert (shown["abandoned"]["count"], len(shown["abandoned"]["work"])) == (20, 20)
        listed = page.runs(None, abandoned_work()[0].at + 60)["abandoned"]
        assert listed["count"] == len(listed["work"]) == 20
        about = ("kind", "name", "state", "machine", "agent")
        assert {tuple(one[key] for key in about) for one in listed["work"]} == {
            ("tool", "waits", "process_tools", "llm_loop", "helper")
        }
        assert Counter(one["run_id"] for one in listed["work"]) == {"first": 10, "second": 10}
        assert all(one["since"] > 0 and 0 < one["age_seconds"] <= 60 for one in listed["work"])
        name = "orchestrator_work_abandoned_total"
        where = {"machine": "llm_loop", "kind": "tool", "agent": "helper"}
        assert sampled(registry, name, **where) == 20
        assert "test_abandonment" in stacks(asyncio.get_running_loop())

        await stubborn.release()
        assert page.runs(None, 0.0)["abandoned"] == {"count": 0, "work": []}
        assert sampled(registry, name, **where) == 20


async def test_abandoned_code_is_in_no_task_of_ours_any_more() -> None:
    """Its host calls are its own: nothing waits for them, and nothing abandons them."""
    owned: list[bool] = []
    may_end = asyncio.Event()

    @tool(effect="pure", timeout=SOON)
    async def waits() -> str:
        owned.append(here() is not None)
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()
        owned.append(here() is not None)
        return "late"

    one = agent([call("waits"), "done"], [waits], limits=Limits(cancel_seconds=SOON))
    assert (await one.run("go")).outcome == Outcome.COMPLETED
    may_end.set()
    await until(lambda: not abandoned_work())
    assert owned == [True, False]


def test_abandoned_code_is_closed_at_the_end_of_its_event_loop_and_not_whenever_it_is_collected() -> None:
    running: list[bool] = []

    @tool(effect="pure", timeout=SOON)
    async def waits() -> str:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
            except GeneratorExit:
                running.append(asyncio.current_task() is not None)
                raise

    async def main() -> Outcome:
        one = agent([call("waits"), "done"], [waits], limits=Limits(cancel_seconds=SOON))
        return (await one.run("go")).outcome

    assert asyncio.run(main()) == Outcome.COMPLETED
    assert running == [True]


# ---- what does not change ----


async def test_code_that_ends_within_the_grace_period_is_not_abandoned() -> None:
    facts = Facts()
    reached, cleaned = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def tidy() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            async with asyncio.timeout(20):  # a scope that belongs to the task that it was entered in
                await asyncio.sleep(0)
            cleaned.set()
        return "never"

    runner = agent([call("tidy")], [tidy], observers=[facts])
    running = asyncio.create_task(runner.run("go", run_id="r"))
    await reached.wait()
    await runner.cancel("r")
    assert (await running).outcome == Outcome.CANCELLED
    assert cleaned.is_set()
    assert facts.of(WorkAbandoned) == []


async def test_a_grace_period_of_0_waits_for_as_long_as_it_takes() -> None:
    async with stubbornly() as stubborn:
        facts, clock = Facts(), FakeClock()
        runner = agent(
            [call("pay"), "done"],
            [_pay("pure", stubborn, [])],
            observers=[facts],
            clock=clock,
            limits=Limits(cancel_seconds=0),
        )
        running = asyncio.create_task(runner.run("go", run_id="r"))
        await stubborn.reached.wait()
        await runner.cancel("r")
        await clock.advance(86_400)
        assert not running.done()
        assert stubborn.cancelled > 0
        await stubborn.release()
        assert (await running).outcome == Outcome.CANCELLED
        assert facts.of(WorkAbandoned) == []


async def test_a_run_below_ends_by_its_own_grace_period_before_the_tool_that_it_is() -> None:
    async with stubbornly() as stubborn:
        facts, clock = Facts(), FakeClock()
        below = agent(
            [call("pay"), "done"],
            [_pay("pure", stubborn, [])],
            observers=[facts],
            clock=clock,
            limits=Limits(cancel_seconds=SOON),
        )
        above = agent(
            [call("ask", task="go"), "done"],
            [below.as_tool("ask", "Ask.")],
            observers=[facts],
            clock=clock,
            limits=Limits(cancel_seconds=SOON),
        )
        running = asyncio.create_task(above.run("go", run_id="r"))
        await stubborn.reached.wait()
        await above.cancel("r")
        assert (await _in_time(clock, running)).outcome == Outcome.CANCELLED
        assert [(fact.name, fact.run_id != "r") for fact in facts.of(WorkAbandoned)] == [("pay", True)]
