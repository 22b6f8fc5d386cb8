"""Backtest a join: which recorded decisions about branches would have been others under another join.

A `joined` record has the number of completed branches and of equal votes. They are final only if all branches had
ended, so other decisions are left out: a branch that was not needed could have completed or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, Unpack, cast

from orchestrator.errors import ConfigError, Corrupt
from orchestrator.kernel.branch import Join, JoinRule
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.runtime.runs.listing import RunFilter
from orchestrator.runtime.runs.runs import Runs
from orchestrator_guards import Verdict
from orchestrator_guards import joined as enough

JoinChange: TypeAlias = Literal["none", "enough", "too_few"]
"""The decision is the same, was against and would be for, was for and would be against."""
_PAGE = 200
"""Heads of runs that are read at once."""


@dataclass(frozen=True, slots=True)
class JoinComparison:
    """One decision about branches, under the recorded join and under another one."""

    run_id: str
    state: str
    visit: int
    """Number of the transition that began the visit of the state."""
    outcome: str
    """Outcome of the run; "" for a run that has not ended."""
    recorded: Verdict | None = None
    tested: Verdict | None = None
    """None if the decision is left out."""
    left_out: str = ""
    """Why the decision is left out, or ""."""

    @property
    def change(self) -> JoinChange:
        """The change of the decision. The run after it is not known."""
        if self.recorded is None or self.tested is None or self.recorded.ok == self.tested.ok:
            return "none"
        return "enough" if self.tested.ok else "too_few"


@dataclass(slots=True)
class JoinReport:
    """The effect of other joins on recorded decisions. Its size does not depend on the number of runs."""

    decisions: int = 0
    """Decisions that were evaluated; those that are left out do not count."""
    changes: Counter[tuple[str, JoinChange]] = field(default_factory=Counter)
    """(State, change) -> decisions."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> decisions that were not evaluated."""
    damage: str = ""
    """A sentence about runs that the journal cannot read, or ""."""

    def add(self, one: JoinComparison) -> None:
        """Count one decision."""
        if one.left_out:
            self.left_out[one.left_out] += 1
            return
        self.decisions += 1
        self.changes[one.state, one.change] += 1

    @property
    def enough(self) -> int:
        """Decisions against that would have been for."""
        return self._count("enough")

    @property
    def too_few(self) -> int:
        """Decisions for that would have been against."""
        return self._count("too_few")

    @property
    def unchanged(self) -> int:
        """Decisions that would have been the same."""
        return self._count("none")

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "decisions": self.decisions,
            "unchanged": self.unchanged,
            "enough": self.enough,
            "too_few": self.too_few,
            "states": [
                {"state": state, "change": change, "decisions": count}
                for (state, change), count in sorted(self.changes.items())
            ],
            "left_out": dict(self.left_out),
            "damage": self.damage,
        }

    def _count(self, change: JoinChange) -> int:
        return sum(count for (_, kind), count in self.changes.items() if kind == change)


async def backtest_joins(
    runs: Runs,
    joins: Mapping[str, Join],
    *,
    each: Callable[[JoinComparison], None] | None = None,
    **conditions: Unpack[RunFilter],
) -> JoinReport:
    """Return the effect that other joins would have had on recorded decisions about branches.

    Nothing is executed, and the records of one run at a time are in memory. The recorded decision is proved first: it
    must follow from its numbers.

    Args:
        runs: The runs of a journal, of any machine.
        joins: State with branches -> the join to test. Decisions of other states are not read.
        each: Is called with the comparison of each decision, also of one that is left out.
        conditions: See `RunFilter`.

    Raises:
        ConfigError: There is no join, a value is no Join, it has a `vote`, or a condition is invalid.
        StoreDown: The store is unavailable.

    Example:
        report = await backtest_joins(Runs(journal), {"mapping": first(90)}, machine="map_reduce")
        print(report.enough, report.too_few)
    """
    _check(joins)
    report = JoinReport()
    async with aclosing(_heads(runs, report, conditions)) as heads:
        async for head in heads:
            for one in await _of_run(runs.journal, head, joins):
                report.add(one)
                if each is not None:
                    each(one)
    return report


def _check(joins: object) -> None:
    if not isinstance(joins, Mapping) or not joins:
        raise ConfigError('no join to test: give state -> join, as {"mapping": first(2)}')
    for state, join in joins.items():
        if not isinstance(join, Join):
            raise ConfigError(
                f"the join of state {str(state)!r} is a {type(join).__name__}; give ALL, ANY, first, quorum or ended "
                "of orchestrator.branches"
            )
        if join.vote is not None:
            raise ConfigError(
                f"the join of state {str(state)!r} has a vote, but records have the numbers of equal votes and no "
                "values; give quorum(n) without vote"
            )


async def _heads(runs: Runs, report: JoinReport, conditions: RunFilter) -> AsyncGenerator[RunHead, None]:
    """Yield the runs that meet the conditions, the newest first; damage goes to the report."""
    after: str | None = None
    while True:
        page = await runs.page(limit=_PAGE, after=after, **conditions)
        report.damage = report.damage or page.damage
        for head in page.runs:
            yield head
        if not page.more:
            return
        after = page.runs[-1].run_id


async def _of_run(journal: Journal, head: RunHead, joins: Mapping[str, Join]) -> list[JoinComparison]:
    """Return the comparison of each decision of a run in these states."""
    try:
        records = await journal.load(head.run_id)
    except Corrupt as error:
        return [JoinComparison(head.run_id, "", 0, "", left_out=f"its run is damaged: {error}")]
    return list(_compared(head, records, joins))


def _compared(
    head: RunHead, records: Iterable[Record], joins: Mapping[str, Join]
) -> Iterable[JoinComparison]:
    recorded: Join | None = None
    for record in records:
        body = record.body
        if record.kind == "fan":
            rule, _, count = str(body["join"]).partition(" ")
            recorded = Join(cast("JoinRule", rule), int(count or 0))
        elif record.kind == "joined" and recorded is not None and (join := joins.get(body["state"])):
            about = (head.run_id, body["state"], body["visit"], head.outcome or "")
            if reason := _left_out(body, recorded, join):
                yield JoinComparison(*about, left_out=reason)
            else:
                yield JoinComparison(*about, _verdict(body, recorded), _verdict(body, join))


def _left_out(body: Mapping[str, Any], recorded: Join, join: Join) -> str:
    """Return why the decision cannot be evaluated under a join, or ""."""
    if len(body["ended"]) < body["branches"]:
        return "it was decided before all branches had ended"
    proved = _verdict(body, recorded)
    if (proved.ok, proved.observed, proved.limit) != (body["ok"], body["observed"], body["limit"]):
        return "its recorded decision does not follow from its numbers"
    if join.rule == "quorum" != recorded.rule:
        return f"a quorum needs votes, and its join was {recorded}"
    return ""


def _verdict(body: Mapping[str, Any], join: Join) -> Verdict:
    """Return the decision of a join when all branches have ended."""
    branches, completed = int(body["branches"]), int(body["completed"])
    counted = int(body["agree"]) if join.rule == "quorum" else completed
    detail = f"{completed} of {branches} branches completed"
    return enough(counted, join.needed(branches))._replace(detail=detail)
