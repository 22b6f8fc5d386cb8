"""How PostgreSQL carries out listings and appends: which indexes it uses, and how much it sorts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from orchestrator.journal.postgres import PostgresJournal, read
from orchestrator.journal.run_query import ORDERS
from orchestrator.kernel.journal import Draft
from orchestrator.testing.journal_contract import BODY, NOTE, write
from tests.benchmarks import listing
from tests.postgres import Cluster

RUNS = 20_000
PAGE = 100
CREATED: list[dict[str, Any]] = [{"order_by": "created"}, {"order_by": "created", "descending": True}]
ORDERED: list[dict[str, Any]] = [
    {"order_by": order, "descending": way} for order in ORDERS for way in (False, True)
]
CONDITIONS: dict[str, tuple[dict[str, Any], str]] = {
    "agent": ({"agent": "agent7"}, "run_of_agent"),
    "waiting": ({"waiting": True}, "run_that_waits"),
    "waiting for a tool": ({"waiting": "pay"}, "run_that_waits"),
    "a rare tag": ({"tags": {"rare": "yes"}}, "run_tag_pkey"),
}
"""Conditions that few runs meet, and the index that finds those."""


@pytest.fixture(scope="module")
def filled(postgres: Cluster) -> str:
    """A database with many runs."""
    address = postgres.database()

    async def made() -> None:
        async with PostgresJournal(address):
            pass

    asyncio.run(made())
    listing.fill_tables(address, RUNS)
    return address


async def plan_of(journal: PostgresJournal, **conditions: Any) -> dict[str, Any]:
    """Return the plan with which a page of a listing was carried out."""
    sent: list[tuple[str, Sequence[object]]] = []
    scanned = read._scanned

    def noted(db: psycopg.Connection[Any], text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        sent.append((text, values))
        return scanned(db, text, values)

    def explained(db: psycopg.Connection[Any]) -> Any:
        ((text, values),) = sent
        return scanned(db, f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", values)[0][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "_scanned", noted)
        assert [head async for head in journal.runs(limit=PAGE, **conditions)]
    plan: dict[str, Any] = (await journal._read(explained))[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a node and all below it."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def chosen(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the part that chooses the runs of the page."""
    return next(node for node in nodes(plan) if node["Node Type"] == "Limit")


def names(plan: dict[str, Any]) -> list[str]:
    """Return the indexes and tables that are scanned."""
    found = [node.get("Index Name") or node.get("Relation Name") for node in nodes(plan)]
    return [name for name in found if name]


async def test_a_page_in_the_order_of_creation_reads_an_index_and_sorts_nothing(filled: str) -> None:
    async with PostgresJournal(filled) as journal:
        for order in CREATED:
            page = chosen(await plan_of(journal, **order))
            assert names(page) == ["run_pkey"]
            assert not [node for node in nodes(page) if "Sort" in node["Node Type"]]
            assert page["Plans"][0]["Actual Rows"] == PAGE, "no further row is read"


async def test_no_order_sorts_more_rows_than_the_page_has(filled: str) -> None:
    """The heap of a top-N sort has a row for each of the page, however many rows come by."""
    async with PostgresJournal(filled) as journal:
        for order in ORDERED:
            plan = await plan_of(journal, **order)
            for node in nodes(plan):
                if node["Node Type"] == "Sort":
                    rows = max(below["Actual Rows"] for below in node["Plans"])
                    assert node["Sort Method"] == "top-N heapsort" or rows <= PAGE, node
            outside = [node for node in nodes(plan) if node.get("Relation Name") == "run"]
            assert sum(node["Node Type"] == "Seq Scan" for node in outside) <= 1, (
                "the rows are passed over once"
            )


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_runs_that_meet_a_condition_of_few_are_found_by_an_index(filled: str, condition: str) -> None:
    conditions, index = CONDITIONS[condition]
    async with PostgresJournal(filled) as journal:
        for order in ORDERED:
            page = chosen(await plan_of(journal, **conditions, **order))
            assert index in names(page)
            assert not [node for node in nodes(page) if node["Node Type"] == "Seq Scan"]


async def test_an_append_writes_to_no_index_of_its_run(database: str) -> None:
    """Each but those that park, continue or end the run: PostgreSQL calls it a heap-only update."""
    count = 50
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", {**BODY, "agent": "support"})
        for number in range(count):
            moved = Draft("transition", {"dest": f"s{number}", "at": float(number)})
            await write(journal, lease, moved, Draft("context", {"tokens": number}), NOTE)
    with psycopg.connect(database, autocommit=True) as db:
        counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'run'"
        while (row := db.execute(counted).fetchone() or (0, 0))[0] < count:
            db.execute("SELECT pg_stat_clear_snapshot()")
    updates, heap_only = row
    # The release changes the owner, which has an index; a page that is full takes the row to another one.
    assert updates - heap_only <= 1 + updates // 10, row
