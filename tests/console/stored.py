"""Runs for the console: ended ones, and one that waits for a person."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orchestrator import Agent, Limits, Response, Usage, tool
from orchestrator.approval import Approval, FixedPlanner, PlanDraft
from orchestrator.kernel.fact import Fact, RunParked
from orchestrator.machines.approval.plan import PlanRequest
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM

ASKS = "asks"
TOKEN = "x" * 32


def said(*calls: Any, text: str | None = None, tokens: int = 10) -> Response:
    return Response(text, calls, usage=Usage(tokens, 1, cost=tokens / 100))


@tool(effect="irreversible", approval=True)
async def pay(amount: int, note: str = "") -> str:
    """Pay."""
    return f"paid {amount}{note}"


@tool(effect="pure")
async def look(where: str = "") -> str:
    """Look."""
    return f"seen {where}"


class Parking:
    """Is set when a run has parked."""

    def __init__(self) -> None:
        self.parked = asyncio.Event()

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, RunParked):
            self.parked.set()


def agent(journal: Any, *answers: Any, **options: Any) -> Agent:
    options = {"observers": (), "name": "support", "tools": [pay, look], **options}
    return Agent(ScriptedLLM(list(answers)), journal=journal, **options)


async def leave_asking(
    journal: Any, run_id: str, note: str = "", prompt: str = "Pay it.", tool: str = "pay", **options: Any
) -> None:
    """Start a run, and stop its process when it waits for a person."""
    parking = Parking()
    asked = call("pay", amount=7, note=note) if tool == "pay" else call(tool)
    asking = agent(journal, said(asked), observers=[parking], **options)
    going = asyncio.create_task(asking.run(prompt, run_id=run_id, tags={"team": "ops"}))
    parked = asyncio.create_task(parking.parked.wait())
    await asyncio.wait((going, parked), return_when=asyncio.FIRST_COMPLETED)
    assert parked.done(), going
    going.cancel()
    await asyncio.wait((going,))


_OLD = "item,euros\ngreen tea,3\nblack tea,3\n"
_PRICES = """--- a/prices.csv
+++ b/prices.csv
@@ -1,3 +1,4 @@
 item,euros
-green tea,3
+green tea,4
 black tea,3
+white tea,5
"""
_STEPS: list[dict[str, Any]] = [
    {
        "id": "1",
        "kind": "edit",
        "title": "The new price of green tea",
        "files": [{"path": "prices.csv", "diff": _PRICES}],
    },
    {
        "id": "2",
        "kind": "create",
        "title": "Say how prices change",
        "files": [{"path": "docs/prices.md", "content": "# Prices\n\nprices.csv is the only list.\n"}],
    },
]
_CHECK = {"id": "3", "kind": "run", "title": "Check the list", "argv": ["wc", "-l", "prices.csv"]}


class _Planner(FixedPlanner):
    """Adds a check when changes are requested."""

    async def plan(self, request: PlanRequest) -> PlanDraft:
        steps = [*_STEPS, {**_CHECK, "depends_on": ["1"]}] if request.changes else _STEPS
        return PlanDraft.read({"goal": "Keep the prices in one file", "steps": steps})


async def leave_planned(journal: Any, project: Path, run_id: str) -> None:
    """Leave a run of approval whose plan, in its second version, waits for a person."""
    project.mkdir(parents=True)
    (project / "prices.csv").write_text(_OLD)
    planner = _Planner(PlanDraft.read({"steps": _STEPS}))
    async with Approval(project, planner, journal=journal, observers=(), name="shop", by="mara") as approval:
        await approval.run("Keep the prices in one file.", run_id=run_id)
        await approval.changes("Check the list at the end, too.")


async def fill(journal: Any) -> None:
    """Write an ended run of each of two agents, one that a limit ended, and one that waits for a person."""
    first = agent(journal, said(call("look", where="here")), said(text="Done."))
    await first.run("Go.", run_id="first", tags={"team": "ops"})
    await agent(journal, said(text="Done."), name="sales").run("Go.", run_id="second")
    third = agent(journal, said(call("look")), said(call("look")), limits=Limits(max_iterations=1))
    await third.run("Go.", run_id="third")
    await leave_asking(journal, ASKS)
