"""Branches: several child runs of one state, and the join that decides when enough of them have ended.

Here is what is known without a run: how many branches a state may have, and the decision of a join, a pure function of
their results. `orchestrator.branches` starts and drives them.

A join counts votes one by one, so a state with 1,000 branches decides as often without looking at all of them again.
Results that arrive after the decision change nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Final, Generic, Literal, TypeAlias

from typing_extensions import TypeVar

from orchestrator.kernel.outcome import Outcome
from orchestrator_guards import Verdict
from orchestrator_guards import joined as enough

T_co = TypeVar("T_co", covariant=True, default=Any)
JoinRule: TypeAlias = Literal["all", "any", "first", "quorum", "ended"]


@dataclass(frozen=True, slots=True)
class BranchResult(Generic[T_co]):
    """The end of one branch. A failure is a value, too: it has no `value`, but an outcome and a reason."""

    index: int
    """Position of its item."""
    run_id: str
    outcome: Outcome
    """`completed` with a `value`, or why there is none. A branch that was not needed is `cancelled`."""
    reason: str = "none"
    """One of the reasons of its outcome."""
    value: T_co | None = None
    """Output of the agent, result of the machine, or value that the tool returned."""
    error: str = ""
    """The error as text, if the branch failed."""
    tokens: int = 0
    """Input and output tokens of its run and child runs."""
    started: bool = True
    """False if the join was decided before the branch could start."""

    @property
    def ok(self) -> bool:
        """Whether the branch completed."""
        return self.outcome is Outcome.COMPLETED


@dataclass(frozen=True, slots=True)
class Join:
    """A rule for the end of the branches of a state: use ALL, ANY, `first`, `quorum` or `ended`."""

    rule: JoinRule
    count: int = 0
    """How many branches are needed; 0 where the rule says it."""
    vote: Callable[[Any], object] | None = field(default=None, compare=False)
    """Returns from the value of a branch what it votes for; None means the whole value."""

    def __str__(self) -> str:
        return f"{self.rule} {self.count}" if self.count else self.rule

    def needed(self, branches: int) -> int:
        """Return how many of so many branches the join needs."""
        if self.rule == "all":
            return branches
        return 1 if self.rule == "any" else self.count


ALL: Final = Join("all")
"""Every branch has to complete; the first that does not decides against."""
ANY: Final = Join("any")
"""One branch has to complete; the others are not needed then."""


def first(count: int) -> Join:
    """Return the join that needs `count` completed branches, whichever complete first."""
    return Join("first", count)


def quorum(count: int, vote: Callable[[Any], object] | None = None) -> Join:
    """Return the join that needs `count` completed branches with the same vote.

    Args:
        count: How many branches must agree.
        vote: Pure function from the value of a branch to JSON data, its vote; by default the value itself.
    """
    return Join("quorum", count, vote)


def ended(least: int = 0) -> Join:
    """Return the join that waits for every branch to end, and needs `least` completed ones then."""
    return Join("ended", least)


@dataclass(frozen=True, slots=True)
class Fan:
    """Branches of a state, in `Graph(branches={state: Fan(...)})`.

    Args:
        max: Most branches that one visit of the state may have.
        concurrency: Most branches that work at the same time; one that waits for a person does not count. 0 is
            unlimited.
        join: When the branches are over, and whether they are enough.
    """

    max: int
    concurrency: int = 8
    join: Join = ALL

    def __str__(self) -> str:
        return f"up to {self.max} branches, join {self.join}"


class Tally:
    """The votes of some branches so far."""

    def __init__(self, join: Join, branches: int) -> None:
        self.join, self.branches = join, branches
        self.needed = join.needed(branches)
        self.ended = self.completed = 0
        self._votes: dict[str, int] = {}
        self._most = 0

    def add(self, result: BranchResult[Any]) -> None:
        """Count a branch that has ended. Raises the errors of the host's `vote`."""
        self.ended += 1
        if not result.ok:
            return
        self.completed += 1
        if self.join.rule == "quorum":
            vote = result.value if self.join.vote is None else self.join.vote(result.value)
            name = value_digest(vote)
            self._votes[name] = votes = self._votes.get(name, 0) + 1
            self._most = max(self._most, votes)

    @property
    def counted(self) -> int:
        """Completed branches that count: for a quorum, those of the most frequent vote."""
        return self._most if self.join.rule == "quorum" else self.completed

    @property
    def verdict(self) -> Verdict:
        """The verdict if no further branch ends."""
        detail = f"{self.completed} of {self.branches} branches completed"
        if self.join.rule == "quorum":
            detail += f", {self._most} agree"
        return enough(self.counted, self.needed)._replace(detail=detail)

    @property
    def decision(self) -> Verdict | None:
        """The verdict that no further result can change; None while one can."""
        left = self.branches - self.ended
        if self.join.rule == "ended":
            return None if left else self.verdict
        is_open = self.counted < self.needed <= self.counted + left
        return None if is_open else self.verdict


class BranchResults(tuple[BranchResult[T_co], ...], Generic[T_co]):  # noqa: SLOT001 - a tuple has no room for slots
    """The results of all branches of a state, in the order of their items."""

    join: Join
    """The join of the state."""
    decided: Verdict
    """The decision in the journal."""

    @property
    def values(self) -> list[T_co]:
        """The values of the completed branches, in the order of their items."""
        return [one.value for one in self if one.ok]  # type: ignore[misc]  # a completed branch has a value


def joined(results: Iterable[BranchResult[Any]], join: Join | None = None) -> Verdict:
    """Return whether the branches of a state are enough. Pure.

    Args:
        results: What `fan_out` returned, or any results in their order.
        join: Another join than that of the state. It is applied to all results in their order, so it may differ from
            a decision that was made while branches were running.

    Example:
        >>> completed = BranchResult(0, "r:s.1:0", Outcome.COMPLETED, value=1)
        >>> results = [completed, BranchResult(1, "r:s.1:1", Outcome.FAILED)]
        >>> joined(results, ANY).ok, joined(results, ALL).explain()
        (True, 'joined: 1 of 2 needed (1 of 2 branches completed)')
    """
    if join is None and isinstance(results, BranchResults):
        return results.decided
    listed = tuple(results)
    tally = Tally(ALL if join is None else join, len(listed))
    for result in listed:
        tally.add(result)
    return tally.verdict


def value_digest(value: object) -> str:
    """Return the digest of JSON data; equal data has an equal digest. Raises TypeError for other data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_members)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _members(value: Any) -> Any:
    """Return the fields of a dataclass or of a pydantic model. Raises TypeError for another object."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(
        f"a {type(value).__name__} has no JSON form; give quorum(…, vote=…) a function that returns JSON data"
    )
