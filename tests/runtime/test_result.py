"""What a run hands over: outcomes as values or exceptions, and conversations that go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import (
    BudgetExceeded,
    NoProgress,
    RunCancelled,
    RunFailed,
    RunPartial,
    RunRejected,
    RunStopped,
)
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import LLM_LOOP, may_continue
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.llm_loop.run_options import Conversations
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import agent, faults


def step(n: int) -> str:
    return f"step {n}"


async def stopped_run() -> Result:
    return await agent([call("step", n=1)], [step], limits=Limits(max_iterations=1)).run("go", run_id="r")


async def test_a_completed_run_raises_nothing() -> None:
    result = await agent(["done"]).run("go")
    assert result.raise_for_outcome() is result


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.PARTIAL, RunPartial),
        (Outcome.BUDGET_EXCEEDED, BudgetExceeded),
        (Outcome.NO_PROGRESS, NoProgress),
        (Outcome.CANCELLED, RunCancelled),
        (Outcome.REJECTED, RunRejected),
        (Outcome.FAILED, RunFailed),
    ],
)
async def test_every_other_outcome_has_an_exception_of_its_own_with_the_whole_result(
    outcome: Outcome, kind: type[RunStopped]
) -> None:
    result = replace(await stopped_run(), outcome=outcome)
    with pytest.raises(kind) as caught:
        result.raise_for_outcome()
    assert caught.value.result is result


async def test_the_exception_says_which_budget() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        (await stopped_run()).raise_for_outcome()
    assert str(caught.value) == "run r ended as budget_exceeded (max_iterations): iterations: 1 of 1 used"


async def test_the_exception_of_a_failure_is_caused_by_the_first_error() -> None:
    error = ValueError("the model")
    result = await agent([error]).run("go", run_id="r")
    with pytest.raises(RunFailed, match=r"run r ended as failed \(llm_error\): the model") as caught:
        result.raise_for_outcome()
    assert caught.value.__cause__ is error


async def test_a_stopped_run_has_no_output_and_what_it_said_stays_in_the_messages() -> None:
    script = [Message("assistant", "first I step", (call("step", n=1),)), call("step", n=2)]
    result = await agent(script, [step], limits=Limits(max_iterations=2)).run("go")
    assert (result.outcome, result.output) == (Outcome.BUDGET_EXCEEDED, None)
    assert "first I step" in [message.text for message in result.messages]


@pytest.mark.parametrize("turns", [0, 1])
async def test_what_a_phase_of_the_hosts_refused_is_no_output_not_even_after_a_wrap_up_turn(
    turns: int,
) -> None:
    class Moderation:
        async def enter_moderate(self, run: LoopRun) -> str:
            return "dirty"

    runner = agent(
        ["my secret"] * 9,
        graph=MODERATED,
        hooks=[Moderation()],
        limits=Limits(max_iterations=3, wrap_up_turns=turns),
    )
    result = await runner.run("go", run_id="r")
    assert (result.outcome, result.output) == (Outcome.BUDGET_EXCEEDED, None)
    assert (await runner.resume("r")).output is None  # it has ended: only told


MODERATED = LLM_LOOP.extend(
    name="moderated",
    states=["moderate"],
    events=["clean", "dirty"],
    without=[("evaluate_response", "response_no_tool")],
    edges=[
        Edge("response_no_tool", "evaluate_response", "moderate"),
        Edge("clean", "moderate", "handle_completion"),
        Edge("dirty", "moderate", "await_llm", may_continue),
        Edge("failure", "moderate", "terminate_error"),
    ],
)


async def test_a_conversation_goes_on_with_what_was_said() -> None:
    llm = ScriptedLLM([call("step", n=1), "one", "two"])
    runner = agent(llm, [step])
    await runner.run("first", conversation_id="c")
    result = await runner.run("second", conversation_id="c")
    assert [m.role for m in llm.requests[-1].messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert not faults(result.messages)


async def test_conversations_do_not_mix() -> None:
    llm = ScriptedLLM(["a1", "b1", "a2", "x"])
    runner = agent(llm)
    await runner.run("a", conversation_id="a")
    await runner.run("b", conversation_id="b")
    assert [m.text for m in (await runner.run("a again", conversation_id="a")).messages] == [
        "a",
        "a1",
        "a again",
        "a2",
    ]
    assert len((await runner.run("alone")).messages) == 2


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_conversation_goes_on_after_a_run_that_was_stopped(limit: int) -> None:
    script = [call("step", n=1), call("step", n=2), "three"][-limit - 1 :]
    runner = agent(script, [step])
    stopped = await runner.run("first", conversation_id="c", limits=Limits(max_iterations=limit))
    result = await runner.run("second", conversation_id="c")
    assert stopped.outcome is Outcome.BUDGET_EXCEEDED
    assert result.outcome is Outcome.COMPLETED
    assert result.messages[: len(stopped.messages)] == stopped.messages
    assert not faults(result.messages)


async def test_a_result_can_be_the_prompt_of_a_next_run() -> None:
    runner = agent([call("step", n=1), "one", "two"], [step], instructions="Be brief.")
    first = await runner.run("first")
    second = await runner.run([*first.messages, Message("user", "second")])
    assert [m.role for m in second.messages].count("system") == 1
    assert second.messages[: len(first.messages)] == first.messages


def test_the_conversation_unused_for_longest_is_forgotten_first() -> None:
    kept = Conversations(kept=2)
    said = {name: [Message("user", name)] for name in "abc"}
    for name in ("a", "b", "a", "c"):
        kept.keep(name, f"run of {name}", said[name])
    assert [kept.history(name, None) for name in "abc"] == [tuple(said["a"]), None, tuple(said["c"])]
    assert kept.history("a", "run of a") == tuple(said["a"])
    assert kept.history("a", "a later run, of another process") is None
