"""A run belongs to the agent that started it: no other agent resumes it unless the caller transfers it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from orchestrator import Agent, LocalEngine, MemoryJournal
from orchestrator.errors import ConfigError, OtherAgent, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.run_event import RunSuspended
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.service.recovery import OpenRun
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT, until

NAMES = ("", "sales", "support")


class Till:
    """Agents that call their own tool `pay` once, and a count of its effects by agent."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()

    def agent(self, name: str, journal: Journal, **options: Any) -> Agent:
        @tool(effect=options.pop("effect", "pure"), approval=options.pop("approval", False))
        def pay() -> str:
            self.paid[name] += 1
            return "paid"

        def answer(request: Any) -> Any:
            return f"{name} is done" if request.messages[-1].role == "tool" else call("pay")

        options = {"observers": (), "retry": NO_WAIT, "name": name or None, **options}
        return Agent(FunctionLLM(answer), tools=[pay], journal=journal, **options)

    async def interrupted(self, name: str, **options: Any) -> MemoryJournal:
        """Return a journal with the run `r` of an agent whose process died before its tool call."""
        inner = MemoryJournal()
        result = await self.agent(name, CrashingJournal(inner, at=2), **options).run("go", run_id="r")
        assert isinstance(result.error, StoreDown)
        inner.bury((await inner.head("r")).owner or "")
        return inner


async def records(journal: MemoryJournal) -> list[Any]:
    return [(record.kind, record.body) for record in await journal.load("r")]


@pytest.mark.parametrize("here", NAMES)
@pytest.mark.parametrize("owner", NAMES)
async def test_only_the_agent_of_its_name_resumes_a_run(owner: str, here: str) -> None:
    till = Till()
    journal = await till.interrupted(owner)
    before = await records(journal)
    one = till.agent(here, journal)
    if owner == here:
        assert (await one.resume("r")).output == f"{owner} is done"
        assert till.paid == {owner: 1}
        return
    with pytest.raises(OtherAgent) as caught:
        await one.resume("r")
    assert (caught.value.owner, caught.value.here) == (owner, here)
    assert f"resume('r', from_agent={owner!r})" in str(caught.value)
    assert (await records(journal), till.paid) == (before, {})
    assert (await journal.head("r")).owner is None


async def test_the_caller_can_transfer_a_run_by_the_name_of_its_agent() -> None:
    till = Till()
    journal = await till.interrupted("sales")
    with pytest.raises(OtherAgent, match="belongs to agent 'sales', and this is agent 'support'"):
        await till.agent("support", journal).resume("r", from_agent="other")
    result = await till.agent("support", journal).resume("r", from_agent="sales", by="ann")
    assert (result.output, till.paid) == ("support is done", {"support": 1})
    resumed = next(record.body for record in await journal.load("r") if record.kind == "resumed")
    assert (resumed["by"], resumed["from_agent"], resumed["agent"]) == ("ann", "sales", "support")


async def test_the_runs_of_other_agents_are_listed_with_their_agent_and_not_resumed() -> None:
    till = Till()
    journal = await till.interrupted("sales")

    async def listed(name: str) -> OpenRun:
        (run,) = await till.agent(name, journal).hosting.open_runs()
        return run

    assert (await listed("sales")).unattended
    other = await listed("support")
    assert (other.agent, other.will, other.unattended) == (
        "sales",
        "nothing here: it belongs to agent 'sales'",
        False,
    )


@pytest.mark.parametrize("owner", ["sales", "support"])
async def test_an_engine_resumes_each_orphaned_run_with_its_own_agent(owner: str) -> None:
    till = Till()
    journal = await till.interrupted(owner)
    agents = {name: till.agent(name, journal) for name in ("sales", "support")}
    async with LocalEngine(agents, recover="resume"):
        await until(lambda: till.paid[owner] == 1)
    assert till.paid == {owner: 1}


async def test_an_engine_without_the_agent_of_a_run_leaves_the_run() -> None:
    till = Till()
    journal = await till.interrupted("sales")
    before = await records(journal)
    async with LocalEngine(till.agent("support", journal), recover="resume", rescan=0.01) as engine:
        assert engine.recovered == {}
        handle = await engine.submit("go", run_id="own")
        assert (await handle).output == "support is done"
        with pytest.raises(OtherAgent):
            await (await engine.resume("r", agent="agent"))
    assert (await records(journal), till.paid) == (before, {"support": 1})


async def test_an_engine_finds_the_agent_of_a_run_that_is_resumed_by_request() -> None:
    till = Till()
    journal = await till.interrupted("sales")
    agents = {name: till.agent(name, journal) for name in ("support", "sales")}
    async with LocalEngine(agents) as engine:
        assert (await (await engine.resume("r"))).output == "sales is done"


def test_an_engine_refuses_two_agents_that_it_cannot_tell_apart() -> None:
    till, journal = Till(), MemoryJournal()
    for name, said in (("", "have no name"), ("sales", "are named 'sales'")):
        agents = {"a": till.agent(name, journal), "b": till.agent(name, journal)}
        with pytest.raises(ConfigError, match=said):
            LocalEngine(agents)


async def question_of(name: str) -> str:
    """Return the digest of the question about `pay` that an agent of this name asks in the run `r`."""
    one = Till().agent(name, MemoryJournal(), approval=True, effect="irreversible")
    stream = one.stream("go", run_id="r")
    async for fact in stream:
        if isinstance(fact, RunSuspended):
            break
    (asked,) = await one.pending("r")
    await stream.aclose()
    return asked.digest


async def test_an_approval_for_the_tool_of_one_agent_does_not_count_for_another() -> None:
    assert await question_of("sales") == await question_of("sales")
    assert await question_of("sales") != await question_of("support")
