"""Watch the event loop: a task sends heartbeats, a thread notices their absence and dumps the stacks.

    async with Watchdog(metrics):
        await engine.run_until_signal()

A dump names files, lines and functions: no values of variables, no source.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Protocol, Self, TextIO

from orchestrator.errors import ConfigError
from orchestrator.telemetry.escape import escape
from orchestrator.telemetry.live import LiveRun, LiveRuns, stacks

_LOOKS = 10
"""Checks of the thread within `blocked_after` seconds."""
_DEEPEST = 10
"""Frames in a log line; the dump has more."""


class WatchdogMeters(Protocol):
    """The meters of a watchdog; Metrics is one."""

    def loop_lag(self, seconds: float) -> None: ...

    def loop_blocked(self) -> None: ...

    def watch_loop(self, age: Callable[[], float | None]) -> None:
        """Report the age of a loop at each scrape, until `unwatch_loop`."""
        ...

    def unwatch_loop(self, age: Callable[[], float | None]) -> None: ...


class Critical(Protocol):
    """The logger of a watchdog: `TransitionLog.logger` is one."""

    def critical(self, event: str, *args: Any, **kw: Any) -> Any: ...


class Watchdog:
    """Watches the event loop in which it was started.

    Every `interval` seconds its task wakes up and measures its lag. If it has not for `blocked_after` seconds, its
    thread dumps all stacks, once for each incident, to `stream`, writes one line to `logger`, and counts the
    incident.

    Args:
        meters: Receives lag and incidents; Metrics is one.
        interval: Seconds between two heartbeats.
        blocked_after: Seconds without a heartbeat after which the loop counts as blocked.
        stream: Destination of the dump; None is the sys.stderr of that moment.
        logger: Receives one line for each incident.

    Raises:
        ConfigError: The times are not 0 < interval < blocked_after.

    Example:
        async with Watchdog(metrics):
            await engine.run_until_signal()
    """

    def __init__(
        self,
        meters: WatchdogMeters | None = None,
        *,
        interval: float = 0.1,
        blocked_after: float = 5.0,
        stream: TextIO | None = None,
        logger: Critical | None = None,
    ) -> None:
        if not 0 < interval < blocked_after:
            raise ConfigError(
                f"interval is {interval!r} and blocked_after {blocked_after!r}; the first must be above 0 "
                "and below the second"
            )
        self.incidents = 0
        """Number of incidents."""
        self._meters = meters
        self._interval = interval
        self._blocked_after = blocked_after
        self._stream = stream
        self._logger = logger
        self._last: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ident = 0
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def age(self) -> float | None:
        """Return the seconds since the event loop last moved; None if it is not watched. Thread-safe."""
        last = self._last
        return None if last is None else time.monotonic() - last

    def start(self) -> None:
        """Start to watch the running loop. Raises ConfigError if it watches already."""
        if self._task is not None:
            raise ConfigError("this watchdog is already running; create another one for another event loop")
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._last = time.monotonic()
        self._stopping = threading.Event()
        self._task = self._loop.create_task(self._beat(), name="orchestrator watchdog")
        self._task.add_done_callback(self._dead)
        self._thread = threading.Thread(target=self._watch, name="orchestrator watchdog", daemon=True)
        self._thread.start()
        if self._meters is not None:
            self._meters.watch_loop(self.age)

    async def stop(self) -> None:
        """Stop the task and the thread, and wait for their end."""
        task, self._task = self._task, None
        thread, self._thread = self._thread, None
        self._stopping.set()
        if self._meters is not None:
            self._meters.unwatch_loop(self.age)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        if thread is not None:
            await asyncio.to_thread(thread.join)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _beat(self) -> None:
        while True:
            self._last = began = time.monotonic()
            await asyncio.sleep(self._interval)
            lag = max(0.0, time.monotonic() - began - self._interval)
            with contextlib.suppress(Exception):  # an error of the meters must not stop the heartbeat
                if self._meters is not None:
                    self._meters.loop_lag(lag)

    def _dead(self, _task: asyncio.Task[None]) -> None:
        self._last = None  # no heartbeats any more: that is not a blocked loop

    def _watch(self) -> None:
        told, looked = False, time.monotonic()
        pause = self._blocked_after / _LOOKS
        while not self._stopping.wait(pause):
            asleep = time.monotonic() - looked > self._blocked_after / 2  # the whole process was stopped
            looked, age = time.monotonic(), self.age()
            blocked = age is not None and age > self._blocked_after
            if blocked and not told and not asleep:
                with contextlib.suppress(Exception):  # an exception here would end the watch
                    self._warn(age or 0.0)
            told = blocked and (told or not asleep)

    def _warn(self, age: float) -> None:
        self.incidents += 1
        if self._meters is not None:
            self._meters.loop_blocked()
        put(f"the event loop has been blocked for {age:.1f} s\n{stacks(self._loop)}", self._stream)
        if self._logger is not None:
            # The stack of a thread, innermost last.
            frame: FrameType | None = sys._current_frames().get(self._ident)  # noqa: SLF001 - there is no other way
            found: list[str] = []
            while frame is not None and len(found) < _DEEPEST:
                found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
                frame = frame.f_back
            stack_of = found[::-1]
            self._logger.critical("loop.blocked", duration_s=round(age, 3), stack=stack_of)


def dump(live: Iterable[LiveRun] = (), loop: asyncio.AbstractEventLoop | None = None) -> str:
    """Return the stacks of threads and tasks, and the states of runs, as text."""
    now = time.time()
    runs = [_described(run, now) for run in live]
    return "\n".join([f"{len(runs)} live runs", *runs, "", stacks(loop)])


@contextlib.contextmanager
def on_signal(live: LiveRuns | Callable[[], Iterable[LiveRun]] | None = None) -> Iterator[None]:
    """Print runs, threads and tasks to stderr on SIGUSR1 within the block; without `live`, no runs.

    For the main thread of an application. It does nothing in other threads, and on systems without the signal. A
    handler that other code sets within the block stays.
    """
    number = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    current_runs = live.current_runs if isinstance(live, LiveRuns) else live

    def handle(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # a dump must not harm the run
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                loop = None
            put(dump(current_runs(), loop) if current_runs else stacks(loop), None)

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        if signal.getsignal(number) is handle:
            signal.signal(number, before)


def put(text: str, stream: TextIO | None) -> None:
    """Write escaped text past the buffers of stderr: the blocked thread may hold their lock."""
    text = escape(text)
    goal = sys.stderr if stream is None else stream
    try:
        number = goal.fileno()
    except (AttributeError, OSError, ValueError):
        if goal is not None:
            goal.write(text)
            goal.flush()
        return
    data = text.encode()
    while data:
        data = data[os.write(number, data) :]


def _described(run: LiveRun, now: float) -> str:
    waits = f", parked: {run.parked}" if run.parked else ""
    times = f"{max(0.0, now - run.entered_at):.1f} s, run {max(0.0, now - run.started_at):.1f} s"
    agent = f" of agent {run.agent}" if run.agent else ""
    return f"  run {run.run_id} of {run.machine}{agent}: {run.state} for {times}{waits}"
