"""Where a project at work hears what its own process, or another one, wishes: to pause, or to be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from orchestrator.errors import Corrupt, JournalError
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.mailbox import Signal
from orchestrator_callbacks.approval.control_request import WISHES
from orchestrator_callbacks.approval.deps import ApprovalRun

POLL = 0.1
"""Seconds between two looks at what other processes have posted."""

_MOST = 1_000
"""Commands that are passed over in the search for one that is there."""


class CommandLost(Corrupt):
    """What somebody asked for is not there any more, or not as it was left; nobody knows what it was."""


@contextlib.asynccontextmanager
async def listening(run: ApprovalRun, journal: Journal) -> AsyncIterator[None]:
    """Within the block, what other processes post reaches the run."""
    task = asyncio.create_task(_listen(run, journal), name="approval inbox") if journal.shared else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


async def lost(run: ApprovalRun, journal: Journal) -> CommandLost | None:
    """Tell whether a command is missing among those that nobody has read; the run then goes on behind it.

    Raises Corrupt where nothing of what was posted can be read.
    """
    damage: CommandLost | None = None
    for number in range(run.control.inbox, run.control.inbox + _MOST):
        try:
            await journal.inbox(run.run_id, number)
        except Corrupt as error:
            damage = CommandLost(f"a command that somebody left is missing: {error}")
        else:
            break
    else:
        raise damage or Corrupt(f"run {run.run_id!r}: what was posted cannot be read")
    if damage is not None:
        run.acknowledge(number)
        run.note(
            "control", {"id": f"lost-{number}", "kind": "lost", "number": number, "refused": str(damage)}
        )
    return damage


async def deliver(run: ApprovalRun, journal: Journal) -> None:
    """Hand the run what was posted since it was last looked at."""
    for posted in await journal.inbox(run.run_id, run.control.inbox):
        run.acknowledge(posted.number)
        if posted.kind in WISHES:
            run.mailbox.post(signal_of(posted))


def signal_of(posted: Posted) -> Signal:
    """Return a wish as the hooks read it."""
    why = str(posted.body.get("why") or "")
    payload = {"wish": posted.kind}
    return Signal(kind="decision", id=posted.id, by=posted.by, why=why, payload=payload, number=posted.number)


async def _listen(run: ApprovalRun, journal: Journal) -> None:
    while True:
        with contextlib.suppress(JournalError):  # who appends next is told
            await deliver(run, journal)
        await asyncio.sleep(POLL)
