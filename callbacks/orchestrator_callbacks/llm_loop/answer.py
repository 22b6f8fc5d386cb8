"""The final answer: parse it, or request another one with a single feedback message that replaces the previous one.

An incomplete answer is never a complete one: the vendor's finish reason decides. Free text that the output limit cut,
that a filter cut or with which the model refused ends the run as partial. Only a cut text is requested again, if the
limits say so, because a filter and a refusal would answer in the same way. An answer with an output type is requested
again in each case, because an incomplete value is no value.

Output validators of the host accept, change or refuse the parsed answer. A refused one is requested again like an
answer that does not fit its schema. A changed output is stored in the context, so that a run that is resumed after
the check has the same output and the validators do not run again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from orchestrator.errors import CompletionError, ConfigError, LimitReached, ModelRetry
from orchestrator.kernel.cancellation import host_call, in_thread
from orchestrator.kernel.fact import BudgetChecked, OperationAttempt
from orchestrator.kernel.hooks import takes
from orchestrator.llm.message import INCOMPLETE, FinishReason, Message, Response
from orchestrator.llm.structured_output import OutputSpec, UnusableAnswer, error_payload
from orchestrator.machines.llm_loop.graph import verdicts, whole_budgets
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.tools.result import why_of
from orchestrator.tools.spec import ToolContext
from orchestrator_callbacks.llm_loop import turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun, OutputValidator, tool_context
from orchestrator_callbacks.llm_loop.turn_accounting import record_guards
from orchestrator_guards import Verdict, completion_retries, fingerprint

FEEDBACK = (
    "Your answer could not be used (attempt {attempt} of {most}): {issue}. "
    "Answer again{form}, without any other text. Attempts left after this one: {left}."
)

CUT = "your output limit cut it before its end; give a shorter answer"
FILTERED = "a content filter of the provider cut it"


def read(run: LoopRun) -> str | None:
    """Set `ctx.output` from the answer; return the fault of an unusable answer, else None."""
    ctx, spec = run.ctx, run.deps.output
    response = ctx.response or Response()
    ctx.completion.incomplete = ""
    issue = _read_text(ctx, response) if spec is None else _read_value(ctx, response, spec)
    return None if ctx.wrapping_up else issue


def _read_text(ctx: LoopContext, response: Response) -> str | None:
    text, finish = response.message().text, response.finish
    ctx.output = text
    if finish in INCOMPLETE and (text.strip() or finish is FinishReason.LENGTH):
        ctx.completion.incomplete = INCOMPLETE[finish]
        again = finish is FinishReason.LENGTH and ctx.limits.on_truncated == "retry"
        return CUT if again and ctx.limits.completion_retries else None
    return error_payload(text) if ctx.limits.completion_retries else None


def _read_value(ctx: LoopContext, response: Response, spec: OutputSpec) -> str | None:
    text, finish = response.message().text, response.finish
    try:
        ctx.output = spec.parse(text, cut=finish in {FinishReason.LENGTH, FinishReason.CONTENT_FILTER})
    except UnusableAnswer as error:
        if ctx.wrapping_up:
            ctx.output = None  # free text stays in the messages: the host expects a typed output
        if finish is FinishReason.REFUSAL:
            return f"the model refused: {response.refusal or text}"
        if finish is FinishReason.LENGTH:
            return CUT
        return FILTERED if finish is FinishReason.CONTENT_FILTER else str(error)
    return None


def request_another(run: LoopRun, issue: str, reason: str = "") -> bool:
    """Add the feedback after the unusable answer, and remove the previous answer and feedback.

    Returns False if no other request is possible and the answer is a cut text: that is better than no answer. For any
    other answer it raises CompletionError when no retry is left, LimitReached when another budget refuses. `reason` is
    the reason in facts, by default that of the answer.
    """
    ctx = run.ctx
    ctx.completion.reason = reason
    reason = retry_reason(ctx)
    attempts, most = ctx.completion.retries, ctx.limits.completion_retries
    allowed = completion_retries(attempts, most or -1)  # 0 is unlimited for the guard, but off here
    record_guards(run, (allowed,))
    if not allowed:
        run.emit(
            OperationAttempt(run.graph.name, run.run_id, "completion", attempts + 1, "exhausted", reason)
        )
        if ctx.completion.incomplete:
            return False
        ctx.fault = "completion_invalid"
        raise CompletionError(issue, attempts)
    moved = None
    if ctx.limits.max_no_progress:
        moved = turn_accounting.add_turn(ctx, fingerprint([], ctx.messages[-1].text))
    asked = retry_verdicts(ctx, moved)
    if ctx.verdict is None or ctx.wrapping_up:  # otherwise an earlier refusal, with its own row
        record_guards(run, asked)
    if refusal := decide_retry(run, asked):
        if ctx.completion.incomplete:
            return False
        raise refusal  # the failure counts the limit
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, ctx.iteration, asked))
    ctx.completion.retries = attempts + 1
    run.emit(OperationAttempt(run.graph.name, run.run_id, "completion", attempts + 1, "retry", reason))
    _replace_feedback(run, issue)
    return True


def retry_reason(ctx: LoopContext) -> str:
    """Return the reason in facts and events for another request after the last answer."""
    cut = ctx.response is not None and ctx.response.finish is FinishReason.LENGTH
    return ctx.completion.reason or ("truncated" if cut else "schema_invalid")


def retry_verdicts(ctx: LoopContext, moved: Verdict | None) -> list[Verdict]:
    """Evaluate the guards for another request; an existing refusal stands."""
    if ctx.wrapping_up:
        return whole_budgets(ctx)
    return verdicts(ctx, moved) if ctx.verdict is None else [ctx.verdict]


def decide_retry(run: LoopRun, asked: Sequence[Verdict]) -> LimitReached | None:
    """Return the error of a refusal of another request, or None: a normal one, or the reserved wrap-up turn."""
    ctx = run.ctx
    verdict = turn_accounting.decide(ctx, asked)
    ctx.verdict = None if verdict else verdict
    return None if turn_accounting.grant_turn(run) else LimitReached(verdict)


def _replace_feedback(run: LoopRun, issue: str) -> None:
    ctx = run.ctx
    state, most = ctx.completion, ctx.limits.completion_retries
    if state.mark >= 0:  # a new list: requests hold views of the old one
        ctx.messages = ctx.messages[: state.mark] + ctx.messages[state.mark + 2 :]
    state.mark = len(ctx.messages) - 1
    form = " as JSON that fits the schema" if run.deps.output else ""
    left = most - state.retries
    feedback = FEEDBACK.format(attempt=state.retries, most=most, issue=issue, form=form, left=left)
    ctx.messages.append(Message("user", feedback))


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


def restore_output(run: LoopRun) -> None:
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
