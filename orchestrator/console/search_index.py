"""An index of the texts of runs: what their heads have, and tools, models, errors and the first message.

A task reads excerpts of the records, the newest run first, into a full-text index of three-character pieces, so that a
word is found at any place of a text. Until it has read every run once, a search also compares the heads of all runs,
which have ids, agents, tags and reasons. Afterwards the index alone chooses, filters, sorts and counts the runs: a
comparison with 100,000 heads takes longer than a person should wait, and so does a query with 10,000 ids. The index is
a temporary database of this process: SQLite keeps a part of it in memory and the rest in a file without a name, which
ends with the process.

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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

import apsw
import orjson

from orchestrator.console.feed import retrieve
from orchestrator.errors import Corrupt, RunUnknown, StoreDown
from orchestrator.journal.run_query import COUNTS, RunQuery, counted, searched_text
from orchestrator.kernel.journal import ENGINE, Draft, RunCounts, RunHead
from orchestrator.runtime.runs.listing import RunFilter, RunPage, journal_conditions
from orchestrator.runtime.runs.outline import failure_in, request_of
from orchestrator.runtime.runs.runs import Runs

# ruff: noqa: S608  the only text that is put into statements is our own

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PIECE: Final = 3
"""Characters of the pieces of the index."""
MOST_HITS: Final = 20_000
"""Most runs of a search that are counted and sorted: the newest ones."""
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
_END: Final = "\n" * (PIECE - 1)
"""Follows each text, so that also its last character is the first of a piece."""
_LAST: Final = chr(sys.maxunicode) * PIECE
_HEAD: Final = (
    *("run_id", "created_at", "updated_at", "graph", "agent", "status", "reason", "outcome", "waiting"),
    *("state", "state_since", "tokens"),
)
"""Columns with the values of a head that conditions and orders of a listing compare, named as those of a journal."""
_TABLES: Final = (
    f"""CREATE TABLE run(
        id INTEGER PRIMARY KEY, version TEXT NOT NULL DEFAULT '', pass INTEGER, cost, child_tokens DEFAULT 0,
        child_cost, {", ".join(_HEAD)}, UNIQUE(run_id))""",
    "CREATE VIRTUAL TABLE entry USING fts5(heads, names, contents, tokenize = 'trigram')",
    "CREATE VIRTUAL TABLE piece USING fts5vocab(entry, instance)",
)
_SET: Final = f"pass = ?, cost = ?, {', '.join(f'{name} = ?' for name in _HEAD)}"


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
    """Words that MOST_HITS runs or more have in their texts, so that only heads are compared with them."""
    read: int
    """Runs in the index."""
    listing: FoundRuns | None = None
    """The runs that have every word, for pages; None until the index has every run."""

    @property
    def is_read(self) -> bool:
        """Whether the index has every run."""
        return self.listing is not None


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The runs that have every word of a search: the index chooses, sorts and counts them, the journal has their heads.

    A count of the journal would read the row of each of them. The index may be behind the journal by some two seconds.
    """

    index: SearchIndex
    words: Sequence[str]
    content: bool
    """Whether the words are searched in contents too."""
    _short: dict[str, list[int] | None] = field(default_factory=dict)
    """Word that is shorter than a piece -> numbers of the runs that have it; None for a word that most runs have."""

    async def page(
        self,
        *,
        order_by: str = "newest",
        limit: int,
        after: str | None = None,
        **conditions: Unpack[RunFilter],
    ) -> RunPage:
        """Return a page of these runs as `Runs.page` does. Raises RunUnknown, StoreDown.

        In another order than that of the start, the newest MOST_HITS runs are sorted.
        """
        query = self._query(order_by, conditions, limit + 1, after)
        ids = await self.index.call(self._page, query)
        found = await self.index.runs.page(order_by=order_by, engines=True, run_ids=ids[:limit])
        return RunPage(found.runs, len(ids) > limit, found.damage)

    async def count(self, **conditions: Unpack[RunFilter]) -> RunCounts:
        """Count these runs, at most MOST_HITS, the newest."""
        return counted(await self.index.call(self._count, self._query("newest", conditions)))

    async def ids(self) -> list[str]:
        """Return the ids of these runs, at most MOST_HITS, the newest first."""
        return await self.index.call(self._page, self._query("newest", {}, MOST_HITS))

    @staticmethod
    def _query(
        order_by: str, conditions: RunFilter, limit: int | None = None, after: str | None = None
    ) -> RunQuery:
        """Return the query without the words."""
        query: Any = journal_conditions(order_by, limit, {**conditions, "search": None})
        return replace(RunQuery.of(query), limit=limit, after=after)

    def _page(self, db: apsw.Connection, query: RunQuery) -> list[str]:
        if query.after and not db.execute("SELECT 1 FROM run WHERE run_id = ?", (query.after,)).get:
            raise RunUnknown(query.after)
        by_start = query.order_by == "created" and query.descending
        chosen, values = self._newest(db, query, query.limit if by_start else MOST_HITS)
        text = f"SELECT run.run_id FROM ({chosen}) AS run ORDER BY {query.ordered} LIMIT ?"
        return [str(run_id) for (run_id,) in db.execute(text, (*values, query.limit))]

    def _count(self, db: apsw.Connection, query: RunQuery) -> Sequence[int]:
        chosen, values = self._newest(db, query, MOST_HITS)
        return db.execute(f"SELECT {COUNTS} FROM ({chosen}) AS run", values).fetchone() or ()

    def _newest(self, db: apsw.Connection, query: RunQuery, most: int | None) -> tuple[str, list[object]]:
        """Return the query of the newest runs that have the words and meet the conditions, and its values.

        A word that is shorter than a piece is the start of pieces. One that most runs have is compared with the texts
        instead, because it has too many pieces.
        """
        columns = ["heads", "names", "contents"] if self.content else ["heads", "names"]
        texts: list[str] = []
        numbers: list[str] = []
        values: list[object] = []
        if pieces := ['"' + word.replace('"', '""') + '"' for word in self.words if len(word) >= PIECE]:
            texts.append("entry MATCH ?")
            values.append(f"{{{' '.join(columns)}}} : ({' AND '.join(pieces)})")
        half = self.index.read // 2
        for word in self.words:
            if len(word) < PIECE:
                if word not in self._short:
                    found = _with_start(db, word, columns, half + 1)
                    self._short[word] = found if len(found) <= half else None
                if (known := self._short[word]) is not None:
                    numbers.append(orjson.dumps(known).decode())
                else:
                    texts.append(f"{' || char(10) || '.join(columns)} LIKE ? ESCAPE '!'")
                    values.append("%" + _WILD.sub(r"!\g<0>", word) + "%")
        # Without the sign, SQLite would search the texts once for each number.
        source, number = (
            ("entry CROSS JOIN run ON run.id = entry.rowid", "+run.id") if texts else ("run", "run.id")
        )
        where = [*texts, *[f"{number} IN (SELECT value FROM json_each(?))"] * len(numbers)]
        if "graph" not in query.equal:
            where.append(f"run.graph <> '{ENGINE}'")
        also, others = query.where("?", None)
        order = "entry.rowid" if texts else "run.id"
        text = (
            f"SELECT run.* FROM {source} WHERE {' AND '.join(where)} AND {also} ORDER BY {order} DESC LIMIT ?"
        )
        return text, [*values, *numbers, *others, most]


def _with_start(db: apsw.Connection, word: str, columns: Sequence[str], most: int) -> list[int]:
    """Return the numbers of the runs, at most so many, that have a piece which starts with a word."""
    start = "".join(one.lower() if len(one.lower()) == 1 else one for one in word)
    among = ",".join("?" * len(columns))
    text = f"SELECT DISTINCT doc FROM piece WHERE term >= ? AND term <= ? AND col IN ({among}) LIMIT ?"
    return [number for (number,) in db.execute(text, (start, start + _LAST, *columns, most))]


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
                self._task.add_done_callback(retrieve)
        if (task := self._task) is not None:
            await asyncio.wait((task,), timeout=patience)
            if task.done():
                self._task = None
                task.result()

    async def find(
        self, words: Sequence[str], *, content: bool, ids: bool = True, patience: float = PATIENCE
    ) -> SearchHits:
        """Return the runs that have every word; with `content`, also in contents. Raises StoreDown.

        With `ids`, their conditions are complete for the journal.
        """
        await self.refresh(patience)
        search: RunFilter = {"search": " ".join(words)}
        if self._began is not None:
            found = FoundRuns(self, words, content)
            conditions: RunFilter = {"run_ids": await found.ids()} if ids else search
            return SearchHits(conditions, (), self.read, found)
        every = {word: await FoundRuns(self, [word], content).ids() for word in words}
        hits = {word: run_ids for word, run_ids in every.items() if len(run_ids) < MOST_HITS}
        common = [word for word in every if word not in hits]
        return SearchHits({**search, "hits": hits}, common, self.read)

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
        # What changed after the clock was set back is not among the latest changes.
        until = None if self._began is None or began < self._began else self._began - _OVERLAP
        # A run that was removed is in no listing: only a pass over all runs finds out.
        if until is not None and self.read > (await self.runs.count()).total:
            until = None
        self._passes += 1
        db = self._connection()
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
            await self.call(self._remove_others)
        # After an error of a search it is another database, without the runs that were read before.
        if self._db is db:
            self._version, self._began, self._ended = version, began, time.monotonic()

    async def _take(self, heads: Sequence[RunHead]) -> None:
        stale = await self.call(self._write_heads, heads)
        await self.call(
            self._write, stale, await self.runs.journal.excerpts([head.run_id for _, head in stale])
        )

    async def call(self, work: Callable[[apsw.Connection, *Ts], T], *arguments: *Ts) -> T:
        """Use the database in a thread, one use at a time.

        Raises StoreDown if the database has an error: most likely its disk is full. After any error the database is
        removed, since the journal has all of it, and the next search reads the runs again.
        """
        async with self._lock:
            db = self._connection()
            try:
                return await asyncio.to_thread(work, db, *arguments)
            except Exception as error:
                self._db, self.read, self._version, self._began = None, 0, "", None
                db.close()
                if not isinstance(error, apsw.Error):
                    raise
                raise StoreDown(
                    f"the search has no index: {type(error).__name__}: {error}. Free space in the folder for "
                    f"temporary files, or start the console with another folder in SQLITE_TMPDIR"
                ) from error

    def _connection(self) -> apsw.Connection:
        if self._db is None:
            db = apsw.Connection("")  # temporary: SQLite creates its file when memory does not suffice
            # Without a journal nothing can be rolled back: `call` removes the database instead.
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "secure_delete = ON"):
                db.execute(f"PRAGMA {pragma}")
            for table in _TABLES:
                db.execute(table)
            self._db = db
        return self._db

    def _write_heads(self, db: apsw.Connection, heads: Sequence[RunHead]) -> list[tuple[int, RunHead]]:
        """Write the values of heads; return those whose texts may have changed, each with its number, in their order.

        The numbers have the order in which the runs started.
        """
        found = []
        db.execute("BEGIN")
        for head in heads:
            known: Any = db.execute(
                "SELECT id, version, created_at FROM run WHERE run_id = ?", (head.run_id,)
            ).fetchone()
            if known is not None and known[2] != head.created_at:  # erased and created again
                self._remove(db, known[0])
                known = None
            number, version, _ = known or (_free_number(db, head.created_at), "", 0.0)
            if known is None:
                db.execute("INSERT INTO run(id) VALUES (?)", (number,))
            values = [getattr(head, name) for name in _HEAD]
            db.execute(
                f"UPDATE run SET {_SET} WHERE id = ?", (self._passes, head.cost_micros, *values, number)
            )
            if version != _version(head):
                found.append((number, head))
        db.execute("COMMIT")
        return sorted(found, key=itemgetter(0))  # a full-text index is slow if they are not in their order

    def _write(
        self,
        db: apsw.Connection,
        heads: Sequence[tuple[int, RunHead]],
        excerpts: Mapping[str, Sequence[Draft]],
    ) -> None:
        db.execute("BEGIN")
        for number, head in heads:
            db.execute("DELETE FROM entry WHERE rowid = ?", (number,))
            texts = (searched_text(head), *_entry(excerpts.get(head.run_id, ())))
            db.execute(
                "INSERT INTO entry(rowid, heads, names, contents) VALUES (?,?,?,?)",
                (number, *(text + _END for text in texts)),
            )
            db.execute("UPDATE run SET version = ? WHERE id = ?", (_version(head), number))
        db.execute("COMMIT")
        self.read = int(db.execute("SELECT count(*) FROM run").get or 0)

    def _remove_others(self, db: apsw.Connection) -> None:
        for row in db.execute("SELECT id FROM run WHERE pass <> ?", (self._passes,)).fetchall():
            self._remove(db, row[0])
        self.read = int(db.execute("SELECT count(*) FROM run").get or 0)

    @staticmethod
    def _remove(db: apsw.Connection, number: Any) -> None:
        db.execute("DELETE FROM entry WHERE rowid = ?", (number,))
        db.execute("DELETE FROM run WHERE id = ?", (number,))


def _free_number(db: apsw.Connection, at: float) -> int:
    """Return the first number from the microseconds of a time on that no run has."""
    number = int(at * 1e6)
    while db.execute("SELECT 1 FROM run WHERE id = ?", (number,)).get:
        number += 1
    return number


def _version(head: RunHead) -> str:
    """Return another text when the texts of a run may have changed: it started again, parked, continued or ended."""
    number = head.seq if head.status != "open" else ""
    return f"{head.created_at} {head.status} {number} {head.agent} {head.agent_version}"


def _entry(drafts: Sequence[Draft]) -> SearchEntry:
    try:
        return SearchEntry.of(drafts)
    except (AttributeError, Corrupt, LookupError, TypeError, ValueError):  # records that nobody has verified
        return SearchEntry("", "")
