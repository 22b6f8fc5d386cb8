"""Keep the tools of one agent and run the calls of a turn: concurrently, limited, isolated from each other.

A result is identified by its position in the turn. Call ids repeat and can be empty, so nothing uses them as a key.

Each sync tool runs in its own daemon thread, not in a pool: a tool that never returns then neither blocks a worker of
other tools nor keeps the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from orchestrator.errors import ConfigError, ModelRetry, ResultUnreadable, RunError
from orchestrator.kernel.cancellation import (
    AbandonableTask,
    TimeLimit,
    TimeLimitPassed,
    cancel_requests,
    here,
    host_call,
    in_thread,
    limited,
    until_ended,
)
from orchestrator.llm.message import ToolCall
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.tools.argument import canonical_form, exact_arguments
from orchestrator.tools.input_request import PersonNeeded
from orchestrator.tools.result import (
    READ_RESULT,
    ShownResult,
    ToolOutcome,
    ToolResult,
    description_of,
    explain,
    failure_of,
    no_json_form,
    shown_result,
    unreadable_text,
    why_of,
)
from orchestrator.tools.sampling import UntimedSampler
from orchestrator.tools.spec import (
    REPEATABLE,
    DepsT,
    ToolContext,
    ToolFunction,
    ToolSpec,
    as_tool,
    parse_arguments,
)
from orchestrator.tools.tool_error import tool_error

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@runtime_checkable
class ToolCollection(Protocol):
    """Tools that may change while a run is active, such as those of an MCP server. Given to an agent like a tool."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools as of the last `refresh`."""
        ...

    async def refresh(self) -> None:
        """Update `tools`, before each request to the model."""
        ...


ToolSource: TypeAlias = ToolSpec[DepsT] | ToolFunction | functools.partial[Any] | ToolCollection
"""What an agent accepts as a tool."""


def check_names(offers: Iterable[ToolSpec]) -> None:
    """Raise ConfigError for a duplicate name or a name that no model could call."""
    seen: set[str] = set()
    for spec in offers:
        if not _NAME.fullmatch(spec.name):
            raise ConfigError(f"tool name {spec.name!r}: possible: 1 to 64 of a-z, A-Z, 0-9, _ and -")
        if spec.name.casefold() in seen:
            raise ConfigError(
                f"two tools are named {spec.name!r}; names that differ only in case count as equal; tools "
                "of an MCP server get other names by `prefix=`, or `--mcp NAME=COMMAND`"
            )
        seen.add(spec.name.casefold())


def listed(items: Iterable[ToolSpec | ToolCollection]) -> list[ToolSpec]:
    """Return the tools of all items. A tool of a collection whose name another tool has is left out."""
    items = list(items)
    taken = {item.name.casefold() for item in items if isinstance(item, ToolSpec)}
    offers: list[ToolSpec] = []
    for item in items:
        if isinstance(item, ToolSpec):
            offers.append(item)
            continue
        new = [spec for spec in item.tools if spec.name.casefold() not in taken]
        taken.update(spec.name.casefold() for spec in new)
        offers += new
    return offers


def invoke(spec: ToolSpec, bound: Sequence[ToolContext], arguments: Mapping[str, Any]) -> Awaitable[object]:
    """Call the function of a tool with its arguments and, if it takes one, its context."""
    if spec.is_async:
        return host_call(spec.call(*bound, **arguments), spec.kind, spec.name)
    return _invoke_sync(spec, bound, arguments)


async def _invoke_sync(spec: ToolSpec, bound: Sequence[ToolContext], arguments: Mapping[str, Any]) -> object:
    stop = bound[0].cancelled.set if bound else None
    value = await _in_thread(functools.partial(spec.call, *bound, **arguments), spec, stop)
    # A sync wrapper around an async function returns its coroutine.
    try:
        if not inspect.isawaitable(value):
            return value
    except Exception:  # noqa: BLE001 - a lazy proxy raises when its class is read; the tool has run all the same
        return value
    return await host_call(value, spec.kind, spec.name)


async def _in_thread(
    function: Callable[[], object], spec: ToolSpec, stop: Callable[[], None] | None
) -> object:
    value, error = await in_thread(function, f"tool-{spec.name}", call=(spec.kind, spec.name), stop=stop)
    if error is None:
        return value
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(f"the tool raised {explain(error)}") from error


_SUGGESTIONS = 3
_SYSTEM_CLOCK = SystemClock()
_NOTHING = ShownResult("", cut=False, whole=None, parts=())


ContextFor: TypeAlias = Callable[[ToolCall, int], ToolContext]
"""Makes the context of the call at a position: a new one for each call, and only for tools that take one."""
Before: TypeAlias = Callable[[ToolCall], Awaitable[ToolCall | ToolResult | None]]
"""Receives a call before it runs. It returns a replacement call, a result instead of the call, or None."""
After: TypeAlias = Callable[[ToolResult], Awaitable[ToolResult | None]]
"""Receives a result before it is stored, and may replace it."""
Around: TypeAlias = Callable[[ToolSpec, int], AbstractContextManager[object]]
"""Makes the context manager around the function of the tool that answers the call at a position."""


class ReadArguments(NamedTuple):
    """The arguments that a tool has read from a canonical text, for one execution: the tool may change them."""

    spec: ToolSpec
    text: str
    arguments: dict[str, Any]


def canonical_call(
    spec: ToolSpec, call: ToolCall, position: int
) -> tuple[ToolCall | ToolResult, ReadArguments | None]:
    """Return a call with its arguments in canonical form, or an error result that answers it instead.

    The second value are the arguments, if they were read from that form already.
    """
    try:
        text, arguments = canonical_form(call.arguments, spec.read, spec.dump)
    except Exception as error:  # noqa: BLE001 - the tool's own validators may raise anything
        outcome, content = failure_of(error)
        return ToolResult(call, position, content, outcome), None
    read = None if arguments is None else ReadArguments(spec, text, arguments)
    return call if text == call.arguments else replace(call, arguments=text), read


class ToolSet:
    """Tools by name. Raises ConfigError for a duplicate name or a name that no model could call.

    The `max_concurrency` of a tool counts over all runs that share the set, within one event loop.
    """

    offers_all: ClassVar[bool] = True
    """Whether `offers` has every tool that it answers for."""

    def __init__(
        self,
        tools: Iterable[ToolSpec | ToolCollection | Callable[..., Any]] = (),
        *,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        self._items = tuple(tool if isinstance(tool, ToolCollection) else as_tool(tool) for tool in tools)
        self.collections = tuple(item for item in self._items if isinstance(item, ToolCollection))
        """The sources whose tools may change."""
        self._names: Collection[str] | None = None
        self._clock = clock
        # A semaphore belongs to one event loop, and `run_sync` makes a loop for each run.
        self._slots: dict[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = {}
        self._index()
        check_names(self.offers)

    def _index(self) -> None:
        offers = listed(self._items)
        self.offers = tuple(spec for spec in offers if self._names is None or spec.name in self._names)
        self._exact = {spec.name: spec for spec in self.offers}
        self._folded = {spec.name.casefold(): spec for spec in reversed(self.offers)}

    async def refresh(self) -> None:
        """Read the tools of the collections again."""
        for collection in self.collections:
            await collection.refresh()
        self._index()

    def select(self, names: Collection[str]) -> Self:
        """Return a set of the tools with these names. It shares the limits on concurrent calls."""
        chosen = copy.copy(self)
        chosen._names = frozenset(names)  # noqa: SLF001 - of this class
        chosen._index()  # noqa: SLF001
        return chosen

    def extended(self, tools: Iterable[ToolSpec]) -> Self:
        """Return a set that has further tools. It shares the limits on concurrent calls. Raises ConfigError."""
        more = copy.copy(self)
        more._items = (*self._items, *tools)  # noqa: SLF001 - of this class
        more._index()  # noqa: SLF001
        check_names(more.offers)
        return more

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool with exactly this name, else with this name in other capitals, else None."""
        return self._exact.get(name) or self._folded.get(name.casefold())

    def unknown(self, call: ToolCall, position: int = 0) -> ToolResult:
        """Answer a call of an unknown tool; name up to three similar tools."""
        close = difflib.get_close_matches(call.name.casefold(), self._folded, n=_SUGGESTIONS)
        names = ", ".join(repr(self._folded[name].name) for name in close)
        why = f"there is no tool {call.name!r}" + (f"; did you mean {names}?" if names else "")
        return ToolResult.failure(call, position, "error", why, "UnknownTool")

    def execute(
        self,
        call: ToolCall,
        position: int,
        context_for: ContextFor,
        *,
        waited: float = 0.0,
        exact: dict[int, ReadArguments] | None = None,
        around: Around | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run one call. Any error becomes an error result; only a cancellation passes through.

        `waited` is the seconds that the call has waited already; they count as queued. With `exact` the arguments are
        in canonical form: a call that its tool would read in another way does not run. It has, by position, the
        arguments that were read already; they are removed. `around` encloses the tool.
        """
        spec = self._exact.get(call.name) or self.find(call.name)
        if spec is None:
            return self._answer_unknown(call, position)
        start = self._queue if spec.max_concurrency else self._run
        return start(spec, call, position, context_for, waited, exact=exact, around=around)

    async def _answer_unknown(self, call: ToolCall, position: int) -> ToolResult:
        return self.unknown(call, position)

    async def _queue(
        self,
        spec: ToolSpec,
        call: ToolCall,
        position: int,
        context_for: ContextFor,
        waited: float,
        *,
        exact: dict[int, ReadArguments] | None = None,
        around: Around | None = None,
    ) -> ToolResult:
        """Run one call when its tool has a free slot."""
        asked = self._clock.monotonic()
        async with self._slot(spec):
            waited += self._clock.monotonic() - asked
            return await self._run(spec, call, position, context_for, waited, exact=exact, around=around)

    async def execute_all(
        self,
        calls: Sequence[ToolCall],
        context_for: ContextFor,
        *,
        max_concurrent: int = 10,
        before: Before | None = None,
        after: After | None = None,
        done: list[ToolResult | None] | None = None,
        exact: dict[int, ReadArguments] | None = None,
        around: Around | None = None,
    ) -> list[ToolResult]:
        """Run the calls of one turn and return their results in call order.

        `max_concurrent` limits the concurrent calls (0: no limit). `before` and `after` receive each call and each
        result. `done` has one place per call, filled as results arrive, so it survives a cancellation; the call of a
        filled place does not run. On cancellation async tools are cancelled and joined, waiting calls never start,
        and threads continue alone with `cancelled` set. An exception of `before` or `after` ends the turn in the same
        way and is raised. `exact` and `around` are those of `execute`.
        """
        done = [None] * len(calls) if done is None else done
        if len(done) != len(calls):
            raise ConfigError(f"done has {len(done)} places for {len(calls)} calls")
        turn = _Turn(self, self._clock, calls, context_for, before, after, done, exact, around)
        asked = cancel_requests()
        before_the_turn = asked()
        try:
            if len(calls) > 1:
                # Each call has its own task, even if it runs alone, so that its context variables stay in it.
                for group in self._groups(calls, done):
                    await turn.together(group, max_concurrent)
            elif done and done[0] is None:
                await turn.one(0)
        except Exception as error:
            if asked() > before_the_turn:
                raise asyncio.CancelledError from error
            raise
        if asked() > before_the_turn:
            raise asyncio.CancelledError  # a tool swallowed the cancellation; the run must stop all the same
        return turn.results()

    async def take_back(self, call: ToolCall, position: int, context_for: ContextFor) -> None:
        """Revert a call that may have run, with the `undo` of its tool and within its timeout.

        Raises ConfigError for a tool without `undo`, and the errors of `undo`.
        """
        spec = self.find(call.name)
        if spec is None or spec.undo is None:
            raise ConfigError(f"tool {call.name!r} has no undo")
        undo = replace(spec, call=spec.undo, effect="irreversible", undo=None)
        result = await self._run(undo, call, position, context_for, 0.0)
        if result.is_error:
            raise RunError(f"undo of {spec.name!r} failed: {result.content}")

    def _groups(self, calls: Sequence[ToolCall], done: Sequence[ToolResult | None]) -> Iterator[list[int]]:
        """Split the open positions into groups that run one after the other; a sequential tool is its own group."""
        group: list[int] = []
        for position, call in enumerate(calls):
            if done[position] is not None:
                continue
            spec = self.find(call.name)
            if spec is None or not spec.sequential:
                group.append(position)
                continue
            if group:
                yield group
            yield [position]
            group = []
        if group:
            yield group

    async def _run(  # noqa: C901, PLR0912, PLR0915 - one execution, in its order
        self,
        spec: ToolSpec,
        call: ToolCall,
        position: int,
        context_for: ContextFor,
        queued: float,
        *,
        exact: dict[int, ReadArguments] | None = None,
        around: Around | None = None,
    ) -> ToolResult:
        at, started = self._clock.time(), self._clock.monotonic()
        total = spec.total_timeout
        if total is None and (call_seconds := getattr(context_for, "call_seconds", None)) is not None:
            total = call_seconds()  # of a run: a caller without one need not limit its calls
        bound: tuple[ToolContext, ...] = ()
        restarts: TimeLimit | None = None
        if spec.takes_context:
            restarts = TimeLimit()
            bound = (self._narrowed(context_for(call, position), spec, restarts, total),)
        outcome: ToolOutcome = "ok"
        abandoned, needs, returned, raised, before = False, None, None, None, _cancels()
        value: object = None
        shown = _NOTHING
        try:
            if exact is None:
                arguments = parse_arguments(spec, call.arguments)
            elif (read := exact.pop(position, None)) and read.spec is spec and read.text == call.arguments:
                arguments = read.arguments
            else:
                arguments = exact_arguments(call.arguments, spec.read, spec.dump)
            work: Callable[[], Awaitable[object]] = functools.partial(invoke, spec, bound, arguments)
            if spec.timeout is not None or total:
                hosted = None
                if spec.is_async:  # as `invoke`, in one step
                    work, hosted = functools.partial(spec.call, *bound, **arguments), (spec.kind, spec.name)
                work = functools.partial(
                    limited, work, spec.timeout, self._clock, restarts, total=total or None, call=hosted
                )
            if around is None:
                value = await work()
            else:
                with around(spec, position):
                    value = await work()
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as error:
            for context in bound:
                context.cancelled.set()
            if not _is_the_tools_own(error, before):
                raise
            may_retry = isinstance(error, ModelRetry) and context_for(call, position).retry < spec.retries
            may_repeat = spec.effect in REPEATABLE
            outcome, content = failure_of(error, may_retry=may_retry, may_repeat=may_repeat)
            abandoned = isinstance(error, TimeLimitPassed) and error.abandoned
            needs = error if isinstance(error, PersonNeeded) else None
            if outcome == "error" and needs is None:
                raised = tool_error(spec, error, why_of(error))
            if isinstance(error, ResultUnreadable) and error.result is not None:
                returned = description_of(error.result)
        else:
            # The tool has run. From here on nothing may count as its failure, or the model repeats the call.
            try:
                shown = shown_result(value, spec.max_result_chars, keep=READ_RESULT in self._exact)
                content = shown.content
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - code of the value can raise anything
                outcome, returned = "result_unreadable", description_of(value)
                content = unreadable_text(no_json_form(value, error))
        took = self._clock.monotonic() - started
        return ToolResult(
            call,
            position,
            content,
            outcome,
            took,
            queued,
            shown.cut,
            at,
            abandoned,
            shown.whole,
            needs,
            shown.parts,
            returned,
            raised,
        )

    def _narrowed(
        self, context: ToolContext, spec: ToolSpec, restarts: TimeLimit, total: float | None
    ) -> ToolContext:
        """Return the context with the timeouts of the call in its deadline."""
        seconds = min((one for one in (spec.timeout, total) if one), default=None)
        if seconds is None:
            return context
        ends = self._clock.monotonic() + seconds
        deadline = ends if context.deadline is None else min(ends, context.deadline)
        sample = context.sample and UntimedSampler(restarts, context.sample)
        return replace(context, deadline=deadline, restart_timeout=restarts.restart, sample=sample)

    def _slot(self, spec: ToolSpec) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            for closed in [known for known in tuple(self._slots) if known.is_closed()]:
                self._slots.pop(closed, None)
        of_loop = self._slots.setdefault(loop, {})
        return of_loop.setdefault(spec.name, asyncio.Semaphore(spec.max_concurrency))


@dataclass(slots=True)
class _Turn:
    """The running calls of one turn."""

    tools: ToolSet
    clock: Clock
    calls: Sequence[ToolCall]
    context_for: ContextFor
    before: Before | None
    after: After | None
    done: list[ToolResult | None]
    """One place for each call, filled as results arrive."""
    exact: dict[int, ReadArguments] | None
    around: Around | None

    async def one(self, position: int, waited: float = 0.0) -> None:
        """Run one call with its middleware."""
        call = self.calls[position]
        changed = None if self.before is None else await self.before(call)
        if isinstance(changed, ToolResult):
            # The middleware knows no positions, and the transcript pairs a result with the call that the model made.
            result = replace(changed, call=call, position=position)
        else:
            runs = call if changed is None else replace(changed, id=call.id)
            result = await self.tools.execute(
                runs, position, self.context_for, waited=waited, exact=self.exact, around=self.around
            )
        # Stored before `after` runs: a cancellation there must not lose the result.
        self.done[position] = result
        if self.after is not None and (replaced := await self.after(result)) is not None:
            self.done[position] = replace(replaced, position=position)

    async def together(self, positions: Sequence[int], max_concurrent: int) -> None:
        """Run calls concurrently, each in its own task, so that context variables do not reach another call."""
        group = _Group(asyncio.Semaphore(max_concurrent or len(positions)))
        asked = self.clock.monotonic()
        owner = here()
        scope = None if owner is None else owner.scope
        for position in positions:  # an eager task (3.12) may have failed before the next one is made
            if not group.failures:
                work = group.slotted(lambda at=position: self.one(at, self.clock.monotonic() - asked))  # type: ignore[misc]
                group.tasks.append(AbandonableTask(work, scope))
        late = await until_ended(group.tasks)
        if late is not None:
            raise late
        if group.failures:
            raise group.failures[0]

    def results(self) -> list[ToolResult]:
        """Return all results in call order. Raises RunError if one is missing."""
        if not all(self.done):
            raise RunError("a before or after callback raised CancelledError, but the turn was not cancelled")
        done: list[Any] = self.done
        return done.copy()


@dataclass(slots=True)
class _Group:
    """Calls that run concurrently; if one raises, the others are cancelled."""

    slots: asyncio.Semaphore
    tasks: list[AbandonableTask[None]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    async def slotted(self, call: Callable[[], Awaitable[None]]) -> None:
        """Run a call when a slot is free, and keep its exception."""
        try:
            async with self.slots:
                await call()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  raised by the turn after the others have ended
            self.failures.append(error)
            asyncio.get_running_loop().call_soon(self._stop)

    def _stop(self) -> None:
        for task in self.tasks:
            task.cancel()


def _cancels() -> int:
    """Return the number of pending cancellations of the running task.

    The task counts them, not `cancellations`: a time limit that a hook sets around its calls cancels only its own
    task.
    """
    owner = here()
    if owner is not None:
        return owner.cancelling()
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _is_the_tools_own(error: BaseException, before: int) -> bool:
    """Return whether the tool itself raised an error, in contrast to a cancellation from outside; unpack groups.

    `before` is the value of `_cancels` at the start of the call: on 3.11 a task group that failed earlier leaves a
    count.
    """
    if isinstance(error, Exception):
        return True
    is_exit = isinstance(error, BaseExceptionGroup) and error.subgroup((KeyboardInterrupt, SystemExit))
    return not (is_exit or _cancels() > before)
