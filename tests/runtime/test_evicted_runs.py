"""Evicted runs: a run that waits for a person is only in its journal, and its caller gets its result all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.run_queue import Phase
from orchestrator.errors import ConfigError, Held, RunUnknown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Journal, write_records
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import RunEvent, TextDelta
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import OrchestrationState
from orchestrator.machines.ralph.contract import Role
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service import evicted_runs
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.metrics import Metrics
from orchestrator.tools.spec import ToolContext, tool
from tests.runtime.pipeline_stage import Stages
from tests.runtime.ralph_stage import World
from tests.tiers import examples

pytestmark = pytest.mark.filterwarnings("error")

SOON = 0.001
"""Seconds of waiting after which these runs are evicted."""


@pytest.fixture(autouse=True)
def read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evicted_runs, "POLL", 0.01)
    monkeypatch.setattr(evicted_runs, "LOOK", 0.02)
    monkeypatch.setattr(evicted_runs, "SCAN", 0.02)
    monkeypatch.setattr(evicted_runs, "_SHARE", 0)


class Cashier:
    """Pays after a person has approved it: its model asks for as many payments as there are names."""

    def __init__(self, *names: str) -> None:
        self.names = names or ("ann",)
        self.paid: list[str] = []
        self.deps: list[object] = []

    def model(self, request: Request) -> Response:
        done = sum(one.role == "tool" for one in request.messages)
        if done == len(self.names):
            return Response(
                "I heard: " + "; ".join(one.text for one in request.messages if one.role == "tool")
            )
        name = self.names[done]
        return Response(None, (ToolCall(f"c{done}", "pay", f'{{"to": "{name}"}}'),))

    def agent(self, journal: Journal, evict_after: float = SOON, **options: Any) -> Agent:
        @tool(approval=True)
        async def pay(context: ToolContext, to: str) -> str:
            self.paid.append(to)
            self.deps.append(context.deps)
            return f"paid {to}"

        runtime = Runtime(journal=journal, observers=options.pop("observers", ()), evict_after=evict_after)
        return Agent(FunctionLLM(self.model), name="cashier", tools=[pay], runtime=runtime, **options)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Open the same store again, as another process does."""
    if request.param == "sqlite":
        return lambda: SqliteJournal(tmp_path / "journal.db")
    database = request.getfixturevalue("database")
    return lambda: PostgresJournal(database)


@pytest.fixture
def sqlite(tmp_path: Path) -> Callable[[], SqliteJournal]:
    return lambda: SqliteJournal(tmp_path / "journal.db")


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(30):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


async def evicted(agent: Any, *run_ids: str) -> None:
    """Wait until runs are evicted."""
    for run_id in run_ids:
        await until(lambda run_id=run_id: agent.hosting.live(run_id) is not None and not alive(agent, run_id))  # type: ignore[misc]


def alive(agent: Any, run_id: str) -> bool:
    return agent._service.live.find(run_id) is not None


@asynccontextmanager
async def caller(work: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """A caller who waits for a run, and is cancelled at the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def kinds(journal: Journal, run_id: str = "r") -> list[str]:
    return [record.kind for record in await journal.load(run_id)]


async def test_the_caller_of_an_evicted_run_gets_its_result_after_the_answer(
    store: Callable[[], Any],
) -> None:
    cashier = Cashier()
    async with store() as journal:
        agent = cashier.agent(journal)
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            assert [one.tool for one in await agent.pending("r")] == ["pay"]
            await agent.approve("r")
            result = await waits
        assert (result.outcome, result.output, cashier.paid) == (
            Outcome.COMPLETED,
            "I heard: paid ann",
            ["ann"],
        )
        found = await kinds(journal)
        assert (found.count("parked"), found.count("resumed"), found[-1]) == (1, 1, "ended")


async def test_an_evicted_run_is_listed_as_waiting_and_keeps_nothing_but_its_caller(
    store: Callable[[], Any],
) -> None:
    cashier, deps = Cashier(), []

    class Bank:
        """Deps of one run."""

    def bank(_: Any) -> Bank:
        made = Bank()
        deps.append(weakref.ref(made))
        return made

    async with store() as journal:
        metrics = Metrics(CollectorRegistry())
        agent = cashier.agent(journal, deps=bank, observers=(metrics,))
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            (head,) = await agent.runs.list(waiting=True)
            assert (head.status, head.reason, head.owner, head.waiting) == ("parked", "approval", None, "pay")
            assert (await agent.runs.count()).waiting == 1
            (count,) = journal.head_counts().counts
            assert (count.status, count.reason, count.runs) == ("parked", "approval", 1), (
                "no orphan, so no alert"
            )
            gc.collect()
            assert deps[0]() is None, "its deps are gone"
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert "r" not in names, "the task of its work is gone"
            await agent.approve("r")
            await waits
        assert len(deps) == 2, "the factory has made them again"
        assert journal.head_counts().counts == ()


async def test_another_process_answers_resumes_and_ends_an_evicted_run(store: Callable[[], Any]) -> None:
    here, there = Cashier(), Cashier()
    async with store() as journal, store() as other:
        agent, elsewhere = here.agent(journal), there.agent(other, evict_after=0.0)
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            async with caller(
                elsewhere.resume("r", by="ann")
            ) as resumes:  # it has the run before it is answered
                await until(lambda: alive(elsewhere, "r"))
                await elsewhere.approve("r")
                ended = await resumes
            result = await waits
        assert (result.outcome, result.output) == (ended.outcome, ended.output)
        assert (here.paid, there.paid) == ([], ["ann"])


async def test_a_run_that_moved_without_a_request_is_found(
    store: Callable[[], Any],
) -> None:
    here = Cashier()
    async with store() as journal, store() as other:
        agent = here.agent(journal)
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            lease = await other.claim("r", "another process")
            ended = {"outcome": "completed", "reason": "none", "at": 0.0, "t": 0.0}
            await write_records(other, lease, Draft("ended", ended))
            await other.release(lease)
            assert (await waits).outcome is Outcome.COMPLETED
        assert here.paid == []


async def test_a_caller_of_an_evicted_run_is_cancelled_and_the_run_stays_in_the_journal(
    sqlite: Callable[[], Any],
) -> None:
    cashier = Cashier()
    async with sqlite() as journal:
        agent = cashier.agent(journal)
        async with caller(agent.run("go", run_id="r", conversation_id="talk")) as waits:
            await evicted(agent, "r")
            with pytest.raises(ConfigError, match="active run"):
                await agent.run("more", conversation_id="talk")
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        assert (await journal.head("r")).status == "parked"
        assert agent.hosting.live("r") is None
        await agent.approve("r")
        assert (await agent.resume("r")).output == "I heard: paid ann"


async def test_a_request_to_cancel_ends_an_evicted_run(sqlite: Callable[[], Any]) -> None:
    async with sqlite() as journal:
        agent = Cashier().agent(journal)
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            await agent.cancel("r", by="ann", why="too dear")
            assert (await waits).outcome is Outcome.CANCELLED


async def test_the_question_of_an_evicted_run_expires(store: Callable[[], Any]) -> None:
    cashier = Cashier()
    async with store() as journal:
        agent = cashier.agent(journal, limits=Limits(approval_seconds=0.3))
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            result = await waits
        assert "nobody approved this call in time" in str(result.output)
        assert cashier.paid == []


async def test_a_run_is_evicted_at_each_of_its_questions(sqlite: Callable[[], Any]) -> None:
    cashier = Cashier("ann", "bob", "cleo")
    async with sqlite() as journal:
        agent = cashier.agent(journal)
        async with caller(agent.run("go", run_id="r")) as waits:
            for turn in range(3):
                await until(lambda turn=turn: len(cashier.paid) == turn)  # type: ignore[misc]
                await evicted(agent, "r")
                await until(lambda: asks(agent, "r"))
                await agent.approve("r")
            result = await waits
        assert result.output == "I heard: paid ann; paid bob; paid cleo"
        found = await kinds(journal)
        assert (found.count("parked"), found.count("resumed")) == (3, 3)
        assert [one.seq for one in result.transitions] == sorted({one.seq for one in result.transitions})


async def asks(agent: Agent, run_id: str) -> bool:
    try:
        return bool(await agent.pending(run_id))
    except RunUnknown:  # it is not stored yet
        return False


async def test_an_answer_in_the_moment_of_the_eviction_is_not_lost(sqlite: Callable[[], Any]) -> None:
    cashier = Cashier()
    async with sqlite() as journal:
        agent = cashier.agent(journal, evict_after=0.01)
        names = [f"r{number}" for number in range(40)]
        tasks = [asyncio.ensure_future(agent.run("go", run_id=name)) for name in names]
        for number, name in enumerate(names):
            await until(lambda name=name: known_and_asks(agent, name))  # type: ignore[misc]
            await asyncio.sleep(0.0005 * (number % 5))
            await agent.approve(name)
        results = await asyncio.gather(*tasks)
        assert {result.output for result in results} == {"I heard: paid ann"}
        assert len(cashier.paid) == len(names)


async def test_whoever_answers_at_whatever_moment_each_caller_gets_the_end_of_its_run(
    sqlite: Callable[[], Any], seed: int
) -> None:
    chance = random.Random(seed)
    here, there = Cashier(), Cashier()
    async with sqlite() as journal, sqlite() as other:
        agent = here.agent(journal, evict_after=0.02)
        elsewhere = there.agent(other, evict_after=0.0)

        async def answer(run_id: str) -> None:
            await until(lambda: known_and_asks(agent, run_id))
            await asyncio.sleep(chance.choice((0.0, 0.01, 0.02, 0.021, 0.05)))
            match chance.randrange(5):
                case 0:
                    await agent.approve(run_id)
                case 1:
                    await elsewhere.approve(run_id)
                case 2:
                    await elsewhere.cancel(run_id)
                case 3:
                    await agent.cancel(run_id)
                case _:
                    await elsewhere.approve(run_id)
                    with contextlib.suppress(Held):
                        await elsewhere.resume(run_id)

        names = [f"r{number}" for number in range(examples(40))]
        callers = [asyncio.ensure_future(agent.run("go", run_id=name)) for name in names]
        await asyncio.gather(*map(answer, names))
        results = await asyncio.gather(*callers)
        heads = [await journal.head(name) for name in names]
        assert [result.outcome for result in results] == [head.outcome for head in heads]
        completed = sum(result.outcome is Outcome.COMPLETED for result in results)
        assert len(here.paid) + len(there.paid) == completed, "each approved call ran once"
        assert agent.hosting.live(names[0]) is None


async def known_and_asks(agent: Agent, run_id: str) -> bool:
    try:
        return await asks(agent, run_id)
    except RunUnknown:
        return False


async def test_live_deps_without_a_factory_keep_a_run_in_memory(sqlite: Callable[[], Any]) -> None:
    cashier, deps = Cashier(), object()
    async with sqlite() as journal:
        agent = cashier.agent(journal)
        async with (
            caller(agent.run("go", run_id="r", deps=deps)) as waits,
            caller(agent.run("go", run_id="s")),
        ):
            await until(lambda: asks(agent, "r"))
            await evicted(agent, "s")  # it was started later
            assert alive(agent, "r")
            await agent.approve("r")
            await waits
        assert cashier.deps == [deps]
        assert "resumed" not in await kinds(journal)


async def test_a_tree_stays_in_memory_while_a_child_run_waits(sqlite: Callable[[], Any]) -> None:
    cashier = Cashier()

    def ask(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return Response(request.messages[-1].text)
        return Response(None, (ToolCall("a", "cashier", '{"task": "pay"}'),))

    async with sqlite() as journal:
        child = cashier.agent(journal)
        runtime = Runtime(journal=journal, observers=(), evict_after=SOON)
        agent = Agent(
            FunctionLLM(ask), name="boss", tools=[child.as_tool("cashier", "Pays.")], runtime=runtime
        )
        async with caller(agent.run("go", run_id="r")) as waits, caller(child.run("go", run_id="s")):
            await until(lambda: known_and_asks(agent, "r:1:0"))
            await evicted(child, "s")
            assert alive(agent, "r")
            assert alive(agent, "r:1:0")
            await agent.approve("r:1:0")
            assert (await waits).output == "I heard: paid ann"


async def test_the_stream_of_an_evicted_run_has_each_event_once(store: Callable[[], Any]) -> None:
    cashier = Cashier("ann", "bob")
    events: list[RunEvent] = []
    async with store() as journal, store() as other:
        agent = cashier.agent(journal)
        stream = agent.stream("go", run_id="r")

        async def read() -> Result:
            async with stream:
                async for event in stream:
                    events.append(event)  # noqa: PERF401 - those before an error count too
                return await stream.result()

        async with caller(read()) as waits:
            await evicted(agent, "r")
            await agent.approve("r")  # it is resumed here
            await until(lambda: cashier.paid == ["ann"])
            await evicted(agent, "r")
            await until(lambda: asks(agent, "r"))
            elsewhere = cashier.agent(other, evict_after=0.0)
            await elsewhere.approve("r")
            with contextlib.suppress(Exception):
                await elsewhere.resume("r")  # whichever is first
            result = await waits
        assert result.output == "I heard: paid ann; paid bob"
        stored = [event.id async for event in agent.runs.events("r")]
        assert [event.id for event in events if event.id] == stored
        assert cashier.paid == ["ann", "bob"]


async def test_the_stream_of_a_run_that_ends_elsewhere_before_it_is_resumed_here_has_its_last_events(
    store: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cashier = Cashier()
    async with store() as journal, store() as other:
        agent, elsewhere = cashier.agent(journal), cashier.agent(other, evict_after=0.0)
        continue_evicted = agent._service._continue_evicted

        async def late(head: Any, resume: Any) -> Any:
            await elsewhere.resume("r")
            return await continue_evicted(head, resume)

        monkeypatch.setattr(agent._service, "_continue_evicted", late)

        async def read() -> list[str]:
            return [event.id async for event in agent.stream("go", run_id="r") if event.id]

        async with caller(read()) as waits:
            await evicted(agent, "r")
            await elsewhere.approve("r")
            assert await waits == [event.id async for event in agent.runs.events("r")]
        assert cashier.paid == ["ann"]


async def test_the_stream_of_an_evicted_run_has_the_pieces_of_the_answers_that_follow(
    sqlite: Callable[[], Any],
) -> None:
    @tool(approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    async with sqlite() as journal:
        llm = ScriptedLLM([call("pay", amount=1), "All is paid."])
        agent = Agent(llm, tools=[pay], runtime=Runtime(journal=journal, observers=(), evict_after=SOON))

        async def read() -> list[str]:
            stream = agent.stream("go", run_id="r")
            return [event.text async for event in stream if isinstance(event, TextDelta)]

        async with caller(read()) as waits:
            await evicted(agent, "r")
            await agent.approve("r")
            assert "".join(await waits) == "All is paid."


async def test_a_paused_run_is_evicted_and_continues_when_it_is_resumed(sqlite: Callable[[], Any]) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        begun.set()
        await finish.wait()
        return "done"

    def model(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return Response(request.messages[-1].text)
        return Response(None, (ToolCall("a", "slow", "{}"),))

    async with sqlite() as journal, sqlite() as other:
        agent = Agent(
            FunctionLLM(model),
            tools=[slow],
            runtime=Runtime(journal=journal, observers=(), evict_after=SOON),
        )
        async with caller(agent.run("go", run_id="r")) as waits:
            await begun.wait()
            await agent.pause("r", by="ann")
            finish.set()
            await evicted(agent, "r")
            assert agent.hosting.live("r").paused  # type: ignore[union-attr]
            await Runs(other).request_resume("r", by="ann")
            assert (await waits).output == "done"


async def test_an_erased_run_is_an_error_of_its_caller(sqlite: Callable[[], Any]) -> None:
    async with sqlite() as journal:
        agent = Cashier().agent(journal)
        async with caller(agent.run("go", run_id="r")) as waits:
            await evicted(agent, "r")
            await journal.erase("r")
            with pytest.raises(RunUnknown):
                await waits


async def test_an_evicted_run_of_an_engine_waits_for_a_slot_and_its_handle_gets_the_result(
    sqlite: Callable[[], Any],
) -> None:
    cashier = Cashier()
    async with sqlite() as journal:
        agent = cashier.agent(journal)
        async with LocalEngine(agent, slots=1, recover="resume", rescan=0.05) as engine:
            handles = [await engine.submit("go", run_id=name) for name in ("r", "s")]
            await evicted(agent, "r", "s")
            assert [handle.phase for handle in handles] == [Phase.WAITING] * 2
            status = engine.status()
            assert (status["waiting"], status["taken"]) == (2, 0)
            assert [one["state"] for one in status["live"]] == ["process_tools"] * 2
            for handle in handles:
                await agent.approve(handle.run_id)
            assert [(await handle).output for handle in handles] == ["I heard: paid ann"] * 2
            assert engine.status()["taken"] == 0


async def test_operator_commands_and_a_drain_reach_evicted_runs(sqlite: Callable[[], Any]) -> None:
    async with sqlite() as journal:
        agent = Cashier().agent(journal)
        async with LocalEngine(agent) as engine:
            first = await engine.submit("go", run_id="r")
            await evicted(agent, "r")
            await engine.control("cancel_all", by="ann")
            assert (await first).outcome is Outcome.CANCELLED
            second = await engine.submit("go", run_id="s")
            await evicted(agent, "s")
            report = await engine.drain(0.0)
            assert report.parked == ("s",)
            with pytest.raises(Suspended):
                await second
        assert (await journal.head("s")).reason == "approval"


async def test_a_ralph_loop_is_evicted_while_it_asks_and_an_answer_or_a_stop_continues_it(
    store: Callable[[], Any], tmp_path: Path
) -> None:
    async with store() as journal:
        for said, outcome in (("answer", Outcome.COMPLETED), ("stop", Outcome.CANCELLED)):
            world = World(
                tmp_path / said, {Role.PLANNER: [{"status": "needs_clarification"}]}, tasks=("task-1: one",)
            )
            ralph = world.ralph(answer="wait", journal=journal, evict_after=SOON)
            async with caller(ralph.run("x", run_id=said)) as waits:
                await evicted(ralph, said)
                await ralph.inform(said, "think of Windows")
                await (ralph.answer(said, {"1.1": "bash"}) if said == "answer" else ralph.stop(said))
                result = await waits
            assert result.outcome is outcome
            if said == "answer":
                assert world.of(Role.PLANNER)[1].notes == ("think of Windows",)


async def test_a_paused_pipeline_is_evicted_and_its_finished_stages_are_not_repeated(
    store: Callable[[], Any],
) -> None:
    async with store() as journal:
        stages, reached, go = Stages(), asyncio.Event(), asyncio.Event()
        pipeline = stages.pipeline(journal=journal, evict_after=SOON)
        implement = pipeline._deps.ports[OrchestrationState.IMPLEMENTING]

        async def slow(request: Any) -> Any:
            reached.set()
            await go.wait()
            return await implement(request)

        pipeline._deps = replace(
            pipeline._deps, ports={**pipeline._deps.ports, OrchestrationState.IMPLEMENTING: slow}
        )
        async with caller(pipeline.run("x", run_id="r")) as waits:
            await reached.wait()
            await pipeline.pause("r")
            go.set()
            await evicted(pipeline, "r")
            await pipeline.runs.request_resume("r")
            assert (await waits).outcome is Outcome.COMPLETED
        assert set(stages.calls.values()) == {1}


@pytest.mark.parametrize("mode", ["tools", "code"])
async def test_a_paused_rlm_is_evicted_unless_it_has_a_repl(mode: Any, sqlite: Callable[[], Any]) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        reached.set()
        await go.wait()
        return "seen"

    async def model(request: Request) -> Any:
        if mode == "code":
            reached.set()
            await go.wait()
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn == 0:
            return "```repl\nx = 1\n```" if mode == "code" else Response(None, (ToolCall("a", "look", "{}"),))
        return "FINAL(done)" if mode == "code" else Response("done")

    async with sqlite() as journal:
        runtime = Runtime(journal=journal, observers=(), evict_after=SOON)
        rlm = Rlm(FunctionLLM(model), mode=mode, tools=[look] if mode == "tools" else [], runtime=runtime)
        probe = Cashier().agent(journal)
        async with caller(rlm.run("p", run_id="r")) as waits:
            await reached.wait()
            await rlm.pause("r", by="ann")
            go.set()
            if mode == "tools":
                await evicted(rlm, "r")
                await rlm.runs.request_resume("r")
            else:
                await until(lambda: rlm._service.live.get("r").parked)
                async with caller(probe.run("go", run_id="s")):
                    await evicted(probe, "s")  # it waits shorter
                    assert alive(rlm, "r")
                await rlm.resume("r")
            assert (await waits).output == "done"


@pytest.mark.parametrize("seconds", [-1, float("nan"), "60", True])
def test_the_seconds_of_an_eviction_are_checked(seconds: Any, sqlite: Callable[[], Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"evict_after is .*; give a number of seconds, 0 or more \(0: never\)"
    ):
        Runtime(journal=sqlite(), evict_after=seconds)


def test_a_journal_in_memory_evicts_no_run() -> None:
    with pytest.raises(ConfigError, match="the journal is in memory; give a durable journal"):
        Runtime(journal=MemoryJournal(), evict_after=60)
    with pytest.raises(ConfigError, match="the journal is in memory"):
        Runtime(evict_after=60)
