"""A cancelled caller gets its own cancellation back, so that its cancel scopes and time limits recognise it.

anyio recognises a cancellation by its message, asyncio by the number of requests in the task of the caller. So each
kind of scope encloses each place where a run can wait, host code that swallows its cancellation included.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import anyio
import pytest

from orchestrator import Agent, Limits, LocalEngine, MemoryJournal, Runtime, SqliteJournal
from orchestrator.approval import Approval
from orchestrator.kernel import clock as clock_module
from orchestrator.kernel.cancellation import abandoned_work
from orchestrator.llm.message import Request
from orchestrator.machines.approval.plan import PlanDraft, PlanRequest
from orchestrator.machines.pipeline.model import StageRequest
from orchestrator.machines.ralph.model import AgentRequest
from orchestrator.pipeline import Pipeline
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.runtime.service import run_service
from orchestrator.testing import FakeClock
from orchestrator.tools.spec import tool
from tests.runtime.approval.stand import Script, planted
from tests.runtime.pipeline_stage import Stages
from tests.runtime.ralph_stage import World
from tests.runtime.stage import until
from tests.tiers import SOAK

GRACE = 0.05
"""Seconds that cancelled host code gets."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
Scope: TypeAlias = "Callable[[Work, asyncio.Event], Awaitable[None]]"


class Held:
    """Host code in which a run waits, in each of the ways of the host's code."""

    PLACES = (
        "model",
        "tool",
        "two tools",
        "thread",
        "swallowing tool",
        "swallowing model",
        "failing tool",
        "hook",
    )

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.in_thread = threading.Event()
        self.cancelled = 0
        self.cleaned_up = 0
        self.loop = asyncio.get_running_loop()

    async def wait(self) -> None:
        """Wait as the place says."""
        self.reached.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.place == "failing tool":
                    raise OSError("the connection is closed") from None
                if not self.place.startswith("swallowing"):
                    await asyncio.sleep(0)
                    self.cleaned_up += 1
                    raise

    def block(self) -> None:
        """Wait in a thread."""
        self.loop.call_soon_threadsafe(self.reached.set)
        self.in_thread.wait()

    async def release(self) -> None:
        """Let everything that is left end."""
        self.released.set()
        self.in_thread.set()
        await until(lambda: not abandoned_work())


def held_agent(held: Held, **options: Any) -> Agent:
    """Return an agent whose runs wait in host code."""

    async def model(request: Request) -> object:
        if held.released.is_set():
            return "done"
        if held.place.endswith("model"):
            await held.wait()
        calls = {"thread": [call("block")], "two tools": [call("wait"), call("wait")]}
        return calls.get(held.place, [call("wait")])

    class Hooks:
        async def enter_process_tools(self, _: object) -> None:
            if held.place == "hook" and not held.released.is_set():
                await held.wait()

    wait = tool(name="wait", effect="idempotent")(held.wait)
    block = tool(name="block", effect="idempotent")(held.block)
    options.setdefault("limits", Limits(cancel_seconds=GRACE))
    return Agent(
        FunctionLLM(model),  # type: ignore[arg-type]
        name="held",
        tools=[wait, block],
        hooks=[Hooks()],
        observers=(),
        **options,
    )


# ---- the scopes of a host ----


async def fail_after(work: Work, reached: asyncio.Event) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(600) as scope:
        await expiring(scope, work, reached)


async def move_on_after(work: Work, reached: asyncio.Event) -> None:
    with anyio.move_on_after(600) as scope:
        await expiring(scope, work, reached)
    assert scope.cancelled_caught


async def inner_of_two(work: Work, reached: asyncio.Event) -> None:
    with anyio.move_on_after(600) as outer:
        with pytest.raises(TimeoutError), anyio.fail_after(600) as inner:
            await expiring(inner, work, reached)
        await asyncio.sleep(0)
    assert not outer.cancelled_caught


async def outer_of_two(work: Work, reached: asyncio.Event) -> None:
    with anyio.move_on_after(600) as outer, anyio.fail_after(600) as inner:
        await expiring(outer, work, reached)
    assert outer.cancelled_caught
    assert not inner.cancelled_caught


async def both_of_two(work: Work, reached: asyncio.Event) -> None:
    with anyio.move_on_after(600) as outer, anyio.fail_after(600) as inner:
        expire = asyncio.create_task(at(reached, inner.cancel, outer.cancel))
        await work()
    await expire
    assert outer.cancelled_caught


async def scope_of_a_task_group(work: Work, reached: asyncio.Event) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await reached.wait()
        tasks.cancel_scope.cancel()


async def failing_task_group(work: Work, reached: asyncio.Event) -> None:
    async def fail() -> None:
        await reached.wait()
        raise LookupError("a sibling failed")

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(fail)
    assert [type(error) for error in raised.value.exceptions] == [LookupError]


async def asyncio_timeout(work: Work, reached: asyncio.Event) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(600) as limit:
            expire = asyncio.create_task(at(reached, lambda: limit.reschedule(0.0)))
            await work()
    await expire


async def asyncio_wait_for(work: Work, reached: asyncio.Event) -> None:
    async def limited() -> None:
        async with asyncio.timeout(600) as limit:
            expire.append(asyncio.create_task(at(reached, lambda: limit.reschedule(0.0))))
            await asyncio.wait_for(work(), 600)

    expire: list[asyncio.Task[None]] = []
    with pytest.raises(TimeoutError):
        await limited()
    await expire[0]


async def asyncio_task_group(work: Work, reached: asyncio.Event) -> None:
    async def fail() -> None:
        await reached.wait()
        raise LookupError("a sibling failed")

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            tasks.create_task(fail())
    assert [type(error) for error in raised.value.exceptions] == [LookupError]


async def fail_after_in_asyncio_timeout(work: Work, reached: asyncio.Event) -> None:
    async with asyncio.timeout(600) as limit:
        await fail_after(work, reached)
    assert not limit.expired()


async def asyncio_timeout_in_fail_after(work: Work, reached: asyncio.Event) -> None:
    with anyio.fail_after(600) as scope:
        await asyncio_timeout(work, reached)
        await asyncio.sleep(0)
    assert not scope.cancelled_caught


async def cancelled_task(work: Work, reached: asyncio.Event) -> None:
    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert raised.value.args == ("enough",)


async def expiring(scope: anyio.CancelScope, work: Work, reached: asyncio.Event) -> None:
    """Await the work in a scope whose time ends when the work waits."""
    expire = asyncio.create_task(at(reached, lambda: setattr(scope, "deadline", anyio.current_time())))
    try:
        await work()
    finally:
        assert expire.done()


async def at(reached: asyncio.Event, *acts: Callable[[], object]) -> None:
    await reached.wait()
    for act in acts:
        act()


SCOPES: dict[str, Scope] = {
    one.__name__: one
    for one in (
        fail_after,
        move_on_after,
        inner_of_two,
        outer_of_two,
        both_of_two,
        scope_of_a_task_group,
        failing_task_group,
        asyncio_timeout,
        asyncio_wait_for,
        asyncio_task_group,
        fail_after_in_asyncio_timeout,
        asyncio_timeout_in_fail_after,
        cancelled_task,
    )
}

each_scope = pytest.mark.parametrize("scope", SCOPES)


def alternating(others: Sequence[str], last: Sequence[Any]) -> list[Any]:
    """Return each scope with each of the others, and in turn one of the last; `make soak` has all of them."""
    if SOAK:
        return list(itertools.product(SCOPES, others, last))
    pairs = itertools.product(enumerate(SCOPES), enumerate(others))
    return [(scope, other, last[(row + column) % len(last)]) for (row, scope), (column, other) in pairs]


def in_both_tiers(cases: list[Any], others: Sequence[str]) -> list[Any]:
    """Return the cases: each scope and each of the others is in one for `make test`, the rest for the campaign."""
    chosen = {(scope, others[row % len(others)]) for row, scope in enumerate(SCOPES)}
    return [case if case[:2] in chosen else pytest.param(*case, marks=pytest.mark.campaign) for case in cases]


@pytest.mark.parametrize(("scope", "place", "durable"), alternating(Held.PLACES, [False, True]))
async def test_a_scope_around_a_run_ends_it_and_the_run_can_be_resumed(
    scope: str, place: str, durable: bool, tmp_path: Path
) -> None:
    held = Held(place)
    agent = held_agent(held, journal=SqliteJournal(tmp_path / "runs.db") if durable else None)
    await inside(scope, lambda: agent.run("go", run_id="r"), held)
    assert held.cleaned_up == {"model": 1, "tool": 1, "hook": 1, "two tools": 2}.get(place, 0)
    if durable:
        assert (await agent.resume("r")).output == "done"


@pytest.mark.parametrize("place", Held.PLACES)
def test_a_scope_around_a_run_ends_it_under_uvloop(place: str, absent: Callable[[str], NoReturn]) -> None:
    if importlib.util.find_spec("uvloop") is None:
        absent("uvloop is not installed")
    factory = importlib.import_module("uvloop").new_event_loop

    async def run_in(scope: str) -> None:
        held = Held(place)
        agent = held_agent(held, journal=MemoryJournal())
        await inside(scope, lambda: agent.run("go", run_id="r"), held)
        assert (await agent.resume("r")).output == "done"

    with asyncio.Runner(loop_factory=factory) as runner:
        for scope in SCOPES:
            runner.run(run_in(scope))


# ---- every way to wait for a run ----


async def by_resume(agent: Agent, engine: LocalEngine) -> None:
    await agent.resume("r")


async def by_stream(agent: Agent, engine: LocalEngine) -> None:
    await read(agent.stream("go"))


async def by_result_of_stream(agent: Agent, engine: LocalEngine) -> None:
    await agent.stream("go").result()


async def by_block_of_stream(agent: Agent, engine: LocalEngine) -> None:
    async with agent.stream("go") as stream:
        await read(stream)


async def by_stream_resume(agent: Agent, engine: LocalEngine) -> None:
    await read(agent.stream_resume("r"))


async def by_handle(agent: Agent, engine: LocalEngine) -> None:
    await (await engine.submit("go"))


async def by_stream_of_engine(agent: Agent, engine: LocalEngine) -> None:
    await read(engine.stream("go"))


async def by_resume_in_engine(agent: Agent, engine: LocalEngine) -> None:
    await (await engine.resume("r"))


async def by_events(agent: Agent, engine: LocalEngine) -> None:
    await engine.submit("go", run_id="s")
    while not [one for one in await agent.runs.list() if one.run_id == "s"]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await read(agent.runs.events("s", follow=True))


async def by_parent(agent: Agent, engine: LocalEngine) -> None:
    parent = Agent(
        FunctionLLM(lambda request: call("ask", task="go")),
        tools=[agent.as_tool("ask", description="Ask it.")],
        observers=(),
        limits=Limits(cancel_seconds=GRACE),
    )
    await parent.run("go")


WAYS = {
    one.__name__: one
    for one in (
        by_resume,
        by_stream,
        by_result_of_stream,
        by_block_of_stream,
        by_stream_resume,
        by_handle,
        by_stream_of_engine,
        by_resume_in_engine,
        by_events,
        by_parent,
    )
}


@pytest.mark.parametrize(
    ("scope", "way", "place"),
    in_both_tiers(alternating(list(WAYS), ["tool", "swallowing model"]), list(WAYS)),
)
async def test_a_scope_around_each_way_to_wait_for_a_run_ends_the_waiting(
    scope: str, way: str, place: str
) -> None:
    held = Held(place)
    agent = held_agent(held, journal=MemoryJournal())
    await parked(lambda: agent.run("go", run_id="r"), held)
    async with LocalEngine(agent) as engine:
        await inside(scope, lambda: WAYS[way](agent, engine), held)


# ---- every facade ----


class HeldStages(Stages):
    """Ports of a pipeline of which the first one waits."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        usual = self.planner

        async def planner(request: StageRequest) -> object:
            if not held.released.is_set():
                await held.wait()
            return await usual(request)

        self.planner = planner  # type: ignore[assignment]


class HeldScript(Script):
    """A planner that waits before it answers."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held = held

    async def plan(self, request: PlanRequest) -> PlanDraft:
        if not self.held.released.is_set():
            await self.held.wait()
        return await super().plan(request)


def held_pipeline(held: Held, folder: Path) -> Any:
    stages = HeldStages(held)
    ports = stages.planner, stages.validator, stages.implementer, stages.judge
    return Pipeline(*ports, name="one", journal=SqliteJournal(folder / "runs.db"), observers=())


def held_ralph(held: Held, folder: Path) -> Any:
    world = World(folder)

    async def agent(request: AgentRequest) -> Any:
        if not held.released.is_set():
            await held.wait()
        return world(request)

    journal = SqliteJournal(folder / "runs.db")
    return Ralph(agent, agent, agent, root=folder, name="one", journal=journal, observers=())


def held_rlm(held: Held, folder: Path) -> Any:
    async def model(request: Request) -> str:
        if not held.released.is_set():
            await held.wait()
        return "FINAL(done)"

    return Rlm(FunctionLLM(model), name="one", journal=SqliteJournal(folder / "runs.db"), observers=())


@pytest.fixture
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the host code of every machine a short grace period; only `Limits` of an Agent has an option for it."""
    monkeypatch.setattr(run_service, "GRACE", GRACE)


FACADES: dict[str, Callable[[Held, Path], Any]] = {
    "Pipeline": held_pipeline,
    "Ralph": held_ralph,
    "Rlm": held_rlm,
}


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.parametrize(
    ("scope", "facade", "place"),
    in_both_tiers(alternating(list(FACADES), ["model", "swallowing model"]), list(FACADES)),
)
async def test_a_scope_around_each_facade_ends_its_run_which_can_be_resumed(
    scope: str, facade: str, place: str, tmp_path: Path
) -> None:
    held = Held(place)
    agent = FACADES[facade](held, tmp_path)
    await inside(scope, lambda: agent.run("Do it.", run_id="r"), held)
    held.released.clear()
    await inside(scope, lambda: agent.resume("r"), held)
    held.released.clear()
    await inside(scope, lambda: read(agent.stream("Do it.", run_id="s")), held)
    assert (await agent.resume("s")).run_id == "s"


@each_scope
async def test_a_scope_around_a_request_for_a_plan_ends_it_and_the_project_continues(
    scope: str, tmp_path: Path
) -> None:
    held = Held("model")
    planner = HeldScript(held)
    async with Approval(planted(tmp_path), planner, name="one", observers=()) as approval:
        await inside(scope, lambda: approval.run("Tidy up."), held)
    async with Approval(tmp_path, planner, name="one", observers=()) as approval:
        held.released.clear()
        await inside(scope, lambda: read(approval.stream("Tidy up.")), held)
    async with Approval(tmp_path, planner, name="one", observers=()) as approval:
        assert (await approval.run("Tidy up.")).state == "AwaitingApproval"


async def test_a_planner_that_swallows_its_cancellation_is_abandoned(tmp_path: Path) -> None:
    held, clock = Held("swallowing model"), FakeClock()
    async with Approval(
        planted(tmp_path), HeldScript(held), runtime=Runtime(clock=clock, observers=()), name="one"
    ) as approval:
        task = asyncio.create_task(approval.run("Tidy up."))
        await held.reached.wait()
        task.cancel("enough")
        await until(lambda: held.cancelled == 1)
        await clock.advance(clock_module.GRACE)
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert raised.value.args == ("enough",)
        [left] = abandoned_work()
        assert (left.kind, left.name) == ("stage", "planner")
        await held.release()


@each_scope
async def test_a_scope_around_the_wait_for_an_answer_ends_the_waiting(scope: str, tmp_path: Path) -> None:
    held = Held("model")
    async with Approval(planted(tmp_path), Script(), name="one", observers=()) as approval:
        await approval.run("Tidy up.", run_id="r")
        held.loop.call_soon(held.reached.set)
        await inside(scope, approval.wait, held)


async def read(stream: Any) -> None:
    async for _ in stream:
        pass


async def parked(work: Work, held: Held) -> None:
    """Leave a run where it waits."""
    task = asyncio.ensure_future(work())
    await held.reached.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    held.reached.clear()


async def inside(scope: str, work: Work, held: Held) -> None:
    """Await work in a scope; it leaves no request to cancel that the scope around plain code does not leave."""
    plain = asyncio.Event()
    plain.set()
    left = [await asyncio.create_task(requests_left(scope, asyncio.Event().wait, plain))]
    left.append(await asyncio.create_task(requests_left(scope, work, held.reached)))
    assert left[0] == left[1]
    await held.release()
    held.reached.clear()


async def requests_left(scope: str, work: Work, reached: asyncio.Event) -> int:
    task = asyncio.current_task()
    assert task is not None
    await SCOPES[scope](work, reached)
    return task.cancelling()
