"""Guardrails of an agent: its input before the first request, its output before the run completes.

All guardrails of a stage are evaluated and recorded; the first refusal decides. A refused text does not enter the
conversation: a refused prompt is removed from the messages, a refused answer as soon as the model has given another,
and a note replaces the one that ends the run. All of them stay in the records that were written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic_core import to_json

from orchestrator.errors import CompletionError, GuardrailRefused
from orchestrator.kernel.fact import GuardEvaluated
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.model import LoopContext, LoopEvent
from orchestrator_callbacks.llm_loop import answer
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import CheckedText, Guardrail
from orchestrator_guards.guardrail import GuardrailVerdict

if TYPE_CHECKING:
    from orchestrator.machines.team.model import TeamContext  # an agent without handoffs has no use for it

WITHHELD = "(This answer was withheld by the guardrail {guard}.)"


def new_input(messages: Sequence[Message]) -> list[int]:
    """Return the places of the user's new messages: those behind the last answer of the model."""
    # An answer with calls is no end of a turn: the history of a handoff has the call that made it, and its result.
    said = (i + 1 for i, one in enumerate(messages) if one.role == "assistant" and not one.tool_calls)
    start = max(said, default=0)
    return [start + i for i, one in enumerate(messages[start:]) if one.role == "user"]


def drop_new_input(ctx: LoopContext | TeamContext) -> None:
    """Remove the user's new messages, which a guardrail refused, from the conversation of a run."""
    refused = new_input(ctx.messages)
    ctx.messages = [one for i, one in enumerate(ctx.messages) if i not in refused]
    ctx.base -= sum(i < ctx.base for i in refused)


def check_input(run: LoopRun) -> None:
    """Check the new messages of a run. Raises GuardrailRefused."""
    ctx = run.ctx
    new = [ctx.messages[i] for i in new_input(ctx.messages)]
    text = "\n".join(message.text for message in new)
    attachments = sum(
        part.get("type") != "text"
        for message in new
        if message.content and not isinstance(message.content, str)
        for part in message.content
    )
    found = _evaluate(run, run.deps.input_guards, CheckedText(text, text, attachments), LoopEvent.START_LOOP)
    if found is None:
        return
    drop_new_input(ctx)
    ctx.fault, ctx.verdict = "guardrail", found.verdict
    raise GuardrailRefused(found.verdict, found.guardrail.on_refusal)


def requests_another(run: LoopRun) -> bool:
    """Check the output; return whether a better answer was requested. Raises GuardrailRefused, LimitReached."""
    ctx = run.ctx
    if ctx.output is None:
        return False
    text = ctx.output if isinstance(ctx.output, str) else to_json(ctx.output, fallback=str).decode()
    checked = CheckedText(ctx.output, text)
    found = _evaluate(run, run.deps.output_guards, checked, LoopEvent.COMPLETION_SUCCESS)
    if found is None:
        _drop_refused_answer(ctx)
        return False
    ctx.output = ctx.completion.output = None
    error = GuardrailRefused(found.verdict, found.guardrail.on_refusal)
    if error.action == "retry" and not ctx.wrapping_up:
        try:
            if answer.request_another(run, found.verdict.detail or str(error), "guardrail"):
                return True
        except CompletionError:  # no retry is left
            pass
    _drop_refused_answer(ctx)
    note = Message("assistant", WITHHELD.format(guard=found.verdict.guard))
    ctx.messages = [*ctx.messages[:-1], note]  # not shorter by the answer: it is a turn of the conversation
    ctx.response = None if ctx.response is None else replace(ctx.response, content=note.content)
    ctx.fault, ctx.verdict = "guardrail", found.verdict
    raise error


def _drop_refused_answer(ctx: LoopContext) -> None:
    """Remove the last answer that was requested again, with its feedback, once the run needs them no more."""
    mark = ctx.completion.mark
    if mark >= 0:
        ctx.messages = ctx.messages[:mark] + ctx.messages[mark + 2 :]
        ctx.completion.mark = -1


def _evaluate(
    run: LoopRun, guardrails: Sequence[Guardrail], checked: CheckedText, event: LoopEvent
) -> GuardrailVerdict | None:
    """Evaluate, record and publish all guardrails of a stage; return the first refusal, or None."""
    try:
        found = [guardrail.evaluate(checked) for guardrail in guardrails]
    except ValueError:
        run.ctx.fault = "guard_error"
        raise
    run.attach_guards([one.row for one in found])
    if GuardEvaluated in run.writes.observed_kinds:
        for _, verdict, _ in found:
            result = "allow" if verdict.ok else "deny"
            run.emit(
                GuardEvaluated(
                    run.graph.name,
                    run.run_id,
                    run.cursor.state,
                    event,
                    verdict.guard,
                    result,
                    verdict.observed,
                    verdict.limit,
                )
            )
    return next((one for one in found if not one.verdict.ok), None)
