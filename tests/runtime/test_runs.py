"""The runs of a journal from the library: listed and read in any process, without the agents that started them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, Limits, LocalEngine, MemoryJournal, Response, Runs, RunUnknown, Usage, tool
from orchestrator.errors import AnswerRefused, ConfigError, RunError, RunOver
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import Fact, RunParked
from orchestrator.kernel.journal import Draft, write_records
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.testing import ScriptedLLM

Store = MemoryJournal | SqliteJournal


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that the tests close in their own event loop."""
    return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")


def said(*calls: Any, text: str | None = None, tokens: int = 10) -> Response:
    return Response(text, calls, usage=Usage(tokens, 1, cost=tokens / 100))


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


def support(journal: Store, *answers: Any, **options: Any) -> Agent:
    options = {"observers": (), "name": "support", "tools": [pay, look], **options}
    return Agent(ScriptedLLM(list(answers)), journal=journal, **options)


class Parking:
    """Is set when a run has parked."""

    def __init__(self) -> None:
        self.parked = asyncio.Event()

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, RunParked):
            self.parked.set()


async def leave(agent: Agent, parking: Parking, run_id: str, **options: Any) -> None:
    """Start a run, and stop its process when it waits for a person."""
    going = asyncio.create_task(agent.run("go", run_id=run_id, **options))
    await parking.parked.wait()
    going.cancel()
    await asyncio.wait((going,))


async def three_runs(journal: Store) -> None:
    """An expensive run of `support`, a cheap one of `sales`, and one of `support` that waits for a person."""
    one = support(journal, said(text="a", tokens=900))
    await one.run("go", run_id="dear", tags={"team": "ops", "vip": "yes"})
    two = support(journal, said(text="b", tokens=5), name="sales")
    await two.run("go", run_id="cheap", tags={"team": "sales"})
    parking = Parking()
    three = support(journal, said(call("pay", amount=1), tokens=50), observers=[parking])
    await leave(three, parking, "asks", tags={"team": "ops"})


async def listed(journal: Store, **conditions: Any) -> list[str]:
    return [head.run_id for head in await Runs(journal).list(**conditions)]


async def test_runs_are_listed_by_every_condition(journal: Store) -> None:
    await three_runs(journal)
    assert await listed(journal) == ["asks", "cheap", "dear"]
    assert await listed(journal, agent="support") == ["asks", "dear"]
    assert await listed(journal, machine="llm_loop", status="ended") == ["cheap", "dear"]
    assert await listed(journal, machine="pipeline") == []
    assert await listed(journal, tag={"team": "ops"}) == ["asks", "dear"]
    assert await listed(journal, tag={"team": "ops", "vip": "yes"}) == ["dear"]
    assert await listed(journal, state="finalize", outcome="completed", reason="none") == ["cheap", "dear"]
    assert await listed(journal, waiting=False) == ["cheap", "dear"]
    updated = (await journal.head("dear")).updated_at
    assert await listed(journal, older_than=updated) == []
    assert "dear" in await listed(journal, older_than=updated + 1e9)
    await journal.close()


async def test_the_greatest_number_is_the_first_and_pages_continue_after_a_run(journal: Store) -> None:
    await three_runs(journal)
    assert await listed(journal, order_by="age") == ["dear", "cheap", "asks"]
    for order in ("tokens", "cost"):
        assert await listed(journal, order_by=order) == ["dear", "asks", "cheap"]
        assert await listed(journal, order_by=order, limit=1, after="dear") == ["asks"]
    page = await Runs(journal).page(limit=2)
    assert ([head.run_id for head in page.runs], page.more, page.damage) == (["asks", "cheap"], True, "")
    page = await Runs(journal).page(limit=2, after="cheap")
    assert ([head.run_id for head in page.runs], page.more) == (["dear"], False)
    await journal.close()


async def test_the_history_of_a_machine_is_that_of_its_runs_together(journal: Store) -> None:
    await three_runs(journal)
    oldest, newest = await journal.head("dear"), await journal.head("asks")
    found = await Runs(journal).machine("llm_loop")
    assert (found.runs, found.unreadable) == (3, 0)
    assert (found.since, found.until) == (oldest.created_at, newest.updated_at)
    found = await Runs(journal).machine("llm_loop", limit=2)
    assert (found.runs, found.since) == (2, (await journal.head("cheap")).created_at)
    await journal.close()


async def test_runs_that_represent_engines_are_listed_on_request_and_fill_no_page(journal: Store) -> None:
    one = support(journal, said(text="a"))
    await one.run("go", run_id="first")
    for _ in range(3):
        engine = LocalEngine({"support": one})
        async with engine:
            pass
    assert await listed(journal, limit=1) == ["first"]
    assert not (await Runs(journal).page(limit=1)).more
    assert len((await Runs(journal).page(engines=True)).runs) == 4
    assert len(await listed(journal, machine="engine")) == 3
    await journal.close()


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"status": "closed"}, "unknown status 'closed'; known: open, parked, ended"),
        ({"order_by": "name"}, "order_by is 'name'; it must be one of newest, age"),
        ({"limit": 0}, "limit is 0; it must be 1 or more, or None for all"),
        ({"graph": "llm_loop"}, "unknown conditions graph; known: agent, machine"),
    ],
)
async def test_an_invalid_condition_is_refused_with_the_valid_ones(
    journal: Store, conditions: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await Runs(journal).list(**conditions)
    assert said.split("known:", maxsplit=1)[0] in str(caught.value)
    await journal.close()


def endings() -> dict[str, tuple[list[Any], Limits]]:
    return {
        "completed": ([said(call("look")), said(text="done")], Limits()),
        "limit": ([said(call("look")), said(call("look"))], Limits(max_iterations=1, wrap_up_turns=0)),
        "partial": ([said(call("look")), said(text="so far")], Limits(max_iterations=1)),
        "failed": ([ValueError("the model is down")], Limits()),
        "tokens": ([said(call("look"), tokens=500), said(text="x")], Limits(max_input_tokens=100)),
    }


@pytest.mark.parametrize("name", sorted(endings()))
async def test_the_result_is_the_one_that_the_run_returned(journal: Store, name: str) -> None:
    answers, limits = endings()[name]
    one = support(journal, *answers, limits=limits)
    returned = await one.run("go", run_id="r")
    before = await journal.load("r")
    for runs in (Runs(journal), one.runs):
        read = await runs.result("r")
        assert _comparable(read) == _comparable(returned)
        assert (type(read.error), str(read.error)) == (
            (type(returned.error), str(returned.error))
            if not isinstance(returned.error, ValueError)
            else (RunError, f"ValueError: {returned.error}")
        )
    assert await journal.load("r") == before
    await journal.close()


def _comparable(result: Result) -> tuple[Any, ...]:
    path = [(one.event, one.source, one.dest, one.iteration) for one in result.transitions]
    return (
        *(result.run_id, result.outcome, result.reason, result.output, result.messages),
        *(result.usage, path, result.verdict),
    )


async def test_a_run_that_has_not_ended_has_no_result_and_is_not_resumed(journal: Store) -> None:
    await three_runs(journal)
    before = await journal.load("asks")
    with pytest.raises(RunError, match=r"run 'asks' has no result yet: it is parked \(approval\)"):
        await Runs(journal).result("asks")
    with pytest.raises(RunUnknown):
        await Runs(journal).result("none")
    assert await journal.load("asks") == before
    await journal.close()


async def test_the_details_of_a_run_count_what_its_limits_count(journal: Store) -> None:
    child = support(journal, said(text="found", tokens=400), name="search")
    one = support(
        journal,
        said(call("search", task="x")),
        said(text="done", tokens=30),
        tools=[child.as_tool("search", "Search.")],
    )
    result = await one.run("go", run_id="r")
    found = await Runs(journal).get("r")
    assert found.usage == result.usage
    assert found.head.tokens == found.usage.input_tokens + found.usage.output_tokens == 443
    assert (found.ended, found.questions, found.unread) == (True, [], [])
    tree = await Runs(journal).children("r")
    assert [(one.head.agent, one.head.tokens) for one in tree.children] == [("search", 401)]
    await journal.close()


# ---- questions and requests ----


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda runs: runs.approve("r", by="ann"), "paid 1"),
        (lambda runs: runs.approve("r", arguments='{"amount": 7}'), "paid 7"),
        (lambda runs: runs.reject("r", why="too dear"), "too dear"),
        (lambda runs: runs.respond("r", "paid by hand"), "paid by hand"),
    ],
    ids=["approve", "edit", "reject", "respond"],
)
async def test_a_question_of_a_live_run_is_answered_from_its_agent(
    journal: Store, answer: Any, expected: str
) -> None:
    one = support(journal, said(call("pay", amount=1)), said(text="done"))
    going = asyncio.create_task(one.run("go", run_id="r"))
    while not await Runs(journal).list(waiting=True):  # noqa: ASYNC110 - the journal has no event
        await asyncio.sleep(0)
    [question] = await Runs(journal).pending("r")
    assert (question.key, question.tool) == ("1:0", "pay")
    posted, repeated = await answer(one.runs)
    assert (posted.body["call"], posted.body["digest"], repeated) == ("1:0", question.digest, False)
    assert await one.runs.pending("r") == []
    result = await going
    assert expected in next(one.text for one in result.messages if one.role == "tool")
    with pytest.raises(AnswerRefused):
        await one.runs.reject("r", by="bob")
    await journal.close()


async def test_the_same_answer_is_kept_once_and_another_one_is_refused(journal: Store) -> None:
    await three_runs(journal)
    runs = Runs(journal)
    first = await runs.approve("asks", by="ann")
    again = await runs.approve("asks", by="ann")
    assert (again.request.id, again.repeated) == (first.request.id, True)
    with pytest.raises(AnswerRefused, match="ann"):
        await runs.reject("asks", by="bob")
    assert [one.kind for one in await journal.inbox("asks")] == ["approve"]
    await journal.close()


async def test_a_request_for_a_live_run_is_carried_out_at_once(journal: Store) -> None:
    one = support(journal, said(call("pay", amount=1)))
    going = asyncio.create_task(one.run("go", run_id="r"))
    while not await Runs(journal).list(waiting=True):  # noqa: ASYNC110 - the journal has no event
        await asyncio.sleep(0)
    [request] = await one.runs.cancel("r", by="ann", why="not needed")
    assert request.posted is not None
    assert (request.posted.by, request.posted.body, request.repeated) == ("ann", {"why": "not needed"}, False)
    result = await going
    assert (result.outcome.value, result.reason) == ("cancelled", "caller")
    with pytest.raises(RunOver):
        await one.runs.cancel("r")
    await journal.close()


async def test_a_filter_is_shown_first_and_then_cancelled_without_the_ended_runs(journal: Store) -> None:
    await three_runs(journal)
    parking = Parking()
    other = support(journal, said(call("pay", amount=1)), name="sales", observers=[parking])
    await leave(other, parking, "other")
    runs = Runs(journal)
    shown = await runs.cancel(agent="support", preview=True)
    assert [(one.run.run_id, one.posted) for one in shown] == [("asks", None)]
    assert await journal.inbox("asks") == []
    done = await runs.cancel(agent="support", why="wrong price")
    assert [(one.run.run_id, one.repeated, one.refused) for one in done] == [("asks", False, "")]
    assert [one.repeated for one in await runs.cancel(waiting=True)] == [True, False]
    for run_id in ("asks", "other"):
        assert [one.kind for one in await journal.inbox(run_id)] == ["cancel"]
    await journal.close()


async def test_a_request_without_a_run_and_without_a_condition_is_refused(journal: Store) -> None:
    await three_runs(journal)
    runs = Runs(journal)
    for request in (runs.cancel, runs.pause, runs.request_resume):
        with pytest.raises(ConfigError, match="needs the id of a run, or at least one condition: agent"):
            await request()
        with pytest.raises(ConfigError, match="not both"):
            await request("asks", agent="support")
    assert await journal.inbox("asks") == []
    await journal.close()


async def test_a_paused_run_refuses_another_pause_and_continues_on_request(journal: Store) -> None:
    one = support(journal, said(call("look")), said(text="done"))
    lease = await journal.create("p", "x", {"schema": 1, "graph": "llm_loop", "at": 1.0, "context": {}})
    await write_records(journal, lease, Draft("parked", {"reason": "paused", "at": 2.0, "t": 0.0}))
    await journal.release(lease)
    with pytest.raises(RunError, match="run 'p' is paused already"):
        await one.runs.pause("p")
    [refused] = await one.runs.pause(machine="llm_loop")
    assert "paused already" in refused.refused
    [request] = await one.runs.request_resume("p", by="ann")
    assert request.posted is not None
    assert [(posted.kind, posted.by) for posted in await journal.inbox("p")] == [("resume", "ann")]
    await journal.close()
