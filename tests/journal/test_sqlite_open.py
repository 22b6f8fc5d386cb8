"""The SQLite store beyond the contract: opening."""

from __future__ import annotations

import asyncio
import stat
import sys
import threading
from pathlib import Path

import apsw
import pytest

from orchestrator.errors import Corrupt, JournalError, StoreDown, TooNew
from orchestrator.journal.sqlite import SqliteJournal, place, schema
from orchestrator.testing.journal_contract import BODY, NOTE, digest, write


async def one_sentence(journal: SqliteJournal, kind: type[JournalError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        await journal.create("run", "me", BODY)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text
    await journal.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- opening ----


async def test_constructing_opens_nothing(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    journal = SqliteJournal(tmp_path / "deep" / "er" / "journal.db")
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= threads, "one of an earlier test may end meanwhile"
    await journal.close()


async def test_folder_and_file_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "new" / "journal.db") as journal:
        lease = await journal.create("run", "me", BODY)
        big = b"x" * (1 << 20)
        await write(journal, lease, NOTE, blobs={digest(big): big})
        found = {path.name: mode(path) for path in (tmp_path / "new").iterdir()}
        assert mode(tmp_path / "new") == 0o700
        assert found == {
            "journal.db": 0o600,
            "journal.db-wal": 0o600,
            "journal.db-shm": 0o600,
            "journal.db-mark": 0o600,
            "journal.db-owners": 0o700,
            "journal.db-blobs": 0o700,
        }


async def test_the_pragmas_are_what_durability_needs(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        of_macos = int(sys.platform == "darwin")
        assert (await journal.check()).pragmas == {
            "journal_mode": "wal",
            "synchronous": 2,
            "locking_mode": "normal",
            "mmap_size": 0,
            "secure_delete": 1,
            "cell_size_check": 1,
            "trusted_schema": 0,
            "fullfsync": of_macos,
            "checkpoint_fullfsync": of_macos,
        }


async def test_a_pragma_that_does_not_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.db"
    with monkeypatch.context() as patch:
        patch.setitem(schema.PRAGMAS, "synchronous", ("normal", 2))
        await one_sentence(SqliteJournal(path), StoreDown, "refused synchronous=1")
    assert path.read_bytes() == schema.JOURNAL.image()
    async with SqliteJournal(path) as journal:
        await journal.create("run", "me", BODY)


async def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path):
        pass
    db = apsw.Connection(str(path))
    db.pragma("user_version", schema.VERSION + 1)
    db.close()
    before = path.read_bytes()
    await one_sentence(SqliteJournal(path), TooNew, "version 4", "reads up to 3")
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [0, -1, schema.VERSION - (1 << 31)])
async def test_a_version_that_never_existed_is_damage_and_is_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path):
        pass
    db = apsw.Connection(str(path))
    db.pragma("user_version", version)
    db.close()
    before = path.read_bytes()
    await one_sentence(SqliteJournal(path), Corrupt, f"version {version}", "--salvage")
    assert path.read_bytes() == before


async def test_records_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await journal.create("run", "me", {**BODY, "schema": 99})
        with pytest.raises(TooNew):
            await journal.load("run")


async def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs(x)")
    db.close()
    before = path.read_bytes()
    await one_sentence(SqliteJournal(path), StoreDown, "but not a journal")
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("dear diary, " * 1000)
    await one_sentence(SqliteJournal(path), Corrupt, "not a SQLite database")
    assert path.read_text().startswith("dear diary")
    assert names_in(tmp_path) == ["text.db"]


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    await one_sentence(SqliteJournal(tmp_path / "journal.db"), StoreDown, "cannot be opened")
    assert names_in(tmp_path) == ["journal.db"]


async def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await one_sentence(SqliteJournal(tmp_path / "file" / "journal.db"), StoreDown, "cannot be created")


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.51.3"])
async def test_a_sqlite_that_is_too_old_opens_no_journal(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    await one_sentence(SqliteJournal(tmp_path / "journal.db"), StoreDown, "install apsw>=3.53.0")
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.53.0")
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        assert [head async for head in journal.runs()] == []


MOUNTED = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
40 21 0:50 / /home/ann/share\\040one rw,relatime shared:9 master:3 - nfs4 server:/export rw,vers=4.2
41 40 0:51 / /home/ann/share\\040one/local rw - tmpfs tmpfs rw
42 21 0:52 / /mnt/größe rw,relatime - cifs //server/gr\\303\\266\\303\\237e rw
43 21 0:53 / /mnt/back\\134slash rw - fuse.sshfs ann@host:/ rw,user_id=1000
44 21 0:54 / /mnt/\udcff rw - ext4 /dev/vdc rw
45 21 0:55 C:\\134 /mnt/c rw,noatime - 9p drvfs rw,dirsync,aname=drvfs
46 21 0:56 / /net rw,relatime shared:20 - autofs systemd-1 rw,fd=29
47 46 0:57 / /net rw,relatime shared:21 - nfs filer:/vol rw
48 21 0:58 / /home/bob rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b
49 21 0:59 /@home /home/eve rw - btrfs /dev/vdd rw,subvol=/@home
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/ann", "ext4"),
        ("/home/ann/share", "ext4"),
        ("/home/ann/share one", "nfs4"),
        ("/home/ann/share one/deep/er", "nfs4"),
        ("/home/ann/share one/local/deep", "tmpfs"),
        ("/mnt/größe/x", "cifs"),
        ("/mnt/back\\slash", "fuse.sshfs"),
        ("/mnt/\udcff/x", "ext4"),
        ("/mnt/c/Users/ann", "9p"),
        ("/net/vol", "nfs"),
        ("/home/bob/project", "overlay"),
        ("/home/eve", "btrfs"),
    ],
)
def test_the_file_system_of_a_folder_is_told_by_the_list_of_mounts(folder: str, kind: str) -> None:
    assert place.mounted_at(Path(folder), MOUNTED) == kind


def test_where_there_is_no_list_of_mounts_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.mounted_at(Path("/home"), "") == ""
    assert place.mounted_at(Path("/home"), "a line that is none\n") == ""
    monkeypatch.setattr(place, "MOUNTS", tmp_path / "nothing")
    assert place.file_system(tmp_path) == ""


@pytest.mark.skipif(not place.MOUNTS.exists(), reason="only Linux lists its mounts")
def test_the_mounts_of_this_machine_are_understood() -> None:
    assert place.file_system(Path("/proc")) == "proc"


def test_the_file_systems_of_a_network_are_those_with_these_names() -> None:
    of_the_kernel = (
        "9p afs beegfs ceph cifs coda davfs gfs2 gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb3 smbfs "
        "vboxsf vmhgfs"
    )
    of_fuse = (
        "ceph curlftpfs davfs2 gcsfuse glusterfs goofys gvfsd-fuse juicefs mfs rclone s3fs smbnetfs sshfs "
        "vmhgfs-fuse"
    )
    assert {*of_the_kernel.split(), *(f"fuse.{name}" for name in of_fuse.split())} == place.NETWORK


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.rclone"])
async def test_a_journal_on_a_network_file_system_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    root = "21 1 254:0 / / rw - ext4 /dev/vda rw"
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(place, "MOUNTS", mounts)
    point = f"{tmp_path}/share".replace(" ", "\\040")
    mounts.write_text(f"{root}\n40 21 0:50 / {point} rw shared:9 - {kind} server:/export rw\n")
    path = tmp_path / "share" / "new" / "journal.db"
    await one_sentence(SqliteJournal(path), StoreDown, f"is on {kind}, a network file system", "local disk")
    assert names_in(tmp_path) == ["mountinfo"]
    mounts.write_text(f"{root}\n")
    async with SqliteJournal(path) as journal:
        assert await journal.news(-1) == (0, [])


async def test_two_who_come_first_open_once(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    await asyncio.gather(*(journal.create(f"run {n}", "me", BODY) for n in range(20)))
    assert len([head async for head in journal.runs()]) == 20
    assert len(names_in(tmp_path / "journal.db-owners")) == 1
    await journal.close()


async def test_a_closed_journal_says_so_until_it_is_reopened(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    lease = await journal.create("run", "me", BODY)
    await journal.close()
    await journal.close()
    for call in (journal.load("run"), journal.claim("run", "me")):
        with pytest.raises(StoreDown, match="is closed"):
            await call
    with pytest.raises(StoreDown, match="is closed"):
        journal.append(lease, [NOTE])
    await journal.reopen()
    await write(journal, lease, NOTE)
    await journal.close()
