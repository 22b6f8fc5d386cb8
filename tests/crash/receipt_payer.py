"""A process that pays and gets a result that may have no text: `python -m tests.crash.receipt_payer FOLDER ORDER`.

Each payment is a line in the file `paid`, which no record of the run can change. The model repeats every call whose
result looks like a failure. ORDER is JSON: `kind` of `tests.result_kinds`, `effect` of the tool, and `kill` with `at`
as in `tests.crash.mortal`, or `kill` "paid": right after the payment, before its record.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import Effect, ToolContext, tool
from tests.crash.mortal import RUN, crashing
from tests.result_kinds import KINDS


def paid(folder: Path) -> list[str]:
    """Return the key of each payment."""
    file = folder / "paid"
    return file.read_text().split() if file.exists() else []


def model(request: Request) -> Any:
    """Pay, again and again until a result does not look like a failure."""
    last = request.messages[-1]
    failed = last.role == "tool" and (last.is_error or "error" in last.text.casefold())
    return call("pay", amount=120) if last.role == "user" or failed else "paid"


def agent(journal: Journal, folder: Path, *, kind: str, effect: Effect, dies: bool = False) -> Agent:
    """Return the agent. With `dies` its process is killed right after the payment."""

    @tool(effect=effect)
    def pay(context: ToolContext, amount: int) -> object:
        """Pay an amount."""
        ledger = os.open(folder / "paid", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(ledger, f"{context.idempotency_key}-{amount}\n".encode())
        os.fsync(ledger)
        os.close(ledger)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return KINDS[kind].make()

    limits = Limits(max_iterations=9, max_no_progress=0, max_repeated_success=0)
    return Agent(FunctionLLM(model), tools=[pay], limits=limits, journal=journal, observers=())


async def live(folder: Path, *, kind: str, effect: Effect, kill: str = "", at: int = 0) -> None:
    """Run, and say how many writes there were."""
    async with SqliteJournal(folder / "journal.db") as inner:
        dies = kill == "paid"
        journal = crashing(inner, "" if dies else kill, at)
        await agent(journal, folder, kind=kind, effect=effect, dies=dies).run("pay", run_id=RUN)
        print(len(journal.writes), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), **json.loads(sys.argv[2])))
