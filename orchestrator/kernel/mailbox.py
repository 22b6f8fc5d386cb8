"""Requests from outside to one run, and the mailbox that stores them until its driver reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["event", "cancel", "pause", "resume", "decision", "message"]
"""The kind of request."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A request from outside.

    With an `event` it is for the next waiting state; without, it asks the run to stop at once.
    """

    event: StrEnum | None = None
    id: str = ""
    """Signals with the same id count once."""
    by: str = "caller"
    why: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "event"
    """`event` without an event means `cancel`. `pause` stops the run before its next step, `resume` continues it,
    `decision` answers a question of a hook, `message` is data that the hooks read in order."""
    number: int = 0
    """Position in the run's inbox if it came through the journal."""

    @property
    def asks(self) -> Kind:
        """The requested action."""
        return "cancel" if self.kind == "event" and self.event is None else self.kind


class Mailbox:
    """Signals for one run, each id once. Only the driver that owns the run reads it."""

    __slots__ = ("_decisions", "_early", "_events", "_listener", "_messages", "_news", "_run", "_seen")

    def __init__(self) -> None:
        # Most runs never get a signal, so an empty mailbox has no containers of its own.
        self._events: deque[Signal] | None = None
        self._decisions: deque[Signal] | None = None
        self._messages: deque[Signal] | None = None
        self._early: deque[Signal] | None = None
        self._seen: dict[str, None] | None = None
        self._news: asyncio.Event | None = None
        self._listener: Callable[[Any, Signal], None] | None = None
        self._run: Any = None

    def post(self, signal: Signal) -> bool:
        """Add a signal. Requests to stop or pause overtake the others. Returns False for a known id."""
        if signal.id:
            if self._seen is None:
                self._seen = {}
            if signal.id in self._seen:
                return False
            self._seen[signal.id] = None
        if signal.asks == "event":
            self._events = _added(self._events, signal)
        elif signal.asks == "decision":
            self._decisions = _added(self._decisions, signal)
        elif signal.asks == "message":
            self._messages = _added(self._messages, signal)
        elif self._listener is not None:
            self._listener(self._run, signal)
        else:
            self._early = _added(self._early, signal)
        if self._news is not None:
            self._news.set()
        return True

    def forget(self, ids: Iterable[str]) -> None:
        """Mark ids as known: their signals were handled before the run came to this process."""
        self._seen = {**(self._seen or {}), **dict.fromkeys(ids)}

    def take(self) -> Signal | None:
        """Return the oldest signal with an event, or None."""
        return self._events.popleft() if self._events else None

    def decision(self) -> Signal | None:
        """Return the oldest answer to a question, or None."""
        return self._decisions.popleft() if self._decisions else None

    def message(self) -> Signal | None:
        """Return the oldest unread message, or None."""
        return self._messages.popleft() if self._messages else None

    @property
    def unread(self) -> bool:
        """Whether there are unread messages."""
        return bool(self._messages)

    @property
    def unread_answers(self) -> tuple[Signal, ...]:
        """The unread answers."""
        return tuple(self._decisions or ())

    async def wait(self) -> None:
        """Return when `take` has something to return."""
        await self.until(lambda: bool(self._events))

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` returns True; it is called now and after each post."""
        while not ready():
            self._news = asyncio.Event()
            try:
                await self._news.wait()
            finally:
                self._news = None

    def wake(self) -> None:
        """Let `until` call its function again."""
        if self._news is not None:
            self._news.set()

    def listen(self, listener: Callable[[Any, Signal], None] | None, run: Any) -> None:
        """Pass `run` and each request to stop, pause or resume to `listener` when it is posted; None stores them."""
        self._listener, self._run = listener, run
        if listener is not None:
            early, self._early = self._early, None
            for signal in early or ():
                listener(run, signal)

    def __len__(self) -> int:
        return sum(len(queue or ()) for queue in (self._events, self._early, self._decisions, self._messages))


def _added(queue: deque[Signal] | None, signal: Signal) -> deque[Signal]:
    if queue is None:
        return deque((signal,))
    queue.append(signal)
    return queue
