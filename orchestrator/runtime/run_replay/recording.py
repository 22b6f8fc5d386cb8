"""The parts of a recorded run that came from outside: answers, results of tools, and times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.llm.attempt import ATTEMPTS
from orchestrator.llm.message import Message, Response, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState
from orchestrator.runtime.backtest.policy import limits_of
from orchestrator.runtime.backtest.trace_reader import trace_of
from orchestrator_guards.evaluation import GUARDS

_BY_GUARD: Final = frozenset(("LimitReached", "CompletionError"))
"""Errors that a replay makes again; every other one comes from outside."""
_KIND: Final = 2
"""Index of the kind of the error in the row of an attempt."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A transition, and the context after it."""

    record: int
    """Number of its record."""
    event: str
    source: str
    dest: str
    t: float
    """Active seconds of the run."""
    outside: str = ""
    """The cause of the transition that came from outside: the type of an error, or the price; "" for none."""


@dataclass(slots=True)
class Recording:
    """A run as its records describe it."""

    run_id: str
    limits: Limits = field(default_factory=Limits)
    messages: list[Message] = field(default_factory=list)
    """The messages at its start."""
    answers: list[Response] = field(default_factory=list)
    attempts: list[list[str]] = field(default_factory=list)
    """For each request the kinds of the errors before its answer."""
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key of a call -> its `done` record."""
    refused: dict[int, str] = field(default_factory=dict)
    """Number of an answer -> why it was requested again."""
    policies: dict[str, Any] = field(default_factory=dict)
    """Key of a tool -> the meaning of its repetition."""
    steps: list[RecordedStep] = field(default_factory=list)
    ended: bool = False
    window: int = 0
    """Tokens of the model's context window; 0 if unknown."""


def recording_of(run_id: str, records: Iterable[Record]) -> Recording:
    """Read a run. Raises ConfigError for a run of another graph, of an older version, or one that was migrated."""
    kept = list(records)
    trace = trace_of(run_id, kept)
    if trace.problem:
        raise ConfigError(f"run {run_id!r} cannot be replayed: {trace.problem}")
    found = Recording(run_id)
    reader = _Reader(found)
    for record in kept:
        reader.read(record)
    for point in trace.points:
        found.policies |= {call.tool: call.policy for call in point.calls if call.policy}
    return found


def _refuses_cost(row: Sequence[Any]) -> bool:
    """Return whether the maximum cost of a request was refused, so that it became the wrap-up request."""
    return not row[0] and row[4:5] == ["request_cost"]


class _Reader:
    def __init__(self, found: Recording) -> None:
        self._found = found
        self._stored = StoredRun(found.run_id)
        self._answer: Mapping[str, Any] | None = None

    def read(self, record: Record) -> None:
        """Add one more record."""
        body, found = record.body, self._found
        self._stored.fold(record.kind, body)
        match record.kind:
            case "created":
                context = body["context"]
                found.limits = limits_of(context["limits"])
                found.messages = [Message.from_openai(one) for one in context["messages"]]
            case "answer":
                self._answer = body
                kinds = (next(iter(row[_KIND:]), "") for row in body.get(ATTEMPTS) or ())
                found.attempts.append([str(kind) for kind in kinds if kind])
            case "done" if "key" in body:
                found.results[str(body["key"])] = body
            case "context":
                self._take_messages(body)
                found.window = found.window or int(self._stored.context["context"]["limit"])
            case "transition":
                self._take_step(record)
            case "ended":
                found.ended = True

    def _take_step(self, record: Record) -> None:
        body = record.body
        error = str((body.get("error") or {}).get("type", ""))
        outside = error if error and error not in _BY_GUARD else ""
        rows = body.get(GUARDS) or ()
        if body["event"] == LoopEvent.LLM_RESPONSE and any(_refuses_cost(row) for row in rows):
            outside = "the price of a request"
        step = RecordedStep(
            record.seq,
            str(body["event"]),
            str(body["source"]),
            str(body["dest"]),
            float(body.get("t", 0.0)),
            outside,
        )
        self._found.steps.append(step)
        asks_again = step.event == LoopEvent.COMPLETION_RETRY or error == "CompletionError"
        if step.source == LoopState.HANDLE_COMPLETION and asks_again:
            self._found.refused[len(self._found.attempts)] = "the recorded run asked again"

    def _take_messages(self, body: Mapping[str, Any]) -> None:
        """Build the last answer from its message."""
        changed = body.get("messages") or {}
        added = changed if isinstance(changed, list) else changed.get("add") or ()
        for raw in added:
            if raw.get("role") == "assistant" and self._answer is not None:
                message, answer = Message.from_openai(raw), self._answer
                self._answer = None
                self._found.answers.append(
                    Response(
                        message.content,
                        message.tool_calls,
                        answer.get("finish_reason"),
                        Usage.of(answer.get("usage") or {}),
                        answer.get("model"),
                        message.refusal,
                        message.reasoning,
                    )
                )
