"""The memory in a SQLite file: who may open it, what is said of one that is broken, processes that share it."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.errors import ConfigError
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.conversation import MEMORY, MemoryDown, SqliteMemory
from orchestrator.journal.sqlite.schema import connect
from orchestrator.llm.message import Message
from tests.journal.memory_stage import exchange, failure, texts

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

# ---- the file ----


async def test_the_file_is_its_owners_alone_and_syncs_every_commit(memory: SqliteMemory, path: Path) -> None:
    await memory.store("ada", exchange(1))
    await memory.compact("ada", Message("system", "a summary"))
    await memory.store_failure("ada", failure(1))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"memory.db": 0o600, "memory.db-wal": 0o600, "memory.db-shm": 0o600}
    db = connect(path, busy=1, kind=MEMORY)
    assert (db.pragma("journal_mode"), db.pragma("synchronous")) == ("wal", 2)
    assert (db.pragma("application_id"), db.pragma("user_version")) == (MEMORY.application, 1)
    kinds = [kind for (kind,) in db.execute("SELECT kind FROM entry ORDER BY id")]
    assert kinds == ["exchange", "summary", "failure"]
    db.close()


async def test_constructing_opens_nothing_and_closing_ends_it(path: Path) -> None:
    memory = SqliteMemory(path)
    assert not path.parent.exists()
    await memory.store("ada", exchange(1))
    await memory.close()
    with pytest.raises(MemoryDown, match=r"memory .* is closed"):
        await memory.prepare("ada", ())


async def test_a_file_of_something_else_is_refused_in_one_sentence(path: Path) -> None:
    path.parent.mkdir()
    async with SqliteJournal(path):
        pass
    before = path.read_bytes()
    with pytest.raises(MemoryDown, match=r"is a SQLite database, but not a memory$"):
        await SqliteMemory(path).open()
    assert path.read_bytes() == before


async def test_a_memory_is_no_journal_either(memory: SqliteMemory, path: Path) -> None:
    del memory
    with pytest.raises(Exception, match=r"but not a journal$"):
        await SqliteJournal(path).open()


async def test_a_file_that_is_no_database_is_refused_in_one_sentence(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"This is a text, and no database at all. " * 40)
    with pytest.raises(
        MemoryDown, match=r"^memory .* is not a SQLite database, or its first page is damaged$"
    ):
        await SqliteMemory(path).prepare("ada", ())


async def test_a_file_of_a_newer_version_is_refused_in_one_sentence(path: Path) -> None:
    async with SqliteMemory(path):
        pass
    db = apsw.Connection(str(path))
    db.pragma("user_version", 2)
    db.close()
    with pytest.raises(MemoryDown, match=r"^memory .* has version 2; this version .* reads up to 1$"):
        await SqliteMemory(path).prepare("ada", ())


async def test_a_folder_that_cannot_be_made_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MemoryDown, match=r"^memory .* cannot be created: Not a directory$"):
        await SqliteMemory(tmp_path / "file" / "memory.db").open()


async def test_an_entry_that_was_changed_is_not_believed(path: Path) -> None:
    async with SqliteMemory(path) as memory:
        await memory.store("ada", exchange(1))
        await memory.store("bob", exchange(1))
    db = apsw.Connection(str(path))
    db.execute("UPDATE entry SET body=CAST(replace(body, 'answer', 'ANSWER') AS BLOB) WHERE key='ada'")
    db.close()
    async with SqliteMemory(path) as memory:
        with pytest.raises(MemoryDown, match=r"is damaged at entry 1 of 'ada': erase that key") as error:
            await memory.prepare("ada", ())
        assert error.value.kind == "corrupt"
        assert await memory.prepare("bob", ()) == exchange(1), "nobody else is harmed"
        await memory.erase("ada")
        assert await memory.prepare("ada", ()) == []


async def test_a_file_that_another_process_holds_too_long_is_busy_and_not_broken(path: Path) -> None:
    async with SqliteMemory(path, busy=0.05) as memory:
        await memory.store("ada", exchange(1))
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MemoryDown, match=r"locked by another process for more than 0\.05 s") as error:
            await memory.store("ada", exchange(2))
        assert error.value.kind == "locked"
        other.execute("ROLLBACK")
        other.close()
        await memory.store("ada", exchange(2))
        assert await memory.prepare("ada", ()) == [*exchange(1), *exchange(2)]


async def test_one_that_is_cancelled_does_not_wait_and_leaves_nothing_half_done(path: Path) -> None:
    async with SqliteMemory(path, busy=100) as memory:
        await memory.store("ada", exchange(1))
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await memory.store("ada", exchange(2))
        other.execute("ROLLBACK")
        other.close()
        shown = await memory.prepare("ada", ())  # behind it in the queue
        assert shown == [*exchange(1), *exchange(2)]


FULL_DISK = """
import asyncio, resource, signal, sys
from orchestrator.journal.sqlite.conversation import MemoryDown, SqliteMemory
from orchestrator.llm.message import Message
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    memory = SqliteMemory(sys.argv[1])
    await memory.store("ada", [Message("user", "kept")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    try:
        await memory.store("ada", [Message("user", "x" * 500_000)])
    except MemoryDown as error:
        print(error.kind, str(error).partition(" had ")[2] or error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await memory.store("ada", [Message("user", "kept too")])
    print([message.text for message in await memory.prepare("ada", ())])
    await memory.close()

asyncio.run(main())
"""


def test_after_an_error_of_the_disk_the_next_call_opens_the_file_anew(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path], check=False, capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    failed, kept = done.stdout.splitlines()
    assert failed.startswith(("io ", "full ")), failed
    assert kept == "['kept', 'kept too']"


def test_a_forked_child_is_told_to_make_its_own(path: Path) -> None:
    memory, unopened = SqliteMemory(path), SqliteMemory(path)
    asyncio.run(memory.store("ada", exchange(1)))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            told = []
            for one in (memory, unopened):
                try:
                    told += [str(len(asyncio.run(one.prepare("ada", ()))))]
                except MemoryDown as error:
                    told += [str(error).partition(" was ")[2]]
            os.write(writer, "\n".join(told).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reader, 1_000).decode().splitlines()
    assert told == ["opened before this process was forked: make another in the child", "2"]
    assert asyncio.run(memory.prepare("ada", ())) == exchange(1)
    asyncio.run(memory.close())


@pytest.mark.parametrize(
    "wrong",
    [{"max_messages": -1}, {"max_chars": 1.5}, {"max_failures": True}],
    ids=lambda one: next(iter(one)),
)
def test_a_bound_that_is_none_is_refused(wrong: dict[str, Any], path: Path) -> None:
    with pytest.raises(ConfigError, match="it must be a whole number, 0 or more"):
        SqliteMemory(path, **wrong)


# ---- two processes ----

TWO = """
import asyncio, sys
from orchestrator.journal.sqlite.conversation import SqliteMemory
from orchestrator.llm.message import Message

async def main(path, name, count):
    async with SqliteMemory(path, busy=60) as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(count):
            await memory.store("shared", [Message("user", f"{name} {number}")])
            await memory.store(name, [Message("user", str(number))])

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def begun(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    """Return a process that has the memory open and waits for a word to store in it."""
    worker = subprocess.Popen(
        [sys.executable, "-c", TWO, path, name, str(count)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def test_two_processes_at_once_lose_nothing_and_keep_their_order(path: Path) -> None:
    count, names = 60, ("one", "two")
    workers = [begun(path, name, count) for name in names]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0

    async def prove() -> None:
        async with SqliteMemory(path, max_messages=0, max_chars=0) as memory:
            shared = texts(await memory.prepare("shared", ()))
            assert len(shared) == 2 * count
            for name in names:
                assert texts(await memory.prepare(name, ())) == [str(number) for number in range(count)]
                own = [text for text in shared if text.startswith(name)]
                assert own == [f"{name} {number}" for number in range(count)]

    asyncio.run(prove())
