"""Structured output: pydantic models and JSON schemas, unclean answers, and the feedback that asks again."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.errors import CompletionError, ConfigError
from orchestrator.kernel.fact import OperationAttempt
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Response
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.scripted import Item, ScriptedLLM, call
from tests.runtime.stage import Facts, agent, faults, path


class City(BaseModel):
    name: str
    people: int


PARIS = City(name="Paris", people=2)
GOOD = '{"name": "Paris", "people": 2}'
BAD = '{"name": "Paris"}'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"\n {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"Here you are: {GOOD} Anything else?",
        f"{GOOD}{GOOD}",
        f"{GOOD}\n{GOOD}",
        f"[not this] {GOOD}",
        f'A 5" thing: {GOOD}',
    ],
)
async def test_an_answer_is_found_in_a_fence_after_a_prefix_or_doubled(answer: str) -> None:
    typed = await agent([answer], output_type=City).run("?")
    by_schema = await agent([answer], output_type=SCHEMA).run("?")
    assert (typed.outcome, typed.output) == (Outcome.COMPLETED, PARIS)
    assert by_schema.output == {"name": "Paris", "people": 2}
    assert typed.messages[-1].text == answer


@pytest.mark.parametrize(
    "answer",
    [
        GOOD[:-4],
        '{"city": ' + GOOD,  # cut off, but with a whole object inside
        "",
        "Paris has two people.",
        BAD,
        '{"name": 1, "people": "many"}',
        "[" * 100_000,
    ],
)
async def test_an_unusable_answer_is_asked_for_again(answer: str) -> None:
    llm = ScriptedLLM([answer, GOOD])
    result = await agent(llm, output_type=City).run("?")
    assert result.output == PARIS
    assert path(result.transitions)[3] == "completion_retry"
    assert llm.requests[1].messages[-1].role == "user"


async def test_the_schema_is_part_of_every_request() -> None:
    llm = ScriptedLLM([BAD, GOOD])
    await agent(llm, output_type=City).run("?")
    assert [request.output_schema for request in llm.requests] == [City.model_json_schema()] * 2


async def test_feedback_says_what_is_wrong_and_is_replaced_never_stacked() -> None:
    llm = ScriptedLLM([BAD, '{"people": 2}', GOOD])
    result = await agent(llm, output_type=City).run("?")
    first, second = (request.messages[-1].text for request in llm.requests[1:])
    assert "attempt 1 of 2" in first
    assert "people: Field required" in first
    assert "attempt 2 of 2" in second
    assert "name: Field required" in second
    assert "Attempts left after this one: 0" in second
    assert [m.text for m in result.messages] == ["?", '{"people": 2}', second, GOOD]


async def test_feedback_is_one_message_even_when_tools_were_called_in_between() -> None:
    def look() -> str:
        return "two people"

    llm = ScriptedLLM([BAD, call("look"), "{}", GOOD])
    result = await agent(llm, [look], output_type=City).run("?")
    assert result.output == PARIS
    asked = [m for m in result.messages if m.text.startswith("Your answer could not be used")]
    assert len(asked) == 1
    assert not faults(result.messages)
    assert [m.role for m in result.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


async def test_earlier_requests_keep_what_they_showed() -> None:
    llm = ScriptedLLM([BAD, "{}", GOOD])
    await agent(llm, output_type=City).run("?")
    assert [m.text for m in llm.requests[1].messages][:2] == ["?", BAD]
    assert len(llm.requests[1].messages) == 3


@pytest.mark.parametrize("retries", [1, 2, 3])
async def test_exactly_so_many_retries_are_made(retries: int) -> None:
    facts = Facts()
    llm = ScriptedLLM([BAD] * (retries + 1))
    runner = agent(llm, output_type=City, limits=Limits(completion_retries=retries), observers=[facts])
    result = await runner.run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "completion_invalid")
    assert isinstance(result.error, CompletionError)
    assert result.error.attempts == retries
    assert (result.output, result.messages[-1].text) == (None, BAD)
    llm.assert_complete()
    tries = [fact.outcome for fact in facts.of(OperationAttempt) if fact.operation == "completion"]
    assert tries == ["retry"] * retries + ["exhausted"]


async def test_without_retries_the_first_unusable_answer_fails() -> None:
    result = await agent([BAD], output_type=City, limits=OFF).run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "completion_invalid")


async def test_a_refusal_is_told_as_the_reason() -> None:
    llm = ScriptedLLM([Response(refusal="I will not."), GOOD])
    result = await agent(llm, output_type=City).run("?")
    assert "the model refused: I will not." in llm.requests[1].messages[-1].text
    assert result.messages[1].refusal == "I will not."
    assert result.output == PARIS


async def test_a_refusal_of_a_free_answer_is_an_empty_answer() -> None:
    result = await agent([Response(refusal="I will not.")]).run("?")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "")
    assert result.messages[-1].refusal == "I will not."


@pytest.mark.parametrize("answer", ['{"error": {"message": "overloaded"}}', ' {"error": "overloaded"}'])
async def test_an_answer_that_is_an_error_object_is_asked_for_again(answer: str) -> None:
    llm = ScriptedLLM([answer, "fine"])
    result = await agent(llm).run("?")
    assert result.output == "fine"
    assert "overloaded" in llm.requests[1].messages[-1].text
    assert "JSON" not in llm.requests[1].messages[-1].text


@pytest.mark.parametrize("answer", ['{"error": null}', '{"errors": 3}', "error", '["error"]', '{"error": '])
async def test_other_answers_are_no_error_objects(answer: str) -> None:
    assert (await agent([answer]).run("?")).output == answer


async def test_error_objects_are_answers_where_retries_are_off() -> None:
    assert (await agent(['{"error": "x"}'], limits=OFF).run("?")).output == '{"error": "x"}'


async def test_retries_count_as_iterations_and_end_with_them() -> None:
    llm = ScriptedLLM([BAD] * 2)
    limits = Limits(max_iterations=2, completion_retries=5)
    result = await agent(llm, output_type=City, limits=limits).run("?")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")
    assert (result.transitions[-1].source, result.transitions[-1].event) == ("handle_completion", "failure")
    assert (result.output, result.messages[-1].text) == (None, BAD)
    llm.assert_complete()


async def test_the_turn_kept_back_answers_where_retries_run_out_of_iterations() -> None:
    llm = ScriptedLLM([BAD, BAD, "About two."])
    limits = Limits(max_iterations=3, completion_retries=5, wrap_up_turns=1)
    result = await agent(llm, output_type=City, limits=limits).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, "max_iterations", None)
    assert result.messages[-1].text == "About two."
    assert [request.tool_choice for request in llm.requests] == ["auto", "auto", "none"]


async def test_repeating_one_unusable_answer_is_no_progress() -> None:
    llm = ScriptedLLM([BAD] * 4)
    limits = Limits(completion_retries=50)
    result = await agent(llm, output_type=City, limits=limits).run("?")
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "stalled")
    assert result.verdict is not None
    assert "monologue" in result.verdict.detail
    assert "You are repeating yourself" in llm.requests[2].messages[-1].text
    llm.assert_complete()


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (int, "42", 42),
        (str, "plain text", "plain text"),
        ({"type": "array", "items": {"type": "integer"}}, "so: [1, 2]", [1, 2]),
        ({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}, "7", 7),
    ],
)
async def test_any_type_and_any_schema_can_be_asked_for(kind: object, answer: str, value: object) -> None:
    result = await agent([answer], output_type=kind, limits=OFF).run("?")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, value)


@pytest.mark.parametrize("kind", [{"type": "nonsense"}, "City", object(), 3])
def test_an_output_type_that_is_none_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="output_type"):
        agent([], output_type=kind)


async def test_content_parts_are_read_as_text() -> None:
    parts: Item = Message("assistant", [{"type": "text", "text": GOOD}])
    assert (await agent([parts], output_type=City).run("?")).output == PARIS
