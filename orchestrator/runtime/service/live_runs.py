"""The live runs of this process: their streams, their paths, and those that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from orchestrator.errors import ConfigError, Held, RunExists, RunUnknown
from orchestrator.kernel.fact import Fact, Transition
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.run_feed import RunFeed


class RunRegistry:
    """The live runs by id. As an observer it keeps their last transitions for `Result.transitions`.

    The follower of a run also follows its child runs.
    """

    def __init__(self, kept: int = 10_000) -> None:
        self._kept = kept
        self._most = kept + kept // 10
        """Transitions of a path before the first ones are dropped: not one at a time."""
        self._runs: dict[str, Run[Any, Any]] = {}
        self._paths: dict[str, list[Transition]] = {}
        self._earlier: dict[str, Iterable[Transition]] = {}
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self._taken: set[str] = set()
        # Here and not in a service: another one with these live runs may drive a run of an older graph.
        self.leaving = set[str]()
        """Ids of the runs whose callers do not wait for a person."""
        self.unattended = set[str]()
        """Ids of the runs whose callers wait for the result and get no question."""
        self._talking: dict[str, str] = {}
        """Conversation -> its active run."""
        self._awaited: dict[str, set[asyncio.Future[None]]] = {}
        """Id of a run -> those that wait until it is live here."""

    def open(self, run: Run[Any, Any], path: Iterable[Transition] = ()) -> None:
        """Add a run, with its path so far. Raises RunExists if its id is active, ConfigError if its conversation is."""
        conversation = getattr(run.ctx, "conversation_id", None)
        if run.run_id in self._runs:
            raise RunExists(run.run_id)
        if self._talking.get(conversation or "", run.run_id) != run.run_id:
            raise ConfigError(f"conversation {conversation!r} has an active run; wait for its end")
        self.reserve(conversation, run.run_id)
        parent = None if run.parent_run_id is None else self._runs.get(run.parent_run_id)
        readers = (run.control.follower, parent.control.follower if parent is not None else None)
        awaited = self._awaited.pop(run.run_id, ())
        if any(readers) or awaited:
            run.follow(RunFeed(run.run_id, filter(None, readers)))
        self._runs[run.run_id] = run
        self._paths[run.run_id] = []
        if path:
            self._earlier[run.run_id] = path
        for waiting in awaited:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_for(self, run_id: str, seconds: float) -> None:
        """Return when a run has become live here, and streams from then on; or after `seconds`."""
        opened = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(run_id, set()).add(opened)
        try:
            await asyncio.wait((opened,), timeout=seconds)
        finally:
            others = self._awaited.get(run_id, set())
            others.discard(opened)
            if not others:
                self._awaited.pop(run_id, None)

    @contextlib.contextmanager
    def taking(self, run_id: str) -> Iterator[None]:
        """Exclude other resumptions of the run in this process, which has only one owner name. Raises Held."""
        if run_id in self._taken or run_id in self._runs:
            raise Held(run_id, "this process: it is active here")
        self._taken.add(run_id)
        try:
            yield
        finally:
            self._taken.discard(run_id)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def find(self, run_id: str) -> Run[Any, Any] | None:
        """Return a live run, or None."""
        return self._runs.get(run_id)

    def end_of(self, run_id: str) -> asyncio.Future[Any]:
        """Return a future for the Result of a live run."""
        self.get(run_id)
        return self._ends.setdefault(run_id, asyncio.get_running_loop().create_future())

    def ended(self, run_id: str, result: object) -> None:
        """Pass the Result, or the error, to the other waiters of this process."""
        end = self._ends.pop(run_id, None)
        if end is None or end.done():
            return
        if isinstance(result, BaseException):
            end.set_exception(result)
        else:
            end.set_result(result)

    def feed_of(self, run_id: str) -> RunFeed | None:
        """Return the feed of a live run, which streams from then on; None if the run is not live here."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        feed = run.control.follower
        if not isinstance(feed, RunFeed):
            feed = RunFeed(run_id)
            run.follow(feed)
        return feed

    def get(self, run_id: str) -> Run[Any, Any]:
        """Return a run. Raises RunUnknown."""
        if run_id not in self._runs:
            raise RunUnknown(run_id)
        return self._runs[run_id]

    def close(self, run: Run[Any, Any]) -> tuple[Transition, ...]:
        """Remove a run; return its path."""
        del self._runs[run.run_id]
        feed = run.control.follower
        run.follow(None)
        if isinstance(feed, RunFeed):
            feed.close()
        self.free(getattr(run.ctx, "conversation_id", None), run.run_id)
        path = (*self._earlier.pop(run.run_id, ()), *self._paths.pop(run.run_id))
        return path[-self._kept :]

    def reserve(self, conversation_id: str | None, run_id: str) -> None:
        """Let no other run of this process continue a conversation."""
        if conversation_id is not None:
            self._talking[conversation_id] = run_id

    def free(self, conversation_id: str | None, run_id: str) -> None:
        """Let other runs continue a conversation again, unless one has it already."""
        if conversation_id is not None and self._talking.get(conversation_id) == run_id:
            del self._talking[conversation_id]

    def hears(self, kind: type[Fact]) -> Callable[[Transition], None] | None:
        """Return the function for facts of a kind, or None: only transitions are kept."""
        return self._keep if kind is Transition else None

    def observe(self, fact: Fact) -> None:
        """Keep a transition."""
        if type(fact) is Transition:
            self._keep(fact)

    def _keep(self, fact: Transition) -> None:
        path = self._paths[fact.run_id]
        path.append(fact)
        if len(path) > self._most:
            del path[: -self._kept]
