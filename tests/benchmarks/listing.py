"""List 100 of 100,000 runs by each filter and order: `python -m tests.benchmarks.listing [RUNS]`.

The runs are written as rows, without the records that a listing does not read. SQLite's file is on a disk, PostgreSQL
is a cluster of the benchmark's own. Printed are medians and the slowest of several calls of `Runs.list`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw
import psycopg

from orchestrator.journal.codec import Fixed
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.schema import RunRow, Values, checksum, identity_sum, position_sum
from orchestrator.kernel.journal import Journal
from orchestrator.runtime.runs.listing import ORDERS, RunFilter
from orchestrator.runtime.runs.runs import Runs
from tests.benchmarks.stores import DISK
from tests.postgres import cluster, programs

RUNS: Final = 100_000
AIM: Final = 50.0
"""Milliseconds."""
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


def rows(count: int) -> Iterator[tuple[RunRow, dict[str, str]]]:
    """Yield the row of each run, and its tags."""
    digest = "ab" * 32
    for number in range(1, count + 1):
        run_id, at = f"{number:032x}", 1_700_000_000.0 + number
        tags = {"team": f"t{number % 10}", **({"rare": "yes"} if number % 1_000 == 0 else {})}
        graph = "ralph" if number % 20 == 0 else "llm_loop"
        body = {"graph": graph, "fingerprint": "f" * 64, "agent": f"agent{number % 50}", "tags": tags}
        fixed = Fixed.of(run_id, body, at)
        status = ("open", "parked", *("ended",) * 8)[number % 10]
        outcome = "" if status != "ended" else ("failed" if number % 7 == 0 else "completed")
        reason = "approval" if status == "parked" else "max_iterations" if outcome == "failed" else ""
        waiting = "pay" if status == "parked" and number % 20 == 1 else ""
        values = Values(run_id, 1, 60, digest, 1, status, reason, at + number % 977, outcome, waiting)
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
        )


def fill_file(path: Path, count: int) -> None:
    """Write the runs into a SQLite journal."""
    db = apsw.Connection(str(path))
    names = ", ".join(RunRow._fields)
    insert = f"INSERT INTO run({names}) VALUES ({','.join('?' * len(RunRow._fields))})"  # noqa: S608
    with db:
        for row, tags in rows(count):
            db.execute(insert, row._replace(last_hash=bytes.fromhex(row.last_hash)))  # type: ignore[arg-type]
            db.executemany("INSERT INTO run_tag VALUES (?,?,?)", [(*tag, row.id) for tag in tags.items()])
    db.close()


def fill_tables(dsn: str, count: int) -> None:
    """Write the runs into a PostgreSQL journal."""
    names = [name for name in RunRow._fields if name not in _SKIPPED]
    with psycopg.connect(dsn, options="-c search_path=orchestrator") as db, db.cursor() as cursor:
        with cursor.copy(f"COPY run({', '.join(names)}) FROM STDIN".encode()) as copy:
            for row, _ in rows(count):
                plain = row._replace(last_hash="\\x" + row.last_hash)._asdict()
                copy.write_row([plain[name] for name in names])
        with cursor.copy(b"COPY run_tag(name, value, run) FROM STDIN") as copy:
            for row, tags in rows(count):
                for tag in tags.items():
                    copy.write_row((*tag, row.id))
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("VACUUM ANALYZE orchestrator.run")
        db.execute("VACUUM ANALYZE orchestrator.run_tag")


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


async def main(count: int) -> None:
    """Measure both stores; PostgreSQL only where it is installed."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        path = Path(folder) / "journal.db"
        async with SqliteJournal(path) as journal:
            fill_file(path, count)
            await measure(journal, "sqlite")
    if programs() is None:
        print("LEFT OUT: postgres: its initdb is not installed")
        return
    with cluster(DISK) as server:
        dsn = server.database()
        async with PostgresJournal(dsn) as stored:
            await stored.open()
            fill_tables(dsn, count)
            await measure(stored, "postgres")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else RUNS))
