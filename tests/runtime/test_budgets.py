"""Budgets of a run: what each one allows, how the run ends, and the turn that is kept back for an answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from orchestrator.errors import DeadlineExceeded, LimitReached, LLMError
from orchestrator.kernel.fact import BudgetChecked, LLMCall, OperationAttempt
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, Item, ScriptedLLM, call
from orchestrator.testing.clock import FakeClock
from tests.runtime.stage import NO_WAIT, Facts, agent, faults, path


def endless(usage: Usage = Usage(10, 5), *, wraps_up: str | None = None, tool: str = "step") -> FunctionLLM:  # noqa: B008
    """A model that never stops calling, each time with other arguments, until it may not any more."""
    number = count(1)

    def answer(request: Request) -> Response:
        if request.tool_choice == "none" and wraps_up is not None:
            return Response(wraps_up, usage=usage)
        return Response("thinking", (call(tool, n=next(number)),), usage=usage)

    return FunctionLLM(answer, usage=usage)


def step(n: int) -> str:
    return f"step {n}"


def fail(n: int) -> str:
    raise ValueError(f"step {n} failed: {n * 7919}")


BUDGETS: dict[str, tuple[dict[str, Any], int]] = {
    "max_iterations": ({"max_iterations": 3}, 3),
    "input_tokens": ({"max_input_tokens": 30}, 3),
    "output_tokens": ({"max_output_tokens": 15}, 3),
    "cost": ({"max_cost": 0.75}, 3),
    "time": ({"max_seconds": 0.0}, 0),  # has tests of its own, with a clock
    "tool_calls": ({"max_tool_calls": 2}, 3),
    "tool_errors": ({"max_tool_errors": 3}, 3),
    "retries": ({"max_retries": 2}, 0),
    "handoffs": ({"max_handoffs": 2}, 0),  # has tests of its own, with a team
}
"""Reason of `budget_exceeded` -> limits, and how often the model is asked then."""


def test_every_reason_of_an_exceeded_budget_is_tested_here() -> None:
    assert set(BUDGETS) | {"tokens", "cost_unknown", "handoffs"} == REASONS[Outcome.BUDGET_EXCEEDED], (
        "tokens is the pipeline's, handoffs that of a team"
    )


@pytest.mark.parametrize("reason", [reason for reason, (_, asked) in BUDGETS.items() if asked])
async def test_a_used_up_budget_ends_the_run_with_its_reason_history_and_last_words(reason: str) -> None:
    members, asked = BUDGETS[reason]
    facts = Facts()
    name = "fail" if reason == "tool_errors" else "step"
    llm = endless(Usage(10, 5, cost=0.25), tool=name)
    result = await agent(llm, [step, fail], limits=Limits(**members), observers=[facts]).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, reason)
    assert len(llm.requests) == asked
    assert path(result.transitions)[-1] == "budget_exceeded"
    assert result.transitions[-1].source == "update_budgets"
    assert result.verdict is not None
    assert (result.verdict.ok, result.error, result.output) == (False, None, None)
    said = [message.text for message in result.messages if message.role == "assistant"]
    assert said[-1] == "thinking", "what it said last is in the history, and is no output"
    assert not faults(result.messages)
    assert result.messages[-1].role == "tool", "the turn that tripped it is whole in the history"
    assert next(v for v in facts.of(BudgetChecked)[-1].verdicts if not v.ok) == result.verdict


@pytest.mark.parametrize("reason", [reason for reason, (_, asked) in BUDGETS.items() if asked])
async def test_one_more_of_a_budget_allows_one_more_turn(reason: str) -> None:
    members, asked = BUDGETS[reason]
    ((limit, value),) = members.items()
    more = {"input_tokens": 10, "output_tokens": 5, "cost": 0.25}.get(reason, 1)
    llm = endless(Usage(10, 5, cost=0.25), tool="fail" if reason == "tool_errors" else "step")
    limits = Limits(**{"max_no_progress": 0, limit: value + more})
    result = await agent(llm, [step, fail], limits=limits).run("go")
    assert (result.reason, len(llm.requests)) == (reason, asked + 1)


@pytest.mark.parametrize("reason", [reason for reason, (_, asked) in BUDGETS.items() if asked])
async def test_the_turn_kept_back_gives_a_partial_answer(reason: str) -> None:
    members, asked = BUDGETS[reason]
    llm = endless(
        Usage(10, 5, cost=0.25), wraps_up="so far", tool="fail" if reason == "tool_errors" else "step"
    )
    limits = replace(Limits(**members), wrap_up_turns=1, wrap_up_share=0.4)
    result = await agent(llm, [step, fail], limits=limits).run("go")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, reason, "so far")
    assert path(result.transitions)[-1] == "completion_success"
    last = llm.requests[-1]
    assert last.tool_choice == "none"
    assert result.verdict is not None
    assert last.messages[-1].text.startswith(f"A limit of this run is reached ({result.verdict.explain()})")
    assert [m.text for m in result.messages].count(last.messages[-1].text) == 0
    kept_inside = {"max_iterations", "input_tokens", "output_tokens", "cost"}
    assert len(llm.requests) == (asked if reason in kept_inside else asked + 1)


@pytest.mark.parametrize("text", ["", " ", "What I have."])
async def test_a_wrap_up_turn_that_calls_tools_again_runs_none_and_only_its_text_is_an_answer(
    text: str,
) -> None:
    ran = []

    def tracked(n: int) -> str:
        ran.append(n)
        return f"step {n}"

    last = Response(text, (call("tracked", n=3),))
    llm = ScriptedLLM([call("tracked", n=1), call("tracked", n=2), last])
    result = await agent(llm, [tracked], limits=Limits(max_iterations=3, wrap_up_turns=1)).run("go")
    outcome = Outcome.PARTIAL if text.strip() else Outcome.BUDGET_EXCEEDED
    assert (result.outcome, result.reason) == (outcome, "max_iterations")
    assert (result.output, ran, len(llm.requests)) == (text if text.strip() else None, [1, 2], 3)
    assert result.messages[-1].is_error is not bool(text.strip())
    assert not faults(result.messages)


async def test_a_wrap_up_turn_in_which_the_model_fails_ends_as_the_budget_did() -> None:
    error = LLMError("down", kind="auth")
    script = [call("step", n=1), error]
    result = await agent(script, [step], limits=Limits(max_iterations=2, wrap_up_turns=1)).run("go")
    assert (result.outcome, result.reason, result.error) == (Outcome.BUDGET_EXCEEDED, "max_iterations", error)


async def test_no_turn_is_kept_back_of_a_single_one() -> None:
    llm = ScriptedLLM([call("step", n=1)])
    result = await agent(llm, [step], limits=Limits(max_iterations=1, wrap_up_turns=1)).run("go")
    assert (result.outcome, len(llm.requests)) == (Outcome.BUDGET_EXCEEDED, 1)


async def test_a_budget_used_up_whole_leaves_nothing_for_a_wrap_up_turn() -> None:
    llm = endless(Usage(1_000, 1))
    limits = Limits(max_input_tokens=900, wrap_up_turns=1)
    result = await agent(llm, [step], limits=limits).run("go")
    assert (result.outcome, result.reason, len(llm.requests)) == (Outcome.BUDGET_EXCEEDED, "input_tokens", 1)


async def test_the_wrap_up_answer_of_a_typed_run_is_a_value_of_that_type_or_none() -> None:
    for said, value in (("about three", None), ("[3]", [3])):
        llm = endless(wraps_up=said)
        limits = Limits(max_iterations=2, wrap_up_turns=1)
        result = await agent(llm, [step], limits=limits, output_type=list[int]).run("go")
        assert (result.outcome, result.output) == (Outcome.PARTIAL, value)
        assert result.messages[-1].text == said


@pytest.mark.parametrize(("cap", "wanted", "ran"), [(2, 5, 2), (5, 5, 5), (0, 5, 5)])
async def test_calls_over_the_cap_of_a_tool_do_not_run(cap: int, wanted: int, ran: int) -> None:
    touched = []

    def touch(n: int) -> str:
        touched.append(n)
        return "ok"

    script = [[call("Touch", n=n) for n in range(wanted)], "done"]
    result = await agent(script, [touch], limits=Limits(tool_caps={"TOUCH": cap})).run("go")
    assert touched == list(range(ran))
    answers = [m for m in result.messages if m.role == "tool"]
    assert [m.is_error for m in answers] == [False] * ran + [True] * (wanted - ran)
    if ran < wanted:
        assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "tool_calls")
        assert result.verdict is not None
        assert result.verdict.explain() == "tool_cap: 2 of 2 used (Touch)"
        assert "not run: tool_cap: 2 of 2 used" in answers[-1].text
    else:
        assert result.outcome is Outcome.COMPLETED


async def test_a_repeated_success_may_run_exactly_so_often() -> None:
    ran = []

    def same() -> str:
        ran.append(True)
        return "same"

    llm = ScriptedLLM([call("same")] * 4)
    limits = Limits(max_no_progress=0, max_repeated_success=3)
    result = await agent(llm, [same], limits=limits).run("go")
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "repeated_success")
    assert len(ran) == 3
    llm.assert_complete()


async def test_with_the_defaults_a_repeated_turn_is_warned_of_blocked_and_ends_the_run() -> None:
    ran = []

    def same() -> str:
        ran.append(True)
        return "same"

    llm = ScriptedLLM([call("same")] * 4)
    result = await agent(llm, [same]).run("go")
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "stalled")
    assert len(ran) == 3
    notices = [request.messages[-1].text for request in llm.requests]
    assert ["You are repeating yourself" in text for text in notices] == [False, False, True, True]
    assert "not run: this repeats" in result.messages[-1].text
    assert not any("repeating yourself" in m.text for m in result.messages)


@pytest.mark.parametrize("retries", [1, 2, 3])
async def test_retries_are_a_budget_of_the_whole_run(retries: int) -> None:
    def down() -> LLMError:
        return LLMError("busy", kind="rate_limited")

    facts = Facts()
    script: list[Item] = [down(), call("step", n=1), *(down() for _ in range(retries))]
    llm = ScriptedLLM(script)
    limits = Limits(max_retries=retries)
    result = await agent(llm, [step], limits=limits, observers=[facts]).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "retries")
    assert isinstance(result.error, LimitReached)
    assert isinstance(result.error.__cause__, LLMError)
    assert [fact.outcome for fact in facts.of(OperationAttempt)] == ["retry"] * retries + ["exhausted"]
    llm.assert_complete()


async def test_a_run_that_used_all_its_retries_goes_on_as_long_as_it_needs_no_more() -> None:
    script = [LLMError("busy", kind="rate_limited"), call("step", n=1), call("step", n=2), "done"]
    result = await agent(script, [step], limits=Limits(max_retries=1)).run("go")
    assert result.outcome is Outcome.COMPLETED


async def test_retries_are_made_as_the_policy_says_and_each_is_a_fact() -> None:
    facts, clock = Facts(), FakeClock(auto=True)
    errors = [LLMError("busy", kind="rate_limited", retry_after=7), ConnectionResetError(), TimeoutError()]
    retry = RetryPolicy(attempts=4, base=1.0, jitter=0.0)
    runner = agent([*errors, "done"], retry=retry, observers=[facts], clock=clock)
    result = await runner.run("go")
    assert result.outcome is Outcome.COMPLETED
    assert clock.slept == [7, 2.0, 4.0]
    assert [fact.outcome for fact in facts.of(LLMCall)] == ["rate_limited", "connection", "timeout", "ok"]


async def test_the_last_error_of_exhausted_retries_is_the_runs() -> None:
    errors = [LLMError(f"busy {number}", kind="rate_limited") for number in range(4)]
    result = await agent(errors, retry=NO_WAIT).run("go")
    assert (result.outcome, result.reason, result.error) == (Outcome.FAILED, "llm_error", errors[-1])


async def test_a_fatal_error_is_not_tried_again_whatever_retries_are_left() -> None:
    llm = ScriptedLLM([LLMError("no", kind="auth"), "never"])
    result = await agent(llm, limits=Limits(max_retries=1)).run("go")
    assert (result.outcome, result.reason, len(llm.requests)) == (Outcome.FAILED, "llm_error", 1)


async def test_time_is_asked_for_after_each_turn() -> None:
    clock = FakeClock(auto=True)
    llm = endless()

    async def work(n: int) -> str:
        await clock.sleep(4)
        return f"step {n}"

    model = FunctionLLM(
        lambda request: Response(None, (call("work", n=len(llm.requests)),)), latency=1, clock=clock
    )
    limits = Limits(max_seconds=20, wrap_up_turns=1, wrap_up_share=0.25)
    result = await agent(model, [work], limits=limits, clock=clock).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
    assert [request.tool_choice for request in model.requests] == ["auto"] * 3 + ["none"]


@pytest.mark.parametrize("by", ["limit", "deadline"])
async def test_a_run_over_its_time_is_interrupted_in_a_tool_and_answers_for_it(by: str) -> None:
    clock = FakeClock(auto=True)
    started = []

    async def hang() -> str:
        started.append(True)
        await clock.sleep(1_000)
        return "never"

    options: dict[str, Any] = {"deadline": 10} if by == "deadline" else {"limits": Limits(max_seconds=10)}
    result = await agent([call("hang")], [hang], clock=clock).run("go", **options)
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
    assert isinstance(result.error, DeadlineExceeded)
    assert started
    assert not faults(result.messages)
    assert "stopped before this call finished" in result.messages[-1].text


async def test_the_nearer_of_limit_and_deadline_counts() -> None:
    clock = FakeClock(auto=True)
    model = FunctionLLM(lambda request: "late", latency=50, clock=clock)
    result = await agent(model, clock=clock).run("go", limits=Limits(max_seconds=40), deadline=60)
    assert (result.reason, str(result.error)) == ("time", "the run lasted longer than its limit of 40 s")


async def test_a_state_that_lasts_too_long_fails_the_run() -> None:
    clock = FakeClock(auto=True)
    model = FunctionLLM(lambda request: "late", latency=601, clock=clock)
    result = await agent(model, clock=clock).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "state_timeout")


async def test_prices_make_a_cost_of_usage_that_names_none() -> None:
    def price(model: str | None, tokens: Any) -> float | None:
        return (tokens["input_tokens"] + 2 * tokens["output_tokens"]) / 100 if model == "scripted" else None

    runner = agent(ScriptedLLM([call("step", n=1), "done"], usage=Usage(10, 5)), [step], price=price)
    assert (await runner.run("go")).usage == Usage(20, 10, cost=0.4)
