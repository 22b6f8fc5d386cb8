"""A query of run heads, as conditions in SQL and as a comparison in memory: one place for filters, order and paging."""

# ruff: noqa: S608  the only text that is put into conditions is our own

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import (
    ENGINE,
    AgentStatistics,
    CurrencyCost,
    RunConditions,
    RunCounts,
    RunHead,
)
from orchestrator.kernel.outcome import Outcome

PAGE: Final = 200
"""Runs read at once."""
EQUAL: Final = (
    *("status", "graph", "conversation_id", "parent_run_id"),
    *("agent", "state", "outcome", "reason"),
)
"""Conditions that compare a column with a value."""
SEARCHED: Final = ("run_id", "agent", "agent_version", "graph", "tags", "outcome", "reason", "waiting")
"""Columns in which a search finds its words. They need no index and are never out of date: 100,000 rows
are read in some 40 ms.
"""
_TEXT: Final = " || '\n' || ".join(f"run.{name}" for name in SEARCHED)
_AMONG: Final = "IN (SELECT value FROM json_each(?))"
_WILD: Final = re.compile("[%_!]")
MOST_WORDS: Final = 8
LONGEST_SEARCH: Final = 200
"""Characters."""
ORDERS: Final[Mapping[str, str]] = {
    "created": "run.id",
    "updated": "run.updated_at",
    "state_since": "coalesce(run.state_since, run.created_at)",
    "tokens": "coalesce(run.tokens + run.child_tokens, -1)",
    "cost": "coalesce(run.cost + coalesce(run.child_cost, 0), run.child_cost, -1)",
}
"""Order -> expression. An unknown number is less than every known one; the number of the run decides between equals."""
OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)
_COUNTED: Final = (
    *("run.status = 'open'", "run.status = 'parked'", "run.status = 'parked' AND run.waiting <> ''"),
    *(f"run.outcome = '{outcome}'" for outcome in OUTCOMES),  # only an ended run has an outcome
)
COUNTS: Final = ", ".join(("count(*)", *(f"count(*) FILTER (WHERE {what})" for what in _COUNTED)))
"""The columns of a count: one pass over the rows, which no GROUP BY has to sort. `counted` reads them."""
_VERSION: Final[Mapping[bool, str]] = {False: "''", True: "run.agent_version"}
_PRICED: Final = "FILTER (WHERE run.cost IS NOT NULL)"
_COST: Final = f"min(run.currency) {_PRICED}, max(run.currency) {_PRICED}, sum(run.cost), count(run.cost)"
_LASTED: Final = "run.updated_at - run.created_at"
PERCENTILES: Final[Mapping[str, str]] = {
    "?": f"percentile_cont(CASE WHEN run.status = 'ended' THEN {_LASTED} END, {{}})",
    "%s": f"percentile_cont({{}}) WITHIN GROUP (ORDER BY {_LASTED}) FILTER (WHERE run.status = 'ended')",
}
"""Mark of the store's values -> a percentile of how long the ended runs lasted."""
NAMES: Final = f"SELECT DISTINCT run.graph, run.agent FROM run WHERE run.graph <> '{ENGINE}'"
_VALUES: Final[Mapping[str, Callable[[RunHead], float]]] = {
    "updated": lambda head: head.updated_at,
    "state_since": lambda head: head.state_since or head.created_at,
    "tokens": lambda head: -1 if head.tokens is None else head.tokens,
    "cost": lambda head: -1 if head.cost_micros is None else head.cost_micros,
}


@dataclass(frozen=True, slots=True)
class RunQuery:
    """The conditions of a listing, checked. `of` makes one."""

    equal: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    waiting: str | bool | None = None
    older_than: float | None = None
    started_since: float | None = None
    started_before: float | None = None
    search: str | None = None
    hits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run_ids: frozenset[str] | None = None
    order_by: str = "created"
    descending: bool = False
    limit: int | None = None
    after: str | None = None
    offset: int = 0

    @classmethod
    def of(cls, conditions: RunConditions) -> RunQuery:
        """Check the conditions of a listing. Raises ConfigError."""
        given: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
        equal: dict[str, str] = {name: given.pop(name) for name in EQUAL if name in given}
        if unknown := given.keys() - {
            "tags",
            "waiting",
            "older_than",
            "started_since",
            "started_before",
            "search",
            "hits",
            "run_ids",
            "order_by",
            "descending",
            "limit",
            "after",
            "offset",
        }:
            raise ConfigError(f"unknown conditions {', '.join(sorted(unknown))} of a listing of runs")
        if "run_ids" in given:
            given["run_ids"] = frozenset(given["run_ids"])
        query = cls(equal=equal, **given)
        if query.order_by not in ORDERS:
            raise ConfigError(f"order_by is {query.order_by!r}; it must be one of {', '.join(ORDERS)}")
        if query.limit is not None and query.limit < 1:
            raise ConfigError(f"limit is {query.limit}; it must be 1 or more, or None for all")
        if query.offset < 0:
            raise ConfigError(f"offset is {query.offset}; it must be 0 or more")
        if len(query.search or "") > LONGEST_SEARCH or len(query.words) > MOST_WORDS:
            raise ConfigError(
                f"search has {len(query.search or ''):,} characters in {len(query.words):,} words; it must have at "
                f"most {LONGEST_SEARCH} in {MOST_WORDS} words"
            )
        return query

    @property
    def words(self) -> list[str]:
        """The words of the search. No text of a run has the character 0, which a server refuses."""
        return (self.search or "").replace("\0", " ").split()

    @classmethod
    def counting(cls, conditions: RunConditions) -> RunQuery:
        """Check the conditions of a count: a listing without an order. Raises ConfigError."""
        ordered = {"order_by", "descending", "limit", "after", "offset"}
        kept: Any = {name: value for name, value in conditions.items() if name not in ordered}
        return cls.of(kept)

    def where_counted(self, mark: str) -> tuple[str, list[object]]:
        """Return the condition of a count in SQL and its values: runs that represent engines are left out."""
        where, values = self.where(mark, None)
        return f"run.graph <> '{ENGINE}' AND {where}", values

    def agents(self, mark: str, *, by_version: bool) -> tuple[str, list[object]]:
        """Return the query of the statistics of agents and its values. `agents_of_rows` reads its rows.

        A row has the cost of the runs too, which is right if they have one currency; else `costs` is asked as well.
        """
        where, values = self.where_counted(mark)
        lasted = ", ".join(PERCENTILES[mark].format(share) for share in (0.5, 0.95))
        return (
            f"SELECT run.agent, {_VERSION[by_version]}, sum(run.tokens), count(run.tokens), "
            f"{lasted}, min(run.created_at), max(run.created_at), {_COST}, {COUNTS} "
            f"FROM run WHERE run.agent <> '' AND {where} GROUP BY 1, 2"
        ), values

    def costs(self, mark: str, *, by_version: bool) -> tuple[str, list[object]]:
        """Return the query of what the runs of each agent cost, by currency, and its values."""
        where, values = self.where_counted(mark)
        return (
            f"SELECT run.agent, {_VERSION[by_version]}, run.currency, sum(run.cost), count(*) FROM run "
            f"WHERE run.agent <> '' AND run.cost IS NOT NULL AND {where} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ), values

    @property
    def page(self) -> int:
        """Runs to read at once."""
        return PAGE if self.limit is None else min(PAGE, self.limit)

    def skipped(self, before: tuple[float, int] | None) -> int:
        """Return the runs that a page skips; `before` as in `where`."""
        return self.offset if before is None else 0

    @property
    def ordered(self) -> str:
        """The expressions of ORDER BY."""
        way = "DESC" if self.descending else "ASC"
        return f"{ORDERS[self.order_by]} {way}, run.id {way}"

    def where(self, mark: str, before: tuple[float, int] | None) -> tuple[str, list[object]]:
        """Return the condition in SQL and its values. `before` is the position of the last run of the page before."""
        parts = [f"run.{name} = {mark}" for name in self.equal]
        values: list[object] = [*self.equal.values()]
        parts += [
            f"run.id IN (SELECT t.run FROM run_tag t WHERE t.name = {mark} AND t.value = {mark})"
            for _ in self.tags
        ]
        values += [part for tag in self.tags.items() for part in tag]
        if isinstance(self.waiting, bool):
            parts.append(f"run.waiting {'<>' if self.waiting else '='} ''")
        elif self.waiting is not None:  # one of several names
            parts.append("run.waiting <> ''")  # most rows need no more than this
            parts.append(f"replace(', ' || run.waiting || ', ', {mark}, '') <> ', ' || run.waiting || ', '")
            values.append(f", {self.waiting}, ")
        if self.older_than is not None:
            parts.append(f"run.updated_at < {mark}")
            values.append(self.older_than)
        if self.started_since is not None:
            parts.append(f"run.created_at >= {mark}")
            values.append(self.started_since)
        if self.started_before is not None:
            parts.append(f"run.created_at < {mark}")
            values.append(self.started_before)
        # SQLite's LIKE ignores the case, the server's does not.
        like, among = ("LIKE", _AMONG) if mark == "?" else ("ILIKE", "= ANY(%s)")
        for word in self.words:
            parts.append(f"({_TEXT}) {like} {mark} ESCAPE '!'")
            values.append("%" + _WILD.sub(r"!\g<0>", word) + "%")
            if hits := self.hits.get(word):
                parts[-1] = f"({parts[-1]} OR run.run_id {among})"
                values.append(_ids(hits, mark))
        if self.run_ids is not None:
            parts.append(f"run.run_id {among}")
            values.append(_ids(self.run_ids, mark))
        position, than = f"({ORDERS[self.order_by]}, run.id)", "<" if self.descending else ">"
        if before is not None:
            parts.append(f"{position} {than} ({mark}, {mark})")
            values += before
        elif self.after is not None:
            parts.append(f"{position} {than} (SELECT {position[1:-1]} FROM run WHERE run.run_id = {mark})")
            values.append(self.after)
        return " AND ".join(parts) or "1 = 1", values

    def selected(self, heads: Sequence[RunHead]) -> list[RunHead]:
        """Return the heads that a listing yields, from those of all runs in the order of their creation."""
        key = _VALUES.get(self.order_by)
        ordered = list(heads) if key is None else sorted(heads, key=key)
        if self.descending:
            ordered.reverse()
        if self.after is not None:
            at = next(place for place, head in enumerate(ordered) if head.run_id == self.after)
            ordered = ordered[at + 1 :]
        found = [head for head in ordered if self.fits(head)][self.offset :]
        return found if self.limit is None else found[: self.limit]

    def fits(self, head: RunHead) -> bool:
        """Return whether a head meets the conditions."""
        return (
            all(getattr(head, name) == value for name, value in self.equal.items())
            and self.tags.items() <= head.tags.items()
            and (self.older_than is None or head.updated_at < self.older_than)
            and (self.started_since is None or head.created_at >= self.started_since)
            and (self.started_before is None or head.created_at < self.started_before)
            and (self.run_ids is None or head.run_id in self.run_ids)
            and self._has_words(head)
            and self._waits(head.waiting)
        )

    def _has_words(self, head: RunHead) -> bool:
        """Compare as SQL does: SQLite ignores the case of ASCII letters, the tags are JSON text."""
        if not self.words:
            return True
        text = searched_text(head).lower()
        return all(word.lower() in text or head.run_id in self.hits.get(word, ()) for word in self.words)

    def _waits(self, waiting: str) -> bool:
        if isinstance(self.waiting, bool):
            return bool(waiting) is self.waiting
        return self.waiting is None or self.waiting in waiting.split(", ")

    def count(self, heads: Sequence[RunHead]) -> RunCounts:
        """Return the counts of the heads that meet the conditions."""
        found = [head for head in heads if head.graph != ENGINE and self.fits(head)]
        parked = [head for head in found if head.status == "parked"]
        outcomes = Counter(head.outcome for head in found if head.status == "ended")
        return RunCounts(
            len(found),
            sum(head.status == "open" for head in found),
            len(parked),
            sum(head.waiting != "" for head in parked),
            {outcome: outcomes[outcome] for outcome in OUTCOMES},
        )


def searched_text(head: RunHead) -> str:
    """Return the text of a head in which a search finds its words."""
    tags = orjson.dumps(head.tags).decode()
    return "\n".join(tags if name == "tags" else str(getattr(head, name)) for name in SEARCHED)


def _ids(run_ids: Iterable[str], mark: str) -> object:
    return orjson.dumps([*run_ids]).decode() if mark == "?" else [*run_ids]


_FIRST_CURRENCY, _LAST_CURRENCY = 8, 9
"""Columns of `RunQuery.agents`."""


def have_several_currencies(rows: Iterable[Sequence[Any]]) -> bool:
    """Return whether a row of `RunQuery.agents` has runs of several currencies."""
    return any(row[_FIRST_CURRENCY] != row[_LAST_CURRENCY] for row in rows)


def agents_of_rows(
    rows: Iterable[Sequence[Any]], costs: Iterable[Sequence[Any]] = ()
) -> list[AgentStatistics]:
    """Return the statistics from the rows of `RunQuery.agents`, and of `RunQuery.costs` for several currencies."""
    by_agent: dict[tuple[str, str], list[CurrencyCost]] = {}
    for agent, version, currency, micros, runs in costs:
        by_agent.setdefault((agent, version), []).append(CurrencyCost(str(currency), int(micros), runs))
    return [
        AgentStatistics(
            agent=str(agent),
            version=str(version),
            counts=counted(heads),
            tokens=None if tokens is None else int(tokens),
            counted=counts,
            costs=tuple(
                by_agent.get((agent, version))
                or ([CurrencyCost(str(currency), int(cost), priced)] if priced else ())
            ),
            p50=p50,
            p95=p95,
            first=first,
            last=last,
        )
        for agent, version, tokens, counts, p50, p95, first, last, currency, _, cost, priced, *heads in rows
    ]


def agents_of(
    rows: Iterable[tuple[RunHead, int | None, int | None]], query: RunQuery, *, by_version: bool
) -> list[AgentStatistics]:
    """Return the same from heads, each with the tokens and the cost of the run itself."""
    groups: dict[tuple[str, str], list[tuple[RunHead, int | None, int | None]]] = {}
    for row in rows:
        if row[0].agent:
            groups.setdefault((row[0].agent, row[0].agent_version if by_version else ""), []).append(row)
    found = []
    for (agent, version), members in groups.items():
        heads = [head for head, _, _ in members]
        tokens = [count for _, count, _ in members if count is not None]
        costs: dict[str, list[int]] = {}
        for head, _, cost in members:
            if cost is not None:
                costs.setdefault(head.currency, []).append(cost)
        lasted = sorted(head.updated_at - head.created_at for head in heads if head.status == "ended")
        p50, p95 = (_percentile(lasted, share) if lasted else None for share in (0.5, 0.95))
        found.append(
            AgentStatistics(
                agent,
                version,
                query.count(heads),
                sum(tokens) if tokens else None,
                len(tokens),
                tuple(CurrencyCost(name, sum(each), len(each)) for name, each in sorted(costs.items())),
                p50,
                p95,
                min(head.created_at for head in heads),
                max(head.created_at for head in heads),
            )
        )
    return found


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value at a share of the numbers, between its two neighbours, as the stores compute it."""
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at % 1)


def counted(row: Sequence[int]) -> RunCounts:
    """Return the counts that a row of COUNTS has."""
    total, is_open, parked, waiting, *outcomes = row
    return RunCounts(total, is_open, parked, waiting, dict(zip(OUTCOMES, outcomes, strict=True)))
