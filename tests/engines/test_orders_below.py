"""Orders about tools and models stand for the whole tree of runs below an engine's agents."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.run_queue import Phase
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Posted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, ToolCall
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import agent_tool
from orchestrator.tools.spec import tool
from tests.engines.stage import until
from tests.runtime.stage import NO_WAIT

SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
OFF = "not run: the tool danger is switched off by ann: it bites; go on without it"


class Mine:
    """An agent at the bottom of a tree: its model calls `danger` once it is let, then tells what it read."""

    def __init__(self, *, approval: bool = False, **options: Any) -> None:
        self.effects: Counter[str] = Counter()
        self.asked = 0
        self.may = asyncio.Event()

        @tool(effect="irreversible", approval=approval)
        async def danger() -> str:
            self.effects["danger"] += 1
            return "boom"

        llm = FunctionLLM(self._model, model="deep")
        self.agent = Agent(llm, tools=[danger], **SILENT, **options)

    async def _model(self, request: Request) -> Answer:
        self.asked += 1
        await self.may.wait()
        last = request.messages[-1]
        return f"read {last.text}" if last.role == "tool" else call("danger")


def above(child: Agent | Callable[[], Agent], **options: Any) -> Agent:
    """An agent that calls `child` (as `dig`), then tells what it read."""

    def model(request: Request) -> Answer:
        last = request.messages[-1]
        return f"read {last.text}" if last.role == "tool" else call("dig", task="dig")

    tools = [agent_tool(child, "dig", "Dig.")]
    return Agent(FunctionLLM(model, model="top"), tools=tools, **SILENT, **options)


def tree(mine: Mine, deep: int) -> tuple[Agent, str]:
    """An agent so many runs above the bottom; and what to add to its run's id for the id of the run there."""
    found = mine.agent
    for _ in range(deep):
        found = above(found)
    return found, ":1:0" * deep


async def outcomes(agent: Agent, run_id: str) -> list[str]:
    """How the tool calls of a run came out, as the journal has it."""
    return [
        record.body["outcome"]
        for record in await agent._service.journal.load(run_id)
        if record.kind == "done"
    ]


async def end_of(agent: Agent, run_id: str) -> str:
    """How a run ended, as the journal has it."""
    last = (await agent._service.journal.load(run_id))[-1]
    assert last.kind == "ended"
    return str(last.body["outcome"])


BELOW = pytest.mark.parametrize("deep", [1, 2], ids=["child", "grandchild"])


@BELOW
async def test_a_tool_that_was_disabled_before_the_run_began_does_not_run_below_it(deep: int) -> None:
    mine = Mine()
    mine.may.set()
    runner, path = tree(mine, deep)
    async with LocalEngine(runner) as engine:
        await engine.control("disable_tool", tool="danger", by="ann", why="it bites")
        result = await (await engine.submit("go", run_id="r"))
        assert (result.outcome, mine.effects) == (Outcome.COMPLETED, {})
        assert OFF in result.output
        assert await outcomes(runner, f"r{path}") == ["denied"]
        await engine.control("enable_tool", tool="danger", by="ann")
        assert "boom" in (await (await engine.submit("go", run_id="s"))).output
        assert await outcomes(runner, f"s{path}") == ["ok"]
    assert mine.effects == {"danger": 1}


@BELOW
async def test_a_tool_that_is_disabled_while_the_run_below_is_under_way_does_not_run(deep: int) -> None:
    mine = Mine()
    runner, path = tree(mine, deep)
    async with LocalEngine(runner) as engine:
        handle = await engine.submit("go", run_id="r")
        await until(lambda: mine.asked == 1)
        order = Posted("7", "disable_tool", {"tool": "danger", "why": "it bites"}, "ann", number=7)
        await engine._commands.take(order)  # as from another process
        mine.may.set()
        assert OFF in (await handle).output
        assert await outcomes(runner, f"r{path}") == ["denied"]
    assert mine.effects == {}


@BELOW
async def test_a_tool_that_is_enabled_again_in_time_runs_below(deep: int) -> None:
    mine = Mine()
    runner, _ = tree(mine, deep)
    async with LocalEngine(runner) as engine:
        await engine.control("disable_tool", tool="danger", by="ann")
        handle = await engine.submit("go")
        await until(lambda: mine.asked == 1)
        await engine.control("enable_tool", tool="danger", by="ann")
        mine.may.set()
        assert "boom" in (await handle).output
    assert mine.effects == {"danger": 1}


async def test_a_call_below_that_was_approved_after_its_tool_was_disabled_does_not_run() -> None:
    mine = Mine(approval=True)
    mine.may.set()
    runner, path = tree(mine, 1)
    async with LocalEngine(runner) as engine:
        handle = await engine.submit("go", run_id="r")
        await until(lambda: "danger" in asked_in(runner, f"r{path}"))
        await engine.control("disable_tool", tool="danger", by="ann", why="it bites")
        await runner.approve(f"r{path}", by="ben")
        assert OFF in (await handle).output
    assert mine.effects == {}


def asked_in(runner: Agent, run_id: str) -> list[str]:
    """Tools of the calls that people are asked about in a run under way."""
    run = runner._service.live.find(run_id)
    return [] if run is None else [question.tool for question in run.ctx.ledger.asked.values()]


@BELOW
async def test_a_run_below_waits_for_its_blocked_model_and_goes_on_when_it_is_unblocked(deep: int) -> None:
    mine = Mine()
    runner, path = tree(mine, deep)
    async with LocalEngine(runner) as engine:
        handle = await engine.submit("go", run_id="r")
        await until(lambda: mine.asked == 1)
        await engine.control("block_model", model="deep", by="ann", why="too dear")
        mine.may.set()
        await until(lambda: bool(engine._active_commands._waiting))
        parked = (await runner._service.journal.load(f"r{path}"))[-1]
        assert parked.kind == "parked"
        assert {name: parked.body[name] for name in ("reason", "model", "by", "why")} == {
            "reason": "waiting",
            "model": "deep",
            "by": "ann",
            "why": "too dear",
        }
        assert (mine.asked, mine.effects) == (1, {"danger": 1}), "what it asked for was still done"
        await engine.control("unblock_model", model="deep", by="ann")
        assert "boom" in (await handle).output
        assert not engine._active_commands._waiting
    assert (mine.asked, mine.effects) == (2, {"danger": 1})


@BELOW
async def test_a_model_that_was_blocked_before_the_run_began_is_not_asked_below_it(deep: int) -> None:
    mine = Mine()
    mine.may.set()
    runner, _ = tree(mine, deep)
    async with LocalEngine(runner) as engine:
        await engine.control("block_model", model="deep", by="ann")
        handle = await engine.submit("go")
        await until(lambda: bool(engine._active_commands._waiting))
        assert (mine.asked, mine.effects, handle.phase) == (0, {}, Phase.RUNNING)
        await engine.control("unblock_model", model="deep", by="ann")
        assert (await handle).outcome is Outcome.COMPLETED
    assert mine.effects == {"danger": 1}


async def test_a_run_below_that_waits_for_its_model_is_cancelled_with_the_others() -> None:
    mine = Mine()
    runner, path = tree(mine, 2)
    async with LocalEngine(runner) as engine:
        await engine.control("block_model", model="deep", by="ann")
        handle = await engine.submit("go", run_id="r")
        await until(lambda: bool(engine._active_commands._waiting))
        await engine.control("cancel_all", by="ann", why="enough")
        assert (await handle).outcome is Outcome.CANCELLED
        assert [await end_of(runner, run_id) for run_id in ("r", "r:1:0", f"r{path}")] == ["cancelled"] * 3
        assert not engine._active_commands._waiting
    assert (mine.asked, mine.effects) == (0, {})


async def test_all_runs_are_cancelled_with_what_is_under_way_below_them() -> None:
    mine = Mine()
    runner, path = tree(mine, 2)
    async with LocalEngine(runner) as engine:
        handle = await engine.submit("go", run_id="r")
        await until(lambda: mine.asked == 1)
        await engine.control("cancel_all", by="ann", why="enough")
        assert (await handle).outcome is Outcome.CANCELLED
        assert [await end_of(runner, run_id) for run_id in ("r", "r:1:0", f"r{path}")] == ["cancelled"] * 3
    assert mine.effects == {}


async def test_orders_reach_a_tree_that_was_under_way_before_there_was_an_engine() -> None:
    mine = Mine()
    runner, path = tree(mine, 2)
    running = asyncio.create_task(runner.run("go", run_id="r"))
    await until(lambda: mine.asked == 1)
    async with LocalEngine(runner) as engine:
        await engine.control("disable_tool", tool="danger", by="ann", why="it bites")
        mine.may.set()
        assert OFF in (await running).output
    assert await outcomes(runner, f"r{path}") == ["denied"]
    assert "boom" in (await runner.run("go")).output, "with the engine its orders are gone"
    assert mine.effects == {"danger": 1}


async def test_a_resumed_tree_obeys_the_orders_of_the_engine_that_took_it_up() -> None:
    mine = Mine()
    runner, path = tree(mine, 2)
    running = asyncio.create_task(runner.run("go", run_id="r"))
    await until(lambda: mine.asked == 1)
    running.cancel()
    await asyncio.wait((running,))
    async with LocalEngine(runner) as engine:
        await engine.control("disable_tool", tool="danger", by="ann", why="it bites")
        mine.may.set()
        assert OFF in (await (await engine.resume("r"))).output
    assert await outcomes(runner, f"r{path}") == ["denied"]
    assert mine.effects == {}


async def test_a_run_below_obeys_the_host_of_the_run_at_the_top_and_no_other() -> None:
    mine, journal = Mine(), MemoryJournal()
    mine.may.set()
    top = above(mine.agent, journal=journal)
    async with LocalEngine(top) as one, LocalEngine(mine.agent) as other:
        await other.control("disable_tool", tool="danger", by="ann", why="it bites")
        await other.control("block_model", model="deep", by="ann")
        async with asyncio.timeout(20):
            assert "boom" in (await (await one.submit("go"))).output
        await one.control("disable_tool", tool="danger", by="ann", why="it bites")
        assert OFF in (await (await one.submit("go"))).output
    assert mine.effects == {"danger": 1}


async def test_an_agents_own_middleware_is_asked_below_as_well_after_the_host() -> None:
    class Witness:
        def __init__(self) -> None:
            self.seen: list[str] = []

        async def before_tool_execution(self, run: Any, made: ToolCall) -> None:
            del run
            self.seen.append(made.name)

    witness = Witness()
    mine = Mine(hooks=[witness])
    mine.may.set()
    runner, _ = tree(mine, 1)
    async with LocalEngine(runner) as engine:
        await (await engine.submit("go"))
        assert witness.seen == ["danger"]
        await engine.control("disable_tool", tool="danger", by="ann")
        await (await engine.submit("go"))
    assert witness.seen == ["danger"], "a refused call is nobody else's concern"


# ---- what an order may name ----


async def test_an_order_may_name_what_only_a_run_far_below_has() -> None:
    runner, _ = tree(Mine(), 3)
    async with LocalEngine(runner) as engine:
        with pytest.raises(ConfigError, match=r"has no tool 'dager'; it has: danger, dig$"):
            await engine.control("disable_tool", tool="dager", by="ann")
        with pytest.raises(ConfigError, match=r"has no model 'sonet'; it has: deep, top$"):
            await engine.control("block_model", model="sonet", by="ann")
        await engine.control("disable_tool", tool="danger", by="ann")
        await engine.control("block_model", model="deep", by="ann")
        status = engine.status()
    assert [order["about"] for order in (*status["disabled"], *status["blocked"])] == ["danger", "deep"]


async def test_agents_that_functions_return_are_known_and_obey() -> None:
    mine = Mine()
    mine.may.set()
    async with LocalEngine(above(lambda: mine.agent)) as engine:
        await engine.control("disable_tool", tool="danger", by="ann", why="it bites")
        assert OFF in (await (await engine.submit("go"))).output
    assert mine.effects == {}


def endless() -> Agent:
    """An agent above an agent, and so on: each call makes another one, by another function."""
    return above(lambda: endless())  # noqa: PLW0108 - another function each time is the point


def missing() -> Agent:
    raise LookupError("no such agent")


@pytest.mark.parametrize("child", [endless, missing], ids=["endless", "missing"])
async def test_functions_that_never_come_to_an_end_or_fail_are_no_obstacle_to_an_order(
    child: Callable[[], Agent],
) -> None:
    async with LocalEngine(above(child)) as engine:
        await engine.control("disable_tool", tool="dig", by="ann")
        with pytest.raises(ConfigError, match=r"has no tool 'danger'; it has: dig$"):
            await engine.control("disable_tool", tool="danger", by="ann")
        assert len(engine.status()["disabled"]) == 1


async def test_an_agent_that_calls_itself_is_known_once_and_obeys_at_every_depth() -> None:
    agents: list[Agent] = []
    effects: Counter[str] = Counter()

    @tool(effect="irreversible")
    async def danger() -> str:
        effects["danger"] += 1
        return "boom"

    def model(request: Request) -> Answer:
        if request.messages[-1].role == "tool":
            return "done"
        return [call("deeper", task="again"), call("danger")]

    deeper = agent_tool(lambda: agents[0], "deeper", "Ask yourself.", max_depth=3)
    agents.append(Agent(FunctionLLM(model, model="top"), tools=[deeper, danger], **SILENT))
    async with LocalEngine(agents[0]) as engine:
        assert len(agents[0].hosting.tree()) == 2, "as the one at the top, and as what the function returns"
        await engine.control("disable_tool", tool="danger", by="ann")
        result = await (await engine.submit("go"))
        assert (result.outcome, effects) == (Outcome.COMPLETED, {})
        await engine.control("enable_tool", tool="danger", by="ann")
        await (await engine.submit("go"))
    assert effects == {"danger": 4}, "one for each of the four runs"
