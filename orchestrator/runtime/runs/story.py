"""The history of a run: the parts of its records that `StoredRun` does not keep, folded with it. Pure.

Times in states are the run's own active seconds (`t`), without downtime and without waiting for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from orchestrator.journal.ledger import EffectEntry
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.kernel.redaction import scrub
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.runtime.runs.path import StateVisit
from orchestrator.runtime.runs.transcript import TranscriptEntry, spoken
from orchestrator.telemetry.history import History, StateStats

Body = Mapping[str, Any]

RUNNING = "running"
"""Outcome of a call with an intent but no further record. It is unknown whether the call took effect."""


@dataclass(frozen=True, slots=True)
class CallStory:
    """One tool call. `outcome` is RUNNING, `rolled_back`, or the outcome in its `done` record."""

    key: str
    tool: str
    effect: str
    """Empty for a call that was refused before it had an intent."""
    outcome: str
    seconds: float

    @classmethod
    def of(cls, entry: EffectEntry) -> Self:
        """Create it from an entry of the ledger."""
        done = entry.done or {}
        outcome = RUNNING if entry.open else str(done.get("outcome", "rolled_back"))
        return cls(entry.key, entry.tool, entry.effect, outcome, float(done.get("seconds") or 0.0))


@dataclass
class Story(StoredRun):
    """A run as its records describe it, from the first to the last."""

    last: int = -1
    """Number of the last record."""
    entered_at: float | None = None
    """Wall time (epoch seconds) of the run's entry into its state."""
    visits: list[StateVisit] = field(default_factory=list)
    history: History = field(default_factory=lambda: History(limit=0))
    transitions: int = 0
    decisions: list[tuple[str, Body]] = field(default_factory=list)
    """(`approval`, `control`, `resumed` or `migrated`, body), in order."""
    usage: Usage = NO_USAGE
    requests: int = 0
    retries: int = 0
    going_on: bool = False
    """The time in the last state up to now."""
    models: Counter[str] = field(default_factory=Counter)
    answers: list[Body | None] = field(default_factory=list)
    """For each message the `answer` record that it came from."""
    _entered: float = 0.0
    _unsaid: Body | None = None
    """The `answer` record that is not a message yet."""

    @classmethod
    def of(cls, run_id: str, records: Iterable[Record]) -> Self:
        """Read the records of a run, from the first."""
        story = super().of(run_id, records)
        story.close()
        return story

    def fold(self, kind: str, body: Body) -> None:
        """Add one more record."""
        super().fold(kind, body)
        self.last += 1
        tell = self._READERS.get(kind)
        if tell is not None:
            tell(self, body)
        if kind in _DECISIONS:
            self.decisions.append((kind, body))

    @property
    def turn(self) -> int:
        """The number of answers of the model."""
        return max(int(self.context.get("iteration") or 0), int(self.answer.get("iteration") or 0))

    @property
    def calls(self) -> dict[str, CallStory]:
        """The tool calls, by key, without those that only wait for a person."""
        entries = self.ledger.entries.values()
        return {entry.key: CallStory.of(entry) for entry in entries if entry.effect or entry.done is not None}

    @property
    def running(self) -> list[CallStory]:
        """The calls that may be running."""
        return [call for call in self.calls.values() if call.outcome == RUNNING]

    @property
    def spoken(self) -> list[TranscriptEntry]:
        """The messages in their order, with those that memory inserted."""
        done = {entry.key: entry.done for entry in self.ledger.entries.values() if entry.done is not None}
        return spoken(self.messages, self.answers, done)

    @property
    def conversation(self) -> list[TranscriptEntry]:
        """The messages without those that memory inserted: they are input of the model, not conversation."""
        first, last = self.context.get("recalled") or (0, 0)
        said = self.spoken
        return [*said[:first], *said[last:]] if last > first else said

    @property
    def error_kind(self) -> str:
        """The kind of the model's error that failed the run, one of errors.ERROR_KINDS; "" for any other error."""
        fields = (self.failure or {}).get("fields") or {}
        return str(fields.get("kind") or "") if (self.failure or {}).get("is") == "LLMError" else ""

    @property
    def error_facts(self) -> str:
        """The error that failed the run, without its text: type, kind, HTTP status, request id, file and line."""
        failure = self.failure or {}
        fields = failure.get("fields") or {}
        known = (
            self.error_kind,
            f"HTTP {fields['status']}" if fields.get("status") else "",
            f"request {fields['request_id']}" if fields.get("request_id") else "",
            str(failure.get("where") or ""),
        )
        about = ", ".join(filter(None, known))
        return str(failure.get("type", "")) + (f" ({about})" if about else "")

    @property
    def error_text(self) -> str:
        """The text of that error without probable secrets; it can have contents. "" without an error."""
        return scrub(str((self.failure or {}).get("message", "")))

    @property
    def estimated(self) -> Usage:
        """The estimated charge for answers of the run that were lost or interrupted."""
        used, told = Usage.of((self.context.get("spent") or self.context).get("usage") or {}), self.usage
        cost = max(0, used.estimated_cost_micros - told.estimated_cost_micros)
        most = None if used.cost_max_micros is None else cost + used.cost_for_limits - (used.cost_micros or 0)
        lost = Usage(
            max(0, used.estimated_input_tokens - told.estimated_input_tokens),
            max(0, used.estimated_output_tokens - told.estimated_output_tokens),
            cost_micros=cost or (None if most is None else 0),
            cost_max_micros=most,
        )
        return lost.as_estimate()

    @property
    def total(self) -> Usage:
        """Usage as the limits count it: the answers, the estimates for lost ones, and the child runs."""
        spent = self.context.get("spent") or {}
        own = spent.get("usage") or self.context.get("usage")
        below = (spent.get("below") or {}).get("usage")
        total = self.usage + self.estimated if own is None else Usage.of(own)
        return total if below is None else total + Usage.of(below)

    def states(self) -> dict[str, StateStats]:
        """Return visits and times of each state, in the order of first visits."""
        return self.history.states

    # ---- records ----

    def _say(self, keep: int, added: Sequence[Any]) -> None:
        super()._say(keep, added)
        del self.answers[keep:]
        for raw in added:
            of_model = raw.get("role") == "assistant"
            self.answers.append(self._unsaid if of_model else None)
            if of_model:
                self._unsaid = None

    def _read_transition(self, body: Body) -> None:
        source, dest = str(body["source"]), str(body["dest"])
        internal = bool(body.get("internal", source == dest))
        t = float(body.get("t", self._entered))
        dwell = max(t - self._entered, 0.0)
        self.transitions += 1
        edge = (source, str(body["event"]), dest)
        self.history.count(edge, dwell, is_first=self.transitions == 1, internal=internal)
        if not internal:
            self.visits.append(StateVisit(source, dwell))
            self.entered_at, self._entered = body.get("at"), t

    def _read_answer(self, body: Body) -> None:
        self._unsaid = body
        self.requests += 1
        self.retries = max(self.retries, int(body.get("retries") or 0))  # cumulative for the run
        self.usage += Usage.of(body.get("usage") or {})
        self.models[str(body.get("model") or "(not named)")] += 1

    def close(self) -> None:
        """Add the parts that depend on the last record: the time in the current state."""
        if not self.state:
            return
        lasted = self.elapsed - self._entered
        known = self.ended is not None or self.parked is not None
        self.visits.append(StateVisit(self.state, max(lasted, 0.0) if known else None))
        if known and lasted > 0:
            self.history.states.setdefault(self.state, StateStats(visits=1)).leave(lasted)

    def go_on(self, seconds: float) -> None:
        """Add the visit of a live run: the seconds that have passed since its last record."""
        lasted = self.elapsed - self._entered + max(seconds, 0.0)
        if self.state and lasted > 0:
            self.going_on = True
            self.history.states.setdefault(self.state, StateStats(visits=1)).leave(lasted)

    _READERS: ClassVar[Mapping[str, Callable[[Story, Body], None]]] = {
        "transition": _read_transition,
        "answer": _read_answer,
    }


_DECISIONS = frozenset(("approval", "control", "resumed", "migrated", "recovered"))
