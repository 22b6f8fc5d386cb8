"""Host code and its end: threads beside the event loop, time limits, cancellation, and code that ignores it.

Host code that ignores a cancellation is abandoned, so that it delays neither its run nor the process.

A tool, a model, an MCP call or a hook can swallow `CancelledError`, and Python cannot stop it. The code around it
must continue with its own handling of the cancellation. Therefore the task is split: the host's code stays in the
task in which it has started, to which its timeouts, task groups and cancel scopes belong, and our frames above it
continue in a new task, where the host call raises `CancelledError`. Later results of the host's code are discarded.

Before that there is no cost: a call needs no task and no timer, only a generator that passes on the futures of the
host's code. A task for each call would cost 2 % of a turn with one tool.

Code in the new task sees the context variables of the old one. `asyncio.current_task()` differs, so none of our
frames above a host call may hold a task group or a cancel scope; `asyncio.timeout` works, because it cancels the old
task.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from types import CoroutineType, FrameType, GeneratorType
from typing import Any, Generic, TypeVar

from orchestrator.errors import RunError
from orchestrator.kernel.clock import Cancellable, Clock
from orchestrator.kernel.fact import WorkAbandoned
from orchestrator.kernel.run import Run

T = TypeVar("T")


async def in_thread(
    function: Callable[[], object],
    name: str,
    *,
    call: tuple[str, str] | None = None,
    stop: Callable[[], None] | None = None,
) -> tuple[object, BaseException | None]:
    """Return the result of a function and any exception that it raised. It sees the caller's context variables.

    A cancelled caller continues at once, and the thread continues without it. With `call`, the kind and name of a
    host call, the thread is host code that ignores its cancellation: `stop` is called, and the caller waits for the
    thread for the grace period of its AbandonableTask, if it has one.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # noqa: BLE001 - also SystemExit, an error of the function
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    owner = here()
    if call is None or owner is None or owner.scope is None or owner.call is not None:
        return await ended
    return await host_call(_ended(ended, stop), *call)


async def _ended(
    ended: asyncio.Future[tuple[object, BaseException | None]], stop: Callable[[], None] | None
) -> tuple[object, BaseException | None]:
    """Wait for a thread, however often the caller is cancelled."""
    late: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            late = error
            if stop is not None:
                stop()
    if late is not None:
        raise late
    return ended.result()


async def called(port: Callable[[Any], Any], request: object, name: str) -> Any:
    """Call a host's port: a coroutine function on the loop, any other function in a thread.

    Raises the errors of the port; an exception that is no Exception (SystemExit of the host's code) becomes RunError.
    """
    own = getattr(type(port), "__call__", None)  # noqa: B004 - the method itself
    if inspect.iscoroutinefunction(port) or inspect.iscoroutinefunction(own):
        return await _waited(port(request), name)
    said, error = await in_thread(functools.partial(port, request), name, call=("stage", name))
    if error is not None:
        if isinstance(error, Exception):
            raise error
        raise RunError(f"{name} raised {type(error).__name__}") from error
    return await _waited(said, name) if inspect.isawaitable(said) else said


async def _waited(work: Awaitable[Any], name: str) -> Any:
    try:
        return await host_call(work, "stage", name)
    except SystemExit as error:  # it belongs to the function, not to the host
        raise RunError(f"{name} raised SystemExit") from error


class CoroutineWaited(RuntimeError):
    """A coroutine waited where waiting is not possible; it was closed."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits. Raises its errors, and CoroutineWaited if it waits."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise CoroutineWaited("a coroutine waited where waiting is not possible")


_OWNERS: dict[asyncio.Task[Any], AbandonableTask[Any]] = {}
_ABANDONED: dict[asyncio.Task[Any], WorkAbandoned] = {}


class HostCall:
    """Host code that a task waits for."""

    __slots__ = ("is_abandoned", "kind", "name", "work")

    def __init__(self, work: Coroutine[Any, Any, Any], kind: str, name: str) -> None:
        self.work = work
        self.kind = kind
        """One of fact.ABANDONED_KINDS."""
        self.name = name
        self.is_abandoned = False
        """The next thrown exception is raised here and not passed on to the host's code."""


@types.coroutine
def host_call(work: Awaitable[T], kind: str, name: str) -> Generator[Any, Any, T]:
    """Await host code so that an AbandonableTask can abandon it; `kind` and `name` are for the fact.

    In other tasks, and inside another host call, it has no effect: only our frames are moved to another task. The
    cost of code that does not wait is one generator.
    """
    host: Coroutine[Any, Any, T] = work if type(work) is CoroutineType else awaited(work)
    owner = _OWNERS.get(asyncio.current_task())  # type: ignore[arg-type]
    if owner is None or owner.call is not None:
        return (yield from host.__await__())
    try:
        waits = host.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    return (yield from _continued_host_call(host, waits, owner, kind, name))


def _continued_host_call(
    host: Coroutine[Any, Any, T], waits: object, owner: AbandonableTask[Any], kind: str, name: str
) -> Generator[Any, Any, T]:
    """Await host code that has started and waits for `waits`."""
    # A host call inside the host's code may have taken this place meanwhile.
    call = owner.call = HostCall(host, kind, name)
    error: BaseException | None = None
    try:
        while True:
            try:
                yield waits
            except BaseException as raised:
                if call.is_abandoned:
                    raise
                error = raised
            try:
                waits = host.send(None) if error is None else host.throw(error)
            except StopIteration as ended:
                value: T = ended.value
                return value
            error = None
    finally:
        if owner.call is call:
            owner.call = None


@types.coroutine
def continued(coroutine: Coroutine[Any, Any, T], waits: object) -> Generator[Any, Any, T]:
    """Await a coroutine that has started and waits for `waits`."""
    error: BaseException | None = None
    while True:
        try:
            yield waits
        except BaseException as raised:  # noqa: BLE001 - thrown into the coroutine
            error = raised
        try:
            waits = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as ended:
            value: T = ended.value
            return value
        error = None


class AbandonableTask(Generic[T]):
    """A task that ends within the grace period after its cancellation, whatever its host code does.

    Without a `scope` it waits without a limit. The scope has the grace period, and reports abandoned code. If the task
    is the whole work of its scope, the scope also counts how often that was asked to stop.
    """

    __slots__ = (
        "_context",
        "_frames",
        "_message",
        "_name",
        "_passed_on",
        "_timer",
        "call",
        "children",
        "ended",
        "left",
        "scope",
        "task",
        "whole",
    )

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        scope: CancelScope | None,
        *,
        name: str | None = None,
        whole: bool = False,
    ) -> None:
        self.scope = scope
        self.whole = whole
        """Whether it is the whole work of its scope."""
        self.call: HostCall | None = None
        """The host call that the task waits for."""
        self.left = 0
        """Number of abandoned host calls."""
        self.children = 0
        """Number of tasks that its host code waits for and that have their own grace period."""
        self.ended: Callable[[], None] = _ignore
        """Called when the task has ended."""
        self._name = name
        self._context = contextvars.copy_context()
        self._passed_on = 0
        self._message: object = None
        self._timer: Cancellable | None = None
        self._begin(work)

    @property
    def done(self) -> bool:
        """Whether the task has ended, or only abandoned code is left of it."""
        return self.task.done()

    def result(self) -> T:
        """Return the result of the work, or raise its error."""
        value: T = self.task.result()
        return value

    def cancelling(self) -> int:
        """Return the number of cancellations that were not revoked, over all tasks of the work."""
        return self._passed_on + self.task.cancelling()

    def cancel(self, message: object = None) -> None:
        """Cancel the work. Host code that does not end within the grace period is abandoned.

        The work gets a CancelledError with the message, by which a cancel scope of anyio recognises its own request.
        """
        self._message = message
        if not self._frames.is_to_raise:
            self.task.cancel(message)
        if self._timer is None:
            self._watch()

    def abandon_late(self) -> Cancellable | None:
        """Abandon the current host call unless it ends within the grace period, or the returned timer is cancelled."""
        if self.scope is None or not self.scope.seconds:
            return None
        return self.scope.clock.call_later(self.scope.seconds, self._abandon)

    def _begin(self, work: Coroutine[Any, Any, T], error: BaseException | None = None) -> None:
        self._frames: _Frames[T] = _Frames(work, error)
        loop = asyncio.get_running_loop()
        self.task: asyncio.Task[T] = loop.create_task(
            self._run(self._frames), name=self._name, context=self._context
        )
        self.task.add_done_callback(self._finished)

    async def _run(self, frames: _Frames[T]) -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self.task = task  # an eager task (3.12) runs before `create_task` has returned it
        _OWNERS[task] = self
        try:
            return await frames
        finally:
            _OWNERS.pop(task, None)

    def _finished(self, _: asyncio.Task[T]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._frames.work.close()  # a task that was cancelled before its first step never started it
        ended, self.ended = self.ended, _ignore
        ended()

    def _watch(self) -> None:
        if self.scope is not None and self.scope.seconds and not self.done:
            self._timer = self.scope.clock.call_later(self.scope.seconds, self._expire)

    def _expire(self) -> None:
        self._abandon()
        self._watch()  # code that ends now may call host code again

    def _abandon(self) -> None:
        """Leave the host call in the current task and continue without it in another one."""
        call, left = self.call, self.task
        if call is None or self.children or left.done() or self.scope is None:
            return
        if asyncio.current_task() is left:  # a test's clock was moved by the host's code itself
            asyncio.get_running_loop().call_soon(self._abandon)
            return
        self.call = None
        self.left += 1
        self._passed_on += left.cancelling()
        call.is_abandoned = True
        _OWNERS.pop(left, None)
        left.remove_done_callback(self._finished)
        left.add_done_callback(_discard)
        left.set_name(f"abandoned {call.kind} {call.name} of {left.get_name()}")
        frames = self._frames
        work = frames.hand_over(call.work, left.cancelling())
        _ABANDONED[left] = self.scope.report(call.kind, call.name)
        self._begin(work, asyncio.CancelledError(*() if self._message is None else (self._message,)))
        # A time limit withdraws its own request from the old task in the first step of the new one.
        asyncio.get_running_loop().call_soon(frames.recount, left)


class _Frames(Generic[T]):
    """The coroutine of a task. It can be replaced by the host code that it waits for."""

    __slots__ = ("_cancels", "_error", "_is_abandoned", "work")

    def __init__(self, work: Coroutine[Any, Any, T], error: BaseException | None) -> None:
        self.work = work
        self._error = error
        self._is_abandoned = False
        self._cancels = 0

    @property
    def is_to_raise(self) -> bool:
        """Whether it is not started and its first step raises a cancellation."""
        return self._error is not None

    def hand_over(self, host: Coroutine[Any, Any, Any], cancels: int) -> Coroutine[Any, Any, T]:
        """Run abandoned host code from now on, after this many cancellations; return the previous coroutine."""
        work, self.work, self._is_abandoned = self.work, host, True
        self._cancels = cancels
        return work

    def recount(self, left: asyncio.Task[Any]) -> None:
        """Take the present cancellation requests of the task of the abandoned code for known."""
        self._cancels = left.cancelling()

    def __await__(self) -> Generator[Any, Any, T]:
        error, self._error = self._error, None
        while True:
            try:
                waits = self.work.send(None) if error is None else self.work.throw(error)
            except StopIteration as ended:
                value: T = ended.value
                return value
            if self._is_abandoned and error is not None and _cancels() > self._cancels:
                # Cancelled again, and not by its own time limit: the event loop ends and must not wait for it.
                with contextlib.suppress(RuntimeError):  # it ignores even its own end
                    self.work.close()
                raise error
            error = None
            try:
                yield waits
            except BaseException as raised:  # noqa: BLE001 - thrown into the work
                error = raised


async def until_ended(tasks: Sequence[AbandonableTask[Any]]) -> asyncio.CancelledError | None:
    """Wait until all tasks have ended. A cancellation meanwhile is passed on to them, and returned.

    A cancel scope of anyio repeats its request in each iteration of the event loop until its task has left the scope.
    The tasks get it once, so that the host's code can clean up within its grace period, as with any other request.
    """
    late: asyncio.CancelledError | None = None
    owner = here()
    if owner is not None:  # as `grace_for_children` does, without its generator: each run waits here
        owner.children += 1
    try:
        # Each run waits here, so nothing is kept in this frame for it.
        while any(not task.done for task in tasks):
            try:
                await _all_ended(tasks)
            except asyncio.CancelledError as error:
                is_repeated = late is not None and bool(error.args) and error.args == late.args
                late = error
                for task in () if is_repeated else tasks:
                    if not task.done:
                        task.cancel(*error.args[:1])
    finally:
        if owner is not None:
            owner.children -= 1
    return late


@contextlib.contextmanager
def grace_for_children() -> Iterator[None]:
    """Do not abandon this code while the block is active: it waits for work with its own grace period."""
    owner = here()
    if owner is None:
        yield
        return
    owner.children += 1
    try:
        yield
    finally:
        owner.children -= 1


def _all_ended(tasks: Sequence[AbandonableTask[Any]]) -> asyncio.Future[None]:
    countdown = _Countdown(sum(not task.done for task in tasks))
    for task in tasks:
        if not task.done:
            task.ended = countdown
    return countdown.waiter


class _Countdown:
    """A future that is done after some calls."""

    __slots__ = ("_left", "waiter")

    def __init__(self, left: int) -> None:
        self._left = left
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        self._left -= 1
        if not self._left and not self.waiter.done():
            self.waiter.set_result(None)


def here() -> AbandonableTask[Any] | None:
    """Return the AbandonableTask of this code; None in abandoned host code and in other tasks."""
    task = asyncio.current_task()
    return None if task is None else _OWNERS.get(task)


def host_function(function: Callable[..., Awaitable[T]], kind: str, name: str) -> Callable[..., Awaitable[T]]:
    """Return a function whose calls are host calls."""

    @functools.wraps(function)
    def called(*arguments: Any) -> Awaitable[T]:
        return host_call(function(*arguments), kind, name)

    return called


def abandoned_work() -> list[WorkAbandoned]:
    """Return the abandoned work of this process that has not ended, oldest first. May be called from any thread."""
    return sorted(_ABANDONED.copy().values(), key=lambda fact: fact.at)


def driven_by(frame: FrameType) -> object:
    """Return the coroutine that a suspended frame of this module drives, None for other frames. For stack dumps."""
    if frame.f_code is _Frames.__await__.__code__:
        return frame.f_locals["self"].work
    name = _DRIVES.get(frame.f_code)
    return None if name is None else frame.f_locals.get(name)


_DRIVES = {_continued_host_call.__code__: "host", inspect.unwrap(continued).__code__: "coroutine"}
"""Code -> the local variable with the coroutine that it drives."""


def _cancels() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def awaited(work: Awaitable[T]) -> T:
    """Return a coroutine for an awaitable that is none, so that it can be driven by `send` and `throw`."""
    return await work


def _discard(task: asyncio.Task[Any]) -> None:
    """Discard the result of abandoned code."""
    _ABANDONED.pop(task, None)
    if not task.cancelled():
        task.exception()


def _ignore() -> None:
    pass


os.register_at_fork(after_in_child=_ABANDONED.clear)


class TimeLimitPassed(Exception):
    """Our time limit has passed. Distinguishes it from a TimeoutError of the host's code."""

    def __init__(self, seconds: float, *, abandoned: bool, is_total: bool = False) -> None:
        super().__init__(f"no answer within {seconds:g} s{' in all' if is_total else ''}")
        self.abandoned = abandoned
        """Whether the host's code did not end after its cancellation, and may still run."""


class TimeLimit:
    """Lets work start its own time limit again, because it makes progress. Works only while it runs."""

    __slots__ = (
        "_clock",
        "_expire",
        "_left",
        "_outside",
        "_seconds",
        "_since",
        "_timer",
        "_total",
        "_total_timer",
    )

    def __init__(self) -> None:
        self._clock: Clock | None = None
        self._expire: Callable[[float], None] = _ignore_limit
        self._seconds: float | None = None
        self._total: float | None = None
        self._left: float | None = None
        """Seconds of the total time that were left at `_since`."""
        self._since = 0.0
        self._timer: Cancellable | None = None
        self._total_timer: Cancellable | None = None
        self._outside = 0

    def start(
        self,
        seconds: float | None,
        total: float | None,
        clock: Clock,
        expire: Callable[[float], None],
        *,
        since: float,
    ) -> None:
        """Start the time of work that has begun at `since`: `seconds` without a restart, and `total` in any case.

        `expire` is called with the one that has passed.
        """
        self._clock, self._expire, self._seconds, self._total = clock, expire, seconds, total
        spent = clock.monotonic() - since
        self._left = None if total is None else total - spent
        self._continue(spent)

    def restart(self) -> None:
        """Give the work its whole time again, from now on, but not its total time. Call it in its event loop."""
        self._restart(0.0)

    def _restart(self, spent: float) -> None:
        if self._clock is not None and self._seconds is not None and not self._outside:
            self._stop_timer()
            left = max(0.0, self._seconds - spent)
            self._timer = self._clock.call_later(left, partial(self._expire, self._seconds))

    def end(self) -> None:
        """Stop the time: the work has ended."""
        self._clock = None
        self._stop_timers()

    async def outside(self, part: Awaitable[T]) -> T:
        """Await a part of the work whose time does not count; then the work has its whole time again.

        The total time continues where it stopped.
        """
        self._outside += 1
        if self._outside == 1 and self._clock is not None:
            self._stop_timers()
            if self._left is not None:
                self._left -= self._clock.monotonic() - self._since
        try:
            return await part
        finally:
            self._outside -= 1
            self._continue()

    def _continue(self, spent: float = 0.0) -> None:
        if self._clock is None or self._outside:
            return
        self._restart(spent)
        if self._left is not None and self._total is not None:
            self._since = self._clock.monotonic()
            self._total_timer = self._clock.call_later(
                max(0.0, self._left), partial(self._expire, self._total)
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_timer()
        if self._total_timer is not None:
            self._total_timer.cancel()
            self._total_timer = None


async def limited(
    work: Callable[[], Awaitable[T]],
    seconds: float | None,
    clock: Clock,
    restarts: TimeLimit | None = None,
    *,
    total: float | None = None,
    call: tuple[str, str] | None = None,
) -> T:
    """Return the result of `work` within `seconds`; otherwise cancel it and raise TimeLimitPassed.

    In an AbandonableTask a host call that does not end within the grace period is abandoned. With `call`, its kind and
    name, the work itself is a host call. `restarts` starts the seconds again, but not those of `total`. None is no
    limit.
    """
    task, since = asyncio.current_task(), clock.monotonic()
    earlier = task.cancelling() if task else 0
    awaitable = work()
    kind: type = type(awaitable)
    started = kind is CoroutineType or kind is GeneratorType  # a generator of `types.coroutine`
    coroutine: Any = awaitable if started else awaited(awaitable)
    owner = None if task is None else _OWNERS.get(task)
    is_outer = call is not None and owner is not None and owner.call is None
    try:
        waits = coroutine.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    # Only work that waits needs timers, and a scope that can cancel it.
    if is_outer and owner is not None and call is not None:
        coroutine = _continued_host_call(coroutine, waits, owner, *call)
        coroutine.send(None)
    own, limit = restarts or TimeLimit(), asyncio.timeout(None)
    expiry = _Expiry(limit, owner)
    try:
        async with limit:
            own.start(seconds, total, clock, expiry, since=since)
            try:
                return await continued(coroutine, waits)
            finally:
                own.end()
                expiry.end()
    except (Exception, asyncio.CancelledError) as error:
        # Before Python 3.11.4 asyncio.timeout takes its own cancellation for that of a caller if there was one earlier.
        ours = not isinstance(error, asyncio.CancelledError) or (task and task.cancelling() <= earlier)
        if limit.expired() and ours:
            passed = expiry.passed
            raise TimeLimitPassed(passed, abandoned=expiry.is_abandoned, is_total=passed == total) from error
        raise


class _Expiry:
    """Ends work whose time has passed: a call with the time limit cancels it, and abandons host code that stays."""

    __slots__ = ("_late", "_left", "_limit", "_owner", "passed")

    def __init__(self, limit: asyncio.Timeout, owner: AbandonableTask[Any] | None) -> None:
        self._limit, self._owner = limit, owner
        self._left = 0 if owner is None else owner.left
        self._late: Cancellable | None = None
        self.passed = 0.0
        """The time limit that has passed (seconds); 0 while none has."""

    def __call__(self, allowed: float) -> None:
        if self.passed or self.is_abandoned:
            return
        self.passed = allowed
        self._limit.reschedule(0.0)
        self._late = None if self._owner is None else self._owner.abandon_late()

    @property
    def is_abandoned(self) -> bool:
        """Whether the host's code was abandoned since the work began."""
        return self._owner is not None and self._owner.left > self._left

    def end(self) -> None:
        """Do not abandon the host's code: it has ended."""
        if self._late is not None:
            self._late.cancel()


def _ignore_limit(_: float) -> None:
    pass


class CancelScope:
    """Lets `run.stop()` cancel the work of a run, and only that work. Create it in the task that drives the run.

    The work runs in its own task. Cancellation requests that hooks, tools and models make to their task stay there.
    On Python 3.11 and 3.12 an asyncio.TaskGroup that fails asks its task to cancel and does not withdraw the request.
    In the task of the caller, its error could not be distinguished from a cancelled caller, even if a hook handled
    it. The task of the caller runs only code of this package, so its count of requests is reliable. (asyncio.timeout
    on 3.11 compares the count with 0.) Host code of the work that ignores its cancellation for
    `run.control.cancel_seconds` is abandoned.
    """

    __slots__ = ("_before", "_fired", "_handle", "_loop", "_run", "caller", "clock", "work")

    def __init__(self, run: Run[Any, Any], clock: Clock) -> None:
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("a run is driven inside a task")
        self._run = run
        self.clock = clock
        self.caller = caller
        self._loop = asyncio.get_running_loop()
        self._before = caller.cancelling()
        self._handle: asyncio.Handle | None = None
        self.work: AbandonableTask[None] | None = None
        """The task of the work, while it runs."""
        self._fired = False

    async def let(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the work, or until `run.stop()` has ended it. Raises the errors of the work, and a cancellation."""
        self._run.control.interrupt = self
        self._fired = False
        task = self.work = AbandonableTask(work, self, name=self._run.run_id, whole=True)
        late = None
        try:
            late = await until_ended((task,))
            task.result()
            if late is not None:
                raise late  # it came when the work had ended, or a hook swallowed it
        except asyncio.CancelledError:
            if late is not None:
                raise late  # noqa: B904 - the caller's own, also if a hook swallowed it or raised another one
            if not self._fired or self.cancelled():
                raise
        finally:
            self._run.control.interrupt = self.work = None
            if self._handle is not None:
                self._handle.cancel()
                self._handle = None

    def cancelled(self) -> bool:
        """Return whether the caller was cancelled since, even if a hook swallowed the CancelledError.

        Call it between hooks. If neither the run nor its caller is to stop, it withdraws the requests in the task of
        the work.
        """
        if self.caller.cancelling() > self._before:
            return True
        work = self.work
        while work is not None and not self._fired and work.task.cancelling():
            work.task.uncancel()
        return False

    async def let_others_run(self) -> None:
        """Give other tasks and time limits a turn between hooks that never wait."""
        await asyncio.sleep(0)

    def requests(self) -> int:
        """Return how often the caller or `run.stop()` asked the work to stop."""
        return self.caller.cancelling() + self._fired

    @property
    def seconds(self) -> float:
        """Seconds that cancelled host code may take to end; 0 waits without a limit."""
        return self._run.control.cancel_seconds

    def __call__(self) -> None:
        """Cancel the hook in flight."""
        # Not at once: a hook that stops its own run is interrupted at its next await, not at its end.
        if self._handle is None:
            self._handle = self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        if self.work is not None:
            self._fired = True
            self.work.cancel()

    def report(self, kind: str, name: str) -> WorkAbandoned:
        """Publish that a call of host code was abandoned, and return the fact."""
        run = self._run
        at, state = self.clock.time(), run.cursor.state
        fact = WorkAbandoned(run.graph.name, run.run_id, state, kind, name, at, run.agent)
        run.emit(fact)
        return fact


class CallerScope:
    """Takes the place of a CancelScope: the work stays in the task of its caller, and nothing else stops it."""

    __slots__ = ("_in_loop",)

    def __init__(self, *, in_loop: bool) -> None:
        self._in_loop = in_loop
        """Whether other tasks exist."""

    def cancelled(self) -> bool:
        """Return False: a cancellation reaches the caller directly."""
        return False

    async def let_others_run(self) -> None:
        """Give other tasks a turn, if there are any."""
        if self._in_loop:
            await asyncio.sleep(0)


def cancel_requests() -> Callable[[], int]:
    """Return a function that counts how often the running task was asked to stop, also if its code swallowed that.

    In a task that works behind a scope, only requests of the caller and of `run.stop()` count.
    """
    owner = here()
    if owner is not None:
        return owner.cancelling if owner.scope is None or not owner.whole else owner.scope.requests
    task = asyncio.current_task()
    return int if task is None else task.cancelling
