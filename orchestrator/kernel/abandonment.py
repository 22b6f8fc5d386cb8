"""Host code that ignores a cancellation is abandoned, so that it delays neither its run nor the process.

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
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import CoroutineType, FrameType
from typing import Any, Generic, TypeVar

from orchestrator.kernel.clock import Cancellable, Clock
from orchestrator.kernel.record import WorkAbandoned

T = TypeVar("T")

_OWNERS: dict[asyncio.Task[Any], AbandonableTask[Any]] = {}
_ABANDONED: dict[asyncio.Task[Any], WorkAbandoned] = {}


@dataclass(frozen=True, slots=True)
class AbandonPolicy:
    """When host code is abandoned, and how that is reported."""

    clock: Clock
    seconds: float
    """Seconds that cancelled host code may take to end; 0 waits without a limit."""
    report: Callable[[str, str], WorkAbandoned]
    """Makes and publishes the fact about a call, given its kind and name."""


class HostCall:
    """Host code that a task waits for."""

    __slots__ = ("is_abandoned", "kind", "name", "work")

    def __init__(self, work: Coroutine[Any, Any, Any], kind: str, name: str) -> None:
        self.work = work
        self.kind = kind
        """One of record.ABANDONED_KINDS."""
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
                value = ended.value
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

    Without a `policy` it waits without a limit. `requests` counts how often its work was asked to stop, if the owner
    has a better count than `cancel`.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        policy: AbandonPolicy | None,
        *,
        name: str | None = None,
        requests: Callable[[], int] | None = None,
    ) -> None:
        self.policy = policy
        self.call: HostCall | None = None
        """The host call that the task waits for."""
        self.left = 0
        """Number of abandoned host calls."""
        self.children = 0
        """Number of tasks that its host code waits for and that have their own grace period."""
        self.requests = requests or self.cancelling
        """Returns how often the work was asked to stop."""
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
        if self.policy is None or not self.policy.seconds:
            return None
        return self.policy.clock.call_later(self.policy.seconds, self._abandon)

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
        if self.policy is not None and self.policy.seconds and not self.done:
            self._timer = self.policy.clock.call_later(self.policy.seconds, self._expire)

    def _expire(self) -> None:
        self._abandon()
        self._watch()  # code that ends now may call host code again

    def _abandon(self) -> None:
        """Leave the host call in the current task and continue without it in another one."""
        call, left = self.call, self.task
        if call is None or self.children or left.done() or self.policy is None:
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
        work = self._frames.hand_over(call.work, left.cancelling())
        _ABANDONED[left] = self.policy.report(call.kind, call.name)
        self._begin(work, asyncio.CancelledError(*() if self._message is None else (self._message,)))


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
    with grace_for_children():
        while open_ones := [task for task in tasks if not task.done]:
            try:
                await _all_ended(open_ones)
            except asyncio.CancelledError as error:
                is_repeated = late is not None and bool(error.args) and error.args == late.args
                late = error
                for task in () if is_repeated else open_ones:
                    task.cancel(*error.args[:1])
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
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(tasks)

    def one() -> None:
        nonlocal left
        left -= 1
        if not left and not waiter.done():
            waiter.set_result(None)

    for task in tasks:
        task.ended = one
    return waiter


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


_DRIVES = {inspect.unwrap(host_call).__code__: "host", inspect.unwrap(continued).__code__: "coroutine"}
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
