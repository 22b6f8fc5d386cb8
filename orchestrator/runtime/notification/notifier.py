"""Notify people about the open questions of the runs of a journal.

Design: what is to be sent is derived from the journal and stored nowhere else. A question without an answer in the
journal, and without the mark of a channel, is due on that channel. After a delivery the notifier posts the mark into
the inbox of the run, under an id that names channel and question. The inbox is the one place of the journal that any
process may write without a lease. The owner of a run ignores the marks, and they are removed with the run.

- At least once: a process that dies between delivery and mark, or loses the journal there, sends again after its
  restart, and so does another notifier. Both send the same id, by which the receiver drops the second one.
- Nothing is lost: a failed delivery leaves no mark, so it stays due, until the question is answered or expires. After
  the retries of the policy it rests for `pause` seconds.
- No notice is sent for an answered question: the journal is read again directly before each attempt, also before
  retries. An answer that arrives while an attempt is in progress cannot recall it.

Any number of processes may notify for one journal, including processes that run no agents. The alternatives were a
queue beside the journal, which must be written together with the question to lose nothing, and records of the run,
which only its owner may append.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from orchestrator.errors import ConfigError, Corrupt, RunUnknown
from orchestrator.kernel.journal import NOTIFIED, Journal, Posted, RunHead
from orchestrator.kernel.record import Fact, RunParked
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.llm.retry import RetryPolicy
from orchestrator.runtime.notification.channel import FunctionChannel, NotificationChannel, NotifyFunction
from orchestrator.runtime.notification.notice import LINK_FIELDS, Notice, OpenNotices, mark_id
from orchestrator.runtime.runs.listing import read_page
from orchestrator.runtime.service.answer import default_actor

_RETRY = RetryPolicy(attempts=5, base=1.0, max_delay=30.0)
_LOG = logging.getLogger("orchestrator")


class NotificationMeters(Protocol):
    """Counts deliveries; Metrics is one."""

    def notified(self, channel: str, outcome: str) -> None:
        """Count an attempt on a kind of channel: `delivered`, `failed`, or `withdrawn` before it was sent."""
        ...


class _Withdrawn(Exception):
    """The question was answered, or another notifier delivered the notice."""


class Notifier:
    """Delivers a notice for each open question of a journal, at least once on each channel.

    It works while it is entered (`async with`). As an observer of an agent it also reacts to a parked run at once,
    instead of at the next reading of the journal.

    Args:
        journal: The journal of the runs.
        link: Address where a person answers. `{run_id}`, `{question}`, `{digest}`, `{agent}` and `{id}` are replaced.
        interval: Seconds between two readings of the journal.
        retry: Attempts of one delivery; by default 5 within 5 minutes. Every error is retried.
        pause: Seconds between the last attempt of a failed delivery and its next first one.
        concurrency: Maximum simultaneous attempts.
        metrics: Counts the attempts, as `notifications_total`.
        *channels: `Webhook`, `CommandChannel`, an object with `name`, `kind`, `timeout` and `send`, or a function of a
            notice.

    Raises:
        ConfigError: There is no channel, two have one name, or the link contains an unknown name.

    Example:
        notifier = Notifier(journal, Webhook(url, secret), link="https://console.example/runs/{run_id}")
        async with notifier:
            await server.serve()
    """

    def __init__(
        self,
        journal: Journal,
        *channels: NotificationChannel | NotifyFunction,
        link: str = "",
        interval: float = 5.0,
        retry: RetryPolicy | None = None,
        pause: float = 60.0,
        concurrency: int = 16,
        metrics: NotificationMeters | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._channels = _by_name(channels)
        _check_link(link)
        self._journal, self._link, self._interval = journal, link, interval
        self._retry, self._pause, self._metrics = retry or _RETRY, pause, metrics
        self._clock = clock or SystemClock()
        self._slots = asyncio.Semaphore(concurrency)
        self._settled: dict[str, int] = {}
        """Run -> number of its last record when all its notices were delivered."""
        self._sending: dict[str, asyncio.Task[None]] = {}
        """Id of a mark -> its delivery."""
        self._resting: dict[str, float] = {}
        """Id of a mark -> monotonic seconds of its next attempt, after the retries have failed."""
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing: set[str] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._watch(), name="orchestrator notifier")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._sending.values(), *([] if self._task is None else [self._task])]
        self._task = self._loop = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def observe(self, fact: Fact, /) -> None:
        """Read the journal soon after a run has parked."""
        if type(fact) is RunParked and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def deliver(self) -> int:
        """Read the journal once, wait for the deliveries that are due, and return the number of failed ones.

        For a scheduled job; an entered notifier does this by itself. Raises the errors of the journal.
        """
        await self._start_due()
        await asyncio.gather(*self._sending.values())
        return len(self._resting)

    # ---- private ----

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._start_due()
            except Exception as error:  # noqa: BLE001 - logged; the questions are still due
                self._warn("the journal", error)
            else:
                self._failing.discard("the journal")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval)

    async def _start_due(self) -> None:
        """Start a delivery for each notice that is due."""
        page = await read_page(self._journal, "age", waiting=True)
        heads = page.runs
        if page.damage:
            self._warn("the journal", Corrupt(page.damage))
        waiting = {head.run_id for head in heads}
        for run_id in self._settled.keys() - waiting:
            del self._settled[run_id]
        due: set[str] = set()
        for head in heads:
            if self._settled.get(head.run_id) == head.seq:
                continue
            try:
                due |= await self._start_of(head)
            except RunUnknown:
                continue  # it was erased meanwhile
            except Corrupt as error:
                self._warn(f"run {head.run_id}", error)
        for mark in self._resting.keys() - due:  # it was answered meanwhile
            del self._resting[mark]

    async def _start_of(self, head: RunHead) -> set[str]:
        """Start the deliveries of a run, and return the ids of the marks that it lacks."""
        found = await self._open(head)
        due = [
            (mark, notice, channel)
            for notice in found.notices
            for name, channel in self._channels.items()
            if (mark := mark_id(notice, name)) not in found.delivered
        ]
        if not due:
            self._settled[head.run_id] = head.seq
        now = self._clock.monotonic()
        for mark, notice, channel in due:
            if mark not in self._sending and self._resting.get(mark, now) <= now:
                self._resting.pop(mark, None)
                task = asyncio.create_task(self._deliver(mark, head, notice, channel))
                self._sending[mark] = task
                task.add_done_callback(lambda _, mark=mark: self._sending.pop(mark, None))  # type: ignore[misc]
        return {mark for mark, _, _ in due}

    async def _deliver(self, mark: str, head: RunHead, notice: Notice, channel: NotificationChannel) -> None:
        async with self._slots:
            try:
                await self._retry.call(
                    self._attempt,
                    mark,
                    head,
                    notice,
                    channel,
                    may_retry=lambda error: not isinstance(error, _Withdrawn),
                    clock=self._clock,
                )
                await self._journal.post(
                    notice.run_id,
                    Posted(mark, NOTIFIED, {"notice": notice.id}, default_actor(), self._clock.time()),
                )
            except _Withdrawn:
                self._count(channel, "withdrawn")
            except Exception as error:  # noqa: BLE001 - of a host's function, a network, a journal: it stays due
                self._resting[mark] = self._clock.monotonic() + self._pause
                self._warn(f"channel {channel.name}", error)
            else:
                self._failing.discard(f"channel {channel.name}")

    async def _attempt(self, mark: str, head: RunHead, notice: Notice, channel: NotificationChannel) -> None:
        found = await self._open(head)
        if mark in found.delivered or notice.id not in {one.id for one in found.notices}:
            raise _Withdrawn
        try:
            async with asyncio.timeout(channel.timeout or None):
                await channel.send(notice)
        except Exception:
            self._count(channel, "failed")
            raise
        self._count(channel, "delivered")

    async def _open(self, head: RunHead) -> OpenNotices:
        return await OpenNotices.read(self._journal, head, self._link, self._clock.time())

    def _count(self, channel: NotificationChannel, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.notified(channel.kind, outcome)

    def _warn(self, what: str, error: Exception) -> None:
        """Log an error once, until the next success."""
        if what not in self._failing:
            self._failing.add(what)
            _LOG.error("notifications are late: %s raised %s", what, type(error).__name__)


def _by_name(channels: tuple[NotificationChannel | NotifyFunction, ...]) -> Mapping[str, NotificationChannel]:
    found: dict[str, NotificationChannel] = {}
    for one in channels:
        channel: NotificationChannel = one if hasattr(one, "send") else FunctionChannel(one)  # type: ignore[assignment]
        if channel.name in found:
            raise ConfigError(f"two channels are named {channel.name!r}; give one of them another name=")
        found[channel.name] = channel
    if not found:
        raise ConfigError("a Notifier needs a channel: a Webhook, a CommandChannel or a function")
    return found


def _check_link(link: str) -> None:
    try:
        link.format(**dict.fromkeys(LINK_FIELDS, ""))
    except (KeyError, ValueError, IndexError):
        names = ", ".join(f"{{{name}}}" for name in LINK_FIELDS)
        raise ConfigError(f"link is {link!r}; it may contain {names}, and other braces doubled") from None
