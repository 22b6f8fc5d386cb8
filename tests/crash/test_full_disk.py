"""A full disk on the worst day: a live engine, and the commands of an operator in their own processes.

The disk is a tmpfs that another file fills to the last byte. What is asked of the commands is what the runbook of
OrchestratorJournalWritesFailing says.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import SqliteJournal, place
from orchestrator.kernel.journal import Draft
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing.journal_contract import BODY, ENDED, NOTE, write
from tests.crash.nursery import Nursery, prove
from tests.crash.test_disk import ROOT
from tests.dashboards.incident import mitigations, typed
from tests.engines.stage import until

DOCTOR = "orchestrator doctor"
"""It ends with 1: a disk with so little room is a problem."""
DISK = 40 << 20
"""Bytes: with room for the reserve, and for the spare room without which there is none."""


class Disk(NamedTuple):
    """A small disk with a journal, and a file of somebody else that can fill it."""

    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    @property
    def reserve(self) -> Path:
        return self.folder / "journal.db-reserve"

    def fill(self) -> None:
        """Leave no byte."""
        with (self.folder / "filler").open("ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
        with pytest.raises(OSError, match="No space left") as full:
            (self.folder / "more").write_bytes(bytes(4096))
        assert full.value.errno == errno.ENOSPC
        (self.folder / "more").unlink()

    def free(self) -> None:
        (self.folder / "filler").unlink()


PATIENT = """
from orchestrator.engines import engine_directory
engine_directory.ANSWERS_WITHIN = 60.0
from orchestrator.cli import main
main()
"""
"""The command line, for which an engine may be slow to answer."""


class Command(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


async def command(disk: Disk, *words: str | Path) -> Command:
    """`orchestrator …` on the journal of the disk, in a process."""
    typed = [*map(str, words), "--journal", str(disk.journal)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PATIENT, *typed),
        cwd=disk.folder.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Command(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
def disk(mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(place, "EVERY", 0.1)
    return Disk(mounted("-t", "tmpfs", "-o", f"size={DISK}", "tmpfs"))


async def ended_runs(journal: SqliteJournal, count: int) -> None:
    """Write ended runs of about 50 kB."""
    for number in range(count):
        lease = await journal.create(f"old{number}", "me", BODY)
        await write(journal, lease, *[Draft("note", {"text": "x" * 5_000})] * 10)
        await write(journal, lease, ENDED)
        await journal.release(lease)


async def runs_without_end(journal: SqliteJournal) -> None:
    """Create runs until the room that the files have allocated is used."""
    while True:
        await journal.create(os.urandom(8).hex(), "me", {**BODY, "input": "x" * 2_000})


class Model:
    """Answers each prompt when it is told to."""

    def __init__(self) -> None:
        self.go: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, request: Request) -> str:
        await self.go[request.messages[-1].text].wait()
        return "done"


@asynccontextmanager
async def engine_on(journal: SqliteJournal, model: Model) -> AsyncIterator[LocalEngine]:
    agent = Agent(FunctionLLM(model, model="m"), name="support", journal=journal, observers=())
    async with LocalEngine(agent, name="front", recover="resume", rescan=0.2) as engine:
        yield engine


async def reserve_made(disk: Disk) -> None:
    await until(lambda: disk.reserve.exists() and disk.reserve.stat().st_size == place.SIZE, 60)


async def works(disk: Disk, *words: str | Path) -> str:
    """The output of a command that succeeds."""
    said = await command(disk, *words)
    assert (said.code, said.err) == (0, ""), said
    return said.out


async def test_the_commands_of_the_runbook_work_on_a_full_disk_and_the_engine_recovers(
    disk: Disk, tmp_path: Path
) -> None:
    model = Model()
    async with SqliteJournal(disk.journal, now=lambda: time.time() - 40 * 86_400) as journal:
        await ended_runs(journal, 60)
    async with SqliteJournal(disk.journal) as journal:
        async with engine_on(journal, model) as engine:
            names = "waits", "fails", "guilty"
            waits, fails, guilty = [await engine.submit(name, run_id=name) for name in names]
            await reserve_made(disk)
            await until(lambda: model.go.keys() >= {*names}, 60)
            disk.fill()
            with pytest.raises(StoreDown, match=r"the disk of journal .*journal.db is full"):
                await runs_without_end(journal)
            model.go["fails"].set()
            assert (await fails).reason == "journal_error"

            told = {}
            *lines, last = mitigations("OrchestratorJournalWritesFailing")
            words = {"RUN": "guilty", "copy.db": str(tmp_path / "copy.db")}
            for line in lines:
                said = told[line] = await command(disk, *typed(line, words))
                assert (said.code, said.err) == (int(line == DOCTOR), ""), (line, said)
                assert disk.reserve.stat().st_size, "a part is left for the next command"
            assert (await guilty).outcome == "cancelled"
            assert "admits no runs (" in await works(disk, "operate", "status")
            async with SqliteJournal(tmp_path / "copy.db", only_reads=True) as copied:
                assert (await copied.head("guilty")).outcome == "cancelled"
            assert re.search(r"reserve for operators: [0-7]\.\d MiB of 8.0 MiB", told[DOCTOR].out)
            assert "every chain proved" in told[DOCTOR].out
            assert "removed 60 runs" in told[lines[-1]].out
            assert "MiB to the file system" in told[lines[-1]].out
            with pytest.raises(StoreDown, match=r"no run is started until [0-9,]+ bytes are free"):
                await journal.create("new", "me", BODY)
            assert (await journal.head("fails")).status == "open", "it is resumed when there is room"

            disk.free()
            await reserve_made(disk)
            await works(disk, *typed(last, words))
            model.go["waits"].set()
            model.go["more"].set()
            assert (await waits).outcome == "completed"
            assert (await (await engine.submit("more"))).outcome == "completed"
            while (await journal.head("fails")).outcome != "completed":  # noqa: ASYNC110 - the test's own limit
                await asyncio.sleep(0.02)
        assert (await journal.check()).ok


WRITER = """
import asyncio, sys
from pathlib import Path
from orchestrator.journal.sqlite import (SqliteJournal, place)
from tests.crash.test_full_disk import ended_runs

async def main(path):
    place.EVERY = 0.1
    journal = SqliteJournal(path)
    await ended_runs(journal, 60)
    lease = await journal.create("open", "me", {"graph": "g", "fingerprint": "f"})
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1]))
"""


async def test_the_commands_work_on_a_full_disk_whose_engine_was_killed(disk: Disk, tmp_path: Path) -> None:
    writer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(disk.journal)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert writer.stdout is not None
    assert await writer.stdout.readline() == b"ready\n"
    await reserve_made(disk)
    writer.kill()
    await writer.wait()
    disk.fill()
    assert "open" in await works(disk, "runs", "list")
    assert "posted: cancel" in (await command(disk, "runs", "cancel", "open", "--why", "disk full")).out
    await works(disk, "runs", "backup", tmp_path / "copy.db")
    assert "removed 59 runs" in await works(disk, "runs", "prune", "--keep-last", "1", "--yes", "--vacuum")
    async with SqliteJournal(disk.journal) as journal:  # 3 MB are free, which is not enough to start runs
        with pytest.raises(StoreDown, match="no run is started until"):
            await journal.create("new", "me", BODY)
        lease = await journal.claim("open", "me")  # it was cancelled, so it may end
        await write(journal, lease, ENDED)
        await journal.release(lease)
        disk.free()
        await reserve_made(disk)
        await write(journal, await journal.create("new", "me", BODY), NOTE)
        assert (await journal.check()).ok


def test_a_write_that_finds_the_disk_full_loses_nothing_and_the_journal_continues_by_itself(
    nursery: Nursery, quick: Path, campaign: Callable[[int, int], int]
) -> None:
    (quick / "whole").mkdir()
    assert nursery.work(quick / "whole", appends=5) == 0
    total = prove(quick / "whole").numbers["calls"]
    continued = 0
    for at in range(1, total + 1, max(1, total // campaign(25, total))):
        folder = quick / str(at)
        folder.mkdir()
        assert nursery.work(folder, mode="full_write", at=at, appends=5) == 0, at
        text = (folder / "client.log").read_text()
        continued += "UP\n" in text
        assert "STILL DOWN" not in text, at
        log = prove(folder)
        assert len(log.acknowledged) >= 15, at
        shutil.rmtree(folder)
    assert continued >= 15
