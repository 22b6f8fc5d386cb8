"""The loop as a whole: which states a run goes through, what it hands over, and how two runs keep apart."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import ConfigError, RunExists, RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import LLMCall, RunCompleted, ToolExecution
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.model_guard import refuse_real_models
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.scope import config_from_context, logger_from_context
from tests.runtime.stage import Facts, agent, faults, path, states


def add(a: int, b: int) -> int:
    return a + b


async def test_an_answer_without_a_call_ends_the_run_after_one_question() -> None:
    llm = ScriptedLLM(["Two moons."])
    result = await agent(llm).run("How many moons?")
    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "none", "Two moons.")
    assert path(result.transitions) == [
        "start_loop",
        "llm_response",
        "response_no_tool",
        "completion_success",
    ]
    assert states(result.transitions) == ["await_llm", "evaluate_response", "handle_completion", "finalize"]
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert result.error is None
    assert result.verdict is None
    llm.assert_complete()


async def test_a_call_is_run_and_its_result_shown_to_the_model() -> None:
    llm = ScriptedLLM([call("add", a=1, b=2), "3"])
    result = await agent(llm, [add]).run("1 + 2?")
    assert path(result.transitions)[2:5] == ["response_with_tools", "tools_executed", "budget_ok"]
    assert [(m.role, m.text) for m in llm.requests[1].messages] == [
        ("user", "1 + 2?"),
        ("assistant", ""),
        ("tool", "3"),
    ]
    assert not faults(result.messages)
    assert result.usage == Usage(2, 2)


async def test_a_model_that_fails_ends_the_run_as_failed_with_its_error() -> None:
    error = ValueError("no such deployment")
    result = await agent([error]).run("hello")
    assert (result.outcome, result.reason, result.error) == (Outcome.FAILED, "llm_error", error)
    assert path(result.transitions) == ["start_loop", "failure"]
    assert [message.role for message in result.messages] == ["user"]
    assert result.output is None


@pytest.mark.parametrize("answer", [None, {"content": "a dict"}, "text"])
async def test_a_model_that_answers_with_something_else_than_a_response_fails_the_run(answer: object) -> None:
    class Odd:
        async def complete(self, request: Request) -> Response:
            return answer  # type: ignore[return-value]

    result = await agent(Odd()).run("hello")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "llm_error")
    assert "not a Response" in str(result.error)


def test_something_without_complete_is_no_model() -> None:
    with pytest.raises(ConfigError, match=r"model must have `async complete\(request\)`; object does not"):
        Agent(object())  # type: ignore[call-overload]


async def test_with_real_models_switched_off_only_doubles_are_asked() -> None:
    class Real:
        async def complete(self, request: Request) -> Response:
            return Response("paid for")

    with refuse_real_models():
        assert (await agent(["free"]).run("hello")).output == "free"
        with pytest.raises(ConfigError, match="real model calls are refused, and Real is not a test double"):
            await agent(Real()).run("hello")
    assert (await agent(Real()).run("hello")).output == "paid for"


def test_observers_are_told_of_graph_tools_and_model_before_any_run() -> None:
    class Declared(Facts):
        def declare(self, graph: Graph, **names: object) -> None:
            self.told = (graph.name, names)

    observer = Declared()
    agent([], [add], observers=[observer])
    expected = {"tools": ["add"], "model": "scripted", "provider": "_unknown", "backends": ["memory"]}
    assert observer.told == ("llm_loop", expected)


async def test_every_transition_is_logged_with_state_event_iteration_and_guard() -> None:
    stream = io.StringIO()
    runner = agent([call("add", a=1, b=2), "3"], [add], observers=[TransitionLog(stream)])
    result = await runner.run("1 + 2?")
    lines = [
        line for line in map(json.loads, stream.getvalue().splitlines()) if line["msg"] == "fsm.transition"
    ]
    assert [(line["seq"], line["fsm_event"], line["to_state"], line["iteration"]) for line in lines] == [
        (t.seq, t.event, t.dest, t.iteration) for t in result.transitions
    ]
    assert [line.get("guard") for line in lines if line["fsm_event"] == "budget_ok"] == ["may_continue"]


async def test_facts_tell_of_each_model_and_tool_call_and_of_the_end() -> None:
    facts = Facts()
    await agent([call("add", a=1, b=2), "3"], [add], observers=[facts]).run("1 + 2?")
    assert [(fact.outcome, fact.iteration) for fact in facts.of(LLMCall)] == [("ok", 1), ("ok", 2)]
    assert [(fact.tool, fact.outcome, fact.position) for fact in facts.of(ToolExecution)] == [
        ("add", "ok", 0)
    ]
    (end,) = facts.of(RunCompleted)
    assert (end.outcome, end.reason, end.iterations, end.transitions) == ("completed", "none", 2, 8)
    assert end.summary["tool_calls"] == 1
    assert end.summary["budget_used"] == {"iterations": 0.02}
    assert end.reason in REASONS[Outcome(end.outcome)]


async def test_instructions_lead_the_conversation_once() -> None:
    runner = agent(["one", "two"], instructions="Be brief.")
    await runner.run("first", conversation_id="c")
    result = await runner.run("second", conversation_id="c")
    assert [(m.role, m.text) for m in result.messages] == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("assistant", "two"),
    ]


async def test_a_prompt_may_be_a_whole_conversation_in_openai_form() -> None:
    prompt: list[Message | Mapping[str, Any]] = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call("add", a=1, b=2).to_openai()]},
        {"role": "tool", "content": "3", "tool_call_id": "auto", "name": "add"},
        Message("user", "And?"),
    ]
    result = await agent(["3"]).run(prompt)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "the prompt is empty"),
        (7, "must be text or messages, not int"),
        ([7], "must be a Message or a mapping, not int"),
        ([{"role": "robot"}], "unknown role 'robot'"),
    ],
)
async def test_a_prompt_that_is_none_is_refused_in_one_sentence(prompt: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await agent([]).run(prompt)  # type: ignore[arg-type]


async def test_a_message_is_a_prompt_and_an_empty_answer_an_answer() -> None:
    result = await agent([""]).run(Message("user", "hush"))
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "")


async def test_a_run_id_used_twice_is_refused_and_changes_nothing() -> None:
    runner = agent(["one", "two"])
    await runner.run("first", run_id="r", conversation_id="c")
    with pytest.raises(
        RunExists, match=r"run 'r' exists; choose another run_id, or continue this one .*resume\('r'\)"
    ):
        await runner.run("again", run_id="r", conversation_id="c")
    result = await runner.run("second", conversation_id="c")
    assert [m.text for m in result.messages] == ["first", "one", "second", "two"]


async def test_a_run_id_is_refused_while_its_run_is_live_and_by_other_agents_with_the_journal() -> None:
    journal = MemoryJournal()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        entered.set()
        await leave.wait()
        return "waited"

    first, second = (
        agent([call("wait"), "done"], [wait], journal=journal),
        agent(["x"], journal=journal, name="b"),
    )
    task = asyncio.create_task(first.run("go", run_id="r"))
    await entered.wait()
    for other in (first, second):
        with pytest.raises(RunExists):
            await other.run("go", run_id="r")
    leave.set()
    assert (await task).outcome is Outcome.COMPLETED


async def test_cancelling_an_unknown_run_is_an_error() -> None:
    with pytest.raises(RunUnknown, match="there is no run 'r' in this process or in its journal"):
        agent([]).cancel("r")


def test_run_sync_runs_without_a_loop() -> None:
    assert agent(["fine"]).run_sync("hello").output == "fine"


async def test_run_sync_inside_a_loop_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"use `await agent\.run"):
        agent(["fine"]).run_sync("hello")


async def test_two_runs_at_once_see_their_own_limits_logger_and_messages() -> None:
    both = asyncio.Barrier(2)

    async def look() -> str:
        await both.wait()
        logger_from_context().warning("seen")
        return str(config_from_context().max_iterations)

    def model(request: Request) -> object:
        return call("look") if len(request.messages) == 1 else str(request.messages[-1].text)

    streams = io.StringIO(), io.StringIO()
    runners = [
        agent(FunctionLLM(model), [look], observers=[TransitionLog(stream)])  # type: ignore[arg-type]
        for stream in streams
    ]
    results = await asyncio.gather(
        *(
            runner.run(f"run {number}", run_id=f"r{number}", limits=Limits(max_iterations=number))
            for number, runner in enumerate(runners, 5)
        )
    )
    assert [result.output for result in results] == ["5", "6"]
    assert [result.messages[0].text for result in results] == ["run 5", "run 6"]
    for number, stream in enumerate(streams, 5):
        assert {json.loads(line)["run_id"] for line in stream.getvalue().splitlines()} == {f"r{number}"}
        assert "seen" in stream.getvalue()


async def test_many_runs_of_one_agent_share_nothing() -> None:
    def model(request: Request) -> object:
        asked = int(request.messages[0].text)
        return call("add", a=asked, b=1) if request.messages[-1].role == "user" else request.messages[-1].text

    runner = agent(FunctionLLM(model), [add])  # type: ignore[arg-type]
    results = await asyncio.gather(*(runner.run(str(number)) for number in range(50)))
    assert [result.output for result in results] == [str(number + 1) for number in range(50)]
    assert len({result.run_id for result in results}) == 50
