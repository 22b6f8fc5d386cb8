"""Carry out a plan on files and take all of it back: `python -m tests.crash.rollback_worker FOLDER LOG`.

The project is `FOLDER/project`, its journal beside it. Each change that is done is a line of the log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import RunUnknown
from orchestrator.files.rollback import RollbackStack
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Record
from tests.crash.test_rollback_kill import BODY, PLAN, RUN
from tests.crash.worker import show_marks


async def opened(journal: SqliteJournal, root: Path) -> RollbackStack:
    """Create the run or claim it, with what its records say."""
    records: Sequence[Record] = []
    try:
        lease = await journal.claim(RUN, "next", steal=True)
        records = await journal.load(RUN)
    except RunUnknown:
        lease = await journal.create(RUN, "first", BODY)
    return RollbackStack.recover(records, journal, lease, root)


async def main(folder: Path, log: int) -> None:
    async with SqliteJournal(folder / "journal.db") as journal:
        stack = await opened(journal, folder / "project")
        for step in PLAN:
            for change in step:
                await change(stack)
                os.write(log, b"ACK\n")
        os.write(log, b"UNDO\n")
        assert not (await stack.undo()).conflicts


if __name__ == "__main__":
    show_marks()
    asyncio.run(main(Path(sys.argv[1]), os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)))
