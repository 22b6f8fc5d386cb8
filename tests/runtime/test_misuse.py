"""Mistakes of hosts: each is said where it was made, and none is passed over in silence."""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, GraphError, LLMError, RunExists
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.with_runtime import with_runtime

ran: list[str] = []


@tool
def remove(path: str) -> str:
    """Remove a file."""
    ran.append(path)
    return "gone"


class TakesTooLittle:
    async def before_tool_execution(self, run: LoopRun) -> None:
        raise PermissionError


class TakesTooMuch:
    async def before_finalize(self, run: LoopRun, output: Any, more: Any) -> None: ...


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (TakesTooLittle(), r"hook_arguments: TakesTooLittle.before_tool_execution must take \(run, call\)"),
        (TakesTooMuch(), r"hook_arguments: TakesTooMuch.before_finalize must take \(run, output\)"),
        (TakesTooLittle, r"TakesTooLittle.before_tool_execution: give an instance of the class"),
    ],
)
def test_a_middleware_hook_that_could_not_be_called_is_refused_not_dropped(hooks: object, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        Agent(ScriptedLLM([]), hooks=[hooks], observers=())


async def test_a_run_stopped_by_a_middleware_hook_does_not_run_the_tool() -> None:
    class Policy:
        async def before_tool_execution(self, run: LoopRun, call: ToolCall) -> None:
            run.cancel(why="policy")

    ran.clear()
    agent = Agent(ScriptedLLM([call("remove", path="/")]), tools=[remove], hooks=[Policy()], observers=())

    result = await agent.run("clean up")

    assert (result.outcome, ran) == (Outcome.CANCELLED, [])


async def test_a_run_stopped_before_the_request_does_not_ask_the_model() -> None:
    class Policy:
        async def before_llm_request(self, run: LoopRun, request: Request) -> None:
            run.cancel()

    llm = ScriptedLLM(["never"])
    result = await Agent(llm, hooks=[Policy()], observers=()).run("go")

    assert (result.outcome, llm.requests) == (Outcome.CANCELLED, [])


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (Response(5), "content of type int"),  # type: ignore[arg-type]
        (Response("x", usage={}), "usage of type dict"),  # type: ignore[arg-type]
        (Response("x", usage=Usage(-1, 2)), "usage with input_tokens below 0"),
        (Response("x", usage=Usage(1, 2**70)), "usage with output_tokens of 2**53 or more"),
        (Response("x", usage=Usage(1.5, 2)), "input_tokens '1.5'; it must be a whole number"),  # type: ignore[arg-type]
        (Response("x", usage=Usage(1, 2, cost=math.nan)), "usage with cost nan; it must be None or a number"),
        (Response("x", usage=Usage(1, 2, cost=-0.1)), "usage with cost -0.1; it must be None or a number"),
        (Response(tool_calls=({"id": "1"},)), "not a tuple of ToolCall"),  # type: ignore[arg-type]
        (Response(tool_calls=ToolCall("1", "f")), "not a tuple of ToolCall"),  # type: ignore[arg-type]
        (Response(tool_calls=(ToolCall("1", "f", {"a": 1}),)), "arguments are JSON text"),  # type: ignore[arg-type]
        (Response(["x"]), "content whose parts are not all mappings"),  # type: ignore[list-item]
        (Response(None, refusal=5), "a refusal of type int"),  # type: ignore[arg-type]
        (Response("x", refusal=b"no"), "a refusal of type bytes"),  # type: ignore[arg-type]
    ],
)
async def test_a_malformed_response_is_the_models_fault_and_leaves_nothing_behind(
    response: Response, said: str
) -> None:
    class Model:
        async def complete(self, request: Request) -> Response:
            return response

    agent = Agent(Model(), observers=())

    result = await agent.run("go", run_id="r", conversation_id="c")

    assert (result.outcome, result.reason) == (Outcome.FAILED, "llm_error")
    assert isinstance(result.error, LLMError)
    assert said in str(result.error)
    assert [message.text for message in result.messages] == ["go"]
    await agent.run("again", conversation_id="c")  # the conversation is free again


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, "2"])
async def test_a_price_that_is_no_amount_fails_the_run_and_is_refused_where_a_limit_needs_it(
    cost: Any,
) -> None:
    options: dict[str, Any] = {"observers": (), "price": lambda model, tokens: cost}
    with pytest.raises(ConfigError, match=re.escape(f"the price of 'scripted' is {cost!r}")):
        Agent(ScriptedLLM(["x"]), limits=Limits(max_cost=1.0), **with_runtime(**options))
    agent = Agent(ScriptedLLM(["x"]), **with_runtime(**options))

    result = await agent.run("go", run_id="r")

    assert result.outcome is Outcome.FAILED
    assert f"the price of 'scripted' is {cost!r}; it must be None or a number" in str(result.error)
    assert (await agent.resume("r")).outcome is Outcome.FAILED  # it is stored so that it can be read


async def test_a_conversation_has_one_run_at_a_time(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def wait(request: Request) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(FunctionLLM(wait), observers=())
    first = asyncio.create_task(agent.run("one", conversation_id="c", run_id="r"))
    await reached.wait()

    with pytest.raises(ConfigError, match=r"conversation 'c' has an active run \(r\); wait for its end"):
        await agent.run("two", conversation_id="c")

    agent.cancel("r")
    assert (await first).outcome == Outcome.CANCELLED

    refused_one = asyncio.Event()

    async def answer(request: Request) -> str:
        await refused_one.wait()
        return "one"

    async with SqliteJournal(tmp_path / "runs.db") as journal:
        stored = Agent(FunctionLLM(answer), runtime=Runtime(journal=journal, observers=()))
        both = [
            asyncio.create_task(stored.run(prompt, conversation_id="c", run_id=prompt))
            for prompt in ("one", "two")
        ]
        (refused,), (running,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        # The id of the other run is there once it is stored.
        with pytest.raises(
            ConfigError, match=r"^conversation 'c' has an active run( \((one|two)\))?; wait for its end$"
        ):
            refused.result()
        refused_one.set()
        assert (await running).outcome == Outcome.COMPLETED


@pytest.mark.parametrize("deadline", [0, -1, 0.0])
async def test_a_deadline_that_has_passed_starts_nothing(deadline: float) -> None:
    llm = ScriptedLLM(["never"])

    result = await Agent(llm, observers=()).run("go", deadline=deadline)

    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
    assert llm.requests == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_iterations", "5", "max_iterations is '5'; it must be a whole number"),
        ("max_iterations", 1.5, "max_iterations is 1.5; it must be a whole number"),
        ("max_tool_calls", True, "max_tool_calls is True; it must be a whole number"),
        ("max_seconds", "1", "max_seconds is '1'; it must be a number"),
        ("tool_caps", {"f": "2"}, r"tool_caps\['f'\] is '2'; it must be a whole number"),
    ],
)
def test_a_limit_that_is_no_number_is_refused_at_once(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Limits(**{name: value})


async def test_a_run_whose_caller_lost_patience_is_not_lost() -> None:
    async def wait(request: Request) -> str:
        asked.append(request)
        if len(asked) == 1:
            patience.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return "at last"

    asked: list[Request] = []
    agent = Agent(FunctionLLM(wait), observers=())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as patience:
            await agent.run("go", run_id="same")

    with pytest.raises(RunExists, match="resume\\('same'\\), or by run or stream with if_exists='resume'"):
        await agent.run("go", run_id="same")
    result = await agent.resume("same")

    assert (result.outcome, result.output) == (Outcome.COMPLETED, "at last")
    assert (await agent.resume("same")).output == "at last"  # it has ended: only told


async def test_a_refused_run_id_does_not_make_the_run_that_has_it_forgotten() -> None:
    agent = Agent(ScriptedLLM(["one"]), observers=())
    await agent.run("go", run_id="r")

    for _ in range(2):
        with pytest.raises(RunExists):
            await agent.run("go", run_id="r")
