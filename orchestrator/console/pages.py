"""Shared parts of all pages: the console, its templates, and the frame around a page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from orchestrator.console.access import Access, Actor, session_of
from orchestrator.console.display import FILTERS, query
from orchestrator.console.feed import Feed, MachineReader
from orchestrator.drawing.stylesheet import STATUSES
from orchestrator.errors import RunError
from orchestrator.kernel.graph import Graph
from orchestrator.runtime.runs.runs import Runs
from orchestrator.version import __version__

T = TypeVar("T")

ContentRule = Literal["never", "ask", "always"]
PAGES: Final = (
    *(("runs", "Runs", "/"), ("inbox", "Inbox", "/inbox")),
    *(("machines", "Machines", "/machines"), ("health", "Health", "/health")),
    ("backtest", "Backtest", "/backtest"),
)
"""Name, word and path of each page in the navigation."""
_NAMES_LAST: Final = 30.0
"""Seconds for which the names of machines and agents are kept: they are read from every run."""


def environment() -> Environment:
    """Return the templates: everything is escaped, and a missing value is an error."""
    made = Environment(
        loader=PackageLoader("orchestrator.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals.update(query=query, statuses=STATUSES)
    return made


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
    templates: Environment = field(default_factory=environment)
    machines: dict[str, MachineReader] = field(default_factory=dict)
    """Machine -> the reader of its runs."""
    backtests: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))
    """One backtest runs at a time, because each keeps a processor busy."""
    first_size: tuple[float, int] | None = None
    """Time and size at the first look at the journal's size."""
    _names: tuple[float, list[tuple[str, str]]] | None = None

    async def names(self) -> list[tuple[str, str]]:
        """Return the pairs of machine and agent in the journal, at most _NAMES_LAST seconds old."""
        now = time.monotonic()
        if self._names is None or now - self._names[0] > _NAMES_LAST:
            self._names = (now, await self.runs.names())
        return self._names[1]

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
