"""A process that pays and gets a result that may have no text; as a script it is a nursery, as `loop_worker` is.

Each payment is a line in the file `paid`, which no record of the run can change. The model repeats every call whose
result looks like a failure. An order says what the child does with the run in `folder`:

    kind     of `tests.result_kinds`
    effect   of the tool
    kill     with `at`, as in `tests.crash.mortal`, or "paid": right after the payment, before its record

Its last line in `folder/world` is what it counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import Effect, ToolContext, tool
from tests.crash.mortal import RUN, Fate, World, crashing, nursery
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


async def live(
    folder: Path, *, kind: str, effect: Effect, do: str = "run", kill: str = "", at: int = 0
) -> None:
    """Run, and say how many writes there were."""
    assert do == "run", "the tests resume it"
    async with SqliteJournal(folder / "journal.db") as inner:
        dies = kill == "paid"
        journal = crashing(inner, "" if dies else kill, at)
        await agent(journal, folder, kind=kind, effect=effect, dies=dies).run("pay", run_id=RUN)
        World(folder, Fate(0)).say("counted", writes=len(journal.writes))


def warmed() -> None:
    """Do once, where it is thrown away, what would take each child a while the first time."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder), kind="text", effect="irreversible"))


if __name__ == "__main__":
    warmed()
    nursery(live)
