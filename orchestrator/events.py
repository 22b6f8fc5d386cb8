"""What observers and streams receive: the facts of runs, and the text of a model as it arrives.

An observer has one method, `observe(fact)`, and receives each member of `Fact`. `Agent.stream` yields the same
facts and, for the run that it follows, `TokenDelta` and `FactsDropped`: together `Streamed`.
"""

from __future__ import annotations

from orchestrator.kernel.record import (
    AdmissionRejected,
    BudgetChecked,
    EventFailed,
    Fact,
    FactsDropped,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    Observer,
    OperationAttempt,
    RolledBack,
    RunAdmitted,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    Streamed,
    TokenDelta,
    ToolExecution,
    Transition,
    WorkAbandoned,
)

__all__ = [
    "AdmissionRejected",
    "BudgetChecked",
    "EventFailed",
    "Fact",
    "FactsDropped",
    "GuardEvaluated",
    "JournalWrite",
    "LLMCall",
    "Observer",
    "OperationAttempt",
    "RolledBack",
    "RunAdmitted",
    "RunCompleted",
    "RunParked",
    "RunRecovered",
    "RunStarted",
    "Streamed",
    "TokenDelta",
    "ToolExecution",
    "Transition",
    "WorkAbandoned",
]
