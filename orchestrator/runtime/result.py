"""What a run gives back. Outcomes are values; `raise_for_outcome` is for those who prefer exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import (
    BudgetExceeded,
    NoProgress,
    RunCancelled,
    RunFailed,
    RunPartial,
    RunRejected,
    RunStopped,
)
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import Transition
from orchestrator.machines.llm_loop.ending import ending, refusal
from orchestrator.messages import Message, Usage
from orchestrator_callbacks.llm_loop import recall
from orchestrator_callbacks.llm_loop.deps import LoopRun

STOPPED: Mapping[Outcome, type[RunStopped]] = {
    Outcome.PARTIAL: RunPartial,
    Outcome.BUDGET_EXCEEDED: BudgetExceeded,
    Outcome.NO_PROGRESS: NoProgress,
    Outcome.CANCELLED: RunCancelled,
    Outcome.REJECTED: RunRejected,
    Outcome.FAILED: RunFailed,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a run, with everything it said and used."""

    run_id: str
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    output: Any
    """The final answer: text, or the value of `output_type`. None unless the run is `completed` or `partial`.

    What a stopped run said last is no answer: it may be half of one, of the wrong type, or what a phase of the host's
    has just refused. It stays in `messages`. A `partial` run with an `output_type` has a value of that type or None.
    """
    messages: tuple[Message, ...]
    """The whole conversation, valid as the history of a next run."""
    usage: Usage
    """Of the run and all runs below it."""
    transitions: tuple[Transition, ...]
    """The path taken: the last 10,000 transitions."""
    verdict: Any = None
    """The guard's verdict that stopped the run: ok, guard, observed, limit, detail."""
    error: Exception | None = None
    """The first error, also of a run that ended well in spite of it."""

    def raise_for_outcome(self) -> Result:
        """Return self when completed; else raise the RunStopped of this outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        what = f"run {self.run_id} ended as {self.outcome.value} ({self.reason})"
        why = self.verdict.explain() if self.verdict is not None else str(self.error or "")
        raise STOPPED[self.outcome](f"{what}: {why}" if why else what, self) from self.error


def result_of(run: LoopRun, path: Iterable[Transition]) -> Result:
    """Return the Result of a run that ended, here or as it was restored."""
    ctx = run.ctx
    end = run.ending or ending(run)  # decided once: what was told is what is given back
    ended_well = end.outcome in (Outcome.COMPLETED, Outcome.PARTIAL)
    return Result(
        run_id=run.run_id,
        outcome=end.outcome,
        reason=end.reason,
        output=ctx.output if ended_well else None,
        messages=tuple(recall.conversation(ctx)),
        usage=ctx.spent.total,
        transitions=tuple(path),
        verdict=refusal(run) if ctx.verdict is None else ctx.verdict,
        error=run.error,
    )
