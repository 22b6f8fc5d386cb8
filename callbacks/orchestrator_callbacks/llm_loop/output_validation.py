"""Output validators of the host: they accept, change or refuse the parsed final answer.

A refused answer is requested again like an answer that does not fit its schema. A changed output is stored in the
context, so that a run that is resumed after the check has the same output and the validators do not run again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from orchestrator.errors import ConfigError, ModelRetry
from orchestrator.kernel.cancellation import host_call, in_thread
from orchestrator.kernel.hooks import takes
from orchestrator.llm.structured_output import UnusableAnswer
from orchestrator.tools.result import why_of
from orchestrator.tools.spec import ToolContext
from orchestrator_callbacks.llm_loop.deps import LoopRun, OutputValidator, tool_context

V = TypeVar("V", bound=Callable[..., Any])

_NAME = "output_validator"


def as_validator(function: Any) -> OutputValidator:
    """Return a function of (output, context) as an async one; a sync one runs in a thread. Raises ConfigError."""
    if not callable(function) or inspect.isclass(function) or not takes(function, 2):
        raise ConfigError(f"output validator {function!r} must be a function of (output, context)")

    async def validated(output: object, context: ToolContext) -> object:
        if inspect.iscoroutinefunction(function):
            return await host_call(function(output, context), "hook", _NAME)
        work = partial(function, output, context)
        value, error = await in_thread(work, _NAME, call=("hook", _NAME), stop=context.cancelled.set)
        if error is not None:
            raise error
        return await host_call(value, "hook", _NAME) if inspect.isawaitable(value) else value

    return validated


async def validate(run: LoopRun) -> str | None:
    """Pass the output to the validators in order; return the reason of a refusal, else None.

    In the wrap-up turn, and after an incomplete answer that is accepted, nothing is requested again: a refused answer
    leaves the run without an output.
    """
    ctx = run.ctx
    if not run.deps.validators or ctx.output is None:
        return None
    await run.keep()  # a validator may act outside, so the answer is durable first
    before = _plain(ctx.output)
    context = tool_context(run, f"output:{ctx.iteration}", retry=ctx.completion.retries)
    try:
        for validator in run.deps.validators:
            run.set_hook(_NAME)
            changed = await validator(ctx.output, context)
            if run.control.halted:  # the run was stopped meanwhile: stop here
                await asyncio.sleep(0)
            ctx.output = ctx.output if changed is None else changed
    except ModelRetry as refusal:
        return _refused(run, why_of(refusal))
    after = _plain(ctx.output)
    ctx.completion.output = None if after == before else after
    return None


def restore(run: LoopRun) -> None:
    """Restore the output that the validators accepted, after the answer was parsed again."""
    ctx, spec = run.ctx, run.deps.output
    if ctx.completion.issue:
        ctx.output = None
    elif ctx.completion.output is not None:
        try:
            ctx.output = ctx.completion.output if spec is None else spec.read(ctx.completion.output)
        except UnusableAnswer:  # a validator changed it to a value of another type
            ctx.output = ctx.completion.output


def _refused(run: LoopRun, why: str) -> str | None:
    ctx = run.ctx
    ctx.output = None
    if not ctx.wrapping_up and not ctx.completion.incomplete:
        return why
    ctx.completion.issue = why
    return None


def _plain(output: object) -> Any:
    return to_jsonable_python(output, fallback=str)
