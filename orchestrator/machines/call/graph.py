"""The table of `call`: one state that does the work, so that a function of a host has a ledger, questions and recovery.

The context is that of the loop, with one call and no model: the same hooks admit, announce, run and record it.
"""

from __future__ import annotations

from enum import StrEnum

from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop import graph as loop
from orchestrator.machines.llm_loop.model import LoopContext


class CallState(StrEnum):
    """The states."""

    CALL = "call"
    RETURNED = "returned"
    FAILED = "failed"


class CallEvent(StrEnum):
    """The events."""

    RETURN = "return"
    FAILURE = "failure"


CALL = Graph(
    name="call",
    states=CallState,
    events=CallEvent,
    initial=CallState.CALL,
    terminal=frozenset((CallState.RETURNED, CallState.FAILED)),
    failure=CallEvent.FAILURE,
    context=LoopContext,
    edges=(
        Edge(CallEvent.RETURN, (CallState.CALL,), CallState.RETURNED),
        Edge(CallEvent.FAILURE, (CallState.CALL,), CallState.FAILED),
    ),
)


def ending(run: Run[LoopContext, object]) -> Ending:
    """Return outcome and reason of a call in a terminal state."""
    if run.state is CallState.RETURNED and run.error is None:
        return Ending(Outcome.COMPLETED, "none")
    return loop.ending(run)
