"""Calls of tools as child runs of a run of any machine: the graph `call` with the ledger of the loop."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Transition
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Record
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message, Response, ToolCall
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.call.graph import CALL, ending
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.machines.plain import plain_json
from orchestrator.runtime.llm_loop.result import Result, result_of
from orchestrator.runtime.llm_loop.run_record import loop_codec, repeated_work, restored, summary
from orchestrator.runtime.service.arguments import SHARED, stored_data
from orchestrator.runtime.service.child_run import ChildWaitObserver
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.tools.input_request import EffectUnknown
from orchestrator.tools.spec import ToolContext, ToolSpec
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.call import enter, leave
from orchestrator_callbacks.llm_loop.deps import LoopDeps, LoopRun

_LIMITS = Limits(on_tool_error="raise", max_seconds=0)
_NO_MODEL: Any = None
CALL_KEY: Final = "1:0"
"""Key of the call of such a run."""


class CallRuns:
    """The calls below the runs of one facade, in its journal and under the name of its agent.

    Args:
        above: The service of the facade.
        hosting: Its interface for an engine, which may forbid calls.
    """

    def __init__(self, above: RunService[Any], hosting: Hosting) -> None:
        self._clock, self._hosting = above.clock, hosting
        self._codec = loop_codec()
        self._deps: dict[str, LoopDeps] = {}
        """Id of a run -> its handles, while it is driven."""
        self.service: RunService[Result] = RunService(
            self,
            RunKind(
                machine=Machine(CALL, collect(CALL, enter, leave)),
                codec=self._codec,
                declare=lambda service: service.announce(0.0),
                ending=ending,
                summary=summary,
                result=self._result,
                restore=self._restore,
                repeated=repeated_work,
            ),
            above.runtime,
            {name: value for name, value in above.data.items() if name != "definition"},
            live=above.live,
            control=above.control,
            watching=(ChildWaitObserver(),),
            owner=above.driver.owner,
        )
        self.service.shares_journal = False  # its runs are those of the agent above

    async def run(
        self,
        parent: Run[Any, Any],
        run_id: str,
        spec: ToolSpec,
        arguments: str,
        adopt: Callable[[Run[Any, Any]], None],
    ) -> Result:
        """Run a call as a child run of `parent`, or continue or read it. Its output is JSON data."""
        tools = ToolSet((spec,), clock=self._clock)
        self._deps[run_id] = LoopDeps(
            llm=_NO_MODEL,
            tools=tools,
            retry=RetryPolicy(),
            clock=self._clock,
            model="",
            agent=parent.agent,
            host=parent.deps.host,
            points=self._hosting.host_points,  # type: ignore[arg-type]  # the hooks of a host have its own types
        )

        async def make() -> LoopRun:
            call = ToolCall("call", spec.name, arguments)
            ctx = LoopContext([Message("assistant", None, (call,))], _LIMITS, 0, iteration=1)
            ctx.response = Response(None, (call,))
            return self.service.new_run(
                run_id, ctx, self._deps[run_id], stored_data(parent.data or {}, SHARED)
            )

        try:
            return await self.service.drive_child(parent, run_id, make, adopt)
        finally:
            del self._deps[run_id]

    def _restore(self, stored: StoredRun, records: Sequence[Record]) -> LoopRun:  # noqa: ARG002 - as RunKind
        # The call is no answer of a model, so no record says that it is the last one.
        stored = replace(stored, answer={"iteration": 1})
        return restored(stored, self.service.machine, self._deps[stored.run_id], self._codec)

    @staticmethod
    def _result(run: LoopRun, path: Iterable[Transition], end: Ending) -> Result:
        result = run.ctx.results[0] if run.ctx.results else None
        if result is not None and result.outcome == "ok":
            run.ctx.output = json.loads(result.content)
        return result_of(run, path, end)


def value_tool(spec: ToolSpec) -> ToolSpec:
    """Return a tool whose result is the JSON text of its value, uncut. A value without one stays unreadable."""

    def text(value: Any) -> Any:
        try:
            return json.dumps(plain_json(value), ensure_ascii=False)
        except ValueError:
            return value

    return replace(_wrapped(spec, text), max_result_chars=0, errors="raise")


def undo_tool(spec: ToolSpec, run_id: str, key: str) -> ToolSpec:
    """Return the undo of a finished call as a tool, which asks a person if it fails.

    The undo has the context of the call, so that it finds the effect under the call's idempotency key.
    """
    if spec.undo is None:
        raise TypeError(f"tool {spec.name} has no undo")
    undo = spec.undo

    def own(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            replace(one, run_id=run_id, idempotency_key=f"{run_id}:{key}")
            if isinstance(one, ToolContext)
            else one
            for one in arguments
        )

    @contextmanager
    def asks_if_it_fails() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise EffectUnknown(f"the undo of {spec.name} failed: {error}") from error

    undoes = replace(spec, call=undo, undo=None, effect="idempotent", approval=False, max_result_chars=0)
    return _wrapped(undoes, lambda _: "null", own, asks_if_it_fails)


def _wrapped(
    spec: ToolSpec,
    change: Callable[[Any], Any],
    given: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda arguments: arguments,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> ToolSpec:
    """Return a tool whose function gets other arguments, inside of a context manager, and whose result is changed."""
    function = spec.call
    if spec.is_async:

        @functools.wraps(function)
        async def call(*arguments: Any, **named: Any) -> Any:
            with around():
                return change(await function(*given(arguments), **named))
    else:

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with around():
                return change(function(*given(arguments), **named))

    return replace(spec, call=call)
