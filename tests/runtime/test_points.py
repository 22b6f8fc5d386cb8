"""The five points inside the states where a host's hooks look and change; and errors in each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import GraphError, Refused, RunFailed
from orchestrator.kernel.fact import EventFailed
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop.deps import POINTS, LoopRun
from tests.runtime.stage import Facts, agent, faults, path


def add(a: int, b: int) -> int:
    return a + b


class Witness:
    """Writes down each point it passes."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def _note(self, point: str) -> None:
        self.seen.append(f"{self.name} {point}")

    async def before_llm_request(self, run: LoopRun, request: Request) -> None:
        self._note("before_llm_request")

    async def after_llm_response(self, run: LoopRun, response: Response) -> None:
        self._note("after_llm_response")

    async def before_tool_execution(self, run: LoopRun, tool_call: ToolCall) -> None:
        self._note("before_tool_execution")

    async def after_tool_execution(self, run: LoopRun, result: ToolResult) -> None:
        self._note("after_tool_execution")

    async def before_finalize(self, run: LoopRun, output: object) -> None:
        self._note("before_finalize")


async def test_points_are_passed_in_order_and_by_each_host_in_turn() -> None:
    seen: list[str] = []
    runner = agent([call("add", a=1, b=2), "3"], [add], hooks=[Witness("one", seen), Witness("two", seen)])
    result = await runner.run("1 + 2?")
    turn = ["before_llm_request", "after_llm_response"]
    expected = [*turn, "before_tool_execution", "after_tool_execution", *turn, "before_finalize"]
    assert seen == [f"{name} {point}" for point in expected for name in ("one", "two")]
    assert result.output == "3"


async def test_each_point_may_replace_what_passes_through_it() -> None:
    class Editor:
        async def before_llm_request(self, run: LoopRun, request: Request) -> Request:
            return replace(request, params={"temperature": 0})

        async def after_llm_response(self, run: LoopRun, response: Response) -> Response | None:
            return None if response.tool_calls else replace(response, content=f"{response.content}!")

        async def before_tool_execution(self, run: LoopRun, tool_call: ToolCall) -> ToolCall:
            return replace(tool_call, arguments='{"a": 40, "b": 2}')

        async def after_tool_execution(self, run: LoopRun, result: ToolResult) -> ToolResult:
            return replace(result, content=f"<{result.content}>")

        async def before_finalize(self, run: LoopRun, output: str) -> str:
            return output.upper()

    llm = ScriptedLLM([call("add", a=1, b=2), "done"])
    result = await agent(llm, [add], hooks=[Editor()]).run("1 + 2?")
    assert llm.requests[0].params == {"temperature": 0}
    assert result.messages[2].text == "<42>"
    assert result.messages[1].tool_calls[0].arguments == '{"a": 1, "b": 2}'
    assert result.messages[-1].text == "done!"
    assert result.output == "DONE!"


async def test_the_second_host_sees_what_the_first_made() -> None:
    class Suffix:
        def __init__(self, text: str) -> None:
            self.text = text

        async def before_finalize(self, run: LoopRun, output: str) -> str:
            return output + self.text

    assert (await agent(["x"], hooks=[Suffix("1"), Suffix("2")]).run("?")).output == "x12"


async def test_a_result_given_before_a_tool_runs_stands_for_it() -> None:
    ran = []

    def touch() -> str:
        ran.append(True)
        return "touched"

    class Cache:
        async def before_tool_execution(self, run: LoopRun, tool_call: ToolCall) -> ToolResult:
            return ToolResult(ToolCall("other", "other"), 7, "from the cache")

    result = await agent([call("touch"), "done"], [touch], hooks=[Cache()]).run("?")
    assert not ran
    assert result.messages[2].text == "from the cache"
    assert not faults(result.messages)


@pytest.mark.parametrize("point", POINTS)
async def test_an_error_in_any_point_fails_the_run_from_its_state(point: str) -> None:
    error = RuntimeError(f"{point} broke")

    async def broken(run: LoopRun, value: Any) -> None:
        raise error

    result = await agent([call("add", a=1, b=2), "3"], [add], hooks=[_Only(point, broken)]).run("?")
    assert (result.outcome, result.reason, result.error) == (Outcome.FAILED, "callback_error", error)
    assert path(result.transitions)[-1] == "failure"
    assert (
        result.transitions[-1].source
        == {
            "before_llm_request": "await_llm",
            "after_llm_response": "await_llm",
            "before_tool_execution": "process_tools",
            "after_tool_execution": "process_tools",
            "before_finalize": "finalize",
        }[point]
    )
    assert not faults(result.messages)


@pytest.mark.parametrize(
    ("hook", "last"),
    [
        ("enter_init", "init"),
        ("before_start_loop", "init"),
        ("enter_await_llm", "await_llm"),
        ("enter_evaluate_response", "evaluate_response"),
        ("leave_evaluate_response", "evaluate_response"),
        ("enter_process_tools", "process_tools"),
        ("after_tools_executed", "update_budgets"),
        ("enter_update_budgets", "update_budgets"),
        ("enter_handle_completion", "handle_completion"),
        ("enter_finalize", "finalize"),
        ("after_completion_success", "finalize"),
    ],
)
async def test_an_error_of_a_hosts_hook_fails_the_run_from_each_state(hook: str, last: str) -> None:
    error = RuntimeError(f"{hook} broke")

    async def broken(run: LoopRun) -> None:
        raise error

    result = await agent([call("add", a=1, b=2), "3"], [add], hooks=[_Only(hook, broken)]).run("?")
    assert (result.outcome, result.reason, result.error) == (Outcome.FAILED, "callback_error", error)
    assert (result.transitions[-1].source, result.transitions[-1].event) == (last, "failure")
    assert not faults(result.messages)


async def test_a_hook_that_asks_for_the_failure_itself_leaves_an_error_that_names_it() -> None:
    class Judge:
        async def enter_evaluate_response(self, run: LoopRun) -> str:
            return "failure"

    facts = Facts()
    result = await agent(["done"], hooks=[Judge()], observers=[facts]).run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "callback_error")
    said = "Judge.enter_evaluate_response returned 'failure' and no error; raise one that says why"
    assert str(result.error) == said
    assert path(result.transitions)[-2:] == ["llm_response", "failure"]
    [told] = facts.of(EventFailed)
    assert (told.hook, told.state, told.event) == ("enter_evaluate_response", "evaluate_response", "failure")
    with pytest.raises(RunFailed, match="Judge"):
        result.raise_for_outcome()


async def test_a_failure_that_a_later_hook_takes_back_leaves_no_error() -> None:
    class Judge:
        async def enter_evaluate_response(self, run: LoopRun) -> str:
            return "failure"

        async def enter_state(self, run: LoopRun) -> str | None:
            return "response_no_tool" if run.cursor.state == "evaluate_response" else None

    result = await agent(["done"], hooks=[Judge()]).run("?")
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)


@pytest.mark.parametrize("hook", ["after_budget_ok", "before_llm_request"])
async def test_a_refusal_where_nothing_can_be_refused_any_more_says_why_and_nothing_else(hook: str) -> None:
    async def refuse(run: LoopRun, *rest: object) -> None:
        raise Refused("not on Sundays")

    result = await agent([call("add", a=1, b=2), "3"], [add], hooks=[_Only(hook, refuse)]).run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "policy_stop")
    assert str(result.error) == "not on Sundays"


@pytest.mark.parametrize("hook", ["before_failure", "leave_await_llm", "after_failure"])
async def test_no_hook_can_keep_a_failed_run_from_failing_or_hide_its_error(hook: str) -> None:
    error = RuntimeError("the model broke")

    async def broken(run: LoopRun) -> None:
        raise OSError(f"{hook} broke as well")

    class Model:
        async def complete(self, request: Request) -> Response:
            raise error

    result = await agent(Model(), hooks=[_Only(hook, broken)]).run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "llm_error")
    if hook != "leave_await_llm":  # it is a host's hook of the same state, and comes with the failure
        assert result.error is error


async def test_after_llm_response_is_the_hook_of_the_event_where_it_takes_the_run_alone() -> None:
    seen = []

    class Host:
        async def after_llm_response(self, run: LoopRun) -> None:
            seen.append((run.cursor.state, run.ctx.iteration))

    result = await agent(["done"], hooks=[Host(), Witness("w", [])]).run("?")
    assert result.outcome is Outcome.COMPLETED
    assert seen == [("evaluate_response", 1)]


def test_a_misspelt_point_is_named_with_the_one_that_was_meant() -> None:
    async def before_llm_requests(run: LoopRun, request: Request) -> None: ...

    with pytest.raises(GraphError, match="did you mean 'before_llm_request'"):
        agent([], hooks=[_Only("before_llm_requests", before_llm_requests)])


def test_a_misspelt_point_is_guessed_among_the_points_too() -> None:
    async def before_tool_call(run: LoopRun, call: ToolCall) -> None: ...

    with pytest.raises(GraphError, match=r"did you mean .*'before_tool_execution'"):
        agent([], hooks=[_Only("before_tool_call", before_tool_call)])


@pytest.mark.parametrize(
    ("point", "wanted"),
    [
        ("before_llm_request", "Request"),
        ("after_llm_response", "Response"),
        ("before_tool_execution", "ToolCall or ToolResult"),
        ("after_tool_execution", "ToolResult"),
    ],
)
async def test_what_a_point_returns_of_another_kind_is_its_own_error_and_names_it(
    point: str, wanted: str
) -> None:
    class Host:
        async def _answer(self, run: LoopRun, value: Any) -> str:
            return "text"

    setattr(Host, point, Host._answer)
    result = await agent([call("add", a=1, b=2), "3"], [add], hooks=[Host()]).run("?")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "callback_error")
    assert str(result.error) == f"Host.{point} returned str, not {wanted}"
    assert not faults(result.messages)


async def test_a_call_that_one_host_denies_is_not_shown_to_the_next_and_the_model_reads_why() -> None:
    ran, seen = [], []

    def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    class Policy:
        async def before_tool_execution(self, run: LoopRun, call: ToolCall) -> ToolResult:
            return ToolResult.denied(call, "not on Sundays")

    class Later:
        async def before_tool_execution(self, run: LoopRun, call: ToolCall) -> None:
            seen.append(call)

    result = await agent([call("pay", amount=5), "well"], [pay], hooks=[Policy(), Later()]).run("?")
    assert (ran, seen) == ([], [])
    assert result.outcome is Outcome.COMPLETED
    assert result.messages[2].text == '{"error":"not on Sundays","type":"Denied"}'
    assert result.messages[2].is_error


class _Only:
    """A host's object with one hook."""

    def __init__(self, name: str, hook: object) -> None:
        setattr(self, name, hook)
