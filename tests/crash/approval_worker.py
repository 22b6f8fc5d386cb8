"""Carry out the approved plan of a project: `python -m tests.crash.approval_worker FOLDER LOG`.

The project is `FOLDER/project`. Each step that ends is a line of the log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import StepFact
from tests.crash.worker import show_marks
from tests.runtime.approval.stand import Script


async def main(root: Path, log: int) -> None:
    def on_step(fact: StepFact) -> None:
        if fact.phase == "ends":
            os.write(log, b"ACK\n")

    async with Approval(root, Script(), observers=(), by="ann", on_step=on_step) as approval:
        await approval.execute()


if __name__ == "__main__":
    show_marks()
    file = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    asyncio.run(main(Path(sys.argv[1]) / "project", file))
