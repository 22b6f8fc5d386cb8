"""Every state, stopped in every way: nothing leaks, nothing happens afterwards, the history stays valid."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from orchestrator.errors import CancelRequested, ConfigError, RunOver
from orchestrator.kernel.fact import RunCompleted, RunParked, RunStarted, ToolExecution
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.tools.spec import ToolContext, tool
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import Facts, Notebook, agent, faults

Stop: TypeAlias = Callable[[Agent, "asyncio.Task[Result]", asyncio.Timeout], object]

PLACES = {
    "memory.prepare": "init",
    "model": "await_llm",
    "enter_evaluate_response": "evaluate_response",
    "tool": "process_tools",
    "batch": "process_tools",
    "thread": "process_tools",
    "enter_update_budgets": "update_budgets",
    "enter_handle_completion": "handle_completion",
    "memory.store": "finalize",
}
"""Where a run can be held, and the state it is in then."""

WAYS: dict[str, Stop] = {
    "agent.cancel": lambda runner, task, limit: runner.cancel("r", why="enough"),
    "task.cancel": lambda runner, task, limit: task.cancel("enough"),
    "asyncio.timeout": lambda runner, task, limit: limit.reschedule(0.0),
}


class Gate:
    """Holds the run at one place; whatever happens behind it is an effect."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.thread_open = threading.Event()
        self.thread_ended = asyncio.Event()
        self.effects: list[str] = []

    async def __call__(self, place: str) -> None:
        if place == self.place and not self.open.is_set():
            self.reached.set()
            await self.open.wait()
            self.effects.append(f"went on behind {place}")

    def agent(self, **options: Any) -> Agent:
        loop = asyncio.get_running_loop()

        async def model(request: Request) -> object:
            await self("model")
            if request.messages[-1].role == "tool" or len(request.messages) > 3:
                return "done"
            return [call("work"), call("quick"), call("slow")] if self.place == "batch" else call(self._tool)

        async def work() -> str:
            await self("tool")
            await self("batch")
            self.effects.append("worked")
            return "worked"

        async def quick() -> str:
            return "quick"

        async def slow() -> str:
            await self("batch")
            return "slow"

        @tool(name="thread")
        def in_thread(ctx: ToolContext) -> str:
            loop.call_soon_threadsafe(self.reached.set)
            self.thread_open.wait()
            if not ctx.cancelled.is_set():
                self.effects.append("the thread went on")
            loop.call_soon_threadsafe(self.thread_ended.set)
            return "thread"

        hooks = [] if not self.place.startswith("enter_") else [self._hook()]
        return agent(
            FunctionLLM(model),  # type: ignore[arg-type]
            [work, quick, slow, in_thread],
            memory=Held(self),
            hooks=hooks,
            limits=Limits(cancel_seconds=0.05),
            **options,
        )

    @property
    def _tool(self) -> str:
        return "thread" if self.place == "thread" else "work"

    def _hook(self) -> object:
        async def hook(run: LoopRun) -> None:
            await self(self.place)

        holder = type("Host", (), {})()
        setattr(holder, self.place, hook)
        return holder


class Held(Notebook):
    """A memory behind the gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    async def _reach(self, what: str) -> None:
        await self.gate(f"memory.{what}")


async def stopped(gate: Gate, runner: Agent, stop: Stop) -> asyncio.Task[Result]:
    """Start a run, wait until it is held, stop it, and wait until that is acknowledged."""
    limits: list[asyncio.Timeout] = []

    async def run() -> Result:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            return await runner.run("go", run_id="r", conversation_id="c")

    task = asyncio.create_task(run())
    await gate.reached.wait()
    stop(runner, task, limits[0])
    await asyncio.wait([task])
    return task


async def let_everything_go_on(gate: Gate) -> None:
    """Open the gate, and let whatever would still run do so."""
    gate.open.set()
    gate.thread_open.set()
    if gate.place == "thread":
        await gate.thread_ended.wait()
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
async def test_a_run_can_be_stopped_in_any_state_and_in_any_way(place: str, way: str) -> None:
    gate, facts = Gate(place), Facts()
    runner = gate.agent(observers=[facts])
    task = await stopped(gate, runner, WAYS[way])

    left = asyncio.all_tasks() - {asyncio.current_task()}
    names = ["abandoned tool thread of r"] if place == "thread" else []
    assert [task.get_name() for task in left] == names, (
        "no task is left behind, but for a thread that goes on"
    )
    effects = list(gate.effects)
    await let_everything_go_on(gate)
    assert gate.effects == effects, "nothing happens any more"

    if way == "agent.cancel":
        result = task.result()
        assert (result.outcome, result.reason) == (Outcome.CANCELLED, "caller")
        assert isinstance(result.error, CancelRequested)
        assert str(result.error) == "cancelled by caller: enough"
        last = result.transitions[-1]
        assert (last.source, last.event, last.dest) == (PLACES[place], "failure", "terminate_error")
        assert not faults(result.messages)
        assert [fact.outcome for fact in facts.of(RunCompleted)] == ["cancelled"]
    else:
        with pytest.raises(asyncio.CancelledError if way == "task.cancel" else TimeoutError):
            task.result()
        assert [(fact.state, fact.reason) for fact in facts.of(RunParked)] == [(PLACES[place], "interrupted")]
        assert not facts.of(RunCompleted)

    again = await runner.run("and now?", conversation_id="c")
    assert again.outcome is Outcome.COMPLETED
    assert not faults(again.messages)
    assert [m.text for m in again.messages if m.role == "user"] == ["go", "and now?"]


@pytest.mark.parametrize("way", WAYS)
async def test_of_a_batch_what_was_finished_keeps_its_result_and_the_rest_is_answered_as_stopped(
    way: str,
) -> None:
    gate, facts = Gate("batch"), Facts()
    runner = gate.agent(observers=[facts])
    task = await stopped(gate, runner, WAYS[way])
    assert task.cancelled() or task.exception() is None or isinstance(task.exception(), TimeoutError)
    await let_everything_go_on(gate)
    again = await runner.run("and now?", conversation_id="c")
    work, quick, slow = (m for m in again.messages if m.role == "tool")
    assert quick.text == "quick"
    for one in (work, slow):
        assert one.is_error
        assert "stopped before this call finished" in one.text
    told = [(fact.tool, fact.outcome) for fact in facts.of(ToolExecution)]
    assert told == [("work", "cancelled"), ("quick", "ok"), ("slow", "cancelled")]


async def test_a_cancelled_run_is_not_live_any_more() -> None:
    gate = Gate("model")
    runner = gate.agent()
    await stopped(gate, runner, WAYS["agent.cancel"])
    with pytest.raises(RunOver, match="run 'r' has ended: cancelled"):
        runner.cancel("r")


async def test_cancelling_twice_is_cancelling_once() -> None:
    gate = Gate("tool")
    runner = gate.agent()

    def twice(runner: Agent, task: asyncio.Task[Result], limit: asyncio.Timeout) -> None:
        runner.cancel("r", why="first")
        runner.cancel("r", why="second")

    task = await stopped(gate, runner, twice)
    assert str(task.result().error) == "cancelled by caller: first"


async def test_a_cancel_between_two_states_is_carried_out_before_the_next_hook() -> None:
    asked = []

    class Host:
        async def enter_evaluate_response(self, run: LoopRun) -> None:
            runner.cancel(run.run_id)

        async def enter_handle_completion(self, run: LoopRun) -> None:
            asked.append("handle_completion")

    runner = agent(["done"], hooks=[Host()])
    result = await runner.run("go")
    assert (result.outcome, asked) == (Outcome.CANCELLED, [])
    assert result.transitions[-1].source == "evaluate_response"


async def test_a_run_cancelled_before_its_first_hook_starts_nothing() -> None:
    asked = []

    class Model:
        async def complete(self, request: Request) -> Response:
            asked.append(request)
            return Response("never")

    class Hasty:
        def observe(self, fact: object) -> None:
            if isinstance(fact, RunStarted):
                runner.cancel("r")

    memory = Notebook()
    runner = agent(Model(), observers=[Hasty()], memory=memory)
    result = await runner.run("go", run_id="r")
    assert result.outcome is Outcome.CANCELLED
    assert (asked, memory.asked) == ([], [])


async def test_a_tool_that_swallows_its_cancellation_does_not_keep_the_run_going() -> None:
    reached, asked = asyncio.Event(), []

    async def stubborn() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I do not care"
        return "never"

    def model(request: Request) -> object:
        asked.append(request)
        return call("stubborn")

    runner = agent(FunctionLLM(model), [stubborn])  # type: ignore[arg-type]
    task = asyncio.create_task(runner.run("go", run_id="r"))
    await reached.wait()
    runner.cancel("r")
    result = await task
    assert (result.outcome, len(asked)) == (Outcome.CANCELLED, 1)
    assert not faults(result.messages)


async def test_other_runs_of_the_agent_are_not_touched() -> None:
    gates: dict[str, asyncio.Event] = {}
    reached = asyncio.Barrier(3)

    async def wait(name: str) -> str:
        gates[name] = asyncio.Event()
        await reached.wait()
        await gates[name].wait()
        return name

    def model(request: Request) -> object:
        last = request.messages[-1]
        return call("wait", name=last.text) if last.role == "user" else last.text

    runner = agent(FunctionLLM(model), [wait])  # type: ignore[arg-type]
    tasks = {name: asyncio.create_task(runner.run(name, run_id=name)) for name in ("a", "b")}
    await reached.wait()
    runner.cancel("a")
    assert (await tasks["a"]).outcome is Outcome.CANCELLED
    gates["b"].set()
    assert (await tasks["b"]).output == "b"


async def test_a_process_that_goes_down_can_say_so_and_nothing_else_is_taken_for_a_reason() -> None:
    reached = asyncio.Event()

    async def hang(request: Request) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    runner = agent(FunctionLLM(hang))
    task = asyncio.create_task(runner.run("go", run_id="r"))
    await reached.wait()

    with pytest.raises(ConfigError, match="unknown reason 'tired'; allowed: caller, shutdown"):
        runner.cancel("r", reason="tired")
    runner.cancel("r", reason="shutdown")

    result = await task
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "shutdown")
