"""What a person, here or in another process, wants of a run that works: to pause, or to be cancelled.

Such a wish comes into the run's mailbox as an answer that no driver reads; the hooks look for it where they can stop:
between steps, after an answer of the planner. What was read is in the journal with the next record.
"""

from __future__ import annotations

from orchestrator.kernel.mailbox import Signal
from orchestrator_callbacks.approval.deps import ApprovalRun

WISHES = ("pause", "cancel")


def of(signal: Signal) -> str:
    """Return what a signal wishes; empty for anything else."""
    return str(signal.payload.get("wish", ""))


def is_there(run: ApprovalRun, *wishes: str) -> bool:
    """Tell whether one of these is wished."""
    return any(of(signal) in wishes for signal in run.mailbox.decided)


def taken(run: ApprovalRun, *wishes: str) -> str:
    """Take all that is wished: return the strongest of `wishes` (the last one given), or nothing.

    A wish that cannot be had here, or that a stronger one stands above, is refused, in the journal too.
    """
    found: list[Signal] = []
    while (signal := run.mailbox.decision()) is not None:
        found.append(signal)
    chosen = max((of(one) for one in found if of(one) in wishes), key=wishes.index, default="")
    for one in found:
        note(run, one, "" if of(one) == chosen else f"not possible in {run.cursor.state}")
    return chosen


def note(run: ApprovalRun, signal: Signal, refused: str = "") -> None:
    """Take down who asked for what, and what became of it."""
    body = {
        "id": signal.id,
        "kind": of(signal),
        "by": signal.by,
        "why": signal.why,
        "number": signal.number,
        "at": run.deps.clock.time(),
    }
    run.note("control", body | ({"refused": refused} if refused else {}))
