"""The README's example: a phase of one's own between the answer and its hand-over, without touching other code."""

from __future__ import annotations

from typing import Any

from orchestrator import LLM_LOOP, Agent, Edge, Limits, Message, Outcome
from orchestrator.kernel import Run
from orchestrator.machines.llm_loop.graph import may_continue
from orchestrator.testing import ScriptedLLM

# --- README: add a phase
REVIEWED = LLM_LOOP.extend(
    name="reviewed_loop",
    states=("review",),
    events=("approved", "sent_back"),
    without=[("handle_completion", "completion_success")],
    edges=(
        Edge("completion_success", ("handle_completion",), "review"),
        Edge("approved", ("review",), "finalize"),
        Edge("sent_back", ("review",), "await_llm", may_continue),
        Edge("failure", ("review",), "terminate_error"),
    ),
)


class Review:
    """Answers must name their source."""

    async def enter_review(self, run: Run[Any, Any]) -> str:
        if "source:" in run.ctx.output:
            return "approved"
        run.ctx.messages.append(Message("user", "Name your source."))
        return "sent_back"


# --- README end


async def test_a_phase_can_be_added_between_two_others() -> None:
    llm = ScriptedLLM(["Two moons.", "Two moons, source: NASA."])
    agent = Agent(llm, graph=REVIEWED, hooks=[Review()], observers=())
    result = await agent.run("How many moons?")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "Two moons, source: NASA.")
    assert [(t.source, t.event) for t in result.transitions if "review" in (t.source, t.dest)] == [
        ("handle_completion", "completion_success"),
        ("review", "sent_back"),
        ("handle_completion", "completion_success"),
        ("review", "approved"),
    ]
    assert [m.role for m in result.messages] == ["user", "assistant", "user", "assistant"]


async def test_the_budgets_of_the_loop_hold_in_the_new_phase_too() -> None:
    llm = ScriptedLLM(["Two moons."] * 3)
    agent = Agent(llm, graph=REVIEWED, hooks=[Review()], observers=(), limits=Limits(max_iterations=3))
    result = await agent.run("How many moons?")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")
    llm.assert_complete()


async def test_an_error_in_the_new_phase_fails_the_run_like_any_other() -> None:
    class Broken:
        async def enter_review(self, run: Run[Any, Any]) -> str:
            raise RuntimeError("no reviewer")

    agent = Agent(ScriptedLLM(["Two moons."]), graph=REVIEWED, hooks=[Broken()], observers=())
    result = await agent.run("How many moons?")
    assert (result.outcome, result.transitions[-1].source) == (Outcome.FAILED, "review")
