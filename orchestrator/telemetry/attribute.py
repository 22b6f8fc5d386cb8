"""Attributes of spans and their events: counts and closed words, no content."""

from __future__ import annotations

from typing import Any, TypeAlias

from orchestrator.kernel.record import (
    EventFailed,
    LLMCall,
    RunCompleted,
    RunStarted,
    ToolExecution,
    Transition,
)
from orchestrator.llm.finish_reason import finish_word
from orchestrator.telemetry import semconv as ours
from orchestrator.telemetry.semconv import Conventions

Attributes: TypeAlias = dict[str, Any]


def identity_attributes(fact: RunStarted, names: Conventions) -> Attributes:
    """Return the attributes that every span of a run has: its agent and its conversation."""
    known = {
        names.agent: fact.agent,
        names.agent_version: fact.agent_version,
        names.conversation: fact.conversation_id,
    }
    return {name: value for name, value in known.items() if value}


def llm_attributes(fact: LLMCall, names: Conventions, provider: str | None) -> Attributes:
    """Return the attributes of a request to a model, without unknown numbers."""
    optional = {
        names.provider: provider,
        names.input_tokens: fact.input_tokens or None,
        names.output_tokens: fact.output_tokens or None,
        names.cached_tokens: fact.cached_input_tokens or None,
        names.reasoning_tokens: fact.reasoning_tokens or None,
        names.first_chunk: fact.first_token,
        ours.TOOL_CALLS: fact.tool_calls or None,
        ours.COST: fact.cost,
        ours.QUEUED: fact.queued or None,
    }
    finish = finish_word(fact.finish_reason)
    return {
        names.operation: names.llm,
        names.model: fact.model,
        ours.STATE: fact.state,
        ours.ITERATION: fact.iteration,
        **{name: value for name, value in optional.items() if value is not None},
        **({} if finish is None else {names.finish_reasons: (finish,)}),
    }


def tool_attributes(fact: ToolExecution, names: Conventions) -> Attributes:
    """Return the attributes of a tool call."""
    return {
        names.operation: names.tool,
        names.tool_name: fact.tool,
        names.tool_type: "function",
        ours.ITERATION: fact.iteration,
        ours.POSITION: fact.position,
        ours.RESULT_CHARS: fact.result_chars,
        **({ours.QUEUED: fact.queued} if fact.queued else {}),
        **({ours.CUT: True} if fact.cut else {}),
    }


def transition_attributes(fact: Transition) -> Attributes:
    """Return the attributes of the event of a transition."""
    return {
        ours.SEQ: fact.seq,
        ours.FROM_STATE: fact.source,
        ours.EVENT: fact.event,
        ours.TO_STATE: fact.dest,
        ours.ITERATION: fact.iteration,
        **({} if fact.guard is None else {ours.GUARD: fact.guard}),
    }


def failed_attributes(fact: EventFailed, names: Conventions) -> Attributes:
    """Return the attributes of the event of a failed event, without the text of its error."""
    return {
        ours.STATE: fact.state,
        ours.EVENT: fact.event,
        ours.REASON: fact.reason,
        **({ours.HOOK: fact.hook} if fact.hook else {}),
        **({} if fact.error is None else {names.error: type(fact.error).__name__}),
    }


def completed_attributes(fact: RunCompleted, names: Conventions) -> Attributes:
    """Return the attributes of the span of a run that ended."""
    attributes: Attributes = {
        ours.OUTCOME: fact.outcome,
        ours.REASON: fact.reason,
        ours.STATE: fact.state,
        ours.TRANSITIONS: fact.transitions,
        ours.ITERATIONS: fact.iterations,
    }
    if fact.outcome == "failed":
        attributes[names.error] = type(fact.error).__name__ if fact.error else fact.reason
    return attributes
