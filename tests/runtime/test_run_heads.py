"""The head of a run in a listing: the numbers that the limits count, and what a parked run waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal, Response, Usage, tool
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import RunHead
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.testing import ScriptedLLM

Store = MemoryJournal | SqliteJournal


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that the tests close in their own event loop."""
    return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")


def said(*calls: Any, text: str | None = None, tokens: int = 10, cost: float | None = 0.5) -> Response:
    return Response(text, calls, usage=Usage(tokens, 1, cost=cost))


def assert_counted(head: RunHead, result: Result) -> None:
    usage = result.usage
    assert (head.tokens, head.cost_micros) == (usage.input_tokens + usage.output_tokens, usage.cost_micros)


async def test_tokens_and_cost_are_those_of_the_result_with_child_runs(journal: Store) -> None:
    child = Agent(ScriptedLLM([said(text="found", tokens=400)]), observers=(), name="search")
    model = ScriptedLLM([said(call("search", task="x")), said(text="done", tokens=30)])
    one = Agent(
        model, tools=[child.as_tool("search", "Search.")], journal=journal, observers=(), name="support"
    )
    result = await one.run("go", run_id="r", tags={"team": "ops"})
    [head] = [head async for head in journal.runs(agent="support", tags={"team": "ops"}, parent_run_id=None)]
    assert_counted(head, result)
    assert head.tokens == 443
    [below] = [head async for head in journal.runs(parent_run_id="r")]
    assert (below.agent, below.tokens, below.outcome) == ("search", 401, "completed")
    assert (head.status, head.outcome, head.state) == ("ended", "completed", "finalize")
    assert head.state_since is not None
    assert head.created_at <= head.state_since <= head.updated_at
    await journal.close()


async def test_an_answer_that_was_lost_is_in_the_tokens_as_it_is_in_the_budgets(journal: Store) -> None:
    crashing = CrashingJournal(journal, at=2)
    model = ScriptedLLM([said(text="lost", tokens=50)])
    with pytest.raises(Exception, match="crashed on purpose"):
        (await Agent(model, journal=crashing, observers=()).run("go", run_id="r")).raise_for_outcome()
    if isinstance(journal, MemoryJournal):
        journal.retire("r")
    else:
        await journal.reopen()
    one = Agent(ScriptedLLM([said(text="done", tokens=7)]), journal=journal, observers=())
    result = await one.resume("r")
    assert result.usage.estimated_input_tokens > 0
    assert_counted(await journal.head("r"), result)
    await journal.close()


async def test_a_run_that_waits_for_a_person_names_the_tools(journal: Store) -> None:
    @tool(effect="irreversible", approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return str(amount)

    model = ScriptedLLM([said(call("pay", amount=1), call("pay", amount=2)), said(text="done")])
    one = Agent(model, tools=[pay], journal=journal, observers=())
    going = asyncio.create_task(one.run("go", run_id="r"))
    while not [head async for head in journal.runs(waiting=True)]:  # noqa: ASYNC110  the journal has no event
        await asyncio.sleep(0.01)
    [head] = [head async for head in journal.runs(waiting="pay", state="process_tools")]
    assert (head.status, head.reason, head.waiting) == ("parked", "approval", "pay")
    for question in await one.pending("r"):
        one.approve("r", question.key, by="ann")
    result = await going
    assert [head async for head in journal.runs(waiting=True)] == []
    assert_counted(await journal.head("r"), result)
    await journal.close()
