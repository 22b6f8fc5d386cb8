"""The verdicts of a run's guards by turn: how near each limit was, and which guard refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.kernel.journal import Record
from orchestrator_guards import Verdict
from orchestrator_guards.evaluation import GUARDS, read_row


@dataclass(slots=True)
class GuardHistory:
    """One guard over a run."""

    name: str
    last: Verdict
    """Its last verdict."""
    evaluated: int = 0
    refused: int = 0
    shares: dict[int, float] = field(default_factory=dict)
    """Turn -> the greatest share of the limit in it; a limit of 0 has none."""
    refusals: set[int] = field(default_factory=set)
    """The turns in which it refused."""

    def add(self, verdict: Verdict, turn: int) -> None:
        """Add a verdict."""
        self.last = verdict
        self.evaluated += 1
        if verdict.limit > 0:
            share = verdict.observed / verdict.limit
            self.shares[turn] = max(share, self.shares.get(turn, 0.0))
        if not verdict.ok:
            self.refused += 1
            self.refusals.add(turn)


def guard_histories(records: Iterable[Record]) -> list[GuardHistory]:
    """Return the guards that a run evaluated, in the order of their first verdicts.

    A turn is an answer of the model; verdicts before the first one belong to turn 1.
    """
    found: dict[str, GuardHistory] = {}
    turn = 0
    for record in records:
        if record.kind == "answer":
            turn = int(record.body.get("iteration") or turn + 1)
        for row in record.body.get(GUARDS) or ():
            verdict = read_row(row).verdict
            if verdict.guard not in found:
                found[verdict.guard] = GuardHistory(verdict.guard, verdict)
            found[verdict.guard].add(verdict, max(turn, 1))
    return list(found.values())
