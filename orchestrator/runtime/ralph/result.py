"""The result of a run of the ralph loop. Outcomes are values; `raise_for_outcome` converts them to exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Transition
from orchestrator.kernel.run import Run
from orchestrator.llm.usage import Usage
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import RalphContext, RalphState, RoleCall, Task
from orchestrator.runtime.llm_loop.result import stopped
from orchestrator.runtime.service.notebook import result_bundle
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RalphResult:
    """The end of a run. The work itself is in the session's directory and in the files of its tasks."""

    run_id: str
    state: StrEnum
    """The terminal state: State.DONE or FAILED, or a state of the host."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    session_id: str
    session_path: str
    tasks: tuple[Task, ...]
    """Tasks of the current files without planning; empty if they cannot be read."""
    blockers: tuple[str, ...]
    """Reasons why the work could not be done, from the planner or from a task that failed too often."""
    qa_cycles: int
    executions: int
    qualified: int
    reworks: int
    replans: int
    current_task_id: str | None
    attempt: int
    summary: str
    """Last summary of the whole."""
    usage: Usage
    """Tokens and cost of all agents. `usage.estimated_…` is the part that agents did not report."""
    agent_calls: tuple[RoleCall, ...]
    """The calls of agents with their sessions and usage, oldest first. The cost of a call is None if it is unknown."""
    transitions: tuple[Transition, ...]
    """The path of the run: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, RALPH)

    def raise_for_outcome(self) -> RalphResult:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self, "; ".join(self.blockers)) from self.error


def result_of(
    run: Run[RalphContext, Any], tasks: Iterable[Task], path: Iterable[Transition], end: Ending
) -> RalphResult:
    """Return the result of a run with this end."""
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
        usage=ctx.usage,
        agent_calls=ctx.agent_calls,
        transitions=tuple(path),
        verdict=ctx.verdict,
        error=run.error,
    )
