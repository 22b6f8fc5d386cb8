"""Listings of the runs of a journal: pages of runs, their tree, the history of a machine, the last check.

The verdict is a record of one run, `doctor`, whose graph is that of engines, so that listings leave it out. So every
store can keep it, every process that reads the journal finds it, and a store of an earlier version needs no upgrade. A
server has no place for a file beside the journal, and a separate table would need one more format.
"""

from __future__ import annotations

import math
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

from orchestrator.errors import ConfigError, Corrupt, RunExists, RunUnknown
from orchestrator.journal.redacted import tool_word
from orchestrator.kernel.journal import (
    ENGINE,
    RECORD_SCHEMA,
    AgentStatistics,
    Draft,
    Journal,
    Record,
    RunCounts,
    RunHead,
    claimed,
    let_go,
    write_records,
)
from orchestrator.kernel.outcome import Outcome
from orchestrator_guards import Verdict
from orchestrator_guards.evaluation import GUARDS, read_row

if TYPE_CHECKING:
    from orchestrator.telemetry.history import History

STATUSES: Final = ("open", "parked", "ended")

ORDERS: Final[Mapping[str, tuple[str, bool]]] = {
    "newest": ("created", True),
    "age": ("created", False),
    "updated": ("updated", True),
    "time_in_state": ("state_since", False),
    "tokens": ("tokens", True),
    "cost": ("cost", True),
}
"""Name of an order -> order of the journal, and whether it is descending. The greatest number is the first."""


class RunFilter(TypedDict, total=False):
    """Conditions on runs; a run must meet each. None is no condition."""

    agent: str | None
    machine: str | None
    """Name of the graph."""
    status: str | None
    """`open`, `parked` or `ended`."""
    state: str | None
    outcome: str | None
    reason: str | None
    """Reason of the end, or of a parked run."""
    tag: Mapping[str, str] | None
    """Tags that the run has with these values."""
    waiting: str | bool | None
    """True for every run that waits for a person; or the name of one tool or question that it waits for."""
    older_than: float | None
    """The last record is older than this time (epoch seconds)."""
    started_since: float | None
    """The run started at this time (epoch seconds) or later."""
    started_before: float | None
    """The run started before this time (epoch seconds)."""
    search: str | None
    """Words, each of which the run has somewhere, in any case: in its id, machine, agent, tags, outcome, reason, or in
    the tools that it waits for.
    """
    hits: Mapping[str, Sequence[str]] | None
    """Word of the search -> ids of further runs that have it, from an index of what a head does not have."""
    run_ids: Sequence[str] | None
    """The run has one of these ids."""


FILTERS: Final = frozenset(RunFilter.__annotations__)


@dataclass(frozen=True, slots=True)
class RunPage:
    """A part of a listing."""

    runs: list[RunHead]
    more: bool
    """Whether more runs follow in this order."""
    damage: str
    """A sentence about runs that cannot be trusted, or ""."""


async def read_page(
    journal: Journal,
    order_by: str = "newest",
    limit: int | None = None,
    after: str | None = None,
    *,
    offset: int = 0,
    engines: bool = False,
    **conditions: Unpack[RunFilter],
) -> RunPage:
    """Return the runs that meet every condition. With `engines` also the runs that represent engines.

    Args:
        journal: The journal.
        order_by: A name of ORDERS.
        limit: Most runs; None for all.
        after: Id of a run: only runs after it in this order.
        offset: Runs to skip before the first, those of engines among them.
        engines: Whether the runs that represent engines are listed.
        conditions: The conditions.

    Raises:
        ConfigError: A condition, the order or the limit is invalid.
        RunUnknown: The journal does not have the run `after`.
        StoreDown: The store is unavailable.
    """
    query = journal_conditions(order_by, limit, conditions)
    every = engines or conditions.get("machine") is not None
    found: list[RunHead] = []
    damage = ""
    while True:
        wanted = None if limit is None else limit + 1 - len(found)
        heads: list[RunHead] = []
        try:
            async for head in journal.runs(**{**query, "limit": wanted, "after": after, "offset": offset}):
                heads.append(head)  # noqa: PERF401 - runs before an error count
        except Corrupt as error:  # a store reports damaged runs after the others
            damage = damage or str(error)
        found += [head for head in heads if every or head.graph != ENGINE]
        if wanted is None or len(heads) < wanted or limit is None or len(found) > limit:
            break
        after, offset = heads[-1].run_id, 0
    return RunPage(found[:limit], limit is not None and len(found) > limit, damage)


_GENERATED: Final = re.compile(r"[0-9a-f]{32}")
"""Ids of runs that nobody named."""
_SHORT: Final = 12
"""Characters of such an id that a person reads: two of a million runs have the same with a chance of 0.2 %."""


def short_id(run_id: str) -> str:
    """Return the id of a run as a table for people has it: the first 12 characters of an id that nobody chose.

    Example:
        >>> short_id("4f0c1d2e3b4a59687776655443322110"), short_id("invoice-17")
        ('4f0c1d2e3b4a', 'invoice-17')
    """
    return run_id[:_SHORT] if _GENERATED.fullmatch(run_id) else run_id


async def count_runs(journal: Journal, **conditions: Unpack[RunFilter]) -> RunCounts:
    """Count the runs that meet every condition. Raises ConfigError, StoreDown."""
    query = journal_conditions("newest", None, conditions)
    del query["order_by"], query["descending"]
    return await journal.count(**query)


async def read_agents(
    journal: Journal, *, by_version: bool = False, **conditions: Unpack[RunFilter]
) -> list[AgentStatistics]:
    """Return the statistics of each agent, or of each version of each. Raises ConfigError, StoreDown."""
    query = journal_conditions("newest", None, conditions)
    del query["order_by"], query["descending"]
    return await journal.agents(by_version=by_version, **query)


def journal_conditions(order_by: str, limit: int | None, conditions: RunFilter) -> dict[str, Any]:
    """Return the conditions of a listing, without its limit, as a journal takes them. Raises ConfigError."""
    if order_by not in ORDERS:
        raise ConfigError(f"order_by is {order_by!r}; it must be one of {', '.join(ORDERS)}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be 1 or more, or None for all")
    query: dict[str, Any] = {**conditions}
    if unknown := query.keys() - FILTERS:
        raise ConfigError(
            f"unknown conditions {', '.join(sorted(unknown))}; known: {', '.join(sorted(FILTERS))}"
        )
    if query.get("status") not in (None, *STATUSES):
        raise ConfigError(f"unknown status {query['status']!r}; known: {', '.join(STATUSES)}")
    query["graph"], query["tags"] = query.pop("machine", None), query.pop("tag", None) or None
    query["order_by"], query["descending"] = ORDERS[order_by]
    return query


@dataclass(slots=True)
class RunTree:
    """A run and its child runs, at any depth."""

    head: RunHead
    children: list[RunTree] = field(default_factory=list)
    is_on_path: bool = False
    """Whether it is the run that the tree was read for, or a run above it."""

    @property
    def name(self) -> str:
        """Its id without that of its parent run, which most ids of child runs begin with."""
        return self.head.run_id.removeprefix(f"{self.head.parent_run_id}:")

    @property
    def kind(self) -> str:
        """`segment` for the part of a run that one agent drives, `branch` for one of several runs of a state, else "".

        The ids that the runs of a team and of `fan_out` give their child runs say it.
        """
        return (
            "segment" if _SEGMENT.fullmatch(self.name) else "branch" if _BRANCH.fullmatch(self.name) else ""
        )

    def rows(self) -> Iterator[tuple[int, RunTree | None, str]]:
        """Yield (depth, run, "") for each run, and (depth, None, how many others) where some are left out."""
        ahead: list[tuple[int, RunTree | None, str]] = [(0, self, "")]
        while ahead:
            depth, tree, others = ahead.pop()
            yield depth, tree, others
            if tree is not None:
                if tree.other_children:
                    ahead.append((depth + 1, None, tree.other_children))
                ahead += [(depth + 1, child, "") for child in reversed(tree.first_children)]

    def as_json(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        names = ("run_id", "graph", "agent", "status", "reason", "owner")
        data = {name: getattr(self.head, name) for name in names}
        return data | {"children": [child.as_json() for child in self.children]}

    @property
    def first_children(self) -> list[RunTree]:
        """The children that a person is shown: all, or MOST_CHILDREN of them, those that need attention first.

        The one on the path to the run that the tree was read for is always among them.
        """
        if len(self.children) <= MOST_CHILDREN:
            return self.children
        rank = [(not one.is_on_path, status_name(one.head) == "completed") for one in self.children]
        chosen = sorted(range(len(rank)), key=lambda at: (rank[at], at))[:MOST_CHILDREN]
        return [self.children[at] for at in sorted(chosen)]

    @property
    def other_children(self) -> str:
        """How many children that leaves out, by outcome; empty if none."""
        others = {id(one) for one in self.children} - {id(one) for one in self.first_children}
        heads = [one.head for one in self.children if id(one) in others]
        counts = Counter(head.outcome or head.status for head in heads)
        named = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        return f"{len(heads):,} more: {named}" if heads else ""


_SEGMENT: Final = re.compile(r"s\d+")
_BRANCH: Final = re.compile(r"[^:]+\.\d+:\d+")
MOST_CHILDREN: Final = 50
"""Child runs of one run that a page or a command shows."""


async def read_tree(journal: Journal, root: RunHead) -> RunTree:
    """Return the child runs of a run. Each is listed once, even if the parents form a cycle."""
    tree = RunTree(root)
    seen = {root.run_id}
    ahead = [tree]
    while ahead:
        branch = ahead.pop()
        async for head in journal.runs(parent_run_id=branch.head.run_id):
            if head.run_id not in seen:
                seen.add(head.run_id)
                branch.children.append(RunTree(head))
        ahead += branch.children
    return tree


async def path_to_root(journal: Journal, head: RunHead) -> dict[str, RunHead]:
    """Return a run and the runs above it by id, its root last.

    The path ends where a run is missing, because it was pruned or erased, or stands in it already, as only a damaged
    journal has it.
    """
    path = {head.run_id: head}
    while head.parent_run_id is not None and head.parent_run_id not in path:
        try:
            head = await journal.head(head.parent_run_id)
        except RunUnknown:
            break
        path[head.run_id] = head
    return path


async def read_family(journal: Journal, head: RunHead) -> RunTree:
    """Return the tree that a run is part of, from its root.

    Only what a page shows is read below the first level: the child runs of those that are `first_children`, and of at
    most MOST_EXPANDED runs. A tree has any number of branches, and a page is of one size.
    """
    path = await path_to_root(journal, head)
    root = RunTree([*path.values()][-1], is_on_path=True)
    seen, level, expanded = {root.head.run_id}, [root], 0
    while level:
        below: list[RunTree] = []
        for tree in sorted(level, key=lambda one: not one.is_on_path):
            if not tree.is_on_path and expanded >= MOST_EXPANDED:
                break
            expanded += 1
            async for child in journal.runs(parent_run_id=tree.head.run_id):
                if child.run_id not in seen:
                    seen.add(child.run_id)
                    tree.children.append(RunTree(child, is_on_path=child.run_id in path))
            below += tree.first_children
        level = below
    return root


MOST_EXPANDED: Final = 200
"""Runs of a tree whose child runs a page shows."""


@dataclass(slots=True)
class GuardHistory:
    """One guard over a run."""

    name: str
    last: Verdict
    """Its last verdict."""
    evaluated: int = 0
    refused: int = 0
    shares: dict[int, float] = field(default_factory=dict)
    """Turn -> the greatest used share of the limit in it, if the limit is a budget."""
    refusals: set[int] = field(default_factory=set)
    """The turns in which it refused."""

    def add(self, verdict: Verdict, turn: int) -> None:
        """Add a verdict."""
        self.last = verdict
        self.evaluated += 1
        if verdict.is_budget:
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


LAST_RUNS = 100
"""Runs whose records are read."""


@dataclass(slots=True)
class VisitTimes:
    """The visits of one state, over many runs."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    """Visits that an error ended."""

    @property
    def total(self) -> float:
        """Seconds of all visits together."""
        return sum(self.seconds)

    def percentile(self, share: float) -> float:
        """Return the seconds that this share of the visits, 0 to 1, did not exceed; 0 without a visit."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _no_history() -> History:
    from orchestrator.telemetry.history import History  # loads the facts, which a list of runs does without

    return History(limit=0)


@dataclass(slots=True)
class ToolTimes:
    """The calls of one tool, over many runs."""

    calls: int = 0
    failed: int = 0
    """Calls that did not return: errors, timeouts, refusals and interruptions."""
    seconds: list[float] = field(default_factory=list)
    """Of the calls that ran."""

    def merge(self, other: ToolTimes) -> None:
        """Add the calls of another history."""
        self.calls += other.calls
        self.failed += other.failed
        self.seconds += other.seconds


@dataclass(slots=True)
class MachineHistory:
    """The last runs of one machine."""

    machine: str
    runs: int = 0
    unreadable: int = 0
    since: float | None = None
    """Start of the oldest of them (epoch seconds)."""
    until: float | None = None
    """Last change of the newest of them."""
    history: History = field(default_factory=_no_history)
    times: dict[str, VisitTimes] = field(default_factory=dict)
    evaluated: Counter[str] = field(default_factory=Counter)
    """Guard -> its evaluations."""
    refused: Counter[str] = field(default_factory=Counter)
    """Guard -> evaluations in which it refused."""
    tools: dict[str, ToolTimes] = field(default_factory=dict)

    def merge(self, other: MachineHistory) -> None:
        """Add the runs of another history."""
        self.runs += other.runs
        self.unreadable += other.unreadable
        self.since = _either(min, self.since, other.since)
        self.until = _either(max, self.until, other.until)
        self.history.add(other.history)
        for state, times in other.times.items():
            own = self.times.setdefault(state, VisitTimes())
            own.seconds += times.seconds
            own.failed += times.failed
        self.evaluated.update(other.evaluated)
        self.refused.update(other.refused)
        for tool, calls in other.tools.items():
            self.tools.setdefault(tool, ToolTimes()).merge(calls)

    def add(self, records: Sequence[Record]) -> None:
        """Add the records of one run."""
        from orchestrator.tools.result import (
            RETURNED,
        )  # it imports pydantic-core: a list of heads has no use for it

        self.runs += 1
        entered, seq = 0.0, 0
        for record in records:
            if record.kind == "done" and record.body.get("tool"):
                tool = self.tools.setdefault(tool_word(record.body), ToolTimes())
                tool.calls += 1
                tool.failed += record.body.get("outcome") not in RETURNED
                if (lasted := record.body.get("seconds")) is not None:
                    tool.seconds.append(float(lasted))
            if record.kind == "transition":
                seq += 1
                body = record.body
                source, dest = str(body["source"]), str(body["dest"])
                internal = bool(body.get("internal", source == dest))
                now = float(body.get("t", entered))
                dwell = max(now - entered, 0.0)
                edge = (source, str(body["event"]), dest)
                self.history.count(edge, dwell, is_first=seq == 1, internal=internal)
                visits = self.times.setdefault(source, VisitTimes())
                visits.failed += bool(body.get("error"))
                if not internal:
                    visits.seconds.append(dwell)
                    entered = now
        for guard in guard_histories(records):
            self.evaluated[guard.name] += guard.evaluated
            self.refused[guard.name] += guard.refused


def _either(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else choose(one, other)


async def read_run_history(journal: Journal, head: RunHead) -> MachineHistory:
    """Read the history of one run. A run that cannot be read is counted. Raises StoreDown."""
    found = MachineHistory(head.graph)
    try:
        found.add(await journal.load(head.run_id))
    except (Corrupt, RunUnknown):
        found.unreadable = 1
        return found
    found.since, found.until = head.created_at, head.updated_at
    return found


async def read_machine(journal: Journal, machine: str, limit: int = LAST_RUNS) -> MachineHistory:
    """Read the last runs of a machine. A run that cannot be read is counted. Raises ConfigError, StoreDown."""
    found = MachineHistory(machine)
    page = await read_page(journal, "newest", limit, machine=machine)
    for head in page.runs:
        found.merge(await read_run_history(journal, head))
    return found


CHECKS: Final = "doctor"
"""Id of the run that has the verdicts."""
_MOST: Final = 20
"""Most problems that are kept."""
_LONGEST: Final = 600
"""Most characters of a problem."""


@dataclass(frozen=True, slots=True)
class JournalCheck:
    """A check of every record of a journal."""

    at: float
    """Epoch seconds."""
    host: str
    """Name of the host that checked."""
    runs: int
    records: int
    count: int
    """Number of problems."""
    problems: tuple[str, ...]
    """The first of them."""

    @classmethod
    def made(cls, runs: int, records: int, problems: Sequence[str]) -> Self:
        """Return the check that ended now."""
        kept = tuple(one[:_LONGEST] for one in problems[:_MOST])
        return cls(time.time(), socket.gethostname(), runs, records, len(problems), kept)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Read it from its record."""
        runs, records, count = (int(body.get(name) or 0) for name in ("runs", "records", "count"))
        problems = tuple(map(str, body.get("problems") or ()))
        return cls(float(body.get("at") or 0.0), str(body.get("host", "")), runs, records, count, problems)


async def record_check(journal: Journal, check: JournalCheck) -> None:
    """Keep a verdict. Raises the errors of the journal, Held if another process writes one at this moment."""
    owner = f"{check.host}:{CHECKS}:{check.at}"
    try:
        lease = await claimed(journal, CHECKS, owner)
    except RunUnknown:
        opening = {
            "schema": RECORD_SCHEMA,
            "graph": ENGINE,
            "fingerprint": "",
            "at": check.at,
            "parent_run_id": None,
            "conversation_id": None,
        }
        try:
            lease = await journal.create(CHECKS, owner, opening)
        except RunExists:
            lease = await claimed(journal, CHECKS, owner)
    try:
        body = {"reason": "checked", "at": check.at, "t": 0.0, CHECKS: asdict(check)}
        await write_records(journal, lease, Draft("parked", body))
    finally:
        await let_go(journal, lease)


async def last_check(journal: Journal) -> JournalCheck | None:
    """Return the last verdict; None if the journal has none. Raises Corrupt, StoreDown."""
    try:
        records = await journal.load(CHECKS)
    except RunUnknown:
        return None
    found = [record.body[CHECKS] for record in records if CHECKS in record.body]
    return JournalCheck.read(found[-1]) if found else None


_OUTCOMES = frozenset(Outcome)


def status_name(head: RunHead) -> str:
    """Return the status of a run as a name of `drawing.stylesheet.STATUSES`: its outcome if it has ended."""
    if head.status == "ended":
        return head.outcome if head.outcome in _OUTCOMES else "failed"
    if head.status == "parked":
        return "waiting" if head.waiting else "paused"
    return "orphaned" if head.owner is None else "running"
