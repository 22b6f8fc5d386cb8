"""Shared parts of all pages: values as text and markup, the console, its templates, and the frame around a page.

All text of a run passes `visible`. Jinja escapes markup; `visible` also makes control characters, bidirectional marks
and characters without a width visible, so that a call cannot look like another one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from orchestrator.console.access import Access, Actor, session_of
from orchestrator.console.feed import Feed, MachineReader
from orchestrator.console.search_index import SearchIndex
from orchestrator.drawing.stylesheet import STATUSES, StatusStyle
from orchestrator.errors import RunError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import AgentStatistics, RunCounts, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.runtime.runs.listing import RunFilter, short_id, status_name
from orchestrator.runtime.runs.runs import Runs
from orchestrator.telemetry.escape import KEPT
from orchestrator.telemetry.escape import escape as visible_escapes
from orchestrator.version import __version__

if TYPE_CHECKING:
    from orchestrator.engines.local_engine import LocalEngine

# ---- values as text and markup ----

OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)


def status_of(head: RunHead) -> StatusStyle:
    """Return the status of a run."""
    return STATUSES[status_name(head)]


def detail_of(head: RunHead) -> str:
    """Return the detail of a status: its reason, or the tools that the run waits for."""
    if head.waiting:
        return head.waiting
    return "" if head.reason in {"", "none"} else head.reason.replace("_", " ")


RUN_FILTERS: Final[Mapping[str, Mapping[str, object]]] = {
    "open": {"status": "open"},
    "waiting": {"status": "parked", "waiting": True},
    "parked": {"status": "parked", "waiting": False},
    **{outcome: {"status": "ended", "outcome": outcome} for outcome in OUTCOMES},
}
"""Tile of the page of runs -> its conditions."""


def tag_condition(text: str) -> RunFilter:
    """Return the condition of a tag, `name=value`; none for a text that is no tag."""
    name, equals, value = text.partition("=")
    return {"tag": {name.strip(): value.strip()}} if name.strip() and equals else {}


class Tile(NamedTuple):
    """A count on the page of runs, which selects those runs."""

    name: str
    amount: int
    status: StatusStyle | None


def tiles(counts: RunCounts) -> list[Tile]:
    """Return the tiles of a count. Outcomes that no run has are left out, except the common ones."""
    always = {"completed", "failed"}
    found = [
        Tile("", counts.total, None),
        Tile("open", counts.open, STATUSES["running"]._replace(word="Open")),
        Tile("waiting", counts.waiting, STATUSES["waiting"]),
        Tile("parked", counts.parked - counts.waiting, STATUSES["paused"]),
    ]
    return found + [
        Tile(outcome, counts.outcomes.get(outcome, 0), STATUSES[outcome])
        for outcome in OUTCOMES
        if outcome in always or counts.outcomes.get(outcome, 0)
    ]


_KILO: Final = 1_024
_UNITS: Final = (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0))
_MINUTE: Final = 60.0
_CENT, _HUNDRED = 10_000, 100_000_000
"""Amounts, in millionths, below which a cost has six digits after the point, and from which it has two."""


def visible(text: object, most: int = 0) -> str:
    """Return text with invisible characters as escapes; with `most`, cut at so many characters."""
    whole = str(text)
    if most and len(whole) > most:
        return f"{visible_escapes(whole[:most], KEPT)}…"
    return visible_escapes(whole, KEPT)


def printable(text: str) -> str:
    """Return a text of an address as a field shows it again: without invisible characters and outer blanks."""
    return "".join(one for one in text if one.isprintable()).strip()


def line(text: object, most: int = 0) -> str:
    """Return `visible` text as one line: line breaks are escapes too."""
    whole = str(text)
    cut = f"{whole[:most]}…" if most and len(whole) > most else whole
    return visible_escapes(cut, "")


def span(seconds: float | None) -> str:
    """Return a length of time with a suitable precision; an en dash for an unknown one."""
    if seconds is None:
        return "–"
    seconds = max(seconds, 0.0)
    if seconds < 0.001:  # noqa: PLR2004
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    first = next(place for place, (_, size) in enumerate(_UNITS) if seconds >= size)
    unit, size = _UNITS[first]
    below, part = _UNITS[first + 1]
    count, rest = divmod(round(seconds / part), round(size / part))
    return f"{count} {unit} {rest} {below}" if rest else f"{count} {unit}"


def ago(seconds: float) -> str:
    """Return how long ago a moment was, in its largest unit."""
    if seconds < 1:
        return "now"
    unit, size = next(pair for pair in _UNITS if seconds >= pair[1])
    return f"{seconds / size:.0f} {unit} ago"


def moment(at: float | None) -> Markup:
    """Return a point in time (epoch seconds) as an element that shows it in UTC, and locally with JavaScript."""
    if at is None:
        return Markup("–")
    try:
        when = datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return Markup("–")
    full = when.isoformat(timespec="milliseconds")
    text = when.strftime("%d %b %H:%M:%S UTC")
    return Markup(f'<time datetime="{full}" title="{full}" data-time>{text}</time>')  # noqa: S704 - digits and words of ours


def since(at: float | None, now: float) -> Markup:
    """Return how long ago a moment was; its title has the exact time."""
    if at is None:
        return Markup("–")
    try:
        full = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return Markup("–")
    return Markup(f'<time datetime="{full}" title="{full}" data-ago>{ago(now - at)}</time>')  # noqa: S704 - likewise


def number(count: float | None) -> str:
    """Return a number with thousands separators; an en dash for an unknown one."""
    return "–" if count is None else f"{count:,}"


def size(count: float) -> str:
    """Return a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _KILO:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KILO
    return f"{count:.1f} TiB"


def money(micros: int | None, currency: str = "") -> str:
    """Return an amount in millionths of the currency, with its name; an en dash for an unknown amount.

    Small amounts keep their digits: the cost of a cheap run is never shown as zero.
    """
    if micros is None:
        return "–"
    digits = 6 if 0 < abs(micros) < _CENT else 4 if abs(micros) < _HUNDRED else 2
    text = f"{micros / 1e6:,.{digits}f}"
    return f"{text} {currency}" if currency else text


def costs(each: Mapping[str, int]) -> str:
    """Return an amount for each currency, which are never summed; an en dash for none. "" is an unknown currency."""
    several = len(each) > 1
    found = [
        money(each[name], name or ("of an unknown currency" if several else "")) for name in sorted(each)
    ]
    return " + ".join(found) or "–"


def percent(share: float) -> str:
    """Return a share, 0 to 1."""
    if 0 < share < 0.001:  # noqa: PLR2004
        return "< 0.1%"
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"  # noqa: PLR2004


def many(count: int, what: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def grouped(digest: str) -> str:
    """Return a digest in groups of eight characters, so that a person can compare it."""
    return " ".join(digest[at : at + 8] for at in range(0, len(digest), 8))


def pretty(text: str) -> str:
    """Return JSON text with indentation, its keys in their order and its numbers as they are written.

    Nothing is left out: numbers keep their digits, and a name that occurs twice is shown twice. Text that is no JSON
    is returned as it is.
    """
    try:
        found = json.loads(
            text, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
    except (ValueError, RecursionError):
        return visible(text)
    return visible(_written(found, ""))


class _Number(str):
    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    __slots__ = ()


def _written(value: Any, indent: str) -> str:
    inner = f"{indent}  "
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, _Pairs | list) and value:
        named = isinstance(value, _Pairs)
        parts = [
            f"{inner}{_text(one[0])}: {_written(one[1], inner)}"
            if named
            else f"{inner}{_written(one, inner)}"
            for one in value
        ]
        opened, closed = "{}" if named else "[]"
        inside = ",\n".join(parts)
        return f"{opened}\n{inside}\n{indent}{closed}"
    if isinstance(value, _Pairs):
        return "{}"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def diff(text: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff, visible, each with its class: `add`, `del`, `at`, `name` or ""."""
    found, inside = [], False
    for one in text.split("\n")[: -1 if text.endswith("\n") else None]:
        inside = inside or one.startswith("@@")
        mark = {"+": "add", "-": "del", "@": "at"}.get(one[:1], "") if inside else "name"
        found.append((mark, line(one.removesuffix("\r"))))
    return found


@cache
def shape(status: StatusStyle) -> Markup:
    """Return the shape of a status as SVG."""
    body = Markup(status.shape)  # noqa: S704 - a constant of the table
    return Markup('<svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">{}</svg>').format(body)


def segment(text: str) -> str:
    """Return text as a part of a path."""
    return quote(text, safe=":")


def query(parts: Mapping[str, object]) -> str:
    """Return parts of a query that have a value, with their question mark."""
    kept = {name: value for name, value in parts.items() if value is not None and value != ""}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


FILTERS: Final = {
    function.__name__: function
    for function in (
        *(
            visible,
            line,
            span,
            moment,
            since,
            number,
            size,
            money,
            costs,
            percent,
            many,
            grouped,
            pretty,
            diff,
        ),
        *(shape, segment, status_of, short_id),
    )
}
"""The filters of the templates."""


T = TypeVar("T")

# ---- the console and its frame ----

ContentRule = Literal["never", "ask", "always"]
PAGES: Final = (
    *(("runs", "Runs", "/"), ("inbox", "Inbox", "/inbox")),
    *(("agents", "Agents", "/agents"), ("machines", "Machines", "/machines")),
    ("health", "Health", "/health"),
    ("backtest", "Backtest", "/backtest"),
)
"""Name, word and path of each page in the navigation."""
ENTRIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("run", "records", "several", "compare", "start"), "runs"),
    "answers": "inbox",
    "agent": "agents",
}
"""Other page -> the entry of the navigation that it belongs to."""
KEYS: Final = (
    *(("j k", "next and previous run or question"), ("Enter", "open it"), ("x", "select it")),
    *(("/", "search"), ("g r", "runs"), ("g i", "inbox"), ("g a", "agents")),
    *(("g m", "machines"), ("g h", "health")),
    *(("g b", "backtest"), ("g c", "compare"), ("?", "these keys"), ("Esc", "leave a field")),
)
"""Keys of the pages and their effects. `static/console.js` has the same."""
_READERS: Final = 8
"""Most readers that are kept: an address chooses the tag."""
_NAMES_LAST: Final = 30.0
"""Seconds for which the names of machines and agents are kept: they are read from every run."""


@cache
def environment() -> Environment:
    """Return the templates, which every console of the process shares, because each is compiled at its first use.

    Everything is escaped, and a missing value is an error.
    """
    made = Environment(
        loader=PackageLoader("orchestrator.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals.update(query=query, statuses=STATUSES, keys=KEYS)
    return made


LOOKS: Final = 30.0
"""Seconds for which a person looks at a question after a request of its page: an open page asks every 10 s."""


@dataclass(slots=True)
class Viewers:
    """Who looks at the questions of which run, in this process."""

    _seen: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    """Run and session -> name of the person, and time of the last request."""

    def look(self, run_id: str, session: str, name: str) -> None:
        """Record a request."""
        now = time.monotonic()
        self._seen = {key: seen for key, seen in self._seen.items() if now - seen[1] < LOOKS}
        self._seen[run_id, session] = (name, now)

    def others(self, run_id: str, session: str) -> list[str]:
        """Return the names of the people of other sessions who look at the questions of a run."""
        now = time.monotonic()
        names = {
            name
            for (seen_run, seen_session), (name, at) in self._seen.items()
            if seen_run == run_id and seen_session != session and now - at < LOOKS
        }
        return sorted(names)


@dataclass(slots=True)
class Console:
    """The parts that every page uses."""

    runs: Runs
    access: Access
    graphs: Mapping[str, Graph]
    content: ContentRule
    """Whether messages, arguments and results are shown: never, on request, or always."""
    title: str
    """The journal, as the header names it, without a password."""
    feed: Feed
    engine: LocalEngine[Any] | None = None
    """Of the host, which starts runs directly."""
    templates: Environment = field(default_factory=environment)
    viewers: Viewers = field(default_factory=Viewers)
    readers: dict[tuple[str, str, str], MachineReader] = field(default_factory=dict)
    """`machine` or `agent`, its name, a tag -> the reader of these runs: the last _READERS that were used."""
    statistics: dict[tuple[str, str, str, bool], tuple[str, Sequence[AgentStatistics]]] = field(
        default_factory=dict
    )
    """What the pages of agents showed last -> version of the journal, and the statistics."""
    index: SearchIndex = field(init=False)
    backtests: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))
    """One backtest runs at a time, because each keeps a processor busy."""
    first_size: tuple[float, int] | None = None
    """Time and size at the first look at the journal's size."""
    _names: tuple[float, list[tuple[str, str]]] | None = None

    def __post_init__(self) -> None:
        self.index = SearchIndex(self.runs)

    async def names(self) -> list[tuple[str, str]]:
        """Return the pairs of machine and agent in the journal, at most _NAMES_LAST seconds old."""
        now = time.monotonic()
        if self._names is None or now - self._names[0] > _NAMES_LAST:
            self._names = (now, await self.runs.names())
        return self._names[1]

    def reader(self, kind: Literal["machine", "agent"], name: str, tag: str) -> MachineReader:
        """Return the reader of the runs of a machine or an agent that have a tag (`name=value`, or "")."""
        key = (kind, name, tag)
        reader = self.readers.pop(key, None)
        if reader is None:
            own: RunFilter = {"machine": name} if kind == "machine" else {"agent": name}
            reader = MachineReader(self.runs, name, {**own, **tag_condition(tag)})
            for old in [*self.readers][: len(self.readers) - _READERS + 1]:
                del self.readers[old]
        self.readers[key] = reader
        return reader

    def may_read(self, request: Request, actor: Actor) -> bool:
        """Return whether the content of a run is shown in this answer."""
        if self.content == "never" or not actor.may_read_content:
            return False
        return self.content == "always" or request.query_params.get("content") == "shown"

    def may_ask(self, actor: Actor) -> bool:
        """Return whether the actor may ask for content."""
        return self.content == "ask" and actor.may_read_content

    async def page(
        self, request: Request, actor: Actor, name: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page in its frame."""
        counts = await self.feed.counts()
        return self.rendered(
            request,
            actor,
            f"{name}.html",
            status,
            pages=PAGES,
            page=name,
            entry=ENTRIES.get(name, name),
            waiting=counts.waiting,
            version=self.feed.seen,
            **values,
        )

    def rendered(
        self, request: Request, actor: Actor | None, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a template as an answer."""
        text = self.templates.get_template(template).render(
            base=request.scope.get("root_path", ""),
            asset=__version__,
            actor=actor,
            form_token=self.access.form_token(session_of(request), actor),
            journal=self.title,
            signs_out=self.access.hook is None and actor is not None,
            now=time.time(),
            **values,
        )
        return HTMLResponse(text, status)


class PageFault(Exception):
    """A request that has no page: its sentence is shown.

    Args:
        status: The status of the answer.
        text: The problem and the next step.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work, which is cancelled when the client leaves. Raises PageFault then."""
    working, leaving = asyncio.ensure_future(work), asyncio.create_task(_leaves(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise PageFault(_CLIENT_LEFT, "The browser left before the answer.")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _leaves(request: Request) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


_CLIENT_LEFT: Final = 499
"""Status of an answer to a client that left, as proxies log it."""

FAULTS: Final = (RunError, PageFault)
