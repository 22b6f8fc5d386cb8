"""Events of a run that exist only in the process that owns it: pieces of answers, progress, retries; and their base.

They have a module of their own because every agent needs them. The events of the journal are in `run_event`, which is
loaded when a stream or a journal is read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Base of the events of a run."""

    run_id: str
    at: float = 0.0
    """Time of the record, or of the one before if it has none (epoch seconds); 0 if unknown."""
    seq: int | None = None
    """Number of the journal's record; None for an event that the journal does not have."""
    part: int = 0
    """Position among the events of that record, from 0."""

    @property
    def id(self) -> str | None:
        """Id for `Runs.events(after=)` and of a server-sent event; None if the journal does not have the event."""
        return None if self.seq is None else f"{self.seq}.{self.part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestRetried(RunEvent):
    """Attempt number `attempt` failed; the next follows after `delay` seconds. Deltas of earlier attempts are void.

    With the reasons `truncated`, `schema_invalid` and `guardrail` the answer itself could not be used: all deltas of
    `iteration` are void, the next answer is number `iteration + 1`, and `attempt` counts the completion retries.
    """

    iteration: int
    attempt: int
    reason: str
    """One of `errors.ERROR_KINDS`, `truncated`, `schema_invalid` or `guardrail`."""
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(RunEvent):
    """A piece of the answer's text as it is streamed, before hooks of the host see it.

    `attempt` counts the attempts of one answer from 1: a higher number begins the answer again, and the pieces with
    lower numbers are void.
    """

    iteration: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(RunEvent):
    """A piece of the model's reasoning, if the provider shows it. As TextDelta."""

    iteration: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgumentsDelta(RunEvent):
    """A piece of the arguments of a tool call, JSON text. As TextDelta."""

    iteration: int
    attempt: int
    position: int
    """Position of the call in the answer, from 0."""
    tool: str
    """Name of the tool; empty if the provider has not sent it yet."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(RunEvent):
    """A tool reports progress of a call. The journal does not have it."""

    key: str
    tool: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(RunEvent):
    """Stands for `count` events that were dropped because the stream was not read."""

    count: int
