"""Two agents on one journal, each with a tool `pay` of its own: what a kill interrupts, and who may continue it.

`python -m tests.crash.two_agents JOURNAL NAME` starts the run NAME of the agent NAME. The tools write their agent's
name to TWO_AGENTS/paid; as long as TWO_AGENTS/hang exists, they write TWO_AGENTS/paying instead and hang.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import ToolSpec, tool

FOLDER = "TWO_AGENTS"


def paying(name: str, **options: Any) -> ToolSpec:
    async def pay() -> str:
        folder = Path(os.environ[FOLDER])
        if (folder / "hang").exists():
            (folder / "paying").touch()
            await asyncio.Event().wait()
        with (folder / "paid").open("a") as file:
            file.write(f"{name}\n")
        return f"paid by {name}"

    return tool(name="pay", **options)(pay)


pay_of_support = paying("support", effect="pure")
"""The tool of the agent `support`, which nobody has to approve."""


def model(name: str = "support") -> FunctionLLM:
    return FunctionLLM(
        lambda request: request.messages[-1].text if request.messages[-1].role == "tool" else call("pay"),
        model=name,
    )


def sales(journal: Any) -> Agent:
    """Return an agent whose payments a person approves."""
    made = paying("sales", effect="idempotent", approval=True)
    return Agent(model("sales"), tools=[made], journal=journal, observers=(), name="sales")


def support(journal: Any) -> Agent:
    """Return an agent whose `pay` is another tool."""
    return Agent(model(), tools=[pay_of_support], journal=journal, observers=(), name="support")


AGENTS = {"sales": sales, "support": support}


async def main(address: str, name: str) -> None:
    from orchestrator.journal.postgres import PostgresJournal

    journal: Any = PostgresJournal(address) if "://" in address else SqliteJournal(address)
    async with journal:
        await AGENTS[name](journal).run("go", run_id=name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
