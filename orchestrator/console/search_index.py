"""An index of the texts of runs: what their heads have, and tools, models, errors and the first message.

A task reads excerpts of the records, the newest run first, into a full-text index of three-character pieces, so that a
word is found at any place of a text. Until it has read every run once, a search also compares the heads of all runs,
which have ids, agents, tags and reasons. Afterwards the index alone chooses the runs: a comparison with 100,000 heads
takes longer than a person should wait. The index is a temporary database of this process: SQLite keeps a part of it in
memory and the rest in a file without a name, which ends with the process.

A permanent index in the journal's file or tables was rejected. It would be one more format for each store, it would
keep contents of runs that were pruned or erased, it would need the right to write, and a damaged one would look like a
journal without these runs. This one is the same for every store, also for a console that only reads, and can be out of
date only until its next pass, some two seconds. The price is that a console reads the excerpts again when it starts:
pages say how many runs are in the index.

A word of a text that only people with a right to contents may read is found for them alone: heads, names and contents
are separate columns.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import apsw

from orchestrator.errors import Corrupt
from orchestrator.journal.run_query import searched_text
from orchestrator.kernel.journal import Draft, RunHead
from orchestrator.runtime.runs.listing import RunFilter
from orchestrator.runtime.runs.outline import failure_in, request_of
from orchestrator.runtime.runs.runs import Runs

PIECE: Final = 3
"""Characters of the pieces of the index. A shorter word is compared with each text."""
MOST_HITS: Final = 20_000
"""Most runs of a word: a word that more runs have chooses none."""
PATIENCE: Final = 0.12
"""Seconds for which a page waits for the task."""
_WILD: Final = re.compile("[%_!]")
_CHUNK: Final = 200
_LONGEST: Final = 2_000
"""Characters of a message that are kept."""
_LASTS: Final = 2.0
"""Seconds between two passes over the runs that changed."""
_OVERLAP: Final = 60.0
"""Seconds by which a pass reaches behind the start of the one before: clocks of owners differ."""
_TABLES: Final = (
    """CREATE TABLE run(
        id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, version TEXT NOT NULL, pass INTEGER NOT NULL)""",
    "CREATE VIRTUAL TABLE entry USING fts5(heads, names, contents, tokenize = 'trigram')",
)


class SearchEntry(NamedTuple):
    """The texts of one run."""

    names: str
    """Tools, models, and the error without its message."""
    contents: str
    """The first message, the message of the error, and names that the model invented."""

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> SearchEntry:
        """Read an excerpt of the records of a run (`Journal.excerpts`); without probable secrets."""
        names: list[str] = []
        contents: list[str] = []
        offered: Mapping[str, Any] = {}
        for kind, body in drafts:
            if kind == "created":
                offered = body.get("definition") or {}
                contents.append(request_of(body.get("context") or {})[:_LONGEST])
            elif kind == "answer":
                names.append(str(body.get("model") or ""))
            elif kind == "done" and body.get("tool"):
                (contents if body.get("registered") is False else names).append(str(body["tool"]))
            for tool in body.get("spent.by_tool") or ():
                (names if tool in offered else contents).append(str(tool))
        if failure := failure_in(drafts):
            status = str(failure.status or "")
            names += [failure.type, failure.kind, status, failure.request_id, failure.where]
            contents.append(failure.message[:_LONGEST])
        return cls("\n".join(dict.fromkeys(names)), "\n".join(contents))


class SearchHits(NamedTuple):
    """The answer of the index."""

    conditions: RunFilter
    """The conditions of a listing of the runs that have every word."""
    too_common: Sequence[str]
    """Words that more than MOST_HITS runs have in their texts, so that only heads are compared with them."""
    read: int
    """Runs in the index."""
    is_read: bool
    """Whether the index has every run."""


@dataclass(slots=True)
class SearchIndex:
    """The index of one journal.

    Args:
        runs: The runs of the journal.
    """

    runs: Runs
    read: int = 0
    """Runs in the index."""
    _db: apsw.Connection | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _task: asyncio.Task[None] | None = None
    _version: str = ""
    """Version of the journal that the last pass has read."""
    _ended: float = 0.0
    """End of the last pass (monotonic seconds)."""
    _began: float | None = None
    """Start of the last complete pass (epoch seconds)."""
    _passes: int = 0

    async def refresh(self, patience: float = PATIENCE) -> None:
        """Read the runs that changed, in the background. Raises StoreDown."""
        if self._task is None and time.monotonic() - self._ended >= (_LASTS if self._began else 0.0):
            version = await self.runs.version()
            if version != self._version:
                self._task = asyncio.create_task(self._pass(version), name="console search index")
        if (task := self._task) is not None:
            await asyncio.wait((task,), timeout=patience)
            if task.done():
                self._task = None
                task.result()

    async def find(self, words: Sequence[str], *, content: bool, patience: float = PATIENCE) -> SearchHits:
        """Return the runs that have every word; with `content`, also in contents. Raises StoreDown."""
        await self.refresh(patience)
        if self._began is not None:
            ids = await self._call(self._matches, words, content)
            is_common = len(ids) > MOST_HITS
            conditions: RunFilter = {"search": " ".join(words)} if is_common else {"run_ids": ids}
            return SearchHits(conditions, words if is_common else (), self.read, is_read=True)
        every = {word: await self._call(self._matches, [word], content) for word in words}
        hits = {word: ids for word, ids in every.items() if len(ids) <= MOST_HITS}
        common = [word for word in every if word not in hits]
        return SearchHits({"search": " ".join(words), "hits": hits}, common, self.read, is_read=False)

    async def close(self) -> None:
        """End the task and remove the index."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._db is not None:
            self._db.close()

    async def _pass(self, version: str) -> None:
        """Read each run that is not in the index as it is now; remove those that the journal has no more."""
        began = time.time()
        until = None if self._began is None else self._began - _OVERLAP
        # A run that was removed is in no listing: only a pass over all runs finds out.
        if until is not None and self.read > (await self.runs.count()).total:
            until = None
        self._passes += 1
        after: str | None = None
        while True:
            page = await self.runs.page(
                order_by="newest" if until is None else "updated", limit=_CHUNK, after=after
            )
            await self._take(page.runs)
            if not page.more or (until is not None and page.runs[-1].updated_at < until):
                break
            after = page.runs[-1].run_id
        if until is None:
            await self._call(self._remove_others)
        self._version, self._began, self._ended = version, began, time.monotonic()

    async def _take(self, heads: Sequence[RunHead]) -> None:
        stale = await self._call(self._stale, heads)
        await self._call(
            self._write, stale, await self.runs.journal.excerpts([head.run_id for head in stale])
        )

    async def _call(self, work: Any, *arguments: Any) -> Any:
        """Use the database in a thread, one use at a time."""
        async with self._lock:
            return await asyncio.to_thread(work, *arguments)

    def _connection(self) -> apsw.Connection:
        if self._db is None:
            db = apsw.Connection("")  # temporary: SQLite creates its file when memory does not suffice
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "secure_delete = ON"):
                db.execute(f"PRAGMA {pragma}")
            for table in _TABLES:
                db.execute(table)
            self._db = db
        return self._db

    def _stale(self, heads: Sequence[RunHead]) -> list[RunHead]:
        db, found = self._connection(), []
        for head in heads:
            db.execute("UPDATE run SET pass = ? WHERE run_id = ?", (self._passes, head.run_id))
            if db.execute("SELECT version FROM run WHERE run_id = ?", (head.run_id,)).get != _version(head):
                found.append(head)
        return found

    def _write(self, heads: Sequence[RunHead], excerpts: Mapping[str, Sequence[Draft]]) -> None:
        db = self._connection()
        db.execute("BEGIN")
        for head in heads:
            row = (head.run_id, _version(head), self._passes)
            number = db.execute(
                "INSERT INTO run(run_id, version, pass) VALUES (?,?,?) ON CONFLICT(run_id) DO UPDATE "
                "SET version = excluded.version, pass = excluded.pass RETURNING id",
                row,
            ).get
            db.execute("DELETE FROM entry WHERE rowid = ?", (number,))
            entry = _entry(excerpts.get(head.run_id, ()))
            db.execute(
                "INSERT INTO entry(rowid, heads, names, contents) VALUES (?,?,?,?)",
                (number, searched_text(head), *entry),
            )
        db.execute("COMMIT")
        self.read = int(db.execute("SELECT count(*) FROM run").get or 0)

    def _remove_others(self) -> None:
        db = self._connection()
        db.execute("DELETE FROM entry WHERE rowid IN (SELECT id FROM run WHERE pass <> ?)", (self._passes,))
        db.execute("DELETE FROM run WHERE pass <> ?", (self._passes,))
        self.read = int(db.execute("SELECT count(*) FROM run").get or 0)

    def _matches(self, words: Sequence[str], content: bool) -> list[str]:  # noqa: FBT001
        """Return the runs that have every word, at most MOST_HITS + 1."""
        columns = ["heads", "names", "contents"] if content else ["heads", "names"]
        pieces = ['"' + word.replace('"', '""') + '"' for word in words if len(word) >= PIECE]
        short = [word for word in words if len(word) < PIECE]
        text = " || char(10) || ".join(columns)
        conditions = ["entry MATCH ?"] * bool(pieces) + [f"{text} LIKE ? ESCAPE '!'"] * len(short)
        values = [f"{{{' '.join(columns)}}} : ({' AND '.join(pieces)})"] * bool(pieces)
        values += ["%" + _WILD.sub(r"!\g<0>", word) + "%" for word in short]
        query = f"SELECT run_id FROM entry JOIN run ON run.id = entry.rowid WHERE {' AND '.join(conditions)} LIMIT ?"  # noqa: S608
        return [str(run_id) for (run_id,) in self._connection().execute(query, (*values, MOST_HITS + 1))]


def _version(head: RunHead) -> str:
    """Return another text when the texts of a run may have changed: it started again, parked, continued or ended."""
    number = head.seq if head.status != "open" else ""
    return f"{head.created_at} {head.status} {number} {head.agent} {head.agent_version}"


def _entry(drafts: Sequence[Draft]) -> SearchEntry:
    try:
        return SearchEntry.of(drafts)
    except (AttributeError, Corrupt, LookupError, TypeError, ValueError):  # records that nobody has verified
        return SearchEntry("", "")
