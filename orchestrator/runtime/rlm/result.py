"""The result of a run of a mode. Outcomes are values; `raise_for_outcome` converts them to exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Transition
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed_machine import TypedMachine
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.code_mode.graph import CODE_MODE
from orchestrator.machines.rlm.ending import finish_reason, output_of
from orchestrator.machines.rlm.model import ModeContext
from orchestrator.machines.tools_mode.graph import TOOLS_MODE
from orchestrator.runtime.llm_loop.result import stopped
from orchestrator.runtime.service.notebook import result_bundle
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RlmResult:
    """The end of a run."""

    run_id: str
    state: Enum
    """CodeModeState.DONE or ToolsModeState.DONE; another state only if the run ended early."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    finish_reason: str
    """The first that applies of `policy_stop`, `max_iterations` and `stop`; else the reason of the early end."""
    output: str | None
    """The answer; for a run that a policy stopped, the model's last response. None without an answer."""
    iterations: int
    depth: int
    usage: Usage
    """Usage of the run and its child runs."""
    sub_calls: int
    messages: tuple[Message, ...]
    transitions: tuple[Transition, ...]
    """The path of the run: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, CODE_MODE, TOOLS_MODE)

    def raise_for_outcome(self) -> RlmResult:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


def result_of(run: Run[ModeContext, Any], path: Iterable[Transition], end: Ending) -> RlmResult:
    """Return the result of a run with this end."""
    ctx = run.ctx
    answered = end.outcome in (Outcome.COMPLETED, Outcome.PARTIAL)
    state = cast("TypedMachine", run.machine).objects[run.cursor.state]
    return RlmResult(
        run_id=run.run_id,
        state=cast("Enum", state),
        outcome=end.outcome,
        reason=end.reason,
        finish_reason=finish_reason(ctx, end),
        output=output_of(ctx) if answered else None,
        iterations=ctx.iteration,
        depth=ctx.depth,
        usage=ctx.usage,
        sub_calls=ctx.sub_calls,
        messages=tuple(ctx.messages),
        transitions=tuple(path),
        verdict=getattr(run.error, "verdict", None) if ctx.verdict is None else ctx.verdict,
        error=run.error,
    )
