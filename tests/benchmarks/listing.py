"""Find runs among 100,000: `python -m tests.benchmarks.listing [RUNS]`.

First 100 runs are listed with `Runs.list` by each filter and order. Then the console answers the pages that list,
search or count them, through its ASGI application. The rows and the records are those that agents write, and 1,000 runs
wait for a person. SQLite's file is on a disk, PostgreSQL is a cluster of the benchmark's own. Printed are the median
and the slowest of several calls. With 100,000 runs the figures of the pages are kept in `results/listing.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote_plus

import apsw
import psycopg

from orchestrator.console.feed import _COUNTS_LAST
from orchestrator.errors import LLMError
from orchestrator.journal.codec import Fixed, Row, chained
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.schema import RunRow, Values, checksum, identity_sum, position_sum
from orchestrator.journal.sqlite.writer import span
from orchestrator.kernel.journal import NO_HASH, Journal
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers.scripted import call
from orchestrator.runtime.runs.listing import ORDERS, RunFilter
from orchestrator.runtime.runs.runs import Runs
from tests.benchmarks.stores import DISK
from tests.console.client import Client, readable
from tests.console.stored import agent, said
from tests.postgres import cluster, programs

RUNS: Final = 100_000
RESULTS: Final = Path(__file__).parent / "results" / "listing.json"
AIM: Final = 50.0
"""Milliseconds of a listing."""
_FIRST: Final = 1_700_000_000
_STATES: Final = ("await_llm", "process_tools", "update_budgets", "terminate_success")
_SKIPPED: Final = (
    "identity_sum",
    "sum",
    "state_sum",
    "usage_sum",
    "child_sum",
    "requests_sum",
    "holder",
    "id",
)
_TASK: Final = "The text of the task."

CONDITIONS: Final[tuple[RunFilter, ...]] = (
    {},
    {"status": "ended"},
    {"status": "parked"},
    {"agent": "agent7"},
    {"machine": "ralph"},
    {"state": "process_tools"},
    {"outcome": "failed"},
    {"reason": "max_iterations"},
    {"tag": {"team": "t3"}},
    {"tag": {"rare": "yes"}},
    {"waiting": True},
    {"waiting": "pay"},
    {"older_than": 1_700_050_000.0},
    {"agent": "agent7", "status": "ended", "outcome": "failed", "tag": {"team": "t3"}},
)

Stories: TypeAlias = Mapping[str, Sequence[tuple[str, bytes]]]
"""`open`, `parked` or an outcome -> kinds and body of each append of such a run, whose task is _TASK."""


async def read_stories(folder: Path) -> Stories:
    """Return the appends of a run of each kind, which is run for that."""
    path = folder / "stories.db"
    down = LLMError("upstream connect error: connection refused", kind="server_error", status=503)
    async with SqliteJournal(path) as journal:
        looking = (said(call("look", where="the shelf")), said(text="It is on its way."))
        await agent(journal, *looking).run(_TASK, run_id="completed")
        await agent(journal, down, retry=RetryPolicy(attempts=1)).run(_TASK, run_id="failed")
        asking = agent(journal, said(call("pay", amount=7, note="the invoice of this month")))
        await asking.run(_TASK, run_id="parked", wait="never")
    with apsw.Connection(str(path)) as db:
        found = {
            str(name): [
                (str(kinds), bytes(body))
                for kinds, body in db.execute(
                    "SELECT kind, body FROM record WHERE key BETWEEN ? AND ? ORDER BY key", span(number)
                )
            ]
            for number, name in [*db.execute("SELECT id, run_id FROM run")]
        }
    return {**found, "open": found["completed"][:3]}


def rows(count: int, stories: Stories | None = None) -> Iterator[tuple[RunRow, dict[str, str], list[Row]]]:
    """Yield the row of each run, its tags, and its appends; without stories it has none."""
    digest = "ab" * 32
    words = random.Random(1)
    for number in range(1, count + 1):
        run_id, at = f"{number:032x}", float(_FIRST + number)
        tags = {"team": f"t{number % 10}", **({"rare": "yes"} if number % 1_000 == 0 else {})}
        graph = "ralph" if number % 20 == 0 else "llm_loop"
        status = ("open", "parked", *("ended",) * 8)[number % 10]
        outcome = "" if status != "ended" else ("failed" if number % 7 == 0 else "completed")
        waiting = "pay" if status == "parked" and number % 100 == 1 else ""
        appends: list[Row] = []
        created: dict[str, Any] = {"fingerprint": "f" * 64}
        reason, seq = {"failed": "max_iterations"}.get(outcome, ""), 60
        if stories is not None:
            story = stories[outcome or status]
            created, last = json.loads(story[0][1]), json.loads(story[-1][1])
            reason = last["reason"] if status != "open" else ""
            appends = _appends(run_id, story, task(number, words))
            seq, digest = appends[-1][0], appends[-1][4]
        elif status == "parked":
            reason = "approval"
        body = {**created, "graph": graph, "agent": f"agent{number % 50}", "tags": tags}
        fixed = Fixed.of(run_id, {**body, "agent_version": f"v{number // 25_000}", "at": at}, at)
        values = Values(run_id, 1, seq, digest, 1, status, reason, at + number % 977, outcome, waiting)
        state = (_STATES[number % 4], at + number % 777)
        usage = (number * 7919 % 50_000, number * 104_729 % 900_000)
        yield (
            RunRow(
                number,
                *fixed,
                identity_sum(fixed),
                *values[1:],
                position_sum(values),
                *(*state, checksum(run_id, *state), *usage, checksum(run_id, *usage), 0, None, None),
                *(0, checksum(run_id, 0), None, None),
            ),
            tags,
            appends,
        )


def task(number: int, words: random.Random) -> str:
    """Return the first message of a run: some 30 of 3,000 words, and a number that no other run has."""
    said_words = " ".join(f"{words.randrange(3_000) * 7_919 % 46_656:0>3x}word" for _ in range(30))
    return f"Where is parcel {number * 7_919 % 1_000_003:07}? {said_words}"


def _appends(run_id: str, story: Sequence[tuple[str, bytes]], text: str) -> list[Row]:
    found: list[Row] = []
    before, seq = NO_HASH, -1
    for kinds, told in story:
        body = told.replace(_TASK.encode(), text.encode())
        seq += kinds.count(",") + 1
        before = chained(before, run_id, seq, 1, kinds, body)
        found.append((seq, 1, kinds, body, before))
    return found


def fill_file(path: Path, count: int, stories: Stories | None = None) -> None:
    """Write the runs into a SQLite journal."""
    db = apsw.Connection(str(path))
    names = ", ".join(RunRow._fields)
    insert = f"INSERT INTO run({names}) VALUES ({','.join('?' * len(RunRow._fields))})"  # noqa: S608
    with db:
        for row, tags, appends in rows(count, stories):
            db.execute(insert, row._replace(last_hash=bytes.fromhex(row.last_hash)))  # type: ignore[arg-type]
            db.executemany("INSERT INTO run_tag VALUES (?,?,?)", [(*tag, row.id) for tag in tags.items()])
            db.executemany(
                "INSERT INTO record VALUES (?,?,?,?,?)",
                [(span(row.id)[0] + seq, *said, bytes.fromhex(digest)) for seq, *said, digest in appends],
            )
    db.close()


def fill_tables(dsn: str, count: int, stories: Stories | None = None) -> None:
    """Write the runs into a PostgreSQL journal."""
    names = [name for name in RunRow._fields if name not in _SKIPPED]
    with psycopg.connect(dsn, options="-c search_path=orchestrator") as db, db.cursor() as cursor:
        with cursor.copy(f"COPY run({', '.join(names)}) FROM STDIN".encode()) as copy:
            for row, _, _ in rows(count, stories):
                plain = row._replace(last_hash="\\x" + row.last_hash)._asdict()
                copy.write_row([plain[name] for name in names])
        with cursor.copy(b"COPY run_tag(name, value, run) FROM STDIN") as copy:
            for row, tags, _ in rows(count):
                for tag in tags.items():
                    copy.write_row((*tag, row.id))
        with cursor.copy(b"COPY record(run, seq, epoch, kind, body, hash) FROM STDIN") as copy:
            for row, _, appends in rows(count, stories):
                for seq, epoch, kinds, body, digest in appends:
                    copy.write_row((row.id, seq, epoch, kinds, body, bytes.fromhex(digest)))
    with psycopg.connect(dsn, autocommit=True) as db:
        for table in ("run", "run_tag", "record"):
            db.execute(f"VACUUM ANALYZE orchestrator.{table}".encode())


async def measure(journal: Journal, name: str, calls: int = 5) -> float:
    """Print the time of each listing; return the slowest median in milliseconds."""
    worst, runs = 0.0, Runs(journal)
    for conditions in CONDITIONS:
        for order in ORDERS:
            spans: list[float] = []
            used = time.process_time()
            for _ in range(calls):
                started = time.perf_counter()
                found = await runs.list(order_by=order, limit=100, **conditions)
                spans.append((time.perf_counter() - started) * 1e3)
            median, cpu = statistics.median(spans), (time.process_time() - used) / calls * 1e3
            worst = max(worst, median)
            print(
                f"{name:9}{median:7.1f} ms ({min(spans):.1f} to {max(spans):.1f}, {cpu:.1f} of CPU in this process) "
                f"{len(found):3}  {order:12} {conditions}"
            )
    print(f"{name}: {worst:.1f} ms at most (aim: {AIM:g} ms)")
    return worst


# ---- the pages of the console ----


class Pages(NamedTuple):
    """Pages that are measured together."""

    name: str
    limit: float
    """Milliseconds."""
    addresses: Sequence[str]
    bytes: int | None = None
    """Most bytes of a page."""
    is_first: bool = False
    """Whether each page is the first of a console."""
    is_changed: bool = False
    """Whether a run has ended before each page, and everything that the console keeps is older than that."""


SEARCHES: Final = (
    *("00000186", "agent7", "team=t3", "rare", "look", "scripted", "look agent7", "llm_error", "503"),
    *("t3", "e", "7", "~", "zq", "e 7", "t3 look"),
    *(
        "upstream",
        "connection refused",
        "parcel",
        "0007919",
        "parcel 0007919",
        "bword 503",
        "zzz",
        "zzz agent7",
    ),
)
"""Part of an id, an agent, a tag, a tool, a model, a reason and the status of an error; one and two characters that
all, some or no runs have; the text of an error, words of a first message that all, some, one or no runs have."""
_DAYS: Final = "?from=2023-11-15&to=2023-11-15"
PAGES: Final = (
    Pages("search", 100, [f"/?q={quote_plus(words)}" for words in SEARCHES]),
    Pages(
        "list",
        50,
        [
            *(f"/?order={order}" for order in ORDERS),
            *(f"/?show={name}" for name in ("open", "waiting", "completed", "failed")),
            *(
                "/?agent=agent7",
                "/?machine=ralph",
                "/?state=process_tools",
                "/?reason=llm_error",
                "/?waiting=pay",
            ),
            *("/?q=team%3Dt3", "/?q=rare%3Dyes", f"/{_DAYS}", f"/{_DAYS}&order=cost&agent=agent7"),
            "/?order=cost&show=failed&agent=agent7",
        ],
    ),
    Pages("agents, first", 300, ["/agents?window=all", "/agents/agent7?window=all"], is_first=True),
    Pages(
        "agents, unchanged",
        50,
        ["/agents?window=all", "/agents?window=all&tag=team%3Dt3", "/agents/agent7?window=all"],
    ),
    Pages(
        "inbox",
        100,
        ["/inbox", "/inbox?page=20", "/inbox?agent=agent1", "/inbox?tool=pay&tag=team%3Dt1&age=1+day"],
        100_000,
    ),
    Pages(
        "list after a change",
        50,
        ["/", "/?order=updated", "/?order=cost", "/?show=failed&agent=agent7"],
        is_changed=True,
    ),
)


class PageFigure(NamedTuple):
    """The figures of some pages of one store, each of the slowest or largest page."""

    median: float
    worst: float
    cpu: float
    """Milliseconds of the processor in this process, without those of a server."""
    page: str
    """The page with the slowest median."""
    bytes: int


async def measure_pages(journal: Journal, name: str, calls: int = 7) -> dict[str, PageFigure]:
    """Print the time of each page; return the figures."""
    client = Client(readable(Runs(journal), content="always"))
    started, used = time.perf_counter(), time.process_time()
    await _ask_until_read(client, "/?q=zzz")
    elapsed = time.perf_counter() - started
    print(f"{name}: index of {elapsed:.1f} s, {time.process_time() - used:.1f} s of CPU")
    found = {}
    for pages in PAGES:
        figures = []
        for address in pages.addresses:
            if not pages.is_first:
                await _ask_until_read(client, address)
            spans: list[float] = []
            used = 0.0
            for _ in range(calls):
                asked = Client(readable(Runs(journal), content="always")) if pages.is_first else client
                if pages.is_changed:
                    await agent(journal, said(text="Done.")).run(_TASK)
                    await asyncio.sleep(_COUNTS_LAST)
                started, used_before = time.perf_counter(), time.process_time()
                answer = await asked.get(address)
                spans.append((time.perf_counter() - started) * 1e3)
                used += time.process_time() - used_before
                assert answer.status == 200, answer.text
            cpu = used / calls * 1e3
            figure = PageFigure(statistics.median(spans), max(spans), cpu, address, len(answer.body))
            print(
                f"{name:9}{figure.median:7.1f} ms (at most {figure.worst:.1f}, {cpu:.1f} of CPU in this process) "
                f"{figure.bytes:7,} bytes  {pages.name}: {address}"
            )
            figures.append(figure)
        slowest = max(figures)
        found[pages.name] = slowest._replace(
            worst=max(one.worst for one in figures),
            cpu=max(one.cpu for one in figures),
            bytes=max(one.bytes for one in figures),
        )
    return found


async def _ask_until_read(client: Client, address: str) -> None:
    """Ask for a page until the console has read in the background what the page shows, as a browser does."""
    while re.search("Search again|every 1s", (await client.get(address)).text):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def table() -> str:
    """Return the kept figures of the pages as Markdown."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    stores = kept["stores"]
    lines = [
        f"Taken on {kept['taken']} on {kept['cores']} cores, with a load of {kept['load']:.1f} by other programs.",
        "",
        "| pages | limit | " + " | ".join(stores) + " |",
        "|---|---|" + "---|" * len(stores),
    ]
    for pages in PAGES:
        limit = f"{pages.limit:g} ms" + (f", {pages.bytes // 1_000} kB" if pages.bytes else "")
        cells = [pages.name, limit]
        for figures in stores.values():
            one = PageFigure(*figures[pages.name])
            size = f", {one.bytes / 1e3:.0f} kB" if pages.bytes else ""
            cells.append(f"{one.median:.0f} ms, at most {one.worst:.0f}, {one.cpu:.0f} of CPU{size}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


async def main(count: int) -> None:
    """Measure both stores; PostgreSQL only where it is installed."""
    load = os.getloadavg()[0]
    found: dict[str, dict[str, PageFigure]] = {}
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        path = Path(folder) / "journal.db"
        stories = await read_stories(Path(folder))
        async with SqliteJournal(path) as journal:
            fill_file(path, count, stories)
            await measure(journal, "sqlite")
            found["SQLite"] = await measure_pages(journal, "sqlite")
        if programs() is None:
            print("LEFT OUT: postgres: its initdb is not installed")
            return
        with cluster(DISK) as server:
            dsn = server.database()
            async with PostgresJournal(dsn) as stored:
                await stored.open()
                fill_tables(dsn, count, stories)
                await measure(stored, "postgres")
                found["PostgreSQL"] = await measure_pages(stored, "postgres")
    if count == RUNS:
        kept = {
            "taken": datetime.now(UTC).date().isoformat(),
            "cores": os.cpu_count(),
            "load": load,
            "stores": found,
        }
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(table())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else RUNS))
