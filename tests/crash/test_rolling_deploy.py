"""Three workers of one database are replaced by those of a newer version, one after the other, under load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from tests.crash import rolling
from tests.crash.fleet import Fleet
from tests.crash.rolling import GRAPHS, TURNS
from tests.postgres import Cluster

NAMES = ("w1", "w2", "w3")
OPTIONS = ("--slots", "4", "--grace", "1")


@pytest.fixture
def database(postgres: Cluster, with_tables: str) -> str:
    """The URL of a database that has the tables of dispatchers, and nothing in them."""
    return postgres.database(with_tables)


async def until(ready: Callable[[], Awaitable[Any]], seconds: float = 90.0) -> None:
    ends = time.monotonic() + seconds
    while not await ready():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.05)


class Load:
    """A client that leaves a run again and again, of whichever version is the newest."""

    def __init__(self, journal: Any) -> None:
        self.journal = journal
        self.runs: list[str] = []
        self.version = "1"
        self.finished = asyncio.Event()
        self._agents = {"1": rolling.old(journal), "2": rolling.new(journal)}

    async def leave(self) -> str:
        name = f"r{len(self.runs)}"
        await self._agents[self.version].deposit("go", run_id=name)
        self.runs.append(name)
        return name

    async def keep(self) -> None:
        """Leave runs until `finished` is set; a cancelled one might be deposited and not be known here."""
        while not self.finished.is_set():
            await self.leave()
            await asyncio.sleep(0.15)

    async def one_ended(self) -> bool:
        return [head async for head in self.journal.runs(status="ended", agent="sales", limit=1)] != []

    async def all_ended(self) -> bool:
        ended = [head.run_id async for head in self.journal.runs(status="ended", agent="sales")]
        return len(ended) == len(self.runs)


@contextlib.asynccontextmanager
async def loaded(database: str) -> AsyncIterator[Load]:
    async with PostgresJournal(database) as journal:
        yield Load(journal)


def fleets(database: str, folder: Path, kind: str, newer: str = "new") -> tuple[Fleet, Fleet]:
    found = []
    for version in ("old", newer):
        where = folder / version
        where.mkdir()
        made = Fleet(database, where, *OPTIONS, "--dispatcher", kind, agent=f"tests.crash.rolling:{version}")
        found.append(made)
    return found[0], found[1]


async def started(fleet: Fleet, name: str) -> None:
    fleet.start(name)

    async def works() -> bool:
        return fleet.works(name)

    await until(works)


def versions_that_fit(records: list[Record]) -> list[tuple[str, str]]:
    """Return the version of the agent and of the graph at each resumption, and at the end."""
    found, fingerprint = [], str(records[0].body["fingerprint"])
    version = str(records[0].body["agent_version"])
    graphs = {graph.fingerprint: name for name, graph in GRAPHS.items()}
    for record in records:
        if record.kind == "migrated":
            fingerprint = str(record.body["to"])
        elif record.kind == "resumed":
            version = str(record.body.get("agent_version", version))
        if record.kind in {"resumed", "ended"}:
            found.append((version, graphs[fingerprint]))
    return found


async def deploy(database: str, folder: Path, kind: str) -> None:
    older, newer = fleets(database, folder, kind)
    try:
        async with loaded(database) as load:
            await asyncio.gather(*(started(older, name) for name in NAMES))
            keeping = asyncio.create_task(load.keep())
            await until(load.one_ended)  # else a quick deploy leaves no run to the old version
            for name in NAMES:
                assert older.end(name) == 0
                await started(newer, name)
                load.version = "2"
            await asyncio.sleep(1.0)
            load.finished.set()
            await keeping
            await until(
                load.all_ended, 400.0
            )  # a busy machine deploys for minutes, which leaves a thousand runs
            await check(load, older, newer)
    finally:
        older.close()
        newer.close()


async def check(load: Load, older: Fleet, newer: Fleet) -> None:
    heads = {head.run_id: head async for head in load.journal.runs(agent="sales")}
    assert set(heads) == set(load.runs)
    assert {head.outcome for head in heads.values()} == {Outcome.COMPLETED}
    migrated = 0
    for run_id in load.runs:
        records = await load.journal.load(run_id)
        assert all(version == graph for version, graph in versions_that_fit(records)), run_id
        migrated += any(record.kind == "migrated" for record in records)
    assert {head.agent_version for head in heads.values()} == {"1", "2"}
    lines = [tuple(line.split()) for fleet in (older, newer) for line in _calls(fleet)]
    for run_id in load.runs:
        assert {turn for run, turn, _ in lines if run == run_id} == {str(turn) for turn in range(TURNS)}
    said = "".join(fleet.said(name) for fleet in (older, newer) for name in NAMES)
    assert "could not be" not in said, said


def _calls(fleet: Fleet) -> list[str]:
    file = fleet.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("kind", ["dbos", "procrastinate"])
async def test_every_run_ends_on_a_version_that_fits_while_three_workers_are_replaced(
    kind: str, database: str, tmp_path: Path
) -> None:
    await deploy(database, tmp_path, kind)


async def test_a_run_of_the_old_version_waits_visibly_for_a_migration_after_the_last_old_worker(
    database: str, tmp_path: Path
) -> None:
    older, newer = fleets(database, tmp_path, "dbos", "without_migration")
    fixed = Fleet(database, newer.folder, *OPTIONS, agent="tests.crash.rolling:new")
    try:
        async with loaded(database) as load:
            run_id = await load.leave()
            await started(newer, "w1")  # a worker that is still starting has no handler of SIGTERM yet

            async def waits() -> bool:
                return bool((await load.journal.head(run_id)).reason == "other_graph")

            await until(waits)
            assert newer.end("w1") == 0
            await started(fixed, "w2")
            await until(load.all_ended)
            (migrated,) = [one for one in await load.journal.load(run_id) if one.kind == "migrated"]
            assert migrated.body["to"] == (await load.journal.head(run_id)).fingerprint
            assert "could not be" not in newer.said("w1") + fixed.said("w2")
    finally:
        for fleet in (older, newer, fixed):
            fleet.close()
