"""What a long run writes: at most three appends a turn, and no more bytes in its last turns than in its first."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT

pytestmark = pytest.mark.canary

TURNS = 500


class Counted:
    """Passes everything on, and counts appends."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.appends = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        self.appends += 1
        waiting: Awaitable[None] | None = self.inner.append(lease, drafts, blobs)
        return waiting


def long_agent(journal: Any, effect: Any) -> Agent:
    """An agent that makes one call a turn, each with other arguments and another result, for all its turns."""
    asked = 0

    async def model(request: Request) -> Response:
        nonlocal asked
        asked += 1
        if asked > TURNS:
            return Response("done", usage=Usage(1_000, 50))
        arguments = orjson.dumps({"path": f"src/module_{asked % 100:03}.py", "line": 10_000 + asked}).decode()
        return Response(
            f"Looking at part {asked:05}.",
            (ToolCall(f"call_{asked:05}", "read", arguments),),
            usage=Usage(1_000, 50),
        )

    @tool(effect=effect)
    async def read(path: str, line: int) -> str:
        return f"{path}:{line}: " + "x" * 300

    limits = Limits(max_iterations=TURNS + 10, max_repeated_success=0)
    return Agent(
        FunctionLLM(model), tools=[read], journal=journal, limits=limits, observers=(), retry=NO_WAIT
    )


@pytest.mark.parametrize("effect", ["pure", "irreversible"])
async def test_a_turn_of_one_call_is_two_appends_and_its_bytes_do_not_grow(effect: str) -> None:
    journal = Counted(MemoryJournal())
    result = await long_agent(journal, effect).run("go", run_id="r")
    assert result.outcome is Outcome.COMPLETED
    assert len(result.messages) == 2 * TURNS + 2
    assert journal.appends <= 2 * TURNS + 4

    sizes, turn = [0] * (TURNS + 2), 0
    for record in await journal.load("r"):
        if record.kind == "answer":
            turn = record.body["iteration"]
        sizes[turn] += len(orjson.dumps(record.body))
    early, late = (sum(sizes[at - 20 : at]) / 20 for at in (60, TURNS))
    print(f"{journal.appends} appends; bytes a turn: {early:.0f} near turn 50, {late:.0f} near turn {TURNS}")  # noqa: T201
    assert late <= 1.2 * early


async def test_the_file_grows_in_a_straight_line_and_the_run_is_told_from_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as inner:
        journal = Counted(inner)
        result = await long_agent(journal, "pure").run("go", run_id="r")
        assert journal.appends <= 2 * TURNS + 4
        again = await long_agent(inner, "pure").resume("r")
        assert again.messages == result.messages
    size = path.stat().st_size
    print(f"{size / TURNS:.0f} bytes of the file a turn")  # noqa: T201
    assert size < TURNS * 6_000
