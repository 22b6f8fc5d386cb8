"""A tool or an output validator that asks the model to try again."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from orchestrator.errors import ConfigError, ModelRetry, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import ToolExecution
from orchestrator.kernel.outcome import Outcome
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


async def crashed(
    journal: CrashingJournal, script: Sequence[Any], prepare: Callable[[Agent], None], **options: Any
) -> None:
    """Run until the journal fails, or to the end."""
    looks, _ = looking(retries=1)
    one = agent(FunctionLLM(by_position(script)), [looks], journal=journal, **options)
    prepare(one)
    with suppress(StoreDown):
        await one.run("?", run_id="r")


def by_position(script: Sequence[Any]) -> Callable[[Request], Any]:
    """A model that answers by the number of its answers in the request, as it would after a crash."""
    return lambda request: script[sum(one.role == "assistant" for one in request.messages)]


async def resumed_at_each_append(
    script: Sequence[Any], prepare: Callable[[Agent], None], **options: Any
) -> Result:
    """Crash the run before and after each append and resume it; the messages are those of the whole run."""
    whole = CrashingJournal(MemoryJournal())
    await crashed(whole, script, prepare, **options)
    expected = await agent([], journal=whole, name="reader", **options).resume("r", from_agent="")
    for at, when in itertools.product(range(1, len(whole.writes)), WHEN):
        inner = MemoryJournal()
        await crashed(CrashingJournal(inner, at=at, when=when), script, prepare, **options)
        inner.bury((await inner.head("r")).owner or "")
        looks, _ = looking(retries=1)
        one = agent(FunctionLLM(by_position(script)), [looks], journal=inner, **options)
        prepare(one)
        result = await one.resume("r")
        assert result.messages == expected.messages, (at, when)
        assert (result.outcome, result.output) == (expected.outcome, expected.output), (at, when)
    return expected


async def test_a_crash_at_any_append_changes_no_message_about_retries_of_a_tool() -> None:
    turns = [city("Pariis", 0), city("Pariis", 1), city("Paris", 2), city("Pariis", 3)]
    script = [*(Response(None, tuple(turn)) for turn in turns), Response("sorry")]
    result = await resumed_at_each_append(script, lambda _: None)
    assert errors(result.messages) == [AGAIN, WHY, AGAIN]


# ---- output validators ----


class City(BaseModel):
    name: str
    people: int


PARIS = '{"name": "Paris", "people": 2}'
PARIIS = '{"name": "Pariis", "people": 2}'


def known(output: City, _: ToolContext) -> None:
    if output.name != "Paris":
        raise ModelRetry(WHY)


async def known_later(output: City, context: ToolContext) -> None:
    await context.clock.sleep(0)
    known(output, context)


@pytest.mark.parametrize("validator", [known, known_later])
async def test_a_validator_has_the_model_answer_again(validator: Any) -> None:
    llm = ScriptedLLM([PARIIS, PARIS])
    one = agent(llm, output_type=City)
    assert one.output_validator(validator) is validator
    result = await one.run("?")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, City(name="Paris", people=2))
    said = llm.requests[1].messages[-1]
    assert said.role == "user"
    assert said.text == (
        f"Your answer could not be used (attempt 1 of 2): {WHY}. Answer again as JSON that fits the schema, without "
        "any other text. Attempts left after this one: 1."
    )


async def test_schema_faults_and_refusals_of_validators_share_the_completion_retries() -> None:
    one = agent(['{"name": 1}', PARIIS, PARIIS], output_type=City, limits=Limits(completion_retries=2))
    one.output_validator(known)
    result = await one.run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.FAILED, "completion_invalid", None)
    assert str(result.error).startswith(f"no usable final answer after 2 retries: {WHY};")


async def test_validators_change_the_output_in_order_and_see_the_run() -> None:
    seen: list[tuple[Any, ...]] = []
    one = agent(["no", "yes"], deps="database")

    @one.output_validator
    def certain(output: str, context: ToolContext) -> str:
        seen.append((output, context.metadata, context.tags, context.deps, context.retry))
        if output == "no":
            raise ModelRetry("say yes")
        return output.upper()

    @one.output_validator
    async def loud(output: str, context: ToolContext) -> str:
        return f"{output}! {context.idempotency_key}"

    result = await one.run("?", run_id="r", metadata={"tenant": 7}, tags={"team": "ops"})
    assert result.output == "YES! r:output:2"
    assert seen == [
        ("no", {"tenant": 7}, {"team": "ops"}, "database", 0),
        ("yes", {"tenant": 7}, {"team": "ops"}, "database", 1),
    ]
    assert result.messages[-1].text == "yes", "the history has what the model said"
    assert (await one.resume("r")).output == result.output


async def test_an_answer_that_is_refused_in_the_wrap_up_turn_is_no_output() -> None:
    journal = MemoryJournal()
    limits = Limits(max_iterations=2, wrap_up_turns=1)
    one = agent([city("Paris"), "no"], [looking()[0]], limits=limits, journal=journal)

    @one.output_validator
    def never(_: str, __: ToolContext) -> None:
        raise ModelRetry("not good enough")

    result = await one.run("?", run_id="r")
    assert (result.outcome, result.output, result.messages[-1].text) == (Outcome.PARTIAL, None, "no")
    assert (await one.resume("r")).output is None


async def test_another_error_of_a_validator_fails_the_run_and_names_it() -> None:
    one = agent(["yes"])

    @one.output_validator
    def broken(_: str, __: ToolContext) -> None:
        raise ZeroDivisionError("by zero")

    result = await one.run("?")
    assert (result.outcome, result.output) == (Outcome.FAILED, None)
    assert isinstance(result.error, ZeroDivisionError)


def test_what_cannot_be_a_validator_is_refused() -> None:
    for wrong in ("text", City, lambda output: output):
        with pytest.raises(ConfigError, match=r"must be a function of \(output, context\)"):
            agent(["yes"]).output_validator(wrong)  # type: ignore[type-var]


async def test_a_run_is_cancelled_while_a_validator_waits() -> None:
    one, waiting = agent(["yes"]), asyncio.Event()

    @one.output_validator
    async def wait(_: str, __: ToolContext) -> None:
        waiting.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(one.run("?", run_id="r"))
    await waiting.wait()
    one.cancel("r")
    assert (await running).outcome is Outcome.CANCELLED


def changing(one: Agent) -> None:
    """Validators that refuse one city and change another in place."""
    one.output_validator(known)

    @one.output_validator
    def count(output: City, _: ToolContext) -> None:
        output.people += 1


async def test_a_crash_at_any_append_changes_no_message_about_answers_and_no_output() -> None:
    script = [Response(PARIIS), Response(PARIS)]
    result = await resumed_at_each_append(script, changing, output_type=City)
    assert result.output == City(name="Paris", people=3)
