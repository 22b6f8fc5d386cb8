"""Answers that the output limit or a filter cut, and refusals: they are not reported as complete."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.errors import CompletionError, ConfigError, ModelRetry, RunPartial
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import OperationAttempt, ToolExecution
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.live_event import ModelRequestRetried, TextDelta
from orchestrator.llm.message import (
    FINISH_REASONS,
    INCOMPLETE,
    FinishReason,
    Response,
    ToolCall,
    finish_reason_of,
    finish_word,
)
from orchestrator.llm.run_event import ModelRequestFinished
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import Item, ScriptedLLM, call
from orchestrator.tools.spec import ToolContext, tool
from orchestrator_guards import Guardrail, Verdict
from tests.runtime.stage import Facts, agent

LENGTH = (
    "length",
    "max_tokens",
    "model_context_window_exceeded",
    "max_output_tokens",
    "MAX_TOKENS",
    "incomplete",
)
FILTER = ("content_filter", "content_filtered", "guardrail_intervened", "SAFETY")


class City(BaseModel):
    name: str
    people: int


PARIS = City(name="Paris", people=2)
GOOD = '{"name": "Paris", "people": 2}'


def said(text: str | None, finish: str, *calls: ToolCall, refusal: str | None = None) -> Response:
    return Response(text, calls, finish, refusal=refusal)


# ---- free text ----


@pytest.mark.parametrize("word", LENGTH)
async def test_free_text_that_the_output_limit_cut_is_partial_at_once(word: str) -> None:
    llm = ScriptedLLM([said("The first half", word)])
    result = await agent(llm).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, "truncated", "The first half")
    assert (result.finish_reason, result.vendor_finish_reason) == (FinishReason.LENGTH, word)
    assert len(llm.requests) == 1
    with pytest.raises(RunPartial, match="truncated"):
        result.raise_for_outcome()


@pytest.mark.parametrize("text", [None, "", " \n"])
async def test_an_answer_whose_output_limit_was_used_up_before_any_text_is_partial_too(
    text: str | None,
) -> None:
    result = await agent([said(text, "length")]).run("?")
    assert (result.outcome, result.reason) == (Outcome.PARTIAL, "truncated")


@pytest.mark.parametrize("retry", ["accept", "retry"])
@pytest.mark.parametrize(
    ("answer", "reason", "finish"),
    [
        *((said("The first half", word), "filtered", "content_filter") for word in FILTER),
        (said("I would rather", "refusal"), "refused", "refusal"),
        (said("I would rather", "stop", refusal="I will not."), "refused", "refusal"),
    ],
)
async def test_filtered_and_refused_texts_are_partial_and_never_asked_for_again(
    answer: Response, reason: str, finish: str, retry: Any
) -> None:
    llm = ScriptedLLM([answer])
    result = await agent(llm, limits=Limits(on_truncated=retry)).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, reason, answer.content)
    assert (result.finish_reason, result.vendor_finish_reason) == (finish, answer.finish_reason)
    assert len(llm.requests) == 1


@pytest.mark.parametrize(
    "answer", [said("", "content_filter"), said(None, "refusal"), Response(refusal="No.")]
)
async def test_without_text_they_are_an_empty_answer(answer: Response) -> None:
    result = await agent([answer]).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "empty_answer", "")


@pytest.mark.parametrize("word", ["stop", "end_turn", "stop_sequence", "completed", "whatever", "", None])
async def test_every_other_end_is_a_complete_answer(word: str | None) -> None:
    result = await agent([Response("All of it.", finish_reason=word)]).run("?")
    assert (result.outcome, result.reason) == (Outcome.COMPLETED, "none")


async def test_an_output_validator_sees_a_cut_text_and_may_change_it_but_not_ask_again() -> None:
    seen: list[object] = []

    def redact(output: object, _: ToolContext) -> str:
        seen.append(output)
        return "[redacted]"

    def refuse(_output: object, _: ToolContext) -> None:
        raise ModelRetry("name your source")

    runner = agent([said("secret", "length")])
    runner.output_validator(redact)
    result = await runner.run("?")
    assert (seen, result.output, result.reason) == (["secret"], "[redacted]", "truncated")
    runner = agent([said("half", "length")])
    runner.output_validator(refuse)
    result = await runner.run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, "truncated", None)


# ---- on_truncated="retry" ----

RETRY = Limits(on_truncated="retry")


async def test_a_retry_asks_for_a_shorter_answer_and_spends_completion_retries() -> None:
    llm, facts = ScriptedLLM([said("Too lo", "length"), said("Short.", "stop")]), Facts()
    result = await agent(llm, limits=RETRY, observers=[facts]).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "none", "Short.")
    assert "output limit cut it" in llm.requests[1].messages[-1].text
    assert "shorter" in llm.requests[1].messages[-1].text
    tries = [(one.outcome, one.reason) for one in facts.of(OperationAttempt) if one.operation == "completion"]
    assert tries == [("retry", "truncated")]
    assert result.finish_reason == "stop"


async def test_when_no_retry_is_left_the_last_text_is_the_partial_answer() -> None:
    script = [said(f"half {number}", "length") for number in range(3)]
    llm = ScriptedLLM([*script])
    result = await agent(llm, limits=Limits(on_truncated="retry", completion_retries=2)).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, "truncated", "half 2")
    llm.assert_complete()


@pytest.mark.parametrize("limits", [{"completion_retries": 0}, {"max_iterations": 1}])
async def test_a_text_that_cannot_be_asked_for_again_is_not_lost(limits: dict[str, Any]) -> None:
    result = await agent([said("half", "length")], limits=Limits(on_truncated="retry", **limits)).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, "truncated", "half")


def brief(chars: int) -> Verdict:
    return Verdict(chars <= 2, "brief", chars, 2)


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ([said("Too lo", "length"), said("12", "stop")], {}, "truncated"),
        ([said('[1, "x', "length"), said("12", "stop")], {"output_type": int}, "truncated"),
        ([said("none", "stop"), said("12", "stop")], {"output_type": int}, "schema_invalid"),
        (
            [said("secret", "stop"), said("12", "stop")],
            {"output_guards": [Guardrail(brief, on_refusal="retry")]},
            "guardrail",
        ),
    ],
)
async def test_a_reader_of_a_stream_can_tell_the_two_texts_apart(
    script: list[Item], options: dict[str, Any], reason: str
) -> None:
    stream = agent(script, limits=RETRY, journal=MemoryJournal(), **options).stream("?")
    events = [event async for event in stream]
    kinds = (TextDelta, ModelRequestFinished, ModelRequestRetried)
    told = [
        (type(event).__name__, getattr(event, "reason", ""), event.iteration)
        for event in events
        if isinstance(event, kinds)
    ]
    order = list(dict.fromkeys(told))
    assert order == [
        ("TextDelta", "", 1),
        ("ModelRequestFinished", "", 1),
        ("ModelRequestRetried", reason, 1),
        ("TextDelta", "", 2),
        ("ModelRequestFinished", "", 2),
    ]
    void = {event.iteration for event in events if isinstance(event, ModelRequestRetried)}
    kept = [one.text for one in events if isinstance(one, TextDelta) and one.iteration not in void]
    assert "".join(kept) == "12"


def test_the_limit_takes_two_words_and_leaves_fingerprints_alone() -> None:
    with pytest.raises(ConfigError, match="on_truncated is 'again'; it must be one of: accept, retry"):
        Limits(on_truncated="again")  # type: ignore[arg-type]


# ---- structured output ----


async def test_structured_output_is_told_that_the_limit_cut_it() -> None:
    llm = ScriptedLLM([said(GOOD[:-4], "length"), said(GOOD, "stop")])
    result = await agent(llm, output_type=City).run("?")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, PARIS)
    assert "output limit cut it" in llm.requests[1].messages[-1].text
    assert "JSON" not in llm.requests[1].messages[-1].text.split("Answer again")[0]


@pytest.mark.parametrize("word", ["content_filter", "refusal"])
async def test_structured_output_keeps_its_retries_after_a_filter_and_a_refusal(word: str) -> None:
    llm = ScriptedLLM([said('{"name"', word), said(GOOD, "stop")])
    result = await agent(llm, output_type=City).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "none", PARIS)
    assert ("filter" if word == "content_filter" else "refused") in llm.requests[1].messages[-1].text


async def test_a_closed_value_counts_even_if_the_text_behind_it_was_cut() -> None:
    result = await agent([said(f"{GOOD} I hope that", "length")], output_type=City).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "none", PARIS)
    assert result.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "12"),
        (float, "1.5"),
        (City, GOOD[:-1]),
        (City, '{"cities": [' + GOOD + ', {"name"'),
        (City, '{"note": "an example: {} ' + GOOD + " of a"),
        (list[int], '{"code": "if x } [1]'),
        (list[int], "[1, 2"),
    ],
)
async def test_an_incomplete_value_is_neither_repaired_nor_validated(kind: Any, text: str) -> None:
    limits = Limits(completion_retries=0)
    result = await agent([said(text, "length")], output_type=kind, limits=limits).run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "completion_invalid")
    assert isinstance(result.error, CompletionError)
    assert "output limit cut it" in str(result.error)
    assert result.finish_reason is FinishReason.LENGTH


# ---- calls ----


@pytest.mark.parametrize("finish", ["length", "max_tokens", "content_filter"])
@pytest.mark.parametrize("arguments", ['{"text": "a lo', "", "{}", "null", "{"])
async def test_a_call_that_was_cut_is_not_run_and_the_model_is_told_why(arguments: str, finish: str) -> None:
    ran: list[str] = []

    @tool
    def write(text: str = "default") -> str:
        """Write."""
        ran.append(text)
        return "ok"

    facts = Facts()
    llm = ScriptedLLM([said(None, finish, ToolCall("1", "write", arguments)), "Done."])
    result = await agent(llm, [write], observers=[facts]).run("?")
    told = llm.requests[1].messages[-1].text
    assert (ran, result.outcome) == ([], Outcome.COMPLETED)
    assert ("your output limit cut this call" if finish != "content_filter" else "content filter") in told
    assert "Invalid JSON" not in told
    assert "EOF" not in told
    assert [one.outcome for one in facts.of(ToolExecution)] == ["invalid_args"]


async def test_the_complete_calls_of_a_cut_answer_run() -> None:
    ran: list[str] = []

    @tool
    def write(text: str) -> str:
        """Write."""
        ran.append(text)
        return "ok"

    calls = call("write", text="a"), ToolCall("2", "write", '{"text": "b"}'), ToolCall("3", "write", '{"te')
    llm = ScriptedLLM([said(None, "length", *calls), "Done."])
    await agent(llm, [write]).run("?")
    assert ran == ["a", "b"]
    assert "cut this call" in llm.requests[1].messages[-1].text


async def test_a_tool_without_parameters_runs_without_arguments() -> None:
    ran: list[int] = []

    @tool
    def ping() -> str:
        """Ping."""
        ran.append(1)
        return "pong"

    await agent([said(None, "length", ToolCall("1", "ping", "")), "Done."], [ping]).run("?")
    assert ran == [1]


# ---- the wrap-up turn ----

WRAP_UP = Limits(max_iterations=2, wrap_up_turns=1)


@tool
def look() -> str:
    """Look."""
    return "a fact"


async def test_a_wrap_up_turn_that_the_model_ignores_gives_its_text_as_partial() -> None:
    ignored = said("What I have so far.", "tool_calls", call("look"))
    result = await agent([call("look"), ignored], [look], limits=WRAP_UP).run("?")
    assert (result.outcome, result.reason) == (Outcome.PARTIAL, "max_iterations")
    assert result.output == "What I have so far."
    assert result.messages[-1].text == "What I have so far."
    assert result.messages[-1].tool_calls == (), "the history is valid"


@pytest.mark.parametrize("text", [None, "", " \n "])
async def test_without_text_it_is_the_limit_that_ends_the_run(text: str | None) -> None:
    ignored = said(text, "tool_calls", call("look"))
    result = await agent([call("look"), ignored], [look], limits=WRAP_UP).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.BUDGET_EXCEEDED, "max_iterations", None)


# ---- where it is read ----


@pytest.mark.parametrize(
    "script",
    [
        [said("half", "max_tokens")],
        [said("I would rather", "stop", refusal="No.")],
        [call("look"), said("So far.", "tool_calls", call("look"))],
        [Response("All.", finish_reason="end_turn")],
        ["All."],
    ],
)
async def test_the_result_of_an_ended_run_has_the_same_end_wherever_it_is_read(script: list[Item]) -> None:
    runner = agent(script, [look], limits=WRAP_UP, journal=MemoryJournal())
    result = await runner.run("?", run_id="r")
    stored = await runner.runs.result("r")
    resumed = await runner.resume("r")
    for one in (stored, resumed):
        assert (one.outcome, one.reason, one.output) == (result.outcome, result.reason, result.output)
        assert one.finish_reason is result.finish_reason
        assert one.vendor_finish_reason == result.vendor_finish_reason


async def test_a_run_that_an_earlier_version_reported_as_completed_is_read_as_it_was_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = agent([said("half", "length")], journal=MemoryJournal())
    with monkeypatch.context() as before:
        before.setattr("orchestrator_callbacks.llm_loop.answer.INCOMPLETE", {})  # no decision read the reason
        await runner.run("?", run_id="r")
    for read in (await runner.runs.result("r"), await runner.resume("r")):
        assert (read.outcome, read.reason, read.output) == (Outcome.COMPLETED, "none", "half")
        assert read.finish_reason is FinishReason.LENGTH


def test_a_word_behind_the_text_of_a_gateway_counts_and_the_text_is_not_logged() -> None:
    assert finish_reason_of("function_call_filter: SAFETY") is FinishReason.CONTENT_FILTER
    assert finish_word("my secret: stop") == "stop"
    assert finish_word("MAX_TOKENS") == "MAX_TOKENS"
    assert [finish_word(one) for one in (None, "my secret", 7)] == [None, "_other", "_other"]


def test_each_word_has_one_meaning_and_each_incomplete_end_a_reason() -> None:
    assert {finish_reason_of(word) for word in FINISH_REASONS} == set(FinishReason)
    assert finish_reason_of(None) is None
    assert finish_reason_of("anything else") is FinishReason.OTHER
    assert set(INCOMPLETE.values()) <= REASONS[Outcome.PARTIAL]
