from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.testing.journal_contract import BODY, NOTE, write


def stores(folder: Path) -> list[Journal]:
    return [MemoryJournal(), SqliteJournal(folder / "journal.db")]


@pytest.mark.parametrize(("when", "kept"), [("before", 2), ("after", 3)])
async def test_the_append_to_crash_at_is_not_done_or_done(
    tmp_path: Path, when: Literal["before", "after"], kept: int
) -> None:
    for inner in stores(tmp_path):
        journal = CrashingJournal(inner, at=2, when=when)
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE)
        with pytest.raises(StoreDown, match="on purpose"):
            await write(journal, lease, NOTE)
        assert journal.crashed
        with pytest.raises(StoreDown, match="on purpose"):
            await journal.load("run")
        with pytest.raises(StoreDown, match="on purpose"):
            journal.append(lease, [NOTE])
        assert len(await inner.load("run")) == kept
        await journal.close()


async def test_other_writes_are_counted_when_they_are_named() -> None:
    inner = MemoryJournal(now=lambda: 7.0)
    journal = CrashingJournal(inner, at=3, on=("create", "post"))
    lease = await journal.create("run", "me", BODY)
    await write(journal, lease, NOTE)
    assert await journal.post("run", request := Posted("a", "pause"))
    assert request.number == 0, "of one that is not stored"
    with pytest.raises(StoreDown):
        await journal.post("run", Posted("b", "pause"))
    assert journal.writes == ["create", "post", "post"]
    assert await inner.inbox("run") == [Posted("a", "pause", {}, by="", at=7.0, number=1)]


async def test_questions_are_passed_on_until_it_crashed(tmp_path: Path) -> None:
    for inner in stores(tmp_path):
        journal = CrashingJournal(inner, at=1)
        assert journal.shared is inner.shared is (inner.backend == "sqlite")
        lease = await journal.create("run", "me", BODY)
        await journal.post("run", Posted("a", "pause"))
        assert await journal.news(0) == await inner.news(0) == (1, ["run"])
        assert await journal.newest("talk") == await inner.head("run")
        with pytest.raises(StoreDown):
            await write(journal, lease, NOTE)
        for question in (
            journal.news(0),
            journal.newest("talk"),
            journal.excerpts(["run"]),
            journal.agents(),
        ):
            with pytest.raises(StoreDown, match="on purpose"):
                await question
        await journal.close()


PROGRAM = """
import asyncio, sys
from orchestrator.journal.crashing import CrashingJournal, kill
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft

async def main():
    journal = CrashingJournal(SqliteJournal(sys.argv[1]), at=2, when=sys.argv[2], crash=kill)
    lease = await journal.create("run", "me", {})
    await journal.append(lease, [Draft("note", {})])
    await journal.append(lease, [Draft("note", {})])

asyncio.run(main())
"""


@pytest.mark.parametrize(("when", "kept"), [("before", 2), ("after", 3)])
def test_it_can_kill_the_process_instead(tmp_path: Path, when: str, kept: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "j.db"), when],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == -9

    async def count() -> int:
        async with SqliteJournal(tmp_path / "j.db") as journal:
            return len(await journal.load("run"))

    assert asyncio.run(count()) == kept
