"""Control requests of a person, in this or another process, to a working run: pause or cancel.

Such a request arrives in the run's mailbox as an answer that no driver reads. The hooks check for it where they can
stop: between steps, and after an answer of the planner. The next record stores the requests that were read.
"""

from __future__ import annotations

from orchestrator.kernel.mailbox import Signal
from orchestrator_callbacks.approval.deps import ApprovalRun

WISHES = ("pause", "cancel")


def of(signal: Signal) -> str:
    """Return the control request of a signal, "" for any other signal."""
    return str(signal.payload.get("wish", ""))


def is_there(run: ApprovalRun, *wishes: str) -> bool:
    """Return whether one of these requests is in the mailbox."""
    return any(of(signal) in wishes for signal in run.mailbox.unread_answers)


def taken(run: ApprovalRun, *wishes: str) -> str:
    """Take all requests from the mailbox and return the strongest of `wishes` (the last one given), or "".

    A request that is impossible here, or weaker than another one, is refused, also in the journal.
    """
    found: list[Signal] = []
    while (signal := run.mailbox.decision()) is not None:
        found.append(signal)
    chosen = max((of(one) for one in found if of(one) in wishes), key=wishes.index, default="")
    for one in found:
        note(run, one, "" if of(one) == chosen else f"not possible in {run.cursor.state}")
    return chosen


def note(run: ApprovalRun, signal: Signal, refused: str = "") -> None:
    """Record a request with its actor and its result."""
    body = {
        "id": signal.id,
        "kind": of(signal),
        "by": signal.by,
        "why": signal.why,
        "number": signal.number,
        "at": run.deps.clock.time(),
    }
    run.note("control", body | ({"refused": refused} if refused else {}))
