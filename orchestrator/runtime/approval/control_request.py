"""Control requests (pause, cancel) to a working project from its own or another process."""

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
"""Seconds between two reads of posted messages."""

_MOST = 1_000
"""Maximum number of damaged messages that are skipped in the search for a readable one."""


class CommandLost(Corrupt):
    """A posted message is missing or was changed; its content is unknown."""


@contextlib.asynccontextmanager
async def listening(run: ApprovalRun, journal: Journal) -> AsyncIterator[None]:
    """Deliver messages of other processes to the run while the block is active."""
    task = asyncio.create_task(_listen(run, journal), name="approval inbox") if journal.shared else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


async def lost(run: ApprovalRun, journal: Journal) -> CommandLost | None:
    """Return an error if one of the unread messages is missing; the run then continues after it.

    Raises Corrupt if no posted message can be read.
    """
    damage: CommandLost | None = None
    for number in range(run.control.inbox, run.control.inbox + _MOST):
        try:
            await journal.inbox(run.run_id, number)
        except Corrupt as error:
            damage = CommandLost(f"a posted command is missing: {error}")
        else:
            break
    else:
        raise damage or Corrupt(f"run {run.run_id!r}: the posted messages cannot be read")
    if damage is not None:
        run.acknowledge(number)
        run.note(
            "control", {"id": f"lost-{number}", "kind": "lost", "number": number, "refused": str(damage)}
        )
    return damage


async def deliver(run: ApprovalRun, journal: Journal) -> None:
    """Deliver messages posted since the last read to the run."""
    for posted in await journal.inbox(run.run_id, run.control.inbox):
        run.acknowledge(posted.number)
        if posted.kind in WISHES:
            run.mailbox.post(signal_of(posted))


def signal_of(posted: Posted) -> Signal:
    """Return a control request as the hooks read it."""
    why = str(posted.body.get("why") or "")
    payload = {"wish": posted.kind}
    return Signal(kind="decision", id=posted.id, by=posted.by, why=why, payload=payload, number=posted.number)


async def _listen(run: ApprovalRun, journal: Journal) -> None:
    while True:
        with contextlib.suppress(JournalError):  # the next append reports the error
            await deliver(run, journal)
        await asyncio.sleep(POLL)
