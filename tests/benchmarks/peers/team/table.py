"""The table of README.md, from the programs and the results: `make accept` writes it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from tests.benchmarks.peers.ergonomics.measure import Count, count
from tests.benchmarks.peers.ergonomics.run import LIBRARIES
from tests.benchmarks.peers.team.run import PROGRAMS, results
from tests.benchmarks.peers.team.trial import PLACES, RESUMED
from tests.benchmarks.quiet import MOST_MEANWHILE

Observed = Mapping[str, Any]

_FIGURES: tuple[tuple[str, Callable[[Count], int]], ...] = (
    ("lines", lambda one: one.lines),
    ("statements", lambda one: one.statements),
    ("concepts", lambda one: one.concepts),
    ("imported names", lambda one: len(one.names)),
    ("statements that store the state of a run", lambda one: one.storing),
)
_HOLDS: tuple[tuple[str, Callable[[Observed], bool]], ...] = (
    ("no answer of the model is lost", lambda found: not found["lost"] and not found["asked again"]),
    ("no lookup that had returned runs again", lambda found: not found["looked up again"]),
    ("the refund is paid once", lambda found: found["paid"] == 1),
    ("the customer reads the answer", lambda found: not found["lost"]),
    ("the next message reaches refunds", lambda found: found["next"] == "refunds"),
)
"""What is to hold after a kill, in each place."""


def table() -> str:
    """Return the figures of each program, and what was observed after it was killed in each place."""
    found = results()
    programs = [found["programs"][one.name] for one in LIBRARIES]
    counts = [count(PROGRAMS / f"{one.name}.py") for one in LIBRARIES]
    rows = [["", *(one.title for one in LIBRARIES)], ["-"] * (len(LIBRARIES) + 1)]
    rows += [[title, *(str(figure(one)) for one in counts)] for title, figure in _FIGURES]
    rows += [[f"killed: {place}", *(words(one["killed"][place]) for one in programs)] for place in PLACES]
    rows += [[title, *(_held(one["killed"], holds) for one in programs)] for title, holds in _HOLDS]
    rows.append(["µs of CPU", *(f"{statistics.median(one['cpu_us']):,.0f}" for one in programs)])
    rows.append(["version", *(", ".join(one["versions"].values()) for one in programs)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + _load(found["busy_cores"])


def words(found: Observed) -> str:
    """Return what was observed after a kill in one place."""
    if found["lost"]:
        return f"lost: {found['lost']}"
    told = [
        f"asked the model {found['asked again']} × again" if found["asked again"] else "",
        f"looked {found['looked up again']} × up again" if found["looked up again"] else "",
        f"paid {found['paid']} times" if found["paid"] != 1 else "",
        f"next message to {found['next']}" if found["next"] != "refunds" else "",
    ]
    return ", ".join(filter(None, told)) or (f"{RESUMED}, asks a person" if found["told"] else RESUMED)


def _held(killed: Mapping[str, Observed], holds: Callable[[Observed], bool]) -> str:
    broken = [place for place in PLACES if not holds(killed[place])]
    return f"not: {', '.join(broken)}" if broken else "yes"


def _load(busy: float) -> str:
    if busy <= MOST_MEANWHILE:
        return ""
    return f"\nThe machine was not quiet: other processes used {busy} cores while the processor time was taken.\n"
