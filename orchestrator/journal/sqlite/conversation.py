"""Memory of conversations in one SQLite file: a `llm.port.Memory` that outlives its process.

The module is beside the journal because its file needs the same care: how it is opened, the SQLite version, the
single thread that writes and syncs, the meaning of errors. The layers allow no import between other folders of this
row. It is a separate file: a memory may be copied, erased or lost without an effect on a run.

- *Stored*, under each key (the conversation, else the run), are every exchange in order, the newest `max_failures`
  failure episodes, and summaries. A summary covers the steps of a run, but none of the exchanges before it, so it
  replaces only the earlier summaries of the same run: those that no exchange follows yet.
- *Shown* by `prepare` are the newest exchanges and summaries, complete and in order, up to `max_messages` and
  `max_chars`, without those that are in the conversation anyway. One message of the user's role follows, with the
  failures since the last exchange, newest first: their texts come from tools and models, so they have no authority.
- *Durable* is the data of each call that has returned. A cancelled call, for instance by a deadline, does not wait
  for the disk: its data is then stored completely or not at all. Storing the last exchange again changes nothing,
  because a resumed run may do so.
- *Errors* are MemoryDown, one sentence each. After an error of the disk the next call opens the file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

import apsw
import orjson

from orchestrator.errors import ConfigError, JournalError, RunError
from orchestrator.journal.sqlite import place, schema
from orchestrator.journal.sqlite.error_mapping import TRANSIENT, explain
from orchestrator.journal.sqlite.schema import checksum
from orchestrator.journal.sqlite.writer import SqliteWriter, Transaction
from orchestrator.llm.message import OPAQUE, Message, encodable
from orchestrator.llm.port import FailureEpisode

T = TypeVar("T")

EXCHANGE, SUMMARY, FAILURE = "exchange", "summary", "failure"
_NOUN = "memory"
_BATCH = 1000
_SHOWN_ERROR, _SHOWN_ARGUMENTS = 500, 200
"""Characters of a failure that a model sees."""

MEMORY = schema.FileKind(
    _NOUN,
    0x46534D6D,  # `FSMm`
    1,
    (
        """CREATE TABLE entry(
            id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL,
            at REAL NOT NULL, sum INTEGER NOT NULL) STRICT""",
        "CREATE INDEX entry_of_key ON entry(key, kind, id)",
    ),
)

_abandoned: list[object] = []
"""Connections of a parent, kept by a forked child: closing them would touch locks that the child does not have."""


class MemoryDown(RunError):
    """A memory cannot be opened, read or written, or its data is damaged. Not a JournalError, which is about runs.

    `kind` is `locked`, `full`, `io`, `corrupt` or `other`.
    """

    def __init__(self, why: str, kind: str = "other") -> None:
        super().__init__(why)
        self.kind = kind


class SqliteMemory:
    """Memory in a SQLite file; implements `llm.port.Memory`. Any number of agents and processes may share one file.

    The constructor opens nothing: the first call opens the file off the event loop.

    Args:
        path: Path of the file.
        max_messages: Maximum messages that `prepare` returns; 0 is no limit.
        max_chars: Maximum characters of their JSON text; 0 is no limit.
        max_failures: Number of failure episodes stored and shown for a key; 0 is none.
        busy: Seconds that another process may hold the write lock.
        now: Clock of the timestamps.

    Raises:
        ConfigError: A number is invalid.

    Example:
        agent = Agent(my_llm, memory=SqliteMemory(".orchestrator/memory.db"))
        await agent.run("My name is Ada.", conversation_id="ada")          # in another process, a week later:
        await agent.run("What is my name?", conversation_id="ada")
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_messages: int = 40,
        max_chars: int = 40_000,
        max_failures: int = 3,
        busy: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        bounds: dict[str, object] = {
            "max_messages": max_messages,
            "max_chars": max_chars,
            "max_failures": max_failures,
        }
        for name, value in bounds.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, 0 or more")
        self.path = Path(path).absolute()
        self.max_messages = max_messages
        self.max_chars = max_chars
        self.max_failures = max_failures
        self._busy = busy
        self._now = now
        self._lock = threading.Lock()
        self._writer: SqliteWriter | None = None
        self._closed = False
        self._pid = os.getpid()

    # ---- the port ----

    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to show under a key, oldest first. Raises MemoryDown."""
        there = {_text(message) for message in messages}
        return await self._call(lambda tx: self._known(tx.cursor, key, there))

    async def store(self, key: str, messages: Sequence[Message]) -> None:
        """Store an exchange, unless it equals the last one. Raises MemoryDown."""
        texts = [_text(message) for message in messages if message.role != "tool"]
        await self._call(lambda tx: self._add(tx.cursor, key, EXCHANGE, _list(texts)))

    async def store_failure(self, key: str, episode: FailureEpisode) -> None:
        """Store a failure, and delete the oldest ones beyond `max_failures`. Raises MemoryDown."""
        body = {
            "run_id": episode.run_id,
            "reason": episode.reason,
            "error": episode.error,
            "iteration": episode.iteration,
            "calls": episode.calls,
        }
        await self._call(lambda tx: self._add_failure(tx.cursor, key, orjson.dumps(encodable(body))))

    async def compact(self, key: str, summary: Message) -> None:
        """Store a summary in place of those that no exchange follows yet. Raises MemoryDown."""
        await self._call(lambda tx: self._add_summary(tx.cursor, key, _list([_text(summary)])))

    # ---- maintenance ----

    async def erase(self, key: str) -> bool:
        """Erase everything under a key, in the file and its log. Raises MemoryDown.

        Returns False if there was nothing.
        """
        changed = await self._call(lambda tx: _changed(tx.cursor, "DELETE FROM entry WHERE key=?", key))
        await self._aside(self._truncate)
        return bool(changed)

    async def prune(self, *, older_than: float) -> int:
        """Erase the keys without new data since `older_than` (epoch seconds); return their number of entries."""
        query = "DELETE FROM entry WHERE key IN (SELECT key FROM entry GROUP BY key HAVING max(at) < ?)"
        changed = await self._call(lambda tx: _changed(tx.cursor, query, older_than))
        await self._aside(self._truncate)
        return changed

    async def open(self) -> None:
        """Open the file now instead of at the first use. Raises MemoryDown."""
        await self._aside(self._opened)

    async def close(self) -> None:
        """Write the queued jobs and release the file."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None and self._pid == os.getpid():
            await asyncio.to_thread(writer.stop)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- in the writer thread ----

    def _add(self, cursor: apsw.Cursor, key: str, kind: str, body: bytes) -> None:
        newest = "SELECT body FROM entry WHERE key=? AND kind=? ORDER BY id DESC LIMIT 1"
        if cursor.execute(newest, (key, kind)).get == body:
            return
        at = self._now()
        row = (key, kind, body, at, checksum(key, kind, body.decode(), at))
        cursor.execute("INSERT INTO entry(key, kind, body, at, sum) VALUES (?,?,?,?,?)", row)

    def _add_failure(self, cursor: apsw.Cursor, key: str, body: bytes) -> None:
        self._add(cursor, key, FAILURE, body)
        cursor.execute(
            """DELETE FROM entry WHERE key=?1 AND kind=?2 AND id NOT IN
            (SELECT id FROM entry WHERE key=?1 AND kind=?2 ORDER BY id DESC LIMIT ?3)""",
            (key, FAILURE, self.max_failures),
        )

    def _add_summary(self, cursor: apsw.Cursor, key: str, body: bytes) -> None:
        cursor.execute(
            "DELETE FROM entry WHERE key=? AND kind=? AND id>?", (key, SUMMARY, _last(cursor, key, EXCHANGE))
        )
        self._add(cursor, key, SUMMARY, body)

    def _known(self, cursor: apsw.Cursor, key: str, there: set[bytes]) -> list[Message]:
        since = _last(cursor, key, EXCHANGE)
        failures = list(self._read(cursor, key, (FAILURE, FAILURE), since))
        known: list[list[bytes]] = []
        messages = characters = 0
        for body in self._read(cursor, key, (EXCHANGE, SUMMARY), 0):
            texts = [orjson.dumps(raw) for raw in orjson.loads(body)]
            if there.issuperset(texts):
                continue
            messages += len(texts)
            characters += len(body.decode())
            if _beyond(messages, self.max_messages) or _beyond(characters, self.max_chars):
                break
            known.append(texts)
        found = [Message.from_openai(orjson.loads(text)) for texts in reversed(known) for text in texts]
        return [*found, *_failures_of(failures[: self.max_failures])]

    def _read(self, cursor: apsw.Cursor, key: str, kinds: tuple[str, str], since: int) -> Iterator[bytes]:
        """Yield the entries after `since`, newest first, each verified."""
        query = "SELECT id, kind, body, at, sum FROM entry WHERE key=? AND kind IN (?,?) AND id>? ORDER BY id DESC"
        for number, kind, body, at, total in cursor.execute(query, (key, *kinds, since)):
            if checksum(key, kind, body.decode(errors="replace"), at) != total:
                raise MemoryDown(
                    f"memory {self.path} is damaged at entry {number} of {key!r}: erase that key, or restore a copy",
                    "corrupt",
                )
            yield body

    # ---- opening ----

    async def _call(self, work: Callable[[Transaction], T]) -> T:
        """Run a job in the writer's thread. A cancelled call does not wait: the job is done or not, never in part."""
        writer = self._writer
        if writer is None or writer.down is not None or self._pid != os.getpid():
            writer = await self._aside(self._opened)
        try:
            return await asyncio.shield(writer.submit(work))
        except JournalError as error:
            raise _down(error) from error

    async def _aside(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except JournalError as error:
            raise _down(error) from error

    def _opened(self) -> SqliteWriter:
        """Return the writer; open it if there is none, or if the last one met an error of the disk."""
        if self._pid != os.getpid():
            # Use the memory in this forked child if the parent had not opened it. Raises MemoryDown.
            if self._writer is not None:
                if self._writer not in _abandoned:
                    _abandoned.append(self._writer)
                raise MemoryDown(
                    f"memory {self.path} was opened before this process was forked: make another in the child"
                )
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            if self._closed:
                raise MemoryDown(f"memory {self.path} is closed")
            if self._writer is not None and self._writer.down is not None:
                self._writer.stop()
                self._writer = None
            if self._writer is None:
                self._writer = _open(self.path, self._busy)
                weakref.finalize(self, _stop, self._writer, self._pid)
            return self._writer

    def _truncate(self) -> None:
        db = schema.connect(self.path, busy=self._busy, kind=MEMORY)
        try:
            _empty_log(db, self.path, self._busy)
        finally:
            db.close(force=True)


def _open(path: Path, busy: float) -> SqliteWriter:
    """Open the file and start the thread. Raises StoreDown, Corrupt or TooNew, and then changes nothing."""
    made = place.prepare(path, MEMORY.image, _NOUN)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(place.undo, made)
        db = schema.connect(path, busy=busy, kind=MEMORY)
        on_failure.callback(db.close, force=True)
        _empty_log(db, path, busy)  # pages that a failed sync left there are written again, not trusted
        writer = SqliteWriter(
            db,
            limit=_BATCH,
            explain=lambda error: explain(error, path, busy, _NOUN),
            name=path.name,
            noun=_NOUN,
        )
        on_failure.pop_all()
    return writer


def _empty_log(db: apsw.Connection, path: Path, busy: float) -> None:
    """Copy the log into the file and empty it, unless other processes use it."""
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except TRANSIENT:
        pass  # then they do it, or the next process that opens it
    except apsw.Error as error:
        raise explain(error, path, busy, _NOUN) from error


def _text(message: Message) -> bytes:
    """Return a message in stored form: without its calls, because their results are not stored either.

    What only its server reads (signatures, encrypted reasoning) belongs to calls or the run, and would fill the memory.
    """
    raw = message.to_openai()
    raw.pop("tool_calls", None)
    if isinstance(message.content, list):
        raw["content"] = [part for part in message.content if part.get("type") not in OPAQUE] or None
    return orjson.dumps(encodable(raw))


def _list(texts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


def _failures_of(failures: Sequence[bytes]) -> Iterator[Message]:
    """Yield one message about the failures, if there are any."""
    if not failures:
        return
    lines = ["Since then these attempts failed, the last one first:"]
    for episode in map(orjson.loads, failures):
        calls = ", ".join(f"{tool}({arguments[:_SHOWN_ARGUMENTS]})" for tool, arguments in episode["calls"])
        last = f" Last calls: {calls}." if calls else ""
        lines.append(f"- {episode['reason']}: {' '.join(episode['error'].split())[:_SHOWN_ERROR]}.{last}")
    yield Message("user", "\n".join(lines))


def _last(cursor: apsw.Cursor, key: str, kind: str) -> int:
    found = cursor.execute("SELECT max(id) FROM entry WHERE key=? AND kind=?", (key, kind)).get
    return int(found or 0)


def _changed(cursor: apsw.Cursor, statement: str, value: object) -> int:
    cursor.execute(statement, (value,))
    return int(cursor.connection.changes())


def _beyond(count: int, most: int) -> bool:
    return 0 < most < count


def _down(error: JournalError) -> MemoryDown:
    return MemoryDown(str(error), error.kind)


def _stop(writer: SqliteWriter, pid: int) -> None:
    if pid == os.getpid():
        writer.stop()
