"""Context managers of observers around a model request and the tools of a turn; None if no observer wants one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from orchestrator.errors import LLMError
from orchestrator.kernel.cancellation import TimeLimit, TimeLimitPassed, host_call, limited
from orchestrator.kernel.record import Around, Call
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Request, Response
from orchestrator.llm.port import LLM
from orchestrator.tools.spec import ToolSpec


def model_scope(run: Run[Any, Any], model: str) -> AbstractContextManager[object] | None:
    """Return the context manager of a request that starts now."""
    around = _around(run)
    if around is None:
        return None
    iteration, at = run.ctx.iteration + 1, run.deps.clock.time()
    return around(Call(run.graph.name, run.run_id, "model", model, iteration, 0, at))


async def complete_once(run: Run[Any, Any], llm: LLM, model: str, request: Request) -> Response:
    """Call a model once, within the total time of a call. If it ignores a cancellation, it is abandoned.

    A model with a `total_timeout` of its own has no other one. The time in a rate limiter does not count. Raises
    LLMError (`timeout`) after that time, which is retried as an error of the connection is.
    """
    seconds = None
    if getattr(llm, "total_timeout", None) is None:
        seconds = run.call_seconds(run.deps.clock.monotonic())
    services = run.control.services
    watched = services is not None and services.around is not None
    with (model_scope(run, model) if watched else None) or _NO_SCOPE:
        if seconds is None:
            return await host_call(llm.complete(request), "model", model)
        limit = TimeLimit()
        if request.route is not None:
            request.route.limit = limit
        try:
            work = partial(_completed, llm, model, request)
            return await limited(work, None, run.deps.clock, limit, total=seconds)
        except TimeLimitPassed as error:
            raise LLMError(f"model {model!r} gave {error}", kind="timeout") from error


async def _completed(llm: LLM, model: str, request: Request) -> Response:
    return await host_call(llm.complete(request), "model", model)


_NO_SCOPE = nullcontext()


def tool_scope(
    run: Run[Any, Any], ahead: int = 0
) -> Callable[[ToolSpec, int], AbstractContextManager[object]] | None:
    """Return the function that makes the context manager of a tool at a position.

    `ahead` is 1 if the facts about these tools have the iteration after the present one.
    """
    around = _around(run)
    if around is None:
        return None

    def scope(spec: ToolSpec, position: int) -> AbstractContextManager[object]:
        iteration, at = run.ctx.iteration + ahead, run.deps.clock.time()
        return around(Call(run.graph.name, run.run_id, "tool", spec.name, iteration, position, at))

    return scope


def _around(run: Run[Any, Any]) -> Around | None:
    services = run.control.services
    return None if services is None else services.around
