"""The seed's run loop, written against the facade: it works where the original raised or went on for ever (A5, A6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from orchestrator import OrchestrationState, OrchestrationStateMachine

S = OrchestrationState


class Loop:
    """The seed's loop: what its stages give is scripted, `spent` is after how many steps the budget is used up."""

    def __init__(
        self, verdicts: Iterable[str | Exception] = ("pass",), valid: Iterable[bool] = (), spent: int = 1_000
    ) -> None:
        self.state_machine = OrchestrationStateMachine(observers=())
        self.state_machine.max_iterations = 3
        self.verdicts: Iterator[str | Exception] = iter(verdicts)
        self.valid = iter(valid)
        self.spent = spent
        self.steps = 0

    def run(self) -> list[str]:
        sm = self.state_machine
        sm.transition(S.PLANNING)
        while not sm.is_terminal():
            self.steps += 1
            assert self.steps < 100, "the loop goes on for ever"
            try:
                self.step(sm)
            except ValueError as error:  # A judge that raises has approved nothing.
                sm.transition(S.FAILED, reason=f"{type(error).__name__}: {error}", duration_seconds=1.0)
            if self.steps >= self.spent:
                sm.transition(S.BUDGET_EXHAUSTED, reason="Token budget exhausted")
        return [one.to_state.value for one in sm.history]

    def step(self, sm: OrchestrationStateMachine) -> None:
        match sm.current_state:
            case S.PLANNING:
                sm.transition(
                    S.VALIDATING, context={"plan": object()}, duration_seconds=2.0, tokens_consumed=100
                )
            case S.VALIDATING if next(self.valid, True):
                sm.transition(S.IMPLEMENTING, duration_seconds=0.5, tokens_consumed=0)
            case S.VALIDATING:
                self.again(sm, "Validation failed, retrying with feedback")
            case S.IMPLEMENTING:
                sm.transition(S.JUDGING, duration_seconds=4.0, tokens_consumed=300)
            case S.JUDGING:
                self.judge(sm)

    def judge(self, sm: OrchestrationStateMachine) -> None:
        verdict = next(self.verdicts)
        if isinstance(verdict, Exception):
            raise verdict
        if verdict == "pass":
            sm.transition(
                S.SUCCEEDED, context={"evaluation": verdict}, duration_seconds=1.0, tokens_consumed=50
            )
        elif verdict == "soft":
            reason = "Soft failure, refining implementation"
            sm.transition(S.IMPLEMENTING, reason=reason, duration_seconds=1.0, tokens_consumed=50)
        else:
            self.again(sm, "Hard failure, replanning")

    def again(self, sm: OrchestrationStateMachine, reason: str) -> None:
        """Plan again, unless the iterations are used up: the seed never asked."""
        if sm.exceeded_max_iterations():
            sm.transition(S.FAILED, reason="max_iterations", duration_seconds=0.5)
        else:
            sm.transition(S.PLANNING, reason=reason, duration_seconds=0.5, tokens_consumed=0)


WORK = ["planning", "validating", "implementing", "judging"]


def test_it_succeeds() -> None:
    loop = Loop()
    assert loop.run() == [*WORK, "succeeded"]
    assert loop.state_machine.get_total_metrics()["total_tokens"] == 450


def test_it_goes_through_each_kind_of_failure() -> None:
    loop = Loop(verdicts=("soft", "hard", "pass"), valid=(False, True, True))
    assert loop.run() == [
        *WORK[:2], *WORK, "implementing", "judging", *WORK, "succeeded",
    ]  # fmt: skip
    assert loop.state_machine.iteration_count == 3


@pytest.mark.parametrize(("spent", "left"), [(1, "validating"), (2, "implementing"), (3, "judging")], ids=str)
def test_a_budget_that_ends_with_any_step_ends_the_run(spent: int, left: str) -> None:
    """After planning and after implementing the original raised: the machine was in validating and judging then."""
    loop = Loop(spent=spent)
    assert loop.run()[-2:] == [left, "budget_exhausted"]
    assert loop.state_machine.history[-1].reason == "Token budget exhausted"


def test_a_budget_that_ends_with_the_run_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Here the original raised as well: from a terminal state."""
    loop = Loop(spent=4)
    assert loop.run()[-1] == "succeeded"
    assert "Attempted transition from terminal state succeeded → budget_exhausted" in caplog.messages


def test_validation_that_always_fails_ends_at_the_limit_of_iterations() -> None:
    loop = Loop(valid=[False] * 100)
    path = loop.run()
    assert path == ["planning", "validating"] * 3 + ["failed"]
    assert (loop.state_machine.iteration_count, loop.state_machine.history[-1].reason) == (
        3,
        "max_iterations",
    )


def test_a_judge_that_raises_fails_the_run() -> None:
    loop = Loop(verdicts=[ValueError("no score")])
    assert loop.run() == [*WORK, "failed"]
    assert loop.state_machine.history[-1].reason == "ValueError: no score"
    assert "Final State: failed" in loop.state_machine.format_metrics_report()
