"""The page of runs: a table with filters, orders and counts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from orchestrator.console.access import Actor
from orchestrator.console.display import query, segment
from orchestrator.console.pages import Console, PageFault
from orchestrator.console.status import FILTERS, detail_of, status_of, tiles
from orchestrator.errors import RunError, RunUnknown
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.listing import ORDERS, RunPage

PAGE: Final = 50
ORDER_WORDS: Final[Mapping[str, str]] = {
    "newest": "Newest first",
    "updated": "Last changed first",
    "age": "Oldest first",
    "time_in_state": "Longest in its state",
    "tokens": "Most tokens",
    "cost": "Highest cost",
}
_TEXTS: Final = ("machine", "agent", "state", "reason", "waiting")
_TAG: Final = re.compile(r"([^=]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of a page as its address has them. An unknown one is ignored."""

    show: str = ""
    """Name of a tile."""
    search: str = ""
    """The id of a run, or `tag=value`."""
    texts: Mapping[str, str] = field(default_factory=dict)
    order: str = "newest"
    after: str = ""

    @classmethod
    def of(cls, request: Request) -> Selection:
        """Read the address of a page."""
        given = request.query_params
        return cls(
            given.get("show", "") if given.get("show") in FILTERS else "",
            given.get("q", "").strip(),
            {name: given[name] for name in _TEXTS if given.get(name)},
            given.get("order", "newest") if given.get("order") in ORDERS else "newest",
            given.get("after", ""),
        )

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions of the listing."""
        return {**self.others, **FILTERS.get(self.show, {})}

    @property
    def others(self) -> dict[str, Any]:
        """The conditions without the tile, for the counts."""
        tag = _TAG.fullmatch(self.search)
        tags = {} if tag is None else {"tag": {tag[1].strip(): tag[2].strip()}}
        return {**self.texts, **tags}

    @property
    def run_id(self) -> str:
        """The run that the search names, or ""."""
        return "" if _TAG.fullmatch(self.search) else self.search

    def address(self, **changes: object) -> str:
        """Return the query of the same page with some parts changed; another filter starts at the first page."""
        order = "" if self.order == "newest" else self.order
        parts = {"show": self.show, "q": self.search, **self.texts, "order": order, "after": ""}
        return query({**parts, **changes})


@dataclass(frozen=True, slots=True)
class ListedHead:
    """A run in the table."""

    head: RunHead

    @property
    def status(self) -> Any:
        """Its status."""
        return status_of(self.head)

    @property
    def detail(self) -> str:
        """The detail of its status."""
        return detail_of(self.head)


async def runs(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of runs."""
    chosen = Selection.of(request)
    if chosen.run_id:
        return await _found(console, request, chosen.run_id)
    page = await _listed(console, chosen)
    counts = await (console.feed.counts() if not chosen.others else console.runs.count(**chosen.others))
    names = await console.names()
    return await console.page(
        request,
        actor,
        "runs",
        chosen=chosen,
        rows=[ListedHead(head) for head in page.runs],
        more=page.more,
        damage=page.damage,
        tiles=tiles(counts),
        orders=ORDER_WORDS,
        machines=sorted({machine for machine, _ in names}),
        agents=sorted({agent for _, agent in names if agent}),
        newest=await _newest(console, chosen, page),
    )


async def _listed(console: Console, chosen: Selection) -> RunPage:
    try:
        return await console.runs.page(
            order_by=chosen.order, limit=PAGE, after=chosen.after or None, **chosen.conditions
        )
    except RunUnknown:
        raise PageFault(404, "The run where this page starts is gone. Start from the first page.") from None


async def _newest(console: Console, chosen: Selection, page: RunPage) -> str:
    """Return the newest run that the filters match, to find newer ones later."""
    if chosen.order != "newest" or chosen.after:
        page = await console.runs.page(limit=1, **chosen.conditions)
    return page.runs[0].run_id if page.runs else ""


async def _found(console: Console, request: Request, run_id: str) -> Response:
    """Go to a run. Raises PageFault."""
    try:
        head = await console.runs.head(run_id)
    except RunUnknown:
        raise PageFault(
            404, "No run has this id. A whole id leads to its run, `name=value` lists the runs with a tag."
        ) from None
    return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{segment(head.run_id)}", 303)


async def rows(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the rows that a page shows, as they are now and in the same order, and with new counts."""
    chosen = Selection.of(request)
    shown = request.query_params.getlist("shown")[: 2 * PAGE]
    found = await asyncio.gather(*(_head(console, run_id) for run_id in shown))
    counts = await (console.feed.counts() if not chosen.others else console.runs.count(**chosen.others))
    first = await console.runs.page(limit=PAGE, order_by="newest", **chosen.conditions)
    newest = request.query_params.get("newest", "")
    ids = [head.run_id for head in first.runs]
    fresh = ids.index(newest) if newest in ids else len(ids)
    return console.rendered(
        request,
        actor,
        "rows.html",
        chosen=chosen,
        rows=[ListedHead(head) for head in found if head is not None],
        tiles=tiles(counts),
        fresh=fresh,
        newest=newest,
    )


async def _head(console: Console, run_id: str) -> RunHead | None:
    try:
        return await console.runs.head(run_id)
    except RunError:
        return None
