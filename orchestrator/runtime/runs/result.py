"""The result of an ended run, read from its records: no agent, no model, no tool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.errors import LimitReached, Refused
from orchestrator.kernel.codec import restored_failure
from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Response
from orchestrator.machines.llm_loop.ending import BUDGET_OF, STALL_OF
from orchestrator.runtime.llm_loop.codec import context_of, loop_codec
from orchestrator.runtime.llm_loop.result import ANSWERED, Result
from orchestrator.runtime.runs.story import Story
from orchestrator.runtime.service.recorded_path import path_of
from orchestrator_callbacks.llm_loop import memory
from orchestrator_guards import Verdict

_KEPT = 10_000
"""Most transitions of a result."""
_OF_THE_LOOP = frozenset(("base", "iteration"))
"""Fields that the context of every agent has."""


def recorded_result(story: Story, records: Iterable[Record]) -> Result:
    """Return the result of a run with an `ended` record.

    The output is JSON: a value of an `output_type` is not converted back. Runs of other machines than the loop have
    the output that their last record has, and no messages.
    """
    ended = story.ended or {}
    graph = str(story.created.get("graph", ""))
    outcome = Outcome(ended["outcome"])
    error = None
    if story.failure is not None:
        error, _ = restored_failure(story.failure, graph, story.run_id)
    messages, verdict, answer = _conversation(story)
    return Result(
        run_id=story.run_id,
        outcome=outcome,
        reason=str(ended["reason"]),
        output=_output(ended, messages) if outcome in ANSWERED else None,
        messages=tuple(messages),
        usage=story.total,
        transitions=tuple(path_of(story.run_id, graph, records)[-_KEPT:]),
        verdict=_refusal(error) if verdict is None else verdict,
        error=error,
        finish_reason=answer.finish,
        vendor_finish_reason=answer.finish_reason,
    )


def _conversation(story: Story) -> tuple[Sequence[Message], Verdict | None, Response]:
    """Return the messages of an agent's run, the refusal that its context has, and its last answer."""
    if not story.context.keys() >= _OF_THE_LOOP:
        return (), None, Response()
    ctx = context_of(story, loop_codec())
    return memory.conversation(ctx), ctx.verdict, ctx.response or Response()


def _output(ended: Any, messages: Sequence[Message]) -> Any:
    if "output" in ended:
        return ended["output"]
    return messages[-1].text if messages else None


def _refusal(error: Exception | None) -> Verdict | None:
    """Return the limit that an error names, as in the result that the run itself returned."""
    verdict = error.verdict if isinstance(error, LimitReached | Refused) else None
    ours = isinstance(verdict, Verdict) and verdict.guard in {*BUDGET_OF, *STALL_OF}
    return verdict if ours else None
