"""One question to the model: what it is shown, how it is asked, what its answer adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import LimitReached, LLMError
from orchestrator.kernel.fact import LLMCall, OperationAttempt
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.providers.scripted import call
from orchestrator_callbacks.llm_loop import turn
from orchestrator_guards import Verdict
from tests.callbacks.stand import USER, facts, loop_run


def add(a: int) -> int:
    return a


def busy() -> LLMError:
    return LLMError("busy", kind="rate_limited")


def test_a_request_shows_the_conversation_and_the_tools() -> None:
    run = loop_run(Message("assistant", "hm"), tools=[add], params={"temperature": 0})
    request = turn.compose(run)
    assert list(request.messages) == run.ctx.messages
    assert [tool.name for tool in request.tools] == ["add"]
    assert (request.tool_choice, request.output_schema, request.params) == ("auto", None, {"temperature": 0})


def test_notices_are_shown_in_order_and_stay_out_of_the_history() -> None:
    run = loop_run(
        Message("assistant", None, (call("add", a=1),)),
        Message("tool", "no", tool_call_id="auto", name="add", is_error=True),
        limits=replace(OFF, guidance=1),
    )
    run.ctx.progress.warning = "You repeat yourself."
    run.ctx.wrapping_up, run.ctx.verdict = True, Verdict(ok=False, guard="cost", observed=2, limit=2)
    request = turn.compose(run)
    notices = [m.text for m in request.messages][3:]
    assert [text.split()[0] for text in notices] == ["Calls", "You", "A"]
    assert "cost: 2 of 2 used" in notices[2]
    assert request.tool_choice == "none"
    assert len(run.ctx.messages) == 3


async def test_an_answer_is_reported_with_its_usage_and_price() -> None:
    response = Response("hi", usage=Usage(10, 5, 2, 1), finish_reason="stop", tool_calls=(call("add", a=1),))
    run = loop_run(script=[response], price=lambda model, tokens: tokens["input_tokens"] / 100)
    answer = await turn.ask(run, turn.compose(run))
    assert answer.content == "hi"
    (told,) = facts(run, LLMCall)
    assert (told.outcome, told.input_tokens, told.output_tokens, told.cost) == ("ok", 10, 5, 0.1)
    assert (told.cached_input_tokens, told.reasoning_tokens, told.tool_calls) == (2, 1, 1)
    assert (told.iteration, told.finish_reason, told.model) == (1, "stop", "scripted")


async def test_a_cost_that_the_answer_names_itself_is_taken() -> None:
    run = loop_run(script=[Response("hi", usage=Usage(10, cost=7.0))], price=lambda model, tokens: 1.0)
    turn.take(run, await turn.ask(run, turn.compose(run)))
    assert run.ctx.spent.usage.cost == 7.0


async def test_each_try_is_a_fact_and_the_last_error_is_raised_itself() -> None:
    errors = [busy() for _ in range(3)]
    run = loop_run(script=errors, retry=RetryPolicy(attempts=3, base=1.0, jitter=0.0))
    with pytest.raises(LLMError) as caught:
        await turn.ask(run, turn.compose(run))
    assert caught.value is errors[-1]
    tries = [(fact.outcome, fact.number, fact.delay) for fact in facts(run, OperationAttempt)]
    assert tries == [("retry", 1, 1.0), ("retry", 2, 2.0), ("exhausted", 3, 0.0)]
    assert [fact.outcome for fact in facts(run, LLMCall)] == ["rate_limited"] * 3
    assert (run.ctx.spent.retries, run.ctx.fault, run.ctx.verdict) == (2, "llm_error", None)


@pytest.mark.parametrize(("limit", "used", "tries"), [(1, 0, 2), (2, 0, 3), (2, 1, 2), (2, 2, 1)])
async def test_the_budget_of_retries_shortens_the_policy(limit: int, used: int, tries: int) -> None:
    run = loop_run(script=[busy() for _ in range(4)], limits=replace(OFF, max_retries=limit))
    run.ctx.spent.retries = used
    with pytest.raises(LimitReached) as caught:
        await turn.ask(run, turn.compose(run))
    assert len(facts(run, LLMCall)) == tries
    assert (
        run.ctx.verdict
        == caught.value.verdict
        == Verdict(ok=False, guard="retries", observed=limit, limit=limit)
    )


async def test_where_the_policy_ends_first_the_budget_is_not_to_blame() -> None:
    run = loop_run(
        script=[busy(), busy()], limits=replace(OFF, max_retries=1), retry=RetryPolicy(2, 0.0, jitter=0.0)
    )
    with pytest.raises(LLMError):
        await turn.ask(run, turn.compose(run))
    assert run.ctx.verdict is None


@pytest.mark.parametrize("nothing", [None, "text", {}])
async def test_what_is_no_response_is_a_malformed_answer(nothing: object) -> None:
    class Odd:
        async def complete(self, request: Request) -> object:
            return nothing

    run = loop_run(llm=Odd())
    with pytest.raises(LLMError, match="not a Response") as caught:
        await turn.ask(run, turn.compose(run))
    assert (caught.value.kind, run.ctx.fault) == ("malformed", "llm_error")
    assert [fact.outcome for fact in facts(run, LLMCall)] == ["malformed"]


def test_taking_an_answer_counts_it_and_clears_what_was_of_the_turn_before() -> None:
    run = loop_run()
    run.ctx.progress.warning, run.ctx.results = "You repeat yourself.", [None]
    turn.take(run, Response("one", usage=Usage(10, 6)))
    turn.take(run, Response("two", usage=Usage(20, 5)))
    ctx = run.ctx
    assert ctx.messages == [USER, Message("assistant", "one"), Message("assistant", "two")]
    assert (ctx.iteration, ctx.spent.usage, ctx.context.tokens) == (2, Usage(30, 11), 25)
    assert ctx.spent.largest_answer == 6
    assert (ctx.progress.warning, ctx.results) == ("", [])
