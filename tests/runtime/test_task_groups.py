"""Task groups that fail inside tools, models and a host's hooks: a failure of theirs, no cancellation of the run."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.tools.spec import ToolContext, tool
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import agent


async def no_index() -> None:
    await asyncio.sleep(0)
    raise LookupError("no index")


async def several() -> None:
    """Search in several places: a group that fails while it waits for its tasks."""
    async with asyncio.TaskGroup() as group:
        group.create_task(no_index())


@tool(effect="pure", errors="return")
async def search(query: str) -> str:
    """Search."""
    await several()
    return query


@tool(effect="pure", sequential=True)
async def lenient(query: str) -> str:
    """Search, and say so where there is nothing."""
    try:
        await several()
    except* LookupError:
        pass
    return "nothing"


@tool(effect="pure", sequential=True, timeout=0.05)
async def endless(query: str) -> str:
    """Search without end."""
    await asyncio.Event().wait()
    return query


def results(result: Result) -> list[str]:
    """What the model was told of its calls."""
    return [str(message.content) for message in result.messages if message.role == "tool"]


async def test_a_tool_whose_group_fails_gives_the_model_an_error() -> None:
    runner = agent([call("search", query="x"), "none"], [search])
    result = await runner.run("go")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "none")
    assert "unhandled errors in a TaskGroup" in results(result)[0]


async def test_the_tools_after_one_whose_group_failed_run_and_keep_their_time_limits() -> None:
    both = [call("lenient", query="x"), call("endless", query="x")]
    result = await agent([both, "done"], [lenient, endless]).run("go")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
    first, second = results(result)
    assert first == "nothing"
    assert "gave no answer within 0.05 s" in second


async def test_a_model_whose_group_fails_fails_the_run() -> None:
    async def answer(request: Request) -> Response:
        await several()
        return Response("x")

    result = await agent(FunctionLLM(answer)).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "llm_error")
    assert isinstance(result.error, ExceptionGroup)


@pytest.mark.parametrize("name", ["before_llm_response", "leave_await_llm", "enter_await_llm", "after_event"])
async def test_a_hosts_hook_whose_group_fails_fails_the_run(name: str) -> None:
    async def hook(run: LoopRun) -> None:
        await several()

    result = await agent(["x"], hooks=[type("Host", (), {name: staticmethod(hook)})()]).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "callback_error")
    assert isinstance(result.error, ExceptionGroup)


@tool(effect="pure")
async def unlimited() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


def no_context(call: ToolCall, position: int) -> ToolContext:
    raise AssertionError("nobody takes one")


async def test_a_time_limit_of_a_hook_reaches_the_tools_that_it_runs() -> None:
    async def hook(run: LoopRun) -> None:
        async with asyncio.timeout(0.05):
            await ToolSet([unlimited]).execute_all([call("unlimited")], no_context)

    runner = agent(["x"], hooks=[type("Host", (), {"enter_await_llm": staticmethod(hook)})()])
    result = await runner.run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "callback_error")
    assert isinstance(result.error, TimeoutError)


@tool(effect="pure")
async def gives_up() -> None:
    """Wait for work that somebody cancelled."""
    work = asyncio.ensure_future(asyncio.Event().wait())
    work.cancel()
    await work


@tool(effect="pure", timeout=0.05)
async def limited() -> None:
    """Wait for longer than it may."""
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("asked", "said"), [("gives_up", "CancelledError"), ("limited", "gave no answer within 0.05 s")]
)
async def test_a_tool_is_not_taken_for_cancelled_because_a_group_failed_before_it(
    asked: str, said: str
) -> None:
    async def hook(run: LoopRun, call: ToolCall) -> None:
        with contextlib.suppress(ExceptionGroup):
            await several()

    host = type("Host", (), {"before_tool_execution": staticmethod(hook)})()
    result = await agent([call(asked), "done"], [gives_up, limited], hooks=[host]).run("go")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
    assert said in results(result)[0]
