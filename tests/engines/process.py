"""Engines in processes of their own, as their tests see them: the process, its journal, what a command says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.engines.engine_directory import STATUS, ask, engines
from orchestrator.errors import RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Record, RunHead

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class Worker(NamedTuple):
    process: subprocess.Popen[str]
    engine: str
    """Id of the run that stands for its engine."""

    def report(self) -> dict[str, Any]:
        """What it says at its end."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        # Not communicate(): it would lose what was read ahead of the first line, when both came at once.
        out, err = self.process.stdout.read(), self.process.stderr.read()
        assert (self.process.wait(timeout=60), err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found


Start = Callable[..., Worker]


class Outside:
    """The journal of the folder, as other processes see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def go(self, *steps: str) -> None:
        for step in steps:
            (self.folder / f"go-{step}").touch()

    def effects(self) -> dict[str, int]:
        """How often each step of each run took effect."""
        file = self.folder / "effects"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(":".join(line.split(":")[:2]) for line in lines)

    def read(self, work: Callable[[SqliteJournal], Awaitable[T]]) -> T:
        async def opened() -> T:
            async with SqliteJournal(self.folder / "journal.db") as journal:
                return await work(journal)

        return asyncio.run(opened())

    def head(self, run_id: str) -> RunHead:
        return self.read(lambda journal: journal.head(run_id))

    def reason(self, run_id: str) -> str | None:
        """Why it is parked or ended; None before it has begun."""

        async def found(journal: SqliteJournal) -> str | None:
            with suppress(RunUnknown):
                return (await journal.head(run_id)).reason
            return None

        return self.read(found)

    def records(self, run_id: str) -> Sequence[Record]:
        return self.read(lambda journal: journal.load(run_id))

    def results(self, run_id: str) -> int:
        """How many calls of a run have their result in the journal: a kill before that leaves a person to ask."""
        if self.reason(run_id) is None:
            return 0
        return sum(record.kind == "done" for record in self.records(run_id))

    def answered(self, engine: str) -> Mapping[str, Any]:
        """How an engine is, by its own word."""

        async def asked(journal: SqliteJournal) -> Mapping[str, Any] | None:
            (seen,) = [one for one in await engines(journal) if one.run_id == engine]
            return await ask(journal, seen, STATUS, {}, "test")

        status = self.read(asked)
        assert status is not None
        return status

    def until(self, ready: Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < ends, "it never came to that"
            time.sleep(0.01)


class Said(NamedTuple):
    code: int
    out: str
    err: str
