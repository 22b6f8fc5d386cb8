"""A listing of the runs of a journal: conditions, order, and pages without the runs that represent engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack

from orchestrator.errors import ConfigError, Corrupt
from orchestrator.kernel.journal import ENGINE, Journal, RunCounts, RunHead

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
    engines: bool = False,
    **conditions: Unpack[RunFilter],
) -> RunPage:
    """Return the runs that meet every condition. With `engines` also the runs that represent engines.

    Raises:
        ConfigError: A condition, the order or the limit is invalid.
        RunUnknown: The journal does not have the run `after`.
        StoreDown: The store is unavailable.
    """
    query = _query(order_by, limit, conditions)
    every = engines or conditions.get("machine") is not None
    found: list[RunHead] = []
    damage = ""
    while True:
        wanted = None if limit is None else limit + 1 - len(found)
        heads, fault = await _heads(journal, {**query, "limit": wanted, "after": after})
        found += [head for head in heads if every or head.graph != ENGINE]
        damage = damage or fault
        if wanted is None or len(heads) < wanted or limit is None or len(found) > limit:
            break
        after = heads[-1].run_id
    return RunPage(found[:limit], limit is not None and len(found) > limit, damage)


async def count_runs(journal: Journal, **conditions: Unpack[RunFilter]) -> RunCounts:
    """Count the runs that meet every condition. Raises ConfigError, StoreDown."""
    query = _query("newest", None, conditions)
    del query["order_by"], query["descending"]
    return await journal.count(**query)


def _query(order_by: str, limit: int | None, conditions: RunFilter) -> dict[str, Any]:
    """Return the conditions for the journal. Raises ConfigError."""
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


async def _heads(journal: Journal, query: dict[str, Any]) -> tuple[list[RunHead], str]:
    """Return the readable runs, and a sentence about damaged ones, which a store reports after the others."""
    found: list[RunHead] = []
    try:
        async for head in journal.runs(**query):
            found.append(head)  # noqa: PERF401 - runs before an error count
    except Corrupt as error:
        return found, str(error)
    return found, ""
