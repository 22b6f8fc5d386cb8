"""1,000 branches in one state: records, calls and memory grow linearly, and people see pages of a bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Runs, SqliteJournal
from orchestrator.branches import Fan, ended
from orchestrator.cli import main
from tests.benchmarks.branches import COUNTS, calls, growth, memory, of_double, records, spread_over
from tests.console.client import Client, readable
from tests.runtime.branches.machine import SpreadContext, workflow


async def test_each_branch_adds_the_same_number_of_records() -> None:
    assert [await records(count) for count in (0, 1, 10, 1_000)] == [6, 12, 66, 6_006]


@pytest.mark.campaign
@pytest.mark.parametrize("measure", [calls, memory], ids=["calls", "memory"])
async def test_five_hundred_more_branches_cost_twice_as_much_as_two_hundred_and_fifty_more(
    measure: Callable[[int], Any],
) -> None:
    await spread_over(10)  # what is made once
    figures = [await measure(count) for count in COUNTS]
    assert 1.6 < growth(figures) < 2.4, figures


async def test_a_page_shows_few_of_them_and_counts_the_others() -> None:
    client = Client(readable(Runs(await spread_over(1_000))))
    few, page = Client(readable(Runs(await spread_over(50)))), await client.get("/runs/p1")
    assert page.status == 200
    assert len(page.body) < 1.1 * len((await few.get("/runs/p1")).body)
    assert "950 more: 950 completed" in page.text
    assert "1,000 branches of spread" in page.text


def test_a_command_shows_few_of_them_those_first_that_need_attention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "journal.db")

    async def spread_out() -> None:
        async with SqliteJournal(path) as journal:
            machine = workflow(Fan(max=100, join=ended()), of_double, journal=journal)
            await machine.run(SpreadContext([*range(90), "none", *range(91, 100)]), run_id="p1")

    asyncio.run(spread_out())
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["runs", "show", "p1", "--journal", path])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    tree = [line for line in lines if line.startswith(("├─", "└─"))]
    assert len(tree) == 51
    assert tree[0] == "├─ p1:spread.0:0  call  ended"
    assert tree[-2:] == ["├─ p1:spread.0:90  call  ended (tool_error)", "└─ 50 more: 50 completed"]
