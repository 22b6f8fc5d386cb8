"""A run with branches in a process that `kill -9` ends at any write, and as a worker on PostgreSQL.

`python -m tests.crash.branch_worker ORDER` starts or resumes the run `p1` in ORDER["folder"] and answers its questions
as a person who looks at the effects. With ORDER["at"] the process kills itself at that write, ORDER["when"] it takes
effect.
ORDER["worker"] is the URL of a database: the process is a worker on it. The tools write a line for each effect;
as long as the file `hang` exists, the tool of the last item touches `hanging` and hangs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator import Agent, Limits, Response, SqliteJournal, ToolContext, Usage, tool
from orchestrator.branches import ALL, ANY, Branch, Fan, Join, Workflow, ended, quorum
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.errors import RunUnknown
from orchestrator.journal.crashing import CrashingJournal, kill
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.llm.message import Request
from orchestrator.testing import FunctionLLM
from tests.runtime.branches.machine import Hooks, SpreadContext, spread
from tests.runtime.stage import until

JOINS: dict[str, Join] = {"all": ALL, "any": ANY, "quorum": quorum(3), "ended": ended()}
ITEMS = [
    ["irreversible", 1],
    ["compensable", 1],
    ["agent", 1],
    ["idempotent", 2],
    ["agent", 2],
    ["irreversible", 3],
]
BUDGET = 1_000


class Outside:
    """The world outside of the process: a line for each effect."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "effects"

    @property
    def lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def add(self, line: str) -> None:
        place = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(place, f"{line}\n".encode())
        os.close(place)


def machine(outside: Outside, journal: Any, join: Join) -> Workflow[SpreadContext, list[Any]]:
    def undo(context: ToolContext, number: int) -> None:
        outside.add(f"undone {context.idempotency_key}")

    def made(effect: Any) -> Any:
        @tool(effect=effect, undo=undo if effect == "compensable" else None)
        async def work(context: ToolContext, number: int) -> int:
            """Work."""
            if number == ITEMS[-1][1] and (outside.folder / "hang").exists():
                (outside.folder / "hanging").touch()
                await asyncio.Event().wait()
            outside.add(f"{effect} {context.idempotency_key}")
            await asyncio.sleep(0)
            return number

        return work

    def model(request: Request) -> Response:
        outside.add("request")
        return Response(str(request.messages[-1].text), usage=Usage(10, 1))

    tools = {effect: made(effect) for effect in ("idempotent", "compensable", "irreversible")}
    reader = Agent(FunctionLLM(model), name="reader", observers=())

    def branch(item: list[Any]) -> Branch[Any]:
        kind, number = item
        return Branch(reader, str(number)) if kind == "agent" else Branch(tools[kind], {"number": number})

    return Workflow(
        spread(Fan(max=9, concurrency=3, join=join)),
        [Hooks(branch)],
        output=lambda ctx: ctx.values,
        limits=Limits(max_iterations=0, max_input_tokens=BUDGET),
        name="spreader",
        journal=journal,
        observers=(),
    )


async def live(order: dict[str, Any]) -> None:
    folder = Path(order["folder"])
    outside = Outside(folder)
    async with SqliteJournal(folder / "journal.db") as inner:
        writes = ("create", "claim", "append", "release")
        journal: Any = CrashingJournal(
            inner, at=order.get("at", 0), when=order.get("when", "before"), on=writes, crash=kill
        )
        one = machine(outside, journal, JOINS[order["join"]])
        result: Any = await one.run(SpreadContext(ITEMS), run_id="p1", if_exists="resume", wait="never")
        while result.waiting:
            effects = outside.lines
            answers = {}
            for question in result.questions:
                key = f"{question.run_id}:{question.key}"
                number = json.loads(question.arguments)["number"]
                happened = any(line.endswith(key) for line in effects)
                answers[question.id] = str(number) if happened else True
            result = await one.resume("p1", answers=answers, wait="never")
        sys.stdout.write(json.dumps({"outcome": result.outcome, "tokens": result.usage.input_tokens}))


async def work(order: dict[str, Any]) -> None:
    database = order["worker"]
    async with PostgresJournal(database, name="w1") as journal:
        one = machine(Outside(Path(order["folder"])), journal, JOINS[order["join"]])
        async with Worker(one, ProcrastinateDispatcher(database), rescan=0.2, grace=0):
            await until(lambda: has_ended(journal))


async def has_ended(journal: Any) -> bool:
    try:
        return bool((await journal.head("p1")).status == "ended")
    except RunUnknown:
        return False


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(work(given) if "worker" in given else live(given))
