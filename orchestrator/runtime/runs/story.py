"""The history of a run: the parts of its records that `StoredRun` does not keep, folded with it. Pure.

Times in states are the run's own active seconds (`t`), without downtime and without waiting for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from orchestrator import around
from orchestrator.errors import RunError
from orchestrator.journal.ledger import EffectEntry
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import ToolError
from orchestrator.kernel.journal import Journal, Posted, Record, RunHead
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.question import Question
from orchestrator.runtime.runs.listing import status_name
from orchestrator.runtime.runs.outline import RunFailure
from orchestrator.telemetry.history import History, StateStats
from orchestrator.tools.result import RETURNED

if TYPE_CHECKING:
    from orchestrator.around import GraphMarks

LONGEST_CYCLE = 12
"""Most states in a row that are matched as one repetition."""


class StateVisit(NamedTuple):
    """One visit of a state; `seconds` is None while its length is unknown."""

    state: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class PathStep:
    """Consecutive states, repeated `times` times; the seconds of each are the sum of all repetitions."""

    states: tuple[str, ...]
    times: int
    seconds: tuple[float | None, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the step as plain data."""
        passed = zip(self.states, self.seconds, strict=True)
        return {
            "times": self.times,
            "states": [{"state": state, "seconds": seconds} for state, seconds in passed],
        }


def folded(visits: Sequence[StateVisit]) -> list[PathStep]:
    """Fold consecutive repetition, at each place the one that covers most; other visits stay in between."""
    names = [stay.state for stay in visits]
    steps: list[PathStep] = []
    alone: list[StateVisit] = []
    at = 0
    while at < len(visits):
        length, times = _cycle(names, at)
        if times == 1:
            alone.append(visits[at])
            at += 1
            continue
        steps += _once(alone)
        alone = []
        repeated = visits[at : at + length * times]
        known = [[stay.seconds for stay in repeated[place::length]] for place in range(length)]
        sums = tuple(sum(one for one in each if one is not None) for each in known)
        steps.append(PathStep(tuple(stay.state for stay in repeated[:length]), times, sums))
        at += length * times
    return steps + _once(alone)


def _cycle(names: Sequence[str], at: int) -> tuple[int, int]:
    """Return the length and count of the repetition that covers most at a place; (1, 1) if there is none."""
    best = (1, 1)
    for length in range(1, LONGEST_CYCLE + 1):
        cycle, end = names[at : at + length], at + length
        while names[end : end + length] == cycle and end < len(names):
            end += length
        times = (end - at) // length
        if times > 1 and times * length > best[0] * best[1]:
            best = length, times
    return best


def _once(visits: Sequence[StateVisit]) -> list[PathStep]:
    if not visits:
        return []
    return [PathStep(tuple(stay.state for stay in visits), 1, tuple(stay.seconds for stay in visits))]


Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One message in OpenAI form, and the record of its origin."""

    message: Raw
    answer: Raw | None = None
    """The `answer` record of a message of the model."""
    done: Raw | None = None
    """The `done` record of a tool's result."""


def spoken(
    messages: Sequence[Raw], answers: Sequence[Raw | None], done: Mapping[str, Raw]
) -> list[TranscriptEntry]:
    """Combine stored messages with their `answer` records and, by key, with the results that they represent."""
    found: list[TranscriptEntry] = []
    calls: Sequence[Raw] = ()
    for raw, answer in zip(messages, answers, strict=True):
        if "done" in raw and "role" not in raw:
            key = str(raw["done"])
            body = done.get(key, {})
            call, position = body.get("call") or {}, key.rpartition(":")[2]
            if not call and position.isdecimal() and int(position) < len(calls):  # of the latest turn
                raw_call = calls[int(position)]
                name = (raw_call.get("function") or raw_call).get("name")
                call = {"id": raw_call.get("id") or "", "name": name or ""}
            message: dict[str, Any] = {"role": "tool", "content": body.get("content", "")}
            message |= {"tool_call_id": call.get("id", ""), "name": call.get("name", "")}
            if body.get("outcome") not in RETURNED:
                message["is_error"] = True
            found.append(TranscriptEntry(message, done=body))
        else:
            calls = raw.get("tool_calls") or calls
            found.append(TranscriptEntry(raw, answer))
    return found


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
    error: ToolError | None = None
    """The exception that the tool raised. Its message can have contents."""

    @classmethod
    def of(cls, entry: EffectEntry) -> Self:
        """Create it from an entry of the ledger."""
        done = entry.done or {}
        outcome = RUNNING if entry.open else str(done.get("outcome", "rolled_back"))
        error = ToolError.of_record(entry.tool, done["error"]) if "error" in done else None
        return cls(entry.key, entry.tool, entry.effect, outcome, float(done.get("seconds") or 0.0), error)


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
    going_on: bool = False
    """The time in the last state up to now."""
    models: Counter[str] = field(default_factory=Counter)
    answers: list[Body | None] = field(default_factory=list)
    """For each message the `answer` record that it came from."""
    _attempts: int = 0
    """Attempts at the request that failed the run."""
    _retries: int = 0
    """Repeated attempts at the requests that have an answer."""
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
    def error(self) -> RunFailure | None:
        """The error that failed the run."""
        return None if self.failure is None else RunFailure.of(self.failure, self._attempts)

    @property
    def retries(self) -> int:
        """The repeated attempts at requests, with those of a request that failed for good and so has no answer."""
        return max(self._retries, int((self.context.get("spent") or {}).get("retries") or 0))

    @property
    def currency(self) -> str:
        """Currency of its costs; "" if its records name none, as those of earlier versions."""
        return str(self.created.get("currency") or "")

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
        if "error" in body:
            self._attempts = len(body.get("attempts") or ())
        edge = (source, str(body["event"]), dest)
        self.history.count(edge, dwell, is_first=self.transitions == 1, internal=internal)
        if not internal:
            self.visits.append(StateVisit(source, dwell))
            self.entered_at, self._entered = body.get("at"), t

    def _read_answer(self, body: Body) -> None:
        self._unsaid = body
        self.requests += 1
        self._retries = max(self._retries, int(body.get("retries") or 0))  # cumulative for the run
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


@dataclass(frozen=True, slots=True)
class RunDetails:
    """One run: its head, its history, and the requests that it has not read."""

    head: RunHead
    story: Story
    unread: list[Posted]

    @classmethod
    async def read(cls, journal: Journal, run_id: str) -> Self:
        """Read a run. Raises RunUnknown, Corrupt, StoreDown."""
        return await cls.of(journal, await journal.head(run_id))

    @classmethod
    async def of(cls, journal: Journal, head: RunHead) -> Self:
        """Read the records of a run. Raises RunUnknown, Corrupt, StoreDown."""
        story = Story.of(head.run_id, await journal.load(head.run_id))
        return cls(head, story, await story.unread(journal))

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.story.ended is not None

    @property
    def owner_died(self) -> bool:
        """Whether the run was left in the middle of its work: it has started, and no process owns it."""
        return self.head.status == "open" and self.head.owner is None and self.story.begun

    @property
    def questions(self) -> list[Question]:
        """The questions of the run that it has no answer to."""
        return [*self.story.questions.values()]

    @property
    def usage(self) -> Usage:
        """Usage as the limits count it: with child runs, and with the estimates for lost answers."""
        return self.story.total


def not_ended(head: RunHead) -> RunError:
    """Return the error for reading the result of a run that has none."""
    reason = f" ({head.reason})" if head.reason else ""
    then = "wait for its end" if head.owner is not None else "resume it, or wait until an engine does"
    return RunError(f"run {head.run_id!r} has no result yet: it is {head.status}{reason}; {then}")


Heat: TypeAlias = Literal["time", "visits"]
"""What makes a state darker: its share of the time, or of the visits."""

_WORDS = {"orphaned": "no process for"}
_SHORTEST = 0.001
"""Seconds in a state from which on they are written in its box."""


def run_marks(head: RunHead, story: Story, now: float, *, heat: Heat = "time") -> GraphMarks:
    """Return the marks of one run: its present state in the colour of its status, and its path.

    Args:
        head: The run.
        story: Its records.
        now: Epoch seconds.
        heat: What makes a state darker.
    """
    status = status_name(head)
    notes = {}
    if story.entered_at is not None and head.status != "ended":
        visits = story.history.states[story.state].visits
        here = f"visit {visits:,}, " if visits > 1 else ""
        notes[story.state] = (
            f"{here}{_WORDS.get(status, status)} {around.duration(max(now - story.entered_at, 0.0))}"
        )
    return path_marks(story.history, heat=heat, current=story.state or None, status=status, notes=notes)


def path_marks(
    history: History,
    *,
    heat: Heat = "time",
    current: str | None = None,
    status: str = "running",
    notes: Mapping[str, str] = MappingProxyType({}),
) -> GraphMarks:
    """Return the marks of all runs in a history: visits and time of states and edges.

    Args:
        history: The transitions.
        heat: What makes a state darker.
        current: The state that is lit.
        status: The colour of that state, one of `drawing.stylesheet.STATUSES`.
        notes: State -> text in its box in place of visits and time.
    """
    states = history.states
    amount = {name: stats.total if heat == "time" else float(stats.visits) for name, stats in states.items()}
    whole = sum(amount.values()) or 1.0
    texts = {}
    for name, stats in states.items():
        if stats.visits:
            counted = f"{stats.visits:,} visit{'s' if stats.visits > 1 else ''}"
            texts[name] = (
                f"{counted} · {around.duration(stats.total)}" if stats.total >= _SHORTEST else counted
            )
    return around.GraphMarks(
        current=current,
        status=status,
        notes=texts | dict(notes),
        share={name: one / whole for name, one in amount.items()},
        taken=dict(history.edges),
        seconds=dict(history.edge_seconds),
    )
