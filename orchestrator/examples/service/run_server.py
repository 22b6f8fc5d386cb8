"""The journal, the agent and the engine of one worker process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from starlette.routing import Route

from orchestrator import Agent, LocalEngine
from orchestrator.engines.run_queue import Handle
from orchestrator.errors import ConfigError, NotAdmitting, OtherAgent, Overloaded, RunError, RunExists
from orchestrator.events import Observer, RunEvent, RunSuspended
from orchestrator.examples.service.schema import Accepted, StartRequest
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.runtime.service.arguments import check_if_exists
from orchestrator.settings import Settings
from orchestrator.telemetry import Metrics, TransitionLog, Watchdog, asgi_app
from orchestrator.telemetry.exposition import answers
from orchestrator.web.access import LOOPBACK, Bearers, parse_tokens
from orchestrator.web.limits import Scope

MakeAgent: TypeAlias = Callable[[StoredJournal, list[Observer]], Agent]
ActorHook: TypeAlias = Callable[[Request], str | None]
"""Returns the name of the person who sends a request; None refuses it."""

OPENING = 30.0
"""Seconds to wait for the database at the start."""
PAGES = ("/metrics", "/healthz", "/readyz")
"""Not the debug pages: they are for this host, and behind a proxy every request comes from this host."""
MAX_WAITING = 1_000
"""Runs that wait for a slot of this worker, after which it refuses to start more."""


class RunServer:
    """The journal, the agent and the engine of one worker process."""

    agent: Agent
    engine: LocalEngine

    def __init__(
        self, make_agent: MakeAgent, options: Mapping[str, Any], actor: ActorHook | None, prefix: str
    ) -> None:
        self._make_agent = make_agent
        self._options = options
        self._actor = actor
        self._prefix = prefix
        self._bearers = Bearers({})
        self._stopping = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Work on runs until the server has stopped; leaving the engine drains it.

        Raises:
            ConfigError: There is no token, or one is too short.
        """
        if self._actor is None:
            self._bearers = Bearers(tokens_of(self._prefix))
        metrics = Metrics()
        address = Settings.load().journal
        async with journal_at(address, opening=OPENING) as journal, Watchdog(metrics) as watchdog:
            self.agent = self._make_agent(journal, [TransitionLog(), metrics])
            pages = asgi_app(heartbeat=watchdog.age, ready={"journal": answers(journal)})
            app.router.routes.extend(Route(path, pages) for path in PAGES)
            options = {"name": f"{socket.gethostname()}-{os.getpid()}", **self._options}
            async with LocalEngine(self.agent, recover="resume", **options) as self.engine:
                metrics.watch(self.engine)
                with announced_stop(self._stopping.set):
                    yield
                self._stopping.set()
                await asyncio.gather(*self._reading)

    def actor(self, scope: Scope) -> str | None:
        """Return who sends a request, or None."""
        return self._bearers.actor(scope) if self._actor is None else self._actor(Request(scope))

    def hosts(self) -> set[str]:
        """Return the host names that are answered to."""
        named = os.environ.get(f"{self._prefix}_HOSTS", "").split(",")
        return {*LOOPBACK, *(name.strip().lower() for name in named if name.strip())}

    async def start(self, request: StartRequest) -> Accepted:
        """Store a run and start it here. If this worker dies before that, another one starts it.

        Raises:
            Overloaded: Too many runs wait here. Nothing was stored.
            RunExists: The run exists, and the request says `raise`.
            OtherAgent: The run exists, and belongs to another agent.
        """
        check_if_exists(request.if_exists, request.run_id)
        load = self.engine.load()
        if (waiting := sum(load.queued.values())) >= MAX_WAITING:
            raise Overloaded(self.engine.name, waiting, load.slots)
        try:
            run_id = await self.agent.deposit(**request.model_dump(exclude={"if_exists"}))
        except RunExists as error:
            if request.if_exists == "raise":
                raise
            head = await self.agent.runs.head(error.run_id)
            if head.agent != self.agent.name:
                raise OtherAgent(head.run_id, head.agent, self.agent.name) from error
            if request.if_exists == "resume" and head.status != "ended" and not head.waiting:
                await self._execute(head.run_id, follow=False)
            return Accepted(run_id=head.run_id, repeated=True)
        await self._execute(run_id, follow=not waiting)  # it starts now
        return Accepted(run_id=run_id)

    async def _execute(self, run_id: str, *, follow: bool) -> None:
        """Execute a stored run in this worker, unless it is active; with `follow` its model streams at once."""
        with suppress(RunExists, Overloaded, NotAdmitting):  # the engines search for stored runs
            handle = await self.engine.resume(run_id)
            if follow:
                reading = asyncio.create_task(self._read_along(handle))
                self._reading.add(reading)
                reading.add_done_callback(self._reading.discard)

    async def _read_along(self, handle: Handle[Any]) -> None:
        """Read a run from its start: a model streams while its run has a reader, and the client comes later."""
        with suppress(RunError):
            async with aclosing(self.events(handle.run_id, None)) as events:
                async for event in events:
                    if isinstance(event, RunSuspended) or handle.done():
                        return

    def events(self, run_id: str, after: str | None) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a run until it ends or the server stops."""
        return self._until_stop(self.agent.runs.events(run_id, after=after, follow=True))

    def tree_events(self, run_id: str, after: Mapping[str, str]) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a run and of its descendants until it ends or the server stops."""
        return self._until_stop(self.agent.runs.tree_events(run_id, after=after, follow=True))

    async def _until_stop(self, following: AsyncGenerator[RunEvent, None]) -> AsyncGenerator[RunEvent, None]:
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                event = asyncio.ensure_future(anext(following, None))
                try:
                    await asyncio.wait((event, stop), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    event.cancel()
                    await asyncio.gather(event, return_exceptions=True)
                if event.cancelled() or (found := event.result()) is None:
                    return
                yield found
        finally:
            stop.cancel()
            await following.aclose()


def tokens_of(prefix: str) -> dict[str, str]:
    """Return person -> token of the environment. Raises ConfigError."""
    name = f"{prefix}_TOKEN"
    if not (text := os.environ.get(name, "").strip()):
        raise ConfigError(
            f"{name} is not set, and nobody could use the service: set it to a token of at least 16 characters, for "
            "example of `python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
        )
    return parse_tokens(text, name)


@contextmanager
def announced_stop(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at SIGTERM and SIGINT, and then the handler of the server, while the block is active.

    A signal without a handler in Python is left alone, and so is every signal outside of the main thread.
    """
    loop, before = asyncio.get_running_loop(), dict[int, Callable[[int, FrameType | None], Any]]()

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGTERM, signal.SIGINT):
            if callable(handler := signal.getsignal(each)):
                before[each] = handler
                signal.signal(each, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
