"""T19: journals that released versions wrote are read and gone on with for ever.

`tests/data/journal/v1.db` was written by `write_golden` below when 1 was the version of the format. It is never written
again. Its records are never rewritten by an upgrade: `v1.json` has the hash of each.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import orjson
import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import SqliteJournal, schema
from orchestrator.kernel.journal import Draft, Posted
from orchestrator.testing.journal_contract import digest, write
from tests.journal import format_1

DATA = Path(__file__).resolve().parents[1] / "data" / "journal"
CREATED = {
    "schema": 1,
    "graph": "llm_loop",
    "fingerprint": "5" * 64,
    "at": 1_700_000_000.25,
    "parent_run_id": None,
    "conversation_id": "talk",
}
BLOB = b"prior content\n" * 10


async def write_golden(path: Path) -> None:
    """Write what `v1.db` holds. Run by hand when a new version is released, for a new file."""
    async with SqliteJournal(path, now=lambda: 1_700_000_001.5) as journal:
        lease = await journal.create("open", "worker", CREATED)
        await write(
            journal,
            lease,
            Draft("transition", {"event": "start", "to": "await_llm"}),
            Draft("intent", {"n": 1}),
        )
        await write(
            journal,
            lease,
            Draft("done", {"text": "größer ☃", "n": [1, 2.5, None]}),
            blobs={digest(BLOB): BLOB},
        )
        await journal.post("open", Posted("r1", "approve", {"digest": "d"}, by="ann", at=1_700_000_002.0))
        for run_id, kind in (("parked", "parked"), ("ended", "ended")):
            lease = await journal.create(run_id, "worker", {**CREATED, "parent_run_id": "open"})
            await write(
                journal, lease, Draft(kind, {"reason": "approval" if kind == "parked" else "max_iterations"})
            )
        lease = await journal.claim("open", "worker")
        await write(journal, lease, Draft("resumed", {}))
        await write(journal, lease, Draft("transition", {"event": "llm_response", "to": "evaluate_response"}))


def tables(path: Path) -> set[tuple[object, ...]]:
    """The tables and indexes of a journal, as SQLite keeps them."""
    # Immutable: nothing is to appear beside the file of the repository.
    db = apsw.Connection(
        f"{path.as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        found = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
        return {*found, ("version", db.pragma("user_version"), db.pragma("application_id"))}
    finally:
        db.close()


async def new_tables(folder: Path) -> set[tuple[object, ...]]:
    """The tables of a journal that is created today."""
    async with SqliteJournal(folder / "new.db"):
        pass
    return tables(folder / "new.db")


def without_additions(path: Path) -> None:
    """Make of a journal what version 1 wrote before it had `schema.ADDED`."""
    db = apsw.Connection(str(path))
    for name, statement in schema.ADDED.items():
        db.execute(f"DROP {statement.split()[1]} IF EXISTS {name}")
    db.execute("VACUUM")
    db.close()


def with_the_mark(found: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """The same with the table that `v1.db` was written without, and that it gets when it is opened."""
    return {*found, ("table", "mark", "mark", schema.ADDED["mark"].replace("IF NOT EXISTS ", ""))}


@pytest.mark.parametrize("lacking", [False, True], ids=["as it is", "without what was added"])
async def test_a_journal_of_version_1_is_read_and_gone_on_with(tmp_path: Path, lacking: bool) -> None:
    expected = orjson.loads((DATA / "v1.json").read_bytes())
    shutil.copyfile(DATA / "v1.db", tmp_path / "journal.db")
    if lacking:
        without_additions(tmp_path / "journal.db")
        assert tables(tmp_path / "journal.db") < tables(DATA / "v1.db")
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        assert (await journal.check()).problems == ()
        for run_id, records in expected.items():
            found = [[r.seq, r.epoch, r.kind, r.body, r.hash] for r in await journal.load(run_id)]
            assert found == records
        assert [(head.run_id, head.status, head.reason) async for head in journal.runs()] == [
            ("open", "open", ""),
            ("parked", "parked", "approval"),
            ("ended", "ended", "max_iterations"),
        ]
        head = await journal.head("ended")
        assert (head.parent_run_id, head.conversation_id, head.created_at) == (
            "open",
            "talk",
            1_700_000_000.25,
        )
        assert await journal.inbox("open") == [
            Posted("r1", "approve", {"digest": "d"}, by="ann", at=1_700_000_002.0, number=1)
        ]
        assert await journal.blob(digest(BLOB)) == BLOB
        lease = await journal.claim("open", "heir")
        await write(journal, lease, Draft("note", {}))
        assert [record.epoch for record in await journal.load("open")] == [1, 1, 1, 1, 2, 2, 3]
        assert [head.run_id async for head in journal.runs(parent_run_id="open")] == ["parked", "ended"]
        assert await journal.newest("talk") == await journal.head("ended")
        before = [] if lacking else ["open"]
        position, runs = await journal.news(0)
        assert runs == before
        await journal.post("ended", Posted("r2", "resume"))
        assert await journal.news(position) == (position + 1, ["ended"])
    assert tables(tmp_path / "journal.db") == await new_tables(tmp_path)


async def test_a_table_that_was_lost_is_not_made_anew(tmp_path: Path) -> None:
    shutil.copyfile(DATA / "v1.db", tmp_path / "journal.db")
    db = apsw.Connection(str(tmp_path / "journal.db"))
    db.execute("DROP TABLE request")
    db.close()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        with pytest.raises(StoreDown, match="no such table: request"):
            await journal.inbox("open")


async def test_a_journal_rewritten_as_version_1_wrote_it_is_what_version_1_wrote(tmp_path: Path) -> None:
    expected = orjson.loads((DATA / "v1.json").read_bytes())
    await write_golden(tmp_path / "journal.db")
    format_1.rewrite(tmp_path / "journal.db")
    assert tables(tmp_path / "journal.db") == with_the_mark(tables(DATA / "v1.db"))
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        for run_id, records in expected.items():
            assert [record.hash for record in await journal.load(run_id)] == [record[4] for record in records]
