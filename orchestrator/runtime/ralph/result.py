"""What a run of the ralph loop gives back. Outcomes are values; `raise_for_outcome` makes exceptions of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Transition
from orchestrator.kernel.run import Run
from orchestrator.machines.ralph.model import RalphContext, RalphState, Task
from orchestrator.runtime.llm_loop.result import stopped
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RalphResult:
    """The end of a run. What was made stands in the session's directory and where its tasks say."""

    run_id: str
    state: StrEnum
    """The terminal state: State.DONE or FAILED, or one that a host added."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    session_id: str
    session_path: str
    tasks: tuple[Task, ...]
    """As the files have them now, planning left out; empty where they cannot be read."""
    blockers: tuple[str, ...]
    """What keeps the work from being done; kept where planning gave up or a task failed too often."""
    qa_cycles: int
    executions: int
    qualified: int
    reworks: int
    replans: int
    current_task_id: str | None
    attempt: int
    summary: str
    """What was said last of the whole."""
    transitions: tuple[Transition, ...]
    """The path taken: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, where one did."""
    error: Exception | None = None
    """The first error."""

    def raise_for_outcome(self) -> RalphResult:
        """Return self when completed; else raise the RunStopped of this outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self, "; ".join(self.blockers)) from self.error


def result_of(
    run: Run[RalphContext, Any], tasks: Iterable[Task], path: Iterable[Transition], end: Ending
) -> RalphResult:
    """Return the result of a run that ended so."""
    ctx = run.ctx
    return RalphResult(
        run_id=run.run_id,
        state=RalphState(run.cursor.state) if run.cursor.state in set(RalphState) else run.state,
        outcome=end.outcome,
        reason=end.reason,
        session_id=ctx.session_id,
        session_path=ctx.session_path,
        tasks=tuple(task for task in tasks if not task.planning),
        blockers=ctx.blockers,
        qa_cycles=ctx.qa_cycle_count,
        executions=ctx.iteration,
        qualified=ctx.qualified,
        reworks=ctx.reworks,
        replans=ctx.replans,
        current_task_id=ctx.current_task_id,
        attempt=ctx.attempt,
        summary=ctx.summary,
        transitions=tuple(path),
        verdict=ctx.verdict,
        error=run.error,
    )
