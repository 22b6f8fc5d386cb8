"""The pages of several runs: a table with filters, a request to those it selects, and two runs side by side.

A request carries the version of each run that the page displayed. A run that is still running has the same version,
even if it has new records. If a run has parked, continued or ended since, the request to it is refused, and the page
names the change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import (
    RUN_FILTERS,
    Console,
    PageFault,
    detail_of,
    money,
    number,
    printable,
    query,
    segment,
    span,
    status_of,
    tiles,
)
from orchestrator.console.search_index import MOST_HITS, FoundRuns, SearchHits
from orchestrator.drawing.stylesheet import StatusStyle
from orchestrator.errors import ConfigError, RunError, RunUnknown
from orchestrator.journal.run_query import LONGEST_SEARCH, MOST_WORDS, RunQuery
from orchestrator.kernel.journal import RunCounts, RunHead
from orchestrator.kernel.outcome import REASONS as ENDINGS
from orchestrator.runtime.runs.listing import ORDERS
from orchestrator.runtime.runs.outline import RunOutline, read_outlines
from orchestrator.runtime.runs.result import Divergence, RunPair
from orchestrator.runtime.runs.runs import RunRequest, Runs

_LOG: Final = logging.getLogger("orchestrator.console")
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
WINDOWS: Final[Mapping[str, tuple[str, float]]] = {
    "1h": ("Last hour", 3_600.0),
    "24h": ("24 hours", 86_400.0),
    "7d": ("7 days", 604_800.0),
    "30d": ("30 days", 2_592_000.0),
}
"""Name of a window -> its words and its seconds."""
_DAY: Final = 86_400.0
_KEPT: Final = ("window", "from", "to", "machine", "state", "reason", "waiting")
REASONS: Final = tuple(sorted(set().union(*ENDINGS.values()) - {"none"}))
_TAG: Final = re.compile(r"([^=]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of a page as its address has them. An unknown one is ignored."""

    show: str = ""
    """Name of a tile."""
    search: str = ""
    """Words that a run has, or `tag=value`."""
    window: str = ""
    """Name of a time before now in which the runs started."""
    days: Mapping[str, str] = field(default_factory=dict)
    """`from` and `to`: the first and the last day on which the runs started, in UTC."""
    texts: Mapping[str, str] = field(default_factory=dict)
    order: str = "newest"
    after: str = ""
    content: str = ""
    """`shown` if the person asked for the tasks of the runs."""

    hits: SearchHits | None = None
    """Runs that have the words in their texts; None without words. It is no part of the address."""

    @classmethod
    def of(cls, request: Request) -> Selection:
        """Read the address of a page."""
        given = request.query_params
        return cls(
            given.get("show", "") if given.get("show") in RUN_FILTERS else "",
            printable(given.get("q", ""))[:LONGEST_SEARCH],
            given.get("window", "") if given.get("window") in WINDOWS else "",
            {name: given[name] for name in ("from", "to") if _day(given.get(name, "")) is not None},
            {name: text for name in _TEXTS if (text := printable(given.get(name, "")))},
            given.get("order", "newest") if given.get("order") in ORDERS else "newest",
            given.get("after", ""),
            "shown" if given.get("content") == "shown" else "",
        )

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions of the listing."""
        return {**self.others, **RUN_FILTERS.get(self.show, {})}

    @property
    def others(self) -> dict[str, Any]:
        """The conditions without the tile, for the counts."""
        tag = _TAG.fullmatch(self.search)
        found: dict[str, Any] = {} if tag is None else {"tag": {tag[1].strip(): tag[2].strip()}}
        if self.hits is not None:
            found.update(self.hits.conditions)
        elif self.words:
            found["search"] = " ".join(self.words)
        first, last = (_day(self.days.get(name, "")) for name in ("from", "to"))
        if self.window:
            first = max(first or 0.0, time.time() - WINDOWS[self.window][1])
        if first is not None:
            found["started_since"] = first
        if last is not None:
            found["started_before"] = last + _DAY
        return {**self.texts, **found}

    @property
    def hidden(self) -> dict[str, str]:
        """The parts of the address that a form of other filters keeps."""
        return {name: value for name, value in self._parts.items() if value and name in _KEPT}

    @property
    def words(self) -> list[str]:
        """The words to search for."""
        return [] if _TAG.fullmatch(self.search) else self.search.replace("\0", " ").split()[:MOST_WORDS]

    @property
    def run_id(self) -> str:
        """The run that the search may name whole, or ""."""
        return "" if _TAG.fullmatch(self.search) else self.search

    @property
    def _parts(self) -> dict[str, str]:
        return {"show": self.show, "q": self.search, "window": self.window, **self.days, **self.texts}

    def address(self, **changes: object) -> str:
        """Return the query of the same page with some parts changed; another filter starts at the first page."""
        order = "" if self.order == "newest" else self.order
        return query({**self._parts, "order": order, "after": "", "content": self.content, **changes})

    def column(self, *orders: str) -> tuple[str, str]:
        """Return the query of the page sorted by a column, and the column's `aria-sort`.

        Args:
            orders: Names of the column's orders; a second click takes the second.
        """
        at = orders.index(self.order) if self.order in orders else -1
        following = orders[(at + 1) % len(orders)]
        changed = self.address(order="" if following == "newest" else following) or "?"
        if at < 0:
            return changed, "none"
        return changed, "ascending" if self.order in {"age", "time_in_state"} else "descending"


def _day(text: str) -> float | None:
    """Return the start of a day (epoch seconds), or None for a text that is none."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class ListedHead:
    """A run in the table."""

    head: RunHead
    outline: RunOutline = field(default_factory=RunOutline)

    @property
    def status(self) -> Any:
        """Its status."""
        return status_of(self.head)

    @property
    def detail(self) -> str:
        """The detail of its status: of a failed run its error."""
        failure = self.outline.failure
        return detail_of(self.head) if failure is None else failure.what


async def selection(console: Console, request: Request, actor: Actor, *, ids: bool = True) -> Selection:
    """Read the address of a page, and the runs that have the words of its search in their texts. Raises StoreDown.

    Without `ids`, `listing_of` has these runs, and the conditions do not choose them.
    """
    chosen = Selection.of(request)
    if not chosen.words:
        return chosen
    content = console.content != "never" and actor.may_read_content
    if content:
        _LOG.info("console: contents of runs were searched for %s", actor.name)
    return replace(chosen, hits=await console.index.find(chosen.words, content=content, ids=ids))


def listing_of(console: Console, chosen: Selection) -> Runs | FoundRuns:
    """Return what lists and counts the runs of a page: the index if it has the words of every run."""
    return (chosen.hits and chosen.hits.listing) or console.runs


async def _counts(console: Console, chosen: Selection) -> RunCounts:
    """Return the counts of the tiles. Those of other filters are kept while the journal does not change."""
    if chosen.hits is not None:
        return await listing_of(console, chosen).count(**chosen.others)
    return await console.feed.counts(**chosen.others)


async def _listed(
    console: Console, request: Request, actor: Actor, heads: Sequence[RunHead]
) -> dict[str, Any]:
    """Return the rows of a table, and whether they show content."""
    content = console.may_read(request, actor)
    if content:
        _LOG.info("console: tasks of %d runs were shown to %s", len(heads), actor.name)
    outlines = await read_outlines(console.runs.journal, heads)
    return {"rows": [ListedHead(head, outlines[head.run_id]) for head in heads], "content": content}


async def runs(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of runs."""
    chosen = await selection(console, request, actor, ids=False)
    listing = listing_of(console, chosen)
    if chosen.run_id:
        with contextlib.suppress(RunUnknown):  # then it is a text to search for
            head = await console.runs.head(chosen.run_id)
            return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{segment(head.run_id)}", 303)
    try:
        page = await listing.page(
            order_by=chosen.order, limit=PAGE, after=chosen.after or None, **chosen.conditions
        )
    except RunUnknown:
        raise PageFault(404, "The run where this page starts is gone. Start from the first page.") from None
    if not chosen.others or page.more or chosen.after or chosen.show or page.damage:
        counts = await _counts(console, chosen)
    else:  # the page has every run that is counted
        counts = RunQuery().count(page.runs)
    names = await console.names()
    newest = page  # the newest run that the filters match, to find newer ones later
    if chosen.order != "newest" or chosen.after:
        newest = await listing.page(limit=1, **chosen.conditions)
    return await console.page(
        request,
        actor,
        "runs",
        chosen=chosen,
        **await _listed(console, request, actor, page.runs),
        asks=console.may_ask(actor),
        more=page.more,
        damage=page.damage,
        tiles=tiles(counts),
        orders=ORDER_WORDS,
        windows=WINDOWS,
        searches_content=console.content != "never" and actor.may_read_content,
        most_hits=MOST_HITS,
        is_cut=isinstance(listing, FoundRuns) and counts.total >= MOST_HITS,
        reasons=REASONS,
        machines=sorted({machine for machine, _ in names}),
        agents=sorted({agent for _, agent in names if agent}),
        newest=newest.runs[0].run_id if newest.runs else "",
    )


async def rows(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the rows that a page shows, as they are now and in the same order, and with new counts."""
    chosen = await selection(console, request, actor, ids=False)
    listing = listing_of(console, chosen)
    shown = request.query_params.getlist("shown")[: 2 * PAGE]
    found = await asyncio.gather(*(_head(console, run_id) for run_id in shown))
    counts = await _counts(console, chosen)
    first = await listing.page(limit=PAGE, order_by="newest", **chosen.conditions)
    newest = request.query_params.get("newest", "")
    ids = [head.run_id for head in first.runs]
    fresh = ids.index(newest) if newest in ids else len(ids)
    return console.rendered(
        request,
        actor,
        "rows.html",
        chosen=chosen,
        **await _listed(console, request, actor, [head for head in found if head is not None]),
        tiles=tiles(counts),
        fresh=fresh,
        newest=newest,
    )


async def _head(console: Console, run_id: str) -> RunHead | None:
    try:
        return await console.runs.head(run_id)
    except RunError:
        return None


MOST: Final = 1_000
"""Most runs of a request to several."""
KINDS: Final[Mapping[str, str]] = {"cancel": "Cancel", "pause": "Pause", "resume": "Resume"}
STALE: Final = "not asked: since this page was shown, the run has changed from {} to {}"


def version_of(head: RunHead) -> str:
    """Return the version of a run that a page displays.

    A run that works has one version until it parks or ends; a parked one has the number of its last record.
    """
    return "open" if head.status == "open" else f"{head.status} {head.seq}"


async def preview(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the runs that a request would reach, before it is posted. Raises PageFault."""
    kind = request.query_params.get("kind", "")
    if kind not in KINDS or not actor.may_operate:
        raise PageFault(400, "Choose cancel, pause or resume, in a console that was started with --operate.")
    run_ids = request.query_params.getlist("run")
    if run_ids:
        found = [await console.runs.head(run_id) for run_id in run_ids[:MOST]]
    else:
        found = await _matching(console, kind, await selection(console, request, actor))
    # The runs that a request reaches, and those that it skips.

    def takes(head: RunHead) -> bool:
        return head.status == "parked" if kind == "resume" else head.status != "ended"

    reached, skipped = (
        [ListedHead(head) for head in found if takes(head)],
        [ListedHead(head) for head in found if not takes(head)],
    )
    return await _page(console, request, actor, kind, reached=reached, skipped=skipped)


async def post(console: Console, request: Request, actor: Actor, form: Mapping[str, list[str]]) -> Response:
    """Post a request to runs as they were displayed, and answer with the result of each. Raises PageFault."""
    kind = (form.get("kind") or [""])[0]
    run_ids, versions = form.get("run") or [], form.get("version") or []
    if kind not in KINDS or not run_ids:
        raise PageFault(400, "No run was selected.")
    if len(versions) != len(run_ids):
        raise PageFault(400, "The form does not have the displayed version of each run. Open the page again.")
    why = (form.get("why") or [""])[0].strip()
    displayed = list(zip(run_ids, versions, strict=True))[:MOST]
    done = [await _request(console, kind, *one, actor, why) for one in displayed]
    return await _page(console, request, actor, kind, done=done)


async def _page(console: Console, request: Request, actor: Actor, kind: str, **values: Any) -> Response:
    shown = {"reached": (), "skipped": (), "done": None} | values
    return await console.page(
        request, actor, "several", kind=kind, word=KINDS[kind], version_of=version_of, **shown
    )


async def _matching(console: Console, kind: str, chosen: Selection) -> list[RunHead]:
    if not chosen.conditions:
        raise PageFault(400, "Select runs, or choose a filter first.")
    found: list[RunRequest] = await _posters(console)[kind](preview=True, **chosen.conditions)
    if len(found) > MOST:
        raise PageFault(400, f"{len(found):,} runs match; choose a filter that at most {MOST:,} runs match.")
    return [one.run for one in found]


def _posters(console: Console) -> dict[str, Any]:
    runs = console.runs
    return {"cancel": runs.cancel, "pause": runs.pause, "resume": runs.request_resume}


async def _request(  # noqa: PLR0917 - the parts of one request
    console: Console, kind: str, run_id: str, version: str, actor: Actor, why: str
) -> tuple[str, str]:
    """Post a request to a run; return its id and the result."""
    try:
        head = await console.runs.head(run_id)
        if version_of(head) != version:
            # A displayed version in words; it comes from a form.
            status, _, number = version.partition(" ")
            word = {"open": "running", "parked": "parked", "ended": "ended"}.get(status, "unknown")
            described = f"{word}, record {number}" if number.isdecimal() else word
            # The present status of a run in words.
            detail = detail_of(head)
            where = "" if head.status == "open" else f", record {head.seq}"
            return run_id, STALE.format(
                described, f"{status_of(head).word.lower()}{f' ({detail})' if detail else ''}{where}"
            )
        [posted] = await _posters(console)[kind](run_id, by=actor.name, why=why)
    except ConfigError:
        raise
    except RunError as error:
        return run_id, str(error)
    if posted.refused:
        return run_id, posted.refused
    return run_id, "was asked before, and has not read it yet" if posted.repeated else "was asked"


_BEFORE, _AFTER = 3, 8
"""Transitions that are shown before the divergence, and from it on."""
_LONGEST: Final = 20_000


class NumberRow(NamedTuple):
    """A number of both runs, as text and as percents of the greater one."""

    name: str
    unit: str
    texts: tuple[str, str]
    shares: tuple[float, float]


class OutputText(NamedTuple):
    """The output of a run as text."""

    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class PairView:
    """Two runs on the page."""

    pair: RunPair
    heads: Sequence[RunHead]

    @property
    def statuses(self) -> list[tuple[StatusStyle, str]]:
        """The status of each run, with its detail."""
        return [(status_of(head), detail_of(head)) for head in self.heads]

    @property
    def rows(self) -> list[NumberRow]:
        """The numbers of both runs."""
        found = []
        for name, unit, first, second, currencies in self.pair.rows():
            most = max(first or 0.0, second or 0.0) or 1.0
            texts = (_text(unit, first, currencies[0]), _text(unit, second, currencies[1]))
            found.append(
                NumberRow(name, unit, texts, (100 * (first or 0) / most, 100 * (second or 0) / most))
            )
        return found

    @property
    def transitions(self) -> list[Divergence]:
        """The transitions around the divergence; the last ones of runs without one."""
        return list(self.pair.aligned(_BEFORE, _AFTER))

    @property
    def outputs(self) -> list[OutputText]:
        """The output of each run."""
        found = []
        for output in (self.pair.first.output, self.pair.second.output):
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
            text = "" if output is None else text
            found.append(OutputText(text[:_LONGEST], is_cut=len(text) > _LONGEST))
        return found


def _text(unit: str, value: float | None, currency: str) -> str:
    if unit == "cost":
        return money(None if value is None else round(value * 1e6), currency)
    return span(value) if unit == "seconds" else number(value)


async def compare(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with two runs side by side, or with the form that asks for them. Raises Corrupt, StoreDown."""
    given = [text for text in map(printable, request.query_params.getlist("run")) if text]
    heads: dict[str, RunHead] = {}
    faults = ["", ""]  # of each field: a sentence about a run that the journal does not have
    for place, run_id in enumerate(given[:2]):
        try:
            heads[run_id] = await console.runs.head(run_id)
        except RunUnknown as error:
            faults[place] = str(error)
    view: PairView | None = None
    content = False
    if len(given) == 2 and not any(faults):  # noqa: PLR2004
        pair = await console.runs.compare(*given)
        view = PairView(pair, [heads[run.run_id] for run in (pair.first, pair.second)])
        content = console.may_read(request, actor)
        if content:
            _LOG.info("console: outputs of runs %s and %s were shown to %s", *given, actor.name)
    return await console.page(
        request,
        actor,
        "compare",
        given=[*given, "", ""][:2],
        count=len(given),
        faults=faults,
        view=view,
        content=content,
        asks=console.may_ask(actor),
    )
