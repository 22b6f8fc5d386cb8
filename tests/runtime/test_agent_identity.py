"""Agents that share a journal have names or versions of their own: in one process, and across processes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, LocalEngine, MemoryJournal
from orchestrator.engines.served_agent import DurableAgent
from orchestrator.errors import ConfigError, OtherAgent, RunError, StoreDown
from orchestrator.events import QuestionAsked, RunFinished
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.kernel.journal import Journal
from orchestrator.pipeline import Pipeline
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.runtime.service.ownership import OtherDefinition
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import ToolSpec, tool
from tests.runtime.pipeline_stage import Stages
from tests.runtime.ralph_stage import World
from tests.runtime.stage import NO_WAIT


def paying(**options: Any) -> ToolSpec:
    @tool(name="pay", **{"effect": "pure", **options})
    def pay(amount: int = 1) -> str:
        return "paid"

    return pay


@tool(effect="pure")
def search(query: str) -> str:
    """Search."""
    return "found"


def answer(request: Any) -> Any:
    return "done" if request.messages[-1].role == "tool" else call("pay")


def agent(journal: Journal | None, *tools: ToolSpec, **options: Any) -> Agent:
    return Agent(FunctionLLM(answer), tools=tools, journal=journal, observers=(), retry=NO_WAIT, **options)


async def interrupted(*tools: ToolSpec, at: int = 2, **options: Any) -> MemoryJournal:
    """Return a journal with the run `r` of an agent whose process died."""
    inner = MemoryJournal()
    result = await agent(CrashingJournal(inner, at=at), *tools, **options).run("go", run_id="r")
    assert isinstance(result.error, StoreDown)
    inner.bury((await inner.head("r")).owner or "")
    return inner


# ---- in one process ----

DIFFERENT: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]], str]] = {
    "tools": (
        lambda: {"tools": [paying()]},
        lambda: {"tools": [search]},
        "'search' is new, 'pay' is missing",
    ),
    "schema": (
        lambda: {"tools": [ToolSpec("pay", "", {"type": "object"}, lambda: "")]},
        lambda: {"tools": [ToolSpec("pay", "", {"type": "object", "title": "Pay"}, lambda: "")]},
        "'pay' changed",
    ),
    "effect": (
        lambda: {"tools": [paying()]},
        lambda: {"tools": [paying(effect="irreversible")]},
        "'pay' changed",
    ),
    "approval": (lambda: {"tools": [paying()]}, lambda: {"tools": [paying(approval=True)]}, "'pay' changed"),
    "instructions": (
        lambda: {"instructions": "Sell."},
        lambda: {"instructions": "Help."},
        "instructions differ",
    ),
    "output": (lambda: {"output_type": int}, lambda: {"output_type": bool}, "output types differ"),
}


def made(journal: Journal, options: dict[str, Any]) -> Agent:
    return Agent(FunctionLLM(answer), journal=journal, observers=(), **options)


@pytest.mark.parametrize("name", [None, "sales"])
@pytest.mark.parametrize("what", DIFFERENT)
def test_two_different_agents_of_one_name_on_one_journal_are_refused(what: str, name: str | None) -> None:
    first, second, changes = DIFFERENT[what]
    journal = MemoryJournal()
    one = made(journal, {"name": name, **first()})
    named = "are named 'sales'" if name else "have no name"
    with pytest.raises(ConfigError) as caught:
        made(journal, {"name": name, **second()})
    assert str(caught.value) == (
        f"two agents of graph 'llm_loop' on one journal {named}, but they are not the same ({changes}): "
        "give each its own `name=`, or the new one another `version=`"
    )
    for options in ({"name": "other"}, {"name": name, "version": "2"}):
        made(journal, {**options, **second()})
    made(MemoryJournal(), {"name": name, **second()})
    assert one.name == (name or "")


def test_equal_agents_are_the_same_agent_whatever_their_models() -> None:
    journal = MemoryJournal()
    agents = [
        Agent(FunctionLLM(answer, model=model), tools=[paying()], journal=journal, observers=())
        for model in ("a", "b")
    ]
    assert [one.identity for one in agents] == [agents[0].identity] * 2


def test_agents_without_a_journal_share_none() -> None:
    assert agent(None, paying()).identity != agent(None, search).identity


def test_an_agent_that_is_not_used_any_more_frees_its_name() -> None:
    journal = MemoryJournal()
    agent(journal, paying())
    assert agent(journal, search).identity.definition is not None


def test_a_variant_and_the_parts_of_an_agent_belong_to_it() -> None:
    journal = MemoryJournal()
    one = agent(journal, paying())
    assert one.replace(tools=[search]).identity.definition != one.identity.definition
    assert one.replace(tools=[search], name="b").identity.name == "b"
    gc.collect()
    agent(journal, paying())


async def test_a_child_agent_has_the_journal_of_its_parent_and_its_own_tools() -> None:
    journal = MemoryJournal()
    child = Agent(FunctionLLM(answer), tools=[paying()], observers=())
    llm = FunctionLLM(
        lambda request: "done" if request.messages[-1].role == "tool" else call("ask", task="x")
    )
    one = Agent(llm, tools=[child.as_tool("ask", "Ask.")], journal=journal, observers=())
    assert (await one.run("go", run_id="p")).output == "done"
    assert [head.run_id async for head in journal.runs()] == ["p", "p:1:0"]


def test_machines_are_told_apart_by_their_graphs() -> None:
    journal = MemoryJournal()
    agents: list[Any] = [agent(journal, paying()), Rlm(FunctionLLM(answer), journal=journal, observers=())]
    agents.append(Pipeline(*[lambda request: "x"] * 4, journal=journal, observers=()))
    assert len({one.identity.graph for one in agents}) == 3


@pytest.mark.parametrize("name", ["two words", "x" * 300, "", "-a", "a\nb", 3])
@pytest.mark.parametrize("what", ["name", "version"])
def test_a_name_that_no_label_or_command_line_could_take_is_one_sentence(what: str, name: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{what} is .*; give 1 to 100 letters, digits and any of _ . : \+ -, "
    ):
        agent(None, **{what: name})


# ---- across processes ----


async def test_an_agent_of_this_name_with_other_tools_does_not_resume_the_run() -> None:
    journal = await interrupted(paying(), name="sales")
    before = [record[:4] for record in await journal.load("r")]
    other = agent(journal, paying(effect="idempotent"), search, name="sales")
    with pytest.raises(OtherDefinition) as caught:
        await other.resume("r")
    assert str(caught.value) == (
        "run 'r' belongs to agent 'sales' with other tools ('pay' changed, 'search' is new): give this agent a "
        "`version=` of its own to continue the runs of the other one, or another `name=`, or transfer the run with "
        "resume('r', from_agent='sales')"
    )
    assert isinstance(caught.value, OtherAgent)
    (listed,) = await other.hosting.open_runs()
    assert (listed.unattended, listed.foreign) == (False, True)
    assert listed.will.startswith("nothing here: its agent has other tools ('pay' changed, 'search' is new)")
    assert ([record[:4] for record in await journal.load("r")], (await journal.head("r")).owner) == (
        before,
        None,
    )


@pytest.mark.parametrize("name", ["", "sales"])
async def test_an_agent_of_this_name_with_other_tools_starts_no_run_while_one_is_open(name: str) -> None:
    journal = await interrupted(paying(), name=name or None)
    other = agent(journal, search, name=name or None)
    who = "agent 'sales'" if name else "an agent without a name"
    with pytest.raises(ConfigError) as caught:
        await other.run("go", run_id="s")
    assert str(caught.value) == (
        f"{who} has other tools ('search' is new, 'pay' is missing) than the agent of this name that started run 'r', "
        "which has not ended: give it a `version=` of its own, or another `name=`"
    )
    assert [head.run_id async for head in journal.runs()] == ["r"]
    with pytest.raises(ConfigError, match="has other tools"):
        await LocalEngine(other).start()
    result = await agent(journal, paying(), name=name or None, version="0").run("go", run_id="t")
    assert result.output == "done"


async def test_another_version_continues_the_run_and_ended_runs_count_no_more() -> None:
    journal = await interrupted(paying(), name="sales")
    newer = agent(journal, paying(), search, name="sales", version="2")
    assert (await newer.resume("r")).output == "done"
    resumed = next(record.body for record in await journal.load("r") if record.kind == "resumed")
    assert (resumed["agent"], resumed["agent_version"]) == ("sales", "2")
    assert resumed["definition"] == newer.identity.definition
    assert (await journal.head("r")).agent_version == "2"
    third = agent(journal, search, name="sales", version="3")
    assert (await third.run("go")).outcome


async def test_runs_without_a_definition_and_deposited_runs_have_no_tools_to_compare() -> None:
    journal = MemoryJournal()
    await agent(journal, name="sales", version="1").deposit("go", run_id="r")
    assert (await agent(journal, paying(), name="sales").resume("r")).output == "done"


async def test_a_transfer_moves_the_run_to_the_new_agent_in_records_and_listings() -> None:
    journal = await interrupted(paying(), name="sales", version="7", at=2)
    support = agent(CrashingJournal(journal, at=2), paying(effect="idempotent"), name="support")
    result = await support.resume("r", from_agent="sales", by="ann")
    assert isinstance(result.error, StoreDown)
    journal.bury((await journal.head("r")).owner or "")
    resumed = next(record.body for record in await journal.load("r") if record.kind == "resumed")
    assert [resumed[key] for key in ("by", "from_agent", "agent", "agent_version")] == [
        "ann",
        "sales",
        "support",
        "",
    ]
    head = await journal.head("r")
    assert (head.agent, head.agent_version) == ("support", "")
    assert [one.run_id async for one in journal.runs(agent="support")] == ["r"]
    assert [one.run_id async for one in journal.runs(agent="sales")] == []
    with pytest.raises(OtherAgent, match="belongs to agent 'support', and this is agent 'sales'"):
        await agent(journal, paying(), name="sales", version="8").resume("r")
    assert (await agent(journal, paying(effect="idempotent"), name="support").resume("r")).output == "done"


# ---- runs that have ended ----


def weather_and_books(journal: Journal) -> tuple[Agent, Agent]:
    """Return two agents of one journal."""
    books = Agent(FunctionLLM(lambda _: "the books are closed"), name="books", journal=journal, observers=())
    weather = Agent(FunctionLLM(lambda _: "rain"), name="weather", journal=journal, observers=())
    return weather, books


async def test_the_result_of_an_ended_run_belongs_to_its_agent() -> None:
    weather, books = weather_and_books(MemoryJournal())
    await books.run("go", run_id="A1")
    with pytest.raises(OtherAgent, match="run 'A1' belongs to agent 'books', and this is agent 'weather'"):
        await weather.resume("A1")
    with pytest.raises(OtherAgent):
        await weather.resume("A1", from_agent="sales")
    assert (await weather.resume("A1", from_agent="books")).output == "the books are closed"
    assert (await books.resume("A1")).output == "the books are closed"
    assert (await weather.runs.result("A1")).output == "the books are closed"


async def test_the_stream_of_a_run_of_another_agent_has_no_event_of_it() -> None:
    journal = MemoryJournal()
    weather, books = weather_and_books(journal)
    await books.run("go", run_id="A1")
    with pytest.raises(OtherAgent):
        await anext(aiter(weather.stream_resume("A1")))
    stream = weather.stream_resume("A1", from_agent="books")
    assert [type(event) async for event in stream] == [RunFinished]
    assert (await stream.result()).output == "the books are closed"


async def test_an_engine_returns_the_result_of_an_ended_run_from_its_agent_only() -> None:
    journal = MemoryJournal()
    weather, books = weather_and_books(journal)
    await books.run("go", run_id="A1")
    async with LocalEngine({"weather": weather, "books": books}) as engine:
        assert (await (await engine.resume("A1"))).output == "the books are closed"
        with pytest.raises(OtherAgent):
            await (await engine.resume("A1", agent="weather"))
    async with LocalEngine(weather) as engine:
        with pytest.raises(OtherAgent):
            await (await engine.resume("A1"))


async def test_an_engine_gives_no_handle_for_an_active_run_of_another_agent() -> None:
    journal, asked, may_answer = MemoryJournal(), asyncio.Event(), asyncio.Event()

    async def model(_: Any) -> str:
        asked.set()
        await may_answer.wait()
        return "the books are closed"

    weather, _ = weather_and_books(journal)
    books = Agent(FunctionLLM(model), name="ledger", journal=journal, observers=())
    async with LocalEngine({"weather": weather, "books": books}) as engine:
        handle = await engine.submit("go", agent="books", run_id="A1")
        await asked.wait()
        with pytest.raises(OtherAgent, match="belongs to agent 'ledger', and this is agent 'weather'"):
            await engine.resume("A1", agent="weather")
        may_answer.set()
        assert (await handle).output == "the books are closed"


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
async def test_an_agent_that_is_served_as_a_tool_refuses_the_run_of_another_agent(ended: bool) -> None:
    journal = MemoryJournal()
    weather, _ = weather_and_books(journal)
    pay = paying(effect="irreversible", approval=not ended)
    books = agent(journal, pay, name="ledger")
    served = {one.name: DurableAgent(one, one.name, "") for one in (weather, books)}

    async def progress(_: str) -> None:
        raise AssertionError("the client reads what another agent does")

    run_id = await served["ledger"].start("go")
    await until_settled(books, run_id)
    with pytest.raises(OtherAgent):
        await served["weather"].wait(run_id, progress)
    with pytest.raises(OtherAgent):
        await served["weather"].answer(run_id, "call_1_0", accept=True, content={"decision": "approve"})
    assert len(await books.pending(run_id)) == (not ended)
    for one in served.values():
        await one.stop()


async def test_every_facade_refuses_the_ended_run_of_another_agent(tmp_path: Path) -> None:
    stages, world = Stages(), World(tmp_path)
    ports = stages.planner, stages.validator, stages.implementer, stages.judge

    def llm() -> ScriptedLLM:
        return ScriptedLLM(["FINAL(done)"] * 9)

    makes: list[Callable[[str], Any]] = [
        lambda name: Pipeline(*ports, name=name, journal=journal, observers=()),
        lambda name: Rlm(llm(), name=name, journal=journal, observers=()),
        lambda name: Ralph(
            world, world, world, root=world.root, name=name, journal=journal, observers=(), retry=NO_WAIT
        ),
    ]
    journal = MemoryJournal()
    for number, make in enumerate(makes):
        run_id = f"r{number}"
        await make("one").run("go", run_id=run_id)
        with pytest.raises(OtherAgent):
            await make("two").resume(run_id)
        assert (await make("two").resume(run_id, from_agent="one")).run_id == run_id
        with pytest.raises(RunError, match=r"belongs to graph '\w+', not to 'llm_loop'"):
            await agent(journal, name="one").resume(run_id)


async def until_settled(owner: Agent, run_id: str) -> None:
    """Wait until a run has ended or waits for a person."""
    async for event in owner.runs.events(run_id, follow=True):
        if isinstance(event, QuestionAsked):
            return
