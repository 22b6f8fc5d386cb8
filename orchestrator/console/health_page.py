"""The page of health: engines and their leases, queued and orphaned runs, the oldest question, the size of the journal.

Growth is measured while the console runs: the journal has no history of its size. A check of every record is the work
of `orchestrator doctor`: it keeps its verdict in the journal, and the page shows the last one.
"""

from __future__ import annotations

import time
from typing import Final, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import Console
from orchestrator.engines.engine_directory import EngineInfo, engines
from orchestrator.errors import Corrupt
from orchestrator.runtime.runs.listing import JournalCheck, last_check

_FEW: Final = 20
"""Most runs of a list on the page."""
_OPEN: Final = 1_000
"""Most open runs that are looked at."""
_SHORTEST: Final = 30.0
"""Seconds after which a growth is stated."""


@runtime_checkable
class Sized(Protocol):
    """A journal that occupies a file or tables."""

    async def size(self) -> int:
        """Return the bytes."""
        ...


async def health(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of health."""
    found = await engines(console.runs.journal)
    opened = await console.runs.page(status="open", limit=_OPEN)
    without = [head for head in opened.runs if head.owner is None]
    late = [head for head in opened.runs if head.lease_expires_in is not None]
    waiting = await console.runs.page(order_by="time_in_state", waiting=True, limit=1)
    size, growth = await _size(console)
    # Each process that owns open runs, and their number.
    counted: dict[str, int] = {}
    for head in opened.runs:
        if head.owner is not None:
            counted[head.owner] = counted.get(head.owner, 0) + 1
    return await console.page(
        request,
        actor,
        "health",
        engines=[_described(one) for one in found],
        counts=await console.feed.counts(),
        without=without[:_FEW],
        late=late[:_FEW],
        owned=sorted(counted.items(), key=lambda pair: -pair[1])[:_FEW],
        oldest=next(iter(waiting.runs), None),
        damage=opened.damage,
        check=await _check(console),
        size=size,
        growth=growth,
        numbers={"without": len(without), "late": len(late), "more": opened.more},
    )


async def _check(console: Console) -> JournalCheck | None:
    """Return the last verdict of `doctor`; a damaged one does not count."""
    try:
        return await last_check(console.runs.journal)
    except Corrupt:
        return None


def _described(engine: EngineInfo) -> dict[str, object]:
    about = engine.about
    return {
        "name": engine.name or engine.run_id,
        "run_id": engine.run_id,
        "alive": engine.alive,
        "where": f"{about.get('host', '?')}, process {about.get('pid', '?')}",
        "slots": about.get("slots"),
        "agents": sorted(str(name) for name in about.get("agents") or {}),
        "began": engine.began,
        "left": engine.left,
    }


async def _size(console: Console) -> tuple[int | None, float | None]:
    """Return the bytes of the journal, and their growth in bytes an hour since the first look."""
    journal = console.runs.journal
    if not isinstance(journal, Sized):
        return None, None
    size, now = await journal.size(), time.monotonic()
    first = console.first_size
    if first is None:
        console.first_size = (now, size)
        return size, None
    seconds = now - first[0]
    return size, (size - first[1]) / seconds * 3_600 if seconds >= _SHORTEST else None
