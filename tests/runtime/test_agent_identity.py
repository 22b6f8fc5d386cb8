"""Agents that share a journal have names or versions of their own: in one process, and across processes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Agent, LocalEngine, MemoryJournal
from orchestrator.errors import ConfigError, OtherAgent, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.kernel.journal import Journal
from orchestrator.pipeline import Pipeline
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.rlm import Rlm
from orchestrator.runtime.service.agent_identity import OtherDefinition
from orchestrator.tools.spec import ToolSpec, tool
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
