"""Backtests of joins: recorded decisions about branches under another join, where all branches had ended."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import ConfigError, MemoryJournal, Runs, tool
from orchestrator.backtest import JoinComparison, backtest_joins
from orchestrator.branches import ALL, ANY, Branch, Fan, Join, ended, first, quorum
from orchestrator.kernel.journal import Record
from tests.runtime.branches.machine import SpreadContext, workflow

RULES = (ALL, ANY, first(2), first(3), ended(), ended(2), ended(4))
ITEMS: tuple[list[int], ...] = ([], [1], [-1], [1, 1, 2], [1, -1, 1], [-1, -2], [1, 2, 3, 4], [1, 2, -1, 1])
VOTES: tuple[list[int], ...] = ([], [1, 2], [1, 1], [1, 2, 1], [1, 2, 3], [1, -1], [1, -1, 1])
"""Items whose quorum of 2 is decided by the last branch."""


@tool(effect="pure")
def double(number: int) -> int:
    """Double a number."""
    if number < 0:
        raise ValueError("below zero")
    return 2 * number


async def recorded(join: Join, *items: list[int]) -> MemoryJournal:
    """Runs with these branches, one after the other, named by their position."""
    journal = MemoryJournal()
    machine = workflow(
        Fan(max=9, concurrency=1, join=join), lambda item: Branch(double, {"number": item}), journal=journal
    )
    for number, each in enumerate(items):
        await machine.run(SpreadContext(list(each)), run_id=f"p{number}")
    return journal


async def compared(journal: Any, join: Join) -> dict[str, JoinComparison]:
    seen: list[JoinComparison] = []
    report = await backtest_joins(Runs(journal), {"spread": join}, each=seen.append, machine="spread")
    evaluated = [one for one in seen if not one.left_out]
    assert report.decisions == len(evaluated)
    assert report.left_out.total() == len(seen) - len(evaluated)
    for change in ("enough", "too_few"):
        assert getattr(report, change) == sum(one.change == change for one in evaluated)
    assert report.unchanged + report.enough + report.too_few == report.decisions
    return {one.run_id: one for one in seen}


@pytest.mark.parametrize(
    ("before", "join", "items"),
    [
        *((ended(), join, ITEMS) for join in RULES),
        *((quorum(2), join, VOTES) for join in (*RULES, quorum(1), quorum(2), quorum(3))),
    ],
    ids=str,
)
async def test_a_tested_join_decides_as_a_real_run_with_this_join(
    before: Join, join: Join, items: tuple[list[int], ...]
) -> None:
    found = await compared(await recorded(before, *items), join)
    real = await recorded(join, *items)
    for number, each in enumerate(items):
        (decision,) = [one.body for one in await real.load(f"p{number}") if one.kind == "joined"]
        verdict = found[f"p{number}"].tested
        assert verdict is not None, each
        assert (verdict.ok, verdict.limit) == (decision["ok"], decision["limit"]), each
    assert all(one.change == "none" for one in (await compared(real, join)).values())


async def test_the_report_counts_decisions_that_would_be_others() -> None:
    journal = await recorded(ended(2), [1, 2, 3], [1, -1, 2], [1, -1, -2])
    one_of = await compared(journal, ANY)
    assert [one_of[name].change for name in ("p0", "p1", "p2")] == ["none", "none", "enough"]
    every = await compared(journal, ALL)
    assert [every[name].change for name in ("p0", "p1", "p2")] == ["none", "too_few", "none"]
    verdict = every["p1"].tested
    assert verdict is not None
    assert verdict.explain() == "joined: 2 of 3 needed (2 of 3 branches completed)"
    assert (every["p1"].state, every["p1"].visit, every["p1"].outcome) == ("spread", 0, "completed")


async def test_a_decision_before_all_branches_had_ended_is_left_out() -> None:
    found = await compared(await recorded(ANY, [1, 2], [-1, 2], [-1, -2]), ended(2))
    early = "it was decided before all branches had ended"
    assert [found[name].left_out for name in ("p0", "p1", "p2")] == [early, "", ""]


async def test_a_quorum_needs_recorded_votes() -> None:
    found = await compared(await recorded(first(2), [1, 1]), quorum(2))
    assert found["p0"].left_out == "a quorum needs votes, and its join was first 2"


async def test_a_decision_that_does_not_follow_from_its_numbers_is_left_out() -> None:
    class Changed:
        def __init__(self, inner: MemoryJournal) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def load(self, run_id: str) -> list[Record]:
            return [
                one._replace(body={**one.body, "completed": 0, "agree": 0}) if one.kind == "joined" else one
                for one in await self.inner.load(run_id)
            ]

    found = await compared(Changed(await recorded(ended(1), [1])), ANY)
    assert found["p0"].left_out == "its recorded decision does not follow from its numbers"


async def test_decisions_of_other_states_and_open_runs_without_one_are_not_read() -> None:
    journal = await recorded(ended(1), [1])
    report = await backtest_joins(Runs(journal), {"elsewhere": ANY})
    assert (report.decisions, report.left_out) == (0, {})


@pytest.mark.parametrize(
    ("joins", "said"),
    [
        ({}, "no join to test"),
        ({"spread": "any"}, "is a str; give ALL, ANY, first, quorum or ended"),
        ({"spread": quorum(2, vote=str)}, "give quorum\\(n\\) without vote"),
    ],
    ids=("none", "text", "vote"),
)
async def test_what_is_no_join_is_refused(joins: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await backtest_joins(Runs(MemoryJournal()), joins)
