"""A run that processes drive one after the other, seen from the tests; and the nursery that forks them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from orchestrator.errors import RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Record
from tests.crash.mortal import RUN

ROOT = Path(__file__).resolve().parents[2]
KILLED = -signal.SIGKILL
Line: TypeAlias = Mapping[str, Any]
L = TypeVar("L", bound="Life")


class Life:
    """A run in `folder`, and the nursery that forks the processes which drive it."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self.folder = folder
        folder.mkdir()

    def live(self, do: str = "resume", **order: Any) -> int:
        """Let one process drive the run; its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(self.folder), "do": do, **order}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def said(self, what: str) -> list[Line]:
        """What happened outside, of one kind."""
        world = self.folder / "world"
        lines = map(json.loads, world.read_text().splitlines()) if world.exists() else ()
        return [line for line in lines if line["what"] == what]

    def errors(self) -> str:
        return (self.folder / "errors").read_text(errors="replace")

    def records(self) -> Sequence[Record]:
        """What the journal has of the run, its chain verified."""

        async def inside() -> Sequence[Record]:
            async with SqliteJournal(self.folder / "journal.db") as journal:
                try:
                    return await journal.load(RUN)
                except RunUnknown:
                    return []

        return asyncio.run(inside())


@contextmanager
def begun_by(module: str, environment: Mapping[str, str], kind: type[L]) -> Iterator[Callable[[Path], L]]:
    """Yield `begin(folder)`: a run that processes drive, which the nursery of a module forks."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield lambda folder: kind(process, folder)
        assert process.stdin is not None
        process.stdin.close()


def whole(begin: Callable[[Path], Life], folder: Path, **order: Any) -> tuple[Line, Line]:
    """How an undisturbed run ends, and what it counted: writes, boundaries."""
    life = begin(folder)
    assert life.live("run", **order) == 0, life.errors()
    return life.said("result")[0], life.said("counted")[0]
