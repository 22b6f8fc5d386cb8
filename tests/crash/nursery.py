"""The process that forks workers, seen from the tests; and the proof after each of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from orchestrator.journal.sqlite import SqliteJournal
from tests.crash.invariants import Log, check


class Nursery:
    """Forks workers with faults of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def work(self, folder: Path, *, mode: str = "count", at: int = 0, seed: int = 1, **more: Any) -> int:
        """Let one worker work on `folder/store/journal.db`, logging to `folder/client.log`; its exit status."""
        store = folder / "store"
        order: dict[str, Any] = {
            "path": str(store / "journal.db"),
            "log": str(folder / "client.log"),
            "folder": str(store),
        }
        order |= {"mode": mode, "at": at, "seed": seed, "appends": 8, **more}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def client_log(folder: Path) -> Log:
    """Read what the workers of a folder logged."""
    return Log.read((folder / "client.log").read_text(errors="replace").splitlines())


def prove(folder: Path) -> Log:
    """Open the journal of a folder anew and check every invariant, and that it can be written."""

    async def inside() -> Log:
        log = client_log(folder)
        async with SqliteJournal(folder / "store" / "journal.db") as journal:
            await check(journal, log)
            health = await journal.check()
            assert health.ok, health.problems
            assert not list((folder / "store").rglob("*.tmp"))
            heads = [head async for head in journal.runs()]
            assert all(head.owner is None for head in heads), "a dead owner still holds a run"
        return log

    return asyncio.run(inside())
