"""`run(wait="never")` returns when its run waits for a person; `resume(run_id, answers=…)` continues it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, MemoryJournal, SqliteJournal, tool
from orchestrator.errors import Suspended
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.contract import Role
from orchestrator.pipeline import Pipeline, PromptStage
from orchestrator.ralph import PromptAgent, Ralph
from orchestrator.testing import ScriptedLLM, call
from tests.runtime.pipeline_stage import Stages
from tests.runtime.ralph_stage import World
from tests.runtime.test_ralph_agent import script
from tests.runtime.test_ralph_people import ASKS, ONE

paid: list[str] = []


@tool(effect="irreversible", approval=True)
def pay(to: str) -> str:
    """Pay."""
    paid.append(to)
    return f"paid {to}"


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")


def shop(script: Any, journal: Any, tools: Any = (pay,), **options: Any) -> Any:
    return Agent(ScriptedLLM(script), tools=tools, journal=journal, observers=(), **options)


TWO: Any = [[call("pay", to="ann"), call("pay", to="bob")], "done"]


async def test_a_run_returns_its_questions_and_continues_with_answers(journal: Any) -> None:
    agent = shop(TWO, journal)
    left = await agent.run("Pay.", run_id="r1", wait="never")
    assert (left.waiting, left.run_id, left.reason, left.outcome) == (True, "r1", "approval", None)
    first, second = left.questions
    assert (first.tool, first.arguments, first.run_id, first.why) == (
        "pay",
        '{"to": "ann"}',
        "r1",
        "approval",
    )
    assert first.text == 'May pay be called with {"to": "ann"}?'
    assert json.loads(json.dumps(first.as_json()))["id"] == first.id
    assert (await journal.head("r1")).status == "parked"
    with pytest.raises(Suspended, match="r1"):
        left.raise_for_outcome()
    result = await agent.resume("r1", answers={first.id: True, second.id: "by cheque"}, by="me")
    assert (result.waiting, result.questions, result.output, paid) == (False, (), "done", ["ann"])


async def test_another_agent_continues_it_and_returns_again_at_the_next_question(journal: Any) -> None:
    script: Any = [call("pay", to="ann"), call("pay", to="bob"), "done"]
    left = await shop(script, journal, name="shop").run("Pay.", run_id="r1", wait="never")
    agent = shop(script[1:], journal, name="shop")
    again = await agent.resume("r1", wait="never")  # nobody has answered
    assert again.questions == left.questions == await agent.questions("r1")
    (one,) = left.questions
    left = await agent.resume("r1", answers={one.id: True}, wait="never")
    (other,) = left.questions
    assert (other.arguments, paid) == ('{"to": "bob"}', ["ann"])
    result = await agent.resume("r1", answers={other.id: False}, wait="never")
    assert (result.waiting, result.outcome, paid) == (False, Outcome.COMPLETED, ["ann"])


async def test_one_answer_of_several_leaves_the_others_open(journal: Any) -> None:
    agent = shop(TWO, journal)
    left = await agent.run("Pay.", run_id="r1", wait="never")
    still = await agent.resume("r1", answers={left.questions[0].id: True}, wait="never")
    assert [one.id for one in still.questions] == [left.questions[1].id]
    assert (await agent.resume("r1", answers={left.questions[1].id: True})).output == "done"
    assert sorted(paid) == ["ann", "bob"]


async def test_unknown_questions_and_other_answers_are_refused_and_none_is_posted(journal: Any) -> None:
    agent = shop(TWO, journal)
    left = await agent.run("Pay.", run_id="r1", wait="never")
    first, second = (one.id for one in left.questions)
    for answers, said in (
        (
            {first: True, "9:9": True},
            f"run 'r1' has no open question '9:9'; open: {first!r} (pay), {second!r} (pay)",
        ),
        ({first: 1.5}, f"the answer to question {first!r} is 1.5; give True, False or a text"),
    ):
        with pytest.raises(ConfigError) as refused:
            await agent.resume("r1", answers=answers, wait="never")
        assert str(refused.value) == said
    with pytest.raises(ConfigError, match="wait is 'later'"):
        await agent.resume("r1", answers={first: True}, wait="later")
    assert await agent.questions("r1") == left.questions


async def test_a_run_without_questions_ends_as_ever_and_other_words_are_refused(journal: Any) -> None:
    result = await shop(["done"], journal).run("Hi.", wait="never")
    assert (result.waiting, result.output) == (False, "done")
    with pytest.raises(ConfigError, match=r"wait is 'sometimes'; possible: 'always', 'never'"):
        await shop(["done"], journal).run("Hi.", wait="sometimes")


async def test_start_or_continue_returns_at_the_question_each_time(journal: Any) -> None:
    agent = shop(TWO, journal)
    for _ in range(2):
        left = await agent.run("Pay.", run_id="r1", if_exists="resume", wait="never")
        assert len(left.questions) == 2
    answers = {one.id: True for one in left.questions}
    assert (await agent.resume("r1", answers=answers)).output == "done"
    assert (await agent.run("Pay.", run_id="r1", if_exists="resume", wait="never")).output == "done"


def desk(journal: Any, beside: Any = ()) -> Any:
    """An agent whose tool is an agent that asks, and tools that are called beside it."""
    below: Any = Agent(ScriptedLLM([call("pay", to="ann"), "paid"]), tools=[pay], observers=())
    clerk = below.as_tool("clerk", "Pays.")
    first = [call("clerk", task="Pay Ann."), *(call(one.name) for one in beside)]
    return Agent(
        ScriptedLLM([first, "done"]), tools=[clerk, *beside], name="desk", journal=journal, observers=()
    )


async def test_a_question_of_a_child_run_is_one_of_its_parent(journal: Any) -> None:
    agent = desk(journal)
    left = await agent.run("Pay.", run_id="r1", wait="never")
    (one,) = left.questions
    task = asyncio.current_task()
    assert task is not None
    assert (left.waiting, task.cancelling()) == (True, 0)  # this task waits for other things as before
    assert one.run_id != "r1"
    assert one.id == f"{one.run_id}/{one.key}"
    result = await agent.resume("r1", answers={one.id: True})
    assert (result.outcome, paid) == (Outcome.COMPLETED, ["ann"])


async def test_calls_beside_a_waiting_child_run_end_first(journal: Any) -> None:
    began, gate, looked = asyncio.Event(), asyncio.Event(), []

    @tool(effect="irreversible")
    async def look() -> str:
        """Look."""
        began.set()
        await gate.wait()
        looked.append(1)
        return "seen"

    agent = desk(journal, [look])
    running = asyncio.create_task(agent.run("Pay.", run_id="r1", wait="never"))
    await began.wait()
    while not await agent.questions("r1"):  # noqa: ASYNC110 - the journal has no event
        await asyncio.sleep(0.005)
    assert not running.done()
    gate.set()
    left = await running
    assert (left.waiting, looked) == (True, [1])


async def test_a_cancelled_caller_gets_its_cancellation(journal: Any) -> None:
    @tool(effect="pure")
    async def hang() -> str:
        """Hang."""
        running.cancel()
        await asyncio.Event().wait()
        return ""

    running = asyncio.create_task(desk(journal, [hang]).run("Pay.", run_id="r1", wait="never"))
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_paused_run_returns_without_questions(journal: Any) -> None:
    @tool(effect="pure")
    async def rest() -> str:
        """Rest."""
        await agent.pause("r1")
        return ""

    agent = shop([call("rest"), "done"], journal, [rest])
    left = await agent.run("Rest.", run_id="r1", wait="never")
    assert (left.waiting, left.reason, left.questions) == (True, "paused", ())
    assert (await agent.resume("r1", wait="never")).output == "done"


async def test_a_pipeline_returns_the_questions_of_its_stages(journal: Any) -> None:
    stages = Stages()
    stage = PromptStage(ScriptedLLM([call("pay", to="ann"), "{}"]), "Plan it.", tools=[pay])
    ports = stage, stages.validator, stages.implementer, stages.judge
    pipeline: Any = Pipeline(*ports, journal=journal, observers=())
    left = await pipeline.run("A haiku.", run_id="r1", wait="never")
    (one,) = left.questions
    assert (one.tool, one.run_id != "r1") == ("pay", True)
    result = await pipeline.resume("r1", answers={one.id: True}, wait="never")
    assert (result.waiting, result.outcome, paid) == (False, Outcome.COMPLETED, ["ann"])


@pytest.mark.parametrize("mode", ["wait", "park"])
async def test_a_ralph_loop_returns_the_questions_of_its_planner(
    journal: Any, tmp_path: Path, mode: Any
) -> None:
    ralph: Any = World(tmp_path / "s", {Role.PLANNER: [ASKS]}, tasks=ONE).ralph(answer=mode, journal=journal)
    left = await ralph.run("x", wait="never")
    (one,) = left.questions
    assert (left.reason, one.id, one.why) == ("questions", "1.1", "questions")
    with pytest.raises(ConfigError, match=r"has no open question '7'; open: '1\.1' \("):
        await ralph.resume(left.run_id, answers={"7": "x"})
    result = await ralph.resume(left.run_id, answers={"1.1": "bash"}, wait="never")
    assert (result.waiting, result.outcome) == (False, Outcome.COMPLETED)


async def test_a_ralph_loop_returns_the_questions_of_an_agent_that_a_model_executes(
    journal: Any, tmp_path: Path
) -> None:
    said = [call("pay", to="ann"), *script(tmp_path)[Role.EXECUTOR]]
    executor = PromptAgent(ScriptedLLM(said), folder=tmp_path, tools=[pay])
    world = World(tmp_path / "s", tasks=ONE)
    ralph: Any = Ralph(world, executor, world, root=world.root, journal=journal, observers=())
    left = await ralph.run("x", run_id="r1", wait="never")
    (one,) = left.questions
    assert (left.reason, one.tool, one.why, one.run_id != "r1") == ("interrupted", "pay", "approval", True)
    result = await ralph.resume("r1", answers={one.id: True}, wait="never")
    assert (result.waiting, result.outcome, paid) == (False, Outcome.COMPLETED, ["ann"])
