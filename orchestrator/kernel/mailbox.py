"""Requests from outside to one run, and the mailbox that holds them until its driver reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["event", "cancel", "pause", "resume", "decision", "message"]
"""What a signal asks for."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A request from outside. One with an `event` is for the next waiting state; without, it asks to stop, at once."""

    event: StrEnum | None = None
    id: str = ""
    """Two signals with the same id are one."""
    by: str = "caller"
    why: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "event"
    """`event` without an event is `cancel`. `pause` holds the run before its next step, `resume` lets it go on,
    `decision` answers a question that a hook of the run asked, `message` tells the run something that its hooks read
    when they come to it."""
    number: int = 0
    """Position in the run's inbox, when it came through the journal."""

    @property
    def asks(self) -> Kind:
        """What it asks for."""
        return "cancel" if self.kind == "event" and self.event is None else self.kind


class Mailbox:
    """Signals for one run, each id once. Only the driver that owns the run reads it."""

    __slots__ = ("_decisions", "_early", "_listener", "_messages", "_news", "_seen", "_signals")

    def __init__(self) -> None:
        self._signals: list[Signal] = []  # most runs never get any, and an empty deque takes 600 bytes
        self._decisions: list[Signal] = []
        self._messages: list[Signal] = []
        self._seen: dict[str, None] = {}
        self._early: list[Signal] = []
        self._news: asyncio.Event | None = None
        self._listener: Callable[[Signal], None] | None = None

    def post(self, signal: Signal) -> bool:
        """Leave a signal; one that asks to stop or pause overtakes the others. Returns False for a known id."""
        if signal.id:
            if signal.id in self._seen:
                return False
            self._seen[signal.id] = None
        if signal.asks == "event":
            self._signals.append(signal)
        elif signal.asks == "decision":
            self._decisions.append(signal)
        elif signal.asks == "message":
            self._messages.append(signal)
        elif self._listener is not None:
            self._listener(signal)
        else:
            self._early.append(signal)
        if self._news is not None:
            self._news.set()
        return True

    def forget(self, ids: Iterable[str]) -> None:
        """Take these ids for known: their signals were handled before the run came to this process."""
        self._seen.update(dict.fromkeys(ids))

    def take(self) -> Signal | None:
        """Return the oldest signal that names an event, or None."""
        return self._signals.pop(0) if self._signals else None

    def decision(self) -> Signal | None:
        """Return the oldest answer to a question, or None."""
        return self._decisions.pop(0) if self._decisions else None

    def message(self) -> Signal | None:
        """Return the oldest message that no hook has read, or None."""
        return self._messages.pop(0) if self._messages else None

    @property
    def unread(self) -> bool:
        """There are messages that no hook has read."""
        return bool(self._messages)

    @property
    def decided(self) -> tuple[Signal, ...]:
        """The answers that no hook has read."""
        return tuple(self._decisions)

    async def wait(self) -> None:
        """Return once `take` has something to return."""
        await self.until(lambda: bool(self._signals))

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return once `ready` says so; it is asked now and whenever something is posted."""
        while not ready():
            self._news = asyncio.Event()
            try:
                await self._news.wait()
            finally:
                self._news = None

    def listen(self, listener: Callable[[Signal], None] | None) -> None:
        """Hand signals to stop, pause and resume to `listener`, at once when they are posted; None: keep them."""
        self._listener = listener
        if listener is not None:
            early, self._early = self._early, []
            for signal in early:
                listener(signal)

    def __len__(self) -> int:
        return len(self._signals) + len(self._early) + len(self._decisions) + len(self._messages)
