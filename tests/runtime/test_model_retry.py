"""A tool or an output validator that asks the model to try again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import pytest

from orchestrator.errors import ConfigError, ModelRetry, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import ToolExecution
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.tools.spec import ToolContext, tool
from tests.runtime.stage import Facts, agent

WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")
WHY = "there is no city 'Pariis'"
AGAIN = f"{WHY}; correct the call and try again"


def city(name: str, number: int = 0) -> list[ToolCall]:
    return [ToolCall(f"c{number}", "city", json.dumps({"name": name, "number": number}))]


def looking(**options: Any) -> tuple[Any, list[int]]:
    """A tool that knows one city, and the numbers of retries that its calls were given."""
    counts: list[int] = []

    @tool(name="city", effect="pure", **options)
    def look(context: ToolContext, name: str, number: int = 0) -> str:
        counts.append(context.retry)
        if name != "Paris":
            raise ModelRetry(WHY)
        return "two people"

    return look, counts


def errors(messages: Any) -> list[str]:
    return [json.loads(one.text)["error"] for one in messages if one.role == "tool" and one.is_error]


async def test_the_model_reads_why_a_tool_wants_another_call_and_makes_it() -> None:
    look, counts = looking()
    facts = Facts()
    llm = ScriptedLLM([city("Pariis"), city("Paris"), "two"])
    result = await agent(llm, [look], observers=[facts]).run("?")
    said = llm.requests[1].messages[-1]
    assert (said.role, said.is_error) == ("tool", True)
    assert json.loads(said.text) == {"error": AGAIN, "type": "ModelRetry"}
    assert (result.outcome, result.output, counts) == (Outcome.COMPLETED, "two", [0, 1])
    assert [fact.outcome for fact in facts.of(ToolExecution)] == ["retry", "ok"]


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_exactly_so_many_retries_of_a_tool_ask_again_then_they_are_errors(retries: int) -> None:
    look, _ = looking(retries=retries)
    script = [city("Pariis", number) for number in range(retries + 2)]
    result = await agent([*script, "sorry"], [look], limits=OFF).run("?")
    assert errors(result.messages) == [AGAIN] * retries + [WHY] * 2


async def test_a_success_makes_the_retries_of_a_tool_available_again() -> None:
    look, counts = looking(retries=1)
    names = ("Pariis", "Paris", "Pariis", "Pariis")
    script = [city(name, number) for number, name in enumerate(names)]
    result = await agent([*script, "sorry"], [look]).run("?")
    assert errors(result.messages) == [AGAIN, AGAIN, WHY]
    assert counts == [0, 1, 0, 1]


async def test_calls_of_one_turn_count_as_one_retry_in_any_order_of_their_ends() -> None:
    look, counts = looking(retries=1)
    turn = [*city("Pariis", 1), *city("Pariis", 2), *city("Paris", 3)]
    result = await agent([turn, city("Pariis", 4), "sorry"], [look]).run("?")
    assert errors(result.messages) == [AGAIN, AGAIN, WHY]
    assert sorted(counts) == [0, 0, 0, 1]


async def test_retries_are_no_tool_errors_until_none_is_left() -> None:
    look, _ = looking(retries=3)
    script = [city("Pariis", number) for number in range(4)]
    result = await agent([*script, "sorry"], [look], limits=Limits(max_tool_errors=1)).run("?")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "tool_errors")
    assert len(errors(result.messages)) == 4


async def test_a_tool_reads_the_metadata_and_tags_of_its_run() -> None:
    seen: list[Any] = []

    @tool(effect="pure")
    def who(context: ToolContext) -> str:
        seen.append((dict(context.metadata), dict(context.tags)))
        return "ok"

    one = agent([[ToolCall("1", "who")], "done", [ToolCall("1", "who")], "done"], [who])
    await one.run("?", metadata={"tenant": 7}, tags={"team": "ops"})
    await one.run("?")
    assert seen == [({"tenant": 7}, {"team": "ops"}), ({}, {})]


def test_negative_retries_of_a_tool_are_refused() -> None:
    with pytest.raises(ConfigError, match="retries is -1; possible: 0 for none, or more"):
        looking(retries=-1)


async def crashed(journal: CrashingJournal, script: Sequence[Any], prepare: Callable[[Agent], None]) -> None:
    """Run until the journal fails, or to the end."""
    looks, _ = looking(retries=1)
    one = agent(FunctionLLM(by_position(script)), [looks], journal=journal)
    prepare(one)
    with suppress(StoreDown):
        await one.run("?", run_id="r")


def by_position(script: Sequence[Any]) -> Callable[[Request], Any]:
    """A model that answers by the number of its answers in the request, as it would after a crash."""
    return lambda request: script[sum(one.role == "assistant" for one in request.messages)]


async def resumed_at_each_append(script: Sequence[Any], prepare: Callable[[Agent], None]) -> Result:
    """Crash the run before and after each append and resume it; the messages are those of the whole run."""
    whole = CrashingJournal(MemoryJournal())
    await crashed(whole, script, prepare)
    expected = await agent([], journal=whole).resume("r")
    for at, when in itertools.product(range(1, len(whole.writes)), WHEN):
        inner = MemoryJournal()
        await crashed(CrashingJournal(inner, at=at, when=when), script, prepare)
        inner.bury((await inner.head("r")).owner or "")
        looks, _ = looking(retries=1)
        one = agent(FunctionLLM(by_position(script)), [looks], journal=inner)
        prepare(one)
        result = await one.resume("r")
        assert result.messages == expected.messages, (at, when)
        assert result.outcome is expected.outcome, (at, when)
    return expected


async def test_a_crash_at_any_append_changes_no_message_about_retries_of_a_tool() -> None:
    turns = [city("Pariis", 0), city("Pariis", 1), city("Paris", 2), city("Pariis", 3)]
    script = [*(Response(None, tuple(turn)) for turn in turns), Response("sorry")]
    result = await resumed_at_each_append(script, lambda _: None)
    assert errors(result.messages) == [AGAIN, WHY, AGAIN]
