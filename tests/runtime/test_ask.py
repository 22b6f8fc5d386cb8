"""`Agent(ask=…)` answers the questions of runs, child runs and resumed runs; `approve` takes the event of a stream."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, SqliteJournal, tool
from orchestrator.events import QuestionAsked
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.ask import UNANSWERED
from orchestrator.telemetry.notice import ParkNotice
from orchestrator.testing import ScriptedLLM, call
from tests.runtime.stage import until

paid: list[str] = []


@tool(approval=True)
def pay(to: str) -> str:
    """Pay."""
    paid.append(to)
    return f"paid {to}"


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


def shop(script: Any = None, **options: Any) -> Agent[Any, str]:
    script = script or [[call("pay", to="ann"), call("pay", to="bob")], "done"]
    return Agent(ScriptedLLM(script), tools=[pay], observers=options.pop("observers", ()), **options)


@pytest.mark.parametrize(
    ("answer", "results", "payments"),
    [
        (True, ["paid ann", "paid bob"], ["ann", "bob"]),
        (False, ["a person rejected this call"] * 2, []),
        ("paid by cheque", ["paid by cheque"] * 2, []),
    ],
)
async def test_a_function_answers_each_open_question(
    answer: Any, results: list[str], payments: list[str]
) -> None:
    asked: list[Question] = []

    async def ask(question: Question) -> Any:
        asked.append(question)
        return answer

    result = await asyncio.wait_for(shop(ask=ask).run("Pay."), 60)
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
    said = [message.text for message in result.messages if message.role == "tool"]
    assert all(part in text for part, text in zip(results, said, strict=True))
    assert sorted(paid) == payments
    assert sorted(one.arguments for one in asked) == ['{"to": "ann"}', '{"to": "bob"}']


async def test_it_is_called_again_for_a_question_that_a_resumed_run_finds_open(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    asked = asyncio.Event()

    async def never(_: Question) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return False

    running = asyncio.create_task(shop(ask=never, journal=journal).run("Pay.", run_id="r1"))
    await asyncio.wait_for(asked.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    async def yes(_: Question) -> bool:
        return True

    result = await asyncio.wait_for(shop(["done"], ask=yes, journal=journal).resume("r1"), 60)
    assert (result.output, sorted(paid)) == ("done", ["ann", "bob"])


async def test_questions_of_child_runs_are_asked_too() -> None:
    async def yes(question: Question) -> bool:
        return question.tool == "pay"

    below = shop([call("pay", to="ann"), "paid"], name="cashier")
    above = Agent(
        ScriptedLLM([call("cashier", task="Pay Ann."), "done"]),
        tools=[below.as_tool("cashier", "Pays.")],
        observers=(),
        ask=yes,
    )
    result = await asyncio.wait_for(above.run("Pay."), 60)
    assert (result.output, paid) == ("done", ["ann"])


async def test_an_answer_from_elsewhere_counts_and_none_leaves_the_question_open() -> None:
    async def later(_: Question) -> None:
        return None

    agent = shop([call("pay", to="ann"), "done"], ask=later)
    async with agent.stream("Pay.", run_id="r1") as stream:
        async for event in stream:
            if isinstance(event, QuestionAsked):
                await agent.approve(event, by="me")  # run, call and arguments are those of the event
        assert (await stream.result()).output == "done"
    assert paid == ["ann"]


async def test_an_exception_of_the_function_is_a_warning_and_leaves_the_question_open() -> None:
    async def breaks(_: Question) -> bool:
        raise KeyError("no terminal")

    agent = shop([call("pay", to="ann"), "done"], ask=breaks)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        running = asyncio.create_task(agent.run("Pay.", run_id="r1"))
        await until(lambda: len(warned) > 0)
    assert str(warned[0].message) == "breaks raised KeyError for a question about pay, which stays open"
    [question] = await agent.pending("r1")
    await agent.reject("r1", question.key, digest=question.digest, by="me")
    assert (await asyncio.wait_for(running, 60)).output == "done"


async def test_another_journal_does_not_ask_twice() -> None:
    asked: list[str] = []

    async def yes(question: Question) -> bool:
        asked.append(question.key)
        return True

    other = shop(ask=yes).replace(observers=()).replace(limits=None)
    await asyncio.wait_for(other.run("Pay."), 60)
    assert sorted(asked) == ["1:0", "1:1"]
    with pytest.raises(ConfigError, match="ask is"):
        shop(ask=lambda question: True)


async def approved(agent: Agent[Any, str], run_id: str = "r", waiting: str = "") -> list[str]:
    """Run and approve from this task; return what was said of it in warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        going = asyncio.create_task(agent.run("Pay.", run_id=run_id))
        waiting = waiting or run_id
        await until(lambda: agent._service.live.find(waiting) is not None)
        open_questions: list[Question] = []
        while not open_questions:
            await asyncio.sleep(0.001)
            open_questions = list(await agent.pending(waiting))
        for question in open_questions:
            agent.approve(waiting, question.key, by="ann")
        await asyncio.wait_for(going, 60)
    return [str(one.message) for one in told]


async def test_a_plain_run_that_waits_says_once_that_its_caller_gets_no_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = shop([call("pay", to="ann"), "done", call("pay", to="bob"), "done"])
    assert await approved(agent) == [f"a run waits for a person; {UNANSWERED}"]
    assert [one.getMessage() for one in caplog.records] == [f"run 'r' waits for a person; {UNANSWERED}"]
    assert await approved(agent, run_id="again") == []
    child = shop([call("pay", to="ann"), "paid"]).as_tool("shop", "Buy.")
    above: Agent[Any, str] = Agent(
        ScriptedLLM([call(child, task="Buy."), "done"]), tools=[child], observers=()
    )
    assert await approved(above, waiting="r:1:0") == [f"a run waits for a person; {UNANSWERED}"]
    assert caplog.records[-1].getMessage() == f"run 'r:1:0' waits for a person; {UNANSWERED}"


async def test_a_host_with_an_observer_of_parked_runs_gets_no_warning() -> None:
    assert await approved(shop(observers=[ParkNotice(lambda _: None)])) == []
