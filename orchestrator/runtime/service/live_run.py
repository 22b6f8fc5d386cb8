"""The runs of an agent that are under way in this process, with the paths they have taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from orchestrator.errors import ConfigError, Held, RunExists, RunUnknown
from orchestrator.kernel.record import Fact, Transition
from orchestrator.kernel.run import Run


class RunRegistry:
    """The runs under way, by id; as an observer it keeps their last transitions, for `Result.transitions`.

    The follower of a run also follows the runs below it.
    """

    def __init__(self, kept: int = 10_000) -> None:
        self._kept = kept
        self._runs: dict[str, Run[Any, Any]] = {}
        self._paths: dict[str, deque[Transition]] = {}
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self._taken: set[str] = set()
        self._talking: set[str | None] = set()

    def open(self, run: Run[Any, Any], path: Iterable[Transition] = ()) -> None:
        """Take a run in. Raises RunExists when its id is under way, ConfigError when its conversation is."""
        conversation = run.ctx.conversation_id
        if run.run_id in self._runs:
            raise RunExists(run.run_id)
        if conversation in self._talking:
            raise ConfigError(f"conversation {conversation!r} has a run under way; wait for its end")
        if conversation is not None:
            self._talking.add(conversation)
        above = None if run.parent_run_id is None else self._runs.get(run.parent_run_id)
        if above is not None:
            run.follow(above.control.follower)
        self._runs[run.run_id] = run
        self._paths[run.run_id] = deque(path, maxlen=self._kept)

    @contextlib.contextmanager
    def taking(self, run_id: str) -> Iterator[None]:
        """Within the block nobody else here takes the run up: the journal knows us all by one name. Raises Held."""
        if run_id in self._taken or run_id in self._runs:
            raise Held(run_id, "this process: it is under way here")
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
        """Return a run that lives here, or None."""
        return self._runs.get(run_id)

    def end_of(self, run_id: str) -> asyncio.Future[Any]:
        """Return what becomes the Result of a run that lives here."""
        self.get(run_id)
        return self._ends.setdefault(run_id, asyncio.get_running_loop().create_future())

    def ended(self, run_id: str, result: object) -> None:
        """Hand the Result, or the error, to whoever waits for it elsewhere in this process."""
        end = self._ends.pop(run_id, None)
        if end is None or end.done():
            return
        if isinstance(result, BaseException):
            end.set_exception(result)
        else:
            end.set_result(result)

    def get(self, run_id: str) -> Run[Any, Any]:
        """Return a run. Raises RunUnknown."""
        if run_id not in self._runs:
            raise RunUnknown(run_id)
        return self._runs[run_id]

    def close(self, run: Run[Any, Any]) -> tuple[Transition, ...]:
        """Let a run go; return its path."""
        del self._runs[run.run_id]
        run.follow(None)
        self._talking.discard(run.ctx.conversation_id)
        return tuple(self._paths.pop(run.run_id))

    def hears(self, kind: type[Fact]) -> Callable[[Transition], None] | None:
        """Return what takes facts of a kind: only transitions are kept."""
        return self._keep if kind is Transition else None

    def observe(self, fact: Fact) -> None:
        """Keep a transition."""
        if type(fact) is Transition:
            self._keep(fact)

    def _keep(self, fact: Transition) -> None:
        self._paths[fact.run_id].append(fact)
