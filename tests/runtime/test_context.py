"""How full the model's context is: where the limit comes from, warnings, compaction."""

from __future__ import annotations

import io
import json

import pytest

from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Response, Usage
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from tests.runtime.stage import Facts, Notebook, agent, faults


def look(at: str) -> str:
    return f"saw {at}"


def turn(tokens: int, at: str) -> Response:
    return Response(f"I look at {at}", (call("look", at=at),), usage=Usage(tokens - 1, 1))


class Windowed(ScriptedLLM):
    context_window = 100


async def warned(runner: Agent, stream: io.StringIO, **options: object) -> list[tuple[int, float, float]]:
    await runner.run("go", **options)  # type: ignore[arg-type]
    lines = map(json.loads, stream.getvalue().splitlines())
    return [(x["iteration"], x["observed"], x["limit"]) for x in lines if x["msg"] == "context.filling"]


@pytest.mark.parametrize(
    ("windowed", "own", "of_run", "limit"),
    [
        (False, 0, None, None),
        (True, 0, None, 100),
        (True, 90, None, 90),
        (True, 90, 80, 80),
        (False, 0, 80, 80),
    ],
)
async def test_the_limit_is_the_runs_else_the_agents_else_the_models_else_unknown(
    windowed: bool, own: int, of_run: int | None, limit: int | None
) -> None:
    stream = io.StringIO()
    llm = (Windowed if windowed else ScriptedLLM)([Response("done", usage=Usage(99, 0))])
    runner = agent(llm, limits=Limits(context_limit=own), observers=[TransitionLog(stream)])
    options = {} if of_run is None else {"limits": Limits(context_limit=of_run)}
    assert await warned(runner, stream, **options) == ([] if limit is None else [(1, 99, limit)])


async def test_each_threshold_is_told_once_and_one_at_a_time() -> None:
    stream = io.StringIO()
    script = [turn(used, str(used)) for used in (69, 70, 71, 84, 85, 86, 99)]
    runner = agent(
        [*script, "done"], [look], limits=Limits(context_limit=100), observers=[TransitionLog(stream)]
    )
    assert await warned(runner, stream) == [(2, 70, 100), (5, 85, 100)]


async def test_both_thresholds_passed_at_once_are_one_warning() -> None:
    stream = io.StringIO()
    runner = agent(
        [turn(90, "a"), turn(91, "b"), "done"],
        [look],
        limits=Limits(context_limit=100),
        observers=[TransitionLog(stream)],
    )
    assert await warned(runner, stream) == [(1, 90, 100)]


async def test_older_messages_are_replaced_by_a_summary_before_the_next_request() -> None:
    memory, facts = Notebook(), Facts()
    llm = ScriptedLLM([turn(50, "a"), turn(85, "b"), "done"])
    limits = Limits(context_limit=100, compaction_threshold=0.85)
    runner = agent(llm, [look], limits=limits, memory=memory, observers=[facts], instructions="Be brief.")
    result = await runner.run("go", conversation_id="c")
    assert [m.role for m in llm.requests[2].messages] == ["system", "user", "system"]
    summary = llm.requests[2].messages[2].text
    assert summary.splitlines() == [
        "Summary of the conversation so far:",
        "- assistant called look. I look at a",
        "- result of look: saw a",
        "- assistant called look. I look at b",
        "- result of look: saw b",
    ]
    assert [(key, m.text) for key, m in memory.summaries] == [("c", summary)]
    assert [fact.outcome for fact in facts.of(OperationAttempt)] == ["ok"]
    assert not faults(result.messages)
    assert len(llm.requests[1].messages) == 4, "an earlier request shows what it showed"


async def test_below_the_threshold_nothing_is_replaced() -> None:
    llm = ScriptedLLM([turn(50, "a"), turn(84, "b"), "done"])
    await agent(llm, [look], limits=Limits(context_limit=100, compaction_threshold=0.85)).run("go")
    assert len(llm.requests[2].messages) == 5


async def test_compaction_waits_for_its_cooldown_and_is_asked_in_every_turn() -> None:
    llm = ScriptedLLM([*(turn(90, str(number)) for number in range(5)), "done"])
    limits = Limits(context_limit=100, compaction_threshold=0.85, compaction_cooldown=2)
    await agent(llm, [look], limits=limits).run("go")
    assert [len(request.messages) for request in llm.requests] == [1, 2, 4, 2, 4, 2]


async def test_a_new_summary_keeps_the_lines_of_the_last() -> None:
    llm = ScriptedLLM([*(turn(90, str(number)) for number in range(3)), "done"])
    limits = Limits(context_limit=100, compaction_threshold=0.85, compaction_cooldown=1)
    result = await agent(llm, [look], limits=limits).run("go")
    assert result.messages[1].text.splitlines()[1:] == [
        line
        for number in range(3)
        for line in (f"- assistant called look. I look at {number}", f"- result of look: saw {number}")
    ]


async def test_warnings_are_armed_again_by_compaction() -> None:
    stream = io.StringIO()
    script = [turn(90, "a"), turn(20, "b"), turn(75, "c"), "done"]
    limits = Limits(context_limit=100, compaction_threshold=0.85)
    runner = agent(script, [look], limits=limits, observers=[TransitionLog(stream)])
    assert await warned(runner, stream) == [(1, 90, 100), (3, 75, 100)]


@pytest.mark.parametrize("how", ["broken", "slow"])
async def test_a_summary_that_memory_cannot_keep_is_used_and_counted(how: str) -> None:
    facts = Facts()
    memory = Notebook(broken={"compact"}) if how == "broken" else Notebook(slow={"compact"})
    limits = Limits(context_limit=100, compaction_threshold=0.85, memory_seconds=0.01)
    llm = ScriptedLLM([turn(90, "a"), "done"])
    result = await agent(llm, [look], limits=limits, memory=memory, observers=[facts]).run("go")
    assert result.reason == "none"
    assert len(llm.requests[1].messages) == 2
    told = [(fact.operation, fact.outcome) for fact in facts.of(OperationAttempt)]
    assert told == [("memory", "exhausted"), ("compaction", "exhausted")]


async def test_without_a_known_limit_nothing_is_warned_of_or_replaced() -> None:
    stream = io.StringIO()
    llm = ScriptedLLM([turn(10_000, "a"), turn(20_000, "b"), "done"])
    limits = Limits(compaction_threshold=0.5)
    assert await warned(agent(llm, [look], limits=limits, observers=[TransitionLog(stream)]), stream) == []
    assert len(llm.requests[2].messages) == 5


async def test_off_compacts_nothing() -> None:
    llm = Windowed([turn(99, "a"), "done"])
    await agent(llm, [look], limits=OFF).run("go")
    assert len(llm.requests[1].messages) == 3
