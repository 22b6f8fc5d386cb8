"""The final answer: parse it, or request another one with a single feedback message that replaces the previous one."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import CompletionError, LimitReached
from orchestrator.kernel.record import BudgetChecked, OperationAttempt
from orchestrator.llm.message import Message, Response
from orchestrator.llm.structured_output import UnusableAnswer, error_payload
from orchestrator.machines.llm_loop.graph import verdicts, whole_budgets
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator_callbacks.llm_loop import turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_callbacks.llm_loop.guard_record import record_guards
from orchestrator_guards import Verdict, completion_retries

FEEDBACK = (
    "Your answer could not be used (attempt {attempt} of {most}): {issue}. "
    "Answer again{form}, without any other text. Attempts left after this one: {left}."
)


def read(run: LoopRun) -> str | None:
    """Set `ctx.output` from the answer; return the fault of an unusable answer, else None."""
    ctx, spec = run.ctx, run.deps.output
    response = ctx.response or Response()
    text = response.message().text
    if spec is None:
        ctx.output = text
        return error_payload(text) if ctx.limits.completion_retries and not ctx.wrapping_up else None
    try:
        ctx.output = spec.parse(text)
    except UnusableAnswer as error:
        if ctx.wrapping_up:
            ctx.output = None  # free text stays in the messages: the host expects a typed output
            return None
        return f"the model refused: {response.refusal}" if response.refusal else str(error)
    return None


def request_another(run: LoopRun, issue: str) -> None:
    """Add the feedback after the unusable answer, and remove the previous answer and feedback.

    Raises CompletionError when no retry is left, LimitReached when another budget refuses.
    """
    ctx = run.ctx
    attempts, most = ctx.completion.retries, ctx.limits.completion_retries
    allowed = completion_retries(attempts, most or -1)  # 0 is unlimited for the guard, but off here
    record_guards(run, (allowed,))
    if not allowed:
        ctx.fault = "completion_invalid"
        run.emit(
            OperationAttempt(
                run.graph.name, run.run_id, "completion", attempts + 1, "exhausted", "schema_invalid"
            )
        )
        raise CompletionError(issue, attempts)
    moved = turn_accounting.remember(ctx, [], ctx.messages[-1].text) if ctx.limits.max_no_progress else None
    asked = retry_verdicts(ctx, moved)
    if ctx.verdict is None or ctx.wrapping_up:  # otherwise an earlier refusal, with its own row
        record_guards(run, asked)
    if refusal := decide_retry(run, asked):
        raise refusal  # the failure counts the limit
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, ctx.iteration, asked))
    ctx.completion.retries = attempts + 1
    run.emit(
        OperationAttempt(run.graph.name, run.run_id, "completion", attempts + 1, "retry", "schema_invalid")
    )
    _replace_feedback(run, issue)


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
    return None if turn_accounting.may_go_on(run) else LimitReached(verdict)


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
