"""The hook modules: which event leaves each state, and what leave_, before_ and after_ hooks do."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from orchestrator.errors import LimitReached
from orchestrator.kernel.fact import BudgetChecked
from orchestrator.kernel.hooks import collect
from orchestrator.llm.message import Message, Response, Usage
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.machines.llm_loop.model import LoopEvent
from orchestrator.providers.scripted import call
from orchestrator.telemetry.scope import scope
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop import after, before, enter, leave
from orchestrator_callbacks.llm_loop.deps import POINTS, LoopRun, split, through
from orchestrator_guards import Verdict
from tests.callbacks.stand import USER, answered, facts, loop_run
from tests.runtime.stage import Notebook

COST = Verdict(ok=False, guard="cost", observed=2, limit=1)


def look() -> str:
    return "seen"


def test_the_modules_fit_the_table() -> None:
    bound = collect(LLM_LOOP, enter, leave, before, after, points=POINTS)
    assert {name for name in bound.by_name if name.startswith("enter_")} == {
        f"enter_{state.value}" for state in LLM_LOOP.states if state != "terminate_error"
    }
    assert not bound.hosted


async def test_init_asks_memory_and_starts() -> None:
    run = loop_run(memory=Notebook(Message("system", "known")))
    assert await enter.enter_init(run) is LoopEvent.START_LOOP
    assert run.ctx.messages == [Message("system", "known"), USER]


async def test_await_llm_asks_and_takes_the_answer() -> None:
    run = loop_run(script=["hi"])
    with scope({}):
        assert await enter.enter_await_llm(run) is LoopEvent.LLM_RESPONSE
    assert (run.ctx.iteration, run.ctx.messages[-1].text) == (1, "hi")


async def test_await_llm_spends_nothing_where_a_guard_was_missed() -> None:
    run = loop_run(limits=replace(OFF, max_iterations=3))
    run.ctx.iteration = 3
    with pytest.raises(LimitReached, match="iterations: 3 of 3 used"):
        await enter.enter_await_llm(run)
    assert run.ctx.verdict is not None


async def test_await_llm_compacts_first() -> None:
    limits = replace(OFF, compaction_threshold=0.5)
    run = loop_run(Message("assistant", "hm"), Message("user", "on"), script=["hi"], limits=limits)
    run.ctx.context.tokens, run.ctx.context.limit = 60, 100
    with scope({}):
        await enter.enter_await_llm(run)
    assert [m.role for m in run.ctx.messages] == ["user", "system", "assistant"]


@pytest.mark.parametrize(
    ("calls", "event"), [((), LoopEvent.RESPONSE_NO_TOOL), ((call("x"),), LoopEvent.RESPONSE_WITH_TOOLS)]
)
async def test_evaluate_response_tells_calls_from_an_answer(
    calls: tuple[object, ...], event: LoopEvent
) -> None:
    run = loop_run()
    run.ctx.response = Response("hi", calls)  # type: ignore[arg-type]
    assert await enter.enter_evaluate_response(run) is event


async def test_evaluate_response_of_nothing_is_an_answer() -> None:
    assert await enter.enter_evaluate_response(loop_run()) is LoopEvent.RESPONSE_NO_TOOL


async def test_process_tools_runs_the_calls_and_leaving_it_puts_down_their_results() -> None:
    run = answered(loop_run(tools=[look]), call("look"))
    assert await enter.enter_process_tools(run) is LoopEvent.TOOLS_EXECUTED
    assert run.ctx.messages[-1].role == "assistant"
    await leave.leave_process_tools(run)
    assert run.ctx.messages[-1].text == "seen"


async def test_update_budgets_goes_on_while_every_guard_agrees() -> None:
    run = loop_run(limits=replace(OFF, max_iterations=5, max_cost=1.0))
    assert await enter.enter_update_budgets(run) is LoopEvent.BUDGET_OK
    (told,) = facts(run, BudgetChecked)
    assert [verdict.guard for verdict in told.verdicts] == ["cost", "iterations"]
    assert run.ctx.verdict is None


async def test_update_budgets_ends_the_run_at_the_first_refusal() -> None:
    run = loop_run(limits=replace(OFF, max_cost=1.0))
    run.ctx.spent.usage = Usage(cost=2.0)
    assert await enter.enter_update_budgets(run) is LoopEvent.BUDGET_EXCEEDED
    assert run.ctx.verdict == COST


async def test_update_budgets_keeps_the_refusal_of_a_call() -> None:
    run = loop_run(limits=replace(OFF, max_iterations=1))
    run.ctx.iteration, run.ctx.verdict = 1, COST
    assert await enter.enter_update_budgets(run) is LoopEvent.BUDGET_EXCEEDED
    assert run.ctx.verdict is COST
    assert facts(run, BudgetChecked)[0].verdicts[0] is COST


async def test_update_budgets_wraps_up_where_a_turn_is_kept_back() -> None:
    run = loop_run(limits=replace(OFF, max_cost=3.0, wrap_up_turns=1, wrap_up_share=0.5))
    run.ctx.spent.usage = Usage(cost=2.0)
    assert await enter.enter_update_budgets(run) is LoopEvent.BUDGET_OK
    assert run.ctx.wrapping_up


async def test_update_budgets_starts_over_a_run_that_is_stuck() -> None:
    run = loop_run(limits=replace(OFF, max_restarts=1, restart_stall_threshold=1))
    for expected in (LoopEvent.BUDGET_OK, LoopEvent.RESTART_LOOP):
        answered(run, call("look"))
        run.ctx.results = [ToolResult(call("look"), 0, "same")]
        assert await enter.enter_update_budgets(run) is expected
    await before.before_restart_loop(run)
    assert (run.ctx.messages, run.ctx.spent.restarts) == ([USER], 1)


async def test_handle_completion_takes_an_answer_or_asks_again() -> None:
    run = answered(loop_run(output=OutputSpec.of(int), limits=replace(OFF, completion_retries=1)), text="x")
    assert await enter.enter_handle_completion(run) is LoopEvent.COMPLETION_RETRY
    assert await enter.enter_handle_completion(answered(run, text="7")) is LoopEvent.COMPLETION_SUCCESS
    assert run.ctx.output == 7


async def test_finalize_shows_the_output_to_the_host_and_keeps_the_exchange() -> None:
    async def shout(run: LoopRun, output: str) -> str:
        return output.upper()

    memory = Notebook()
    run = answered(loop_run(memory=memory, points={"before_finalize": (shout,)}), text="done")
    run.ctx.output = "done"
    await enter.enter_finalize(run)
    assert run.ctx.output == "DONE"
    assert memory.stored == [("r", (USER, Message("assistant", "done")))]


async def test_every_bad_end_leaves_an_episode() -> None:
    memory = Notebook()
    run = loop_run(memory=memory)
    await after.after_failure(run)
    await after.after_budget_exceeded(run)
    assert len(memory.episodes) == 2


async def test_a_value_goes_through_the_points_in_turn() -> None:
    async def double(run: LoopRun, value: int) -> int:
        return value * 2

    async def look_only(run: LoopRun, value: int) -> None: ...

    run = loop_run(points={"before_finalize": (double, look_only, double)})
    assert await through(run, "before_finalize", 3) == 12
    assert run.hook == "before_finalize"
    assert await through(run, "before_llm_request", 3) == 3


async def test_hooks_and_points_of_one_name_are_told_apart_by_what_they_take() -> None:
    class Host:
        async def after_llm_response(self, run: LoopRun) -> None: ...

    class Middleware:
        async def after_llm_response(self, run: LoopRun, response: Response) -> None: ...

        async def before_finalize(self, run: LoopRun, output: object) -> None: ...

    host, middleware = Host(), Middleware()
    hooks, points = split(
        collect(LLM_LOOP, enter, leave, before, after, extra=(host, middleware), points=POINTS)
    )
    (hook,) = hooks.by_name["after_llm_response"]
    assert inspect.unwrap(hook) == host.after_llm_response
    assert {name: tuple(map(inspect.unwrap, found)) for name, found in points.items()} == {
        "after_llm_response": (middleware.after_llm_response,),
        "before_finalize": (middleware.before_finalize,),
    }
    assert hooks.hosted == {"after_llm_response"}
