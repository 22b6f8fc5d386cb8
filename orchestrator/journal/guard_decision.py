"""The decisions of guards in the records of a run, with the inputs that lead to the same verdict again.

The record of a transition, or of the parking of a run, has one row for each guard that led to it, which
`evaluation.read_row` reads. The window of the progress guard is not repeated there: the row names the field of the
context that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator_guards.evaluation import FUNCTIONS, GUARDS, Guard, GuardEvaluation, read_row


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """One evaluation of a guard, and its place in the run."""

    seq: int
    """Number of the record."""
    state: str
    """The state in which it was evaluated."""
    event: str
    """Event of the transition that followed; "" if the run was parked."""
    evaluation: GuardEvaluation


@dataclass(slots=True)
class GuardCheck:
    """The result of the evaluation of all recorded decisions again."""

    confirmed: int = 0
    unknown: int = 0
    """Decisions of guards that are not given: those of a host."""
    different: list[GuardDecision] = field(default_factory=list)
    """Decisions for which the guard gives another verdict."""


def guard_decisions(run_id: str, records: Iterable[Record]) -> Iterator[GuardDecision]:
    """Yield the decisions of a run, in their order. Raises ValueError for a row of another form."""
    stored = StoredRun(run_id)
    waiting: list[GuardDecision] = []
    for record in records:
        if waiting and record.kind != "context":  # the context of a transition is the record after it
            yield from _resolved(waiting, stored)
            waiting = []
        state = stored.state
        stored.fold(record.kind, record.body)
        if record.kind == "transition":
            state = str(record.body["source"])
        event = str(record.body.get("event", ""))
        rows = record.body.get(GUARDS, ()) if record.kind in _KINDS else ()
        waiting += (GuardDecision(record.seq, state, event, read_row(row)) for row in rows)
    yield from _resolved(waiting, stored)


def check_decisions(
    run_id: str, records: Iterable[Record], functions: Mapping[str, Guard] = FUNCTIONS
) -> GuardCheck:
    """Evaluate each recorded decision of a run again. Raises ValueError for a row or inputs of another form."""
    found = GuardCheck()
    for decision in guard_decisions(run_id, records):
        if not decision.evaluation.is_known(functions):
            found.unknown += 1
        elif decision.evaluation.holds(functions):
            found.confirmed += 1
        else:
            found.different.append(decision)
    return found


_KINDS = frozenset(("transition", "parked"))


def _resolved(waiting: Iterable[GuardDecision], stored: StoredRun) -> Iterator[GuardDecision]:
    """Put the value of the context into each input that names a field of it."""
    for one in waiting:
        evaluation = one.evaluation
        window = evaluation.named.get("window")
        if isinstance(window, str):
            inputs = tuple(stored.context[window] if name == window else name for name in evaluation.inputs)
            evaluation = evaluation._replace(inputs=inputs)
        yield GuardDecision(one.seq, one.state, one.event, evaluation)
