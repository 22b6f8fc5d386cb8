"""A journal of an earlier version: upgraded in place with a backup beside it, or read as it is."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.sqlite import SqliteJournal, high_water, schema, upgrade
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.kernel.journal import Draft, Posted, Record
from orchestrator.testing.journal_contract import BODY, NOTE, digest, move, spent, write
from tests.journal import format_1

BIG = b"z" * (1 << 20)
PAID = Draft("context", {"spent": spent(30, 4, cost=9)})


async def old(path: Path) -> dict[str, Sequence[Record]]:
    """Write a journal of version 1 with an open, a parked and an ended run, and return their bodies by run."""
    async with SqliteJournal(path) as journal:
        for name, last in (
            ("open", NOTE),
            ("parked", Draft("parked", {"reason": "approval", "calls": ["1:0", "1:1"]})),
            ("ended", Draft("ended", {"outcome": "partial", "reason": "tokens"})),
        ):
            lease = await journal.create(name, "me", BODY)
            asked = [
                Draft("asked", {"key": f"1:{n}", "tool": tool}) for n, tool in enumerate(("pay", "book"))
            ]
            await write(journal, lease, move("work", 3.0), PAID, *asked, blobs={digest(BIG): BIG})
            await write(journal, lease, NOTE, last)
        await journal.post("parked", Posted("a", "approve", {"n": 1}, "ann", 5.0))
    format_1.rewrite(path)
    return await read(SqliteJournal(path, only_reads=True))


async def read(journal: SqliteJournal) -> dict[str, Sequence[Record]]:
    async with journal:
        return {head.run_id: await journal.load(head.run_id) async for head in journal.runs()}


def version(path: Path) -> int:
    db = apsw.Connection(
        f"{path.as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        return int(str(db.pragma("user_version")))
    finally:
        db.close()


def backups(path: Path) -> list[Path]:
    return sorted(file for file in path.parent.glob("*.backup"))


async def test_an_upgrade_keeps_every_record_and_fills_the_heads(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    assert {run: len(records) for run, records in before.items()} == {"open": 7, "parked": 7, "ended": 7}
    async with SqliteJournal(path) as journal:
        heads = {head.run_id: head async for head in journal.runs(state="work", order_by="tokens")}
        assert set(heads) == {"open", "parked", "ended"}
        for head in heads.values():
            assert (head.state, head.state_since, head.tokens, head.cost_micros) == ("work", 3.0, 34, 9)
        assert [heads[run].waiting for run in ("open", "parked", "ended")] == ["", "book, pay", ""]
        assert [heads[run].outcome for run in ("open", "parked", "ended")] == ["", "", "partial"]
        lease = await journal.claim("open", "heir")
        await write(journal, lease, NOTE, NOTE)  # the chain goes across the upgrade
        assert (await journal.load("open"))[:7] == before["open"]
        health = await journal.check()
        assert (health.problems, health.version) == ((), 3)
        assert await journal.blob(digest(BIG)) == BIG
    (backup,) = backups(path)
    assert backup.name == "journal.db.version-1.backup"
    assert (version(backup), version(path), backup.stat().st_mode & 0o777) == (1, 3, 0o600)
    assert await read(SqliteJournal(backup, only_reads=True)) == before
    SqliteJournal.restore(backup, tmp_path / "restored.db")
    assert await read(SqliteJournal(tmp_path / "restored.db")) == before


async def test_a_journal_of_version_1_is_read_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    content = path.read_bytes()
    async with SqliteJournal(path, only_reads=True) as journal:
        head = await journal.head("parked")
        assert (head.status, head.reason, head.state, head.tokens) == ("parked", "approval", "", None)
        assert [head.run_id async for head in journal.runs(status="ended", order_by="updated")] == ["ended"]
        assert [head.run_id async for head in journal.runs(tags={"a": "b"})] == []
        assert [request.id for request in await journal.inbox("parked")] == ["a"]
        assert (await journal.newest("talk")) == await journal.head("ended")
        kinds = [draft.kind for draft in (await journal.excerpts(["parked"]))["parked"]]
        assert (kinds[0], kinds[-1]) == ("created", "parked")
        assert await journal.agents() == []
        health = await journal.check()
        assert (health.problems, health.version, health.records) == ((), 1, 21)
        with pytest.raises(StoreDown, match="read-only"):
            await journal.post("parked", Posted("b", "approve"))
    assert (path.read_bytes(), backups(path)) == (content, [])
    assert await read(SqliteJournal(path)) == before


async def test_a_process_of_an_earlier_version_that_uses_the_journal_prevents_the_upgrade(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    presence = SqlitePresence(tmp_path / "journal.db-owners")
    presence.begin()
    with pytest.raises(
        StoreDown, match=r"has version 1 and is used by process \d+ of an earlier version.*end it"
    ):
        await SqliteJournal(path).open()
    assert (version(path), backups(path)) == (1, [])
    presence.end()
    assert await read(SqliteJournal(path)) == before
    assert version(path) == 3


async def test_a_connection_of_an_earlier_version_cannot_write_after_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await old(path)
    earlier = apsw.Connection(str(path))
    append = "UPDATE run SET seq=9 WHERE run_id='open' AND head=x'00'"
    earlier.execute(append)
    async with SqliteJournal(path) as journal:
        with pytest.raises(apsw.SQLError, match="no such column: head"):
            earlier.execute(append)
        assert (await journal.check()).ok
    earlier.close()


async def test_a_reader_of_the_earlier_version_is_told_to_open_the_upgraded_journal_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    async with SqliteJournal(path, only_reads=True) as reader:
        assert await reader.load("open") == before["open"]
        await read(SqliteJournal(path))
        with pytest.raises(StoreDown, match="upgraded it meanwhile, open it again"):
            await reader.load("open")
        await reader.reopen()
        assert await reader.load("open") == before["open"]


async def test_many_handles_upgrade_a_journal_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    journals = [SqliteJournal(path) for _ in range(6)]
    await asyncio.gather(*(journal.open() for journal in journals))
    assert len(backups(path)) == 1
    for journal in journals:
        assert await journal.load("open") == before["open"]
        await journal.close()


@pytest.mark.parametrize("step", ["_lacking", "refuse_damaged_log", "_prepare"])
async def test_a_handle_opens_a_journal_that_another_one_upgrades_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    real = getattr(schema, step)

    def upgraded_first(*args: object) -> object:
        if version(path) == 1:
            monkeypatch.setattr(schema, step, real)
            in_place = functools.partial(upgrade.upgrade_file, path=path, busy=5.0)
            high_water.close_connection(high_water.connect_proved(path, busy=5.0, upgrade=in_place))
        return real(*args)

    monkeypatch.setattr(schema, step, upgraded_first)
    async with SqliteJournal(path) as journal:
        await write(journal, await journal.create("new", "me", BODY), NOTE)
        assert {head.run_id async for head in journal.runs()} == {*before, "new"}
        assert {name: await journal.load(name) for name in before} == before
    assert (version(path), len(backups(path))) == (3, 1)


async def test_an_interrupted_upgrade_leaves_the_earlier_version_and_uses_its_backup_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)

    def interrupt(_: apsw.Connection) -> None:
        raise apsw.InterruptError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_fill_heads", interrupt)
        with pytest.raises(StoreDown):
            await SqliteJournal(path).open()
    assert version(path) == 1
    (backup,) = backups(path)
    made = backup.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "journal.db.version-1.backup-blobs")
    assert await read(SqliteJournal(path)) == before
    assert ([backup], made) == (backups(path), backup.stat().st_mtime_ns)


async def test_a_process_that_ended_before_it_removed_the_part_of_a_backup_leaves_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    backup = tmp_path / "journal.db.version-1.backup"
    db = apsw.Connection(str(path))
    db.execute("VACUUM INTO ?", (str(backup),))
    db.close()
    backup.with_name(f"{backup.name}.part").hardlink_to(backup)
    assert await read(SqliteJournal(path)) == before
    assert list(tmp_path.glob("*version-1*")) == [backup]


async def test_another_backup_is_not_overwritten(tmp_path: Path) -> None:
    path, first = tmp_path / "journal.db", tmp_path / "journal.db.version-1.backup"
    await old(path)
    first.write_bytes(b"of another time")
    await read(SqliteJournal(path))
    assert first.read_bytes() == b"of another time"
    assert [file.name for file in backups(path)] == [f"{path.name}.version-1.2.backup", first.name]


async def test_a_full_disk_prevents_the_upgrade_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    usage = namedtuple("usage", "total used free")  # noqa: PYI024  shutil's own has no types either
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
        with pytest.raises(
            StoreDown, match=r"is not upgraded: the backup .* need [\d,]+ bytes, and 1 are free"
        ) as full:
            await SqliteJournal(path).open()
    assert (full.value.kind, version(path), backups(path)) == ("full", 1, [])
    assert await read(SqliteJournal(path)) == before


async def test_a_damaged_run_stays_damaged_and_the_others_are_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    db = apsw.Connection(str(path))
    db.execute("UPDATE run SET seq = 1 WHERE run_id = 'open'")
    db.execute("UPDATE record SET body = CAST('{' AS BLOB) WHERE key = (2 << 32) + 1")
    db.close()
    async with SqliteJournal(path) as journal:
        assert [problem[:12] for problem in (await journal.check()).problems] == [
            "run 'open': ",
            "run 'parked'",
        ]
        assert await journal.load("ended") == before["ended"]
        assert (await journal.head("ended")).outcome == "partial"


async def test_text_of_a_run_that_cannot_be_decoded_does_not_prevent_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = await old(path)
    db = apsw.Connection(str(path))
    db.execute("UPDATE run SET owner = CAST(x'e6' AS TEXT) WHERE run_id = 'open'")
    db.close()
    async with SqliteJournal(path) as journal:
        with pytest.raises(Corrupt, match=r"run 'open': its row is damaged"):
            await journal.head("open")
        assert await journal.load("ended") == before["ended"]
        assert (await journal.head("ended")).outcome == "partial"


async def test_a_new_file_has_the_tables_of_an_upgraded_one(tmp_path: Path) -> None:
    await old(tmp_path / "journal.db")
    await read(SqliteJournal(tmp_path / "journal.db"))
    async with SqliteJournal(tmp_path / "new.db"):
        pass
    found = []
    for name in ("journal.db", "new.db"):
        db = apsw.Connection(str(tmp_path / name))
        found.append(
            (
                db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall(),
                db.pragma("user_version"),
            )
        )
        db.close()
    assert found[0] == found[1]
    assert found[0][1] == schema.VERSION


async def version_2(path: Path) -> dict[str, Sequence[Record]]:
    """Write a journal of version 2, with a run of an agent, and return the records by run."""
    async with SqliteJournal(path) as journal:
        about = {"agent": "support", "agent_version": "2", "tags": {"team": "a"}}
        for name, body in (("named", {**BODY, **about}), ("plain", BODY)):
            await write(journal, await journal.create(name, "me", body), move("work", 3.0), PAID)
    db = apsw.Connection(str(path))
    db.execute("ALTER TABLE run DROP COLUMN currency")
    db.execute("ALTER TABLE run RENAME COLUMN identity_sum TO fixed_sum")
    db.pragma("user_version", 2)
    db.close()
    high_water.mark_of(path).unlink(missing_ok=True)
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM mark")
    db.close()
    return await read(SqliteJournal(path, only_reads=True))


async def test_a_journal_of_version_2_keeps_its_heads_and_names_no_currency(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = await version_2(path)
    async with SqliteJournal(path, only_reads=True) as journal:
        shown = {head.run_id: head async for head in journal.runs()}
        assert [one.costs for one in await journal.agents()] == [(("", 9, 1),)]
        assert (await journal.check()).problems == ()
    assert version(path) == 2
    async with SqliteJournal(path) as journal:
        heads = {head.run_id: head async for head in journal.runs()}
        assert heads == shown
        assert [(head.cost_micros, head.currency) for head in heads.values()] == [(9, "")] * 2
        lease = await journal.create("new", "me", {**BODY, "currency": "EUR"})
        await write(journal, lease, Draft("resumed", {"agent": "heir", "agent_version": ""}))
        new = await journal.head("new")
        assert (new.agent, new.currency) == ("heir", "EUR")
        assert (await journal.check()).problems == ()
    assert {
        name: records for name, records in (await read(SqliteJournal(path))).items() if name in before
    } == before
    assert [backup.name for backup in backups(path)] == ["journal.db.version-2.backup"]


async def test_a_connection_of_version_2_writes_no_sum_after_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await version_2(path)
    earlier = apsw.Connection(str(path))
    await read(SqliteJournal(path))
    with pytest.raises(apsw.SQLError, match="fixed_sum"):
        earlier.execute("UPDATE run SET agent=?, fixed_sum=? WHERE run_id=?", ("x", 1, "named"))
    earlier.close()
