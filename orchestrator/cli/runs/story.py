"""What the records of a run tell, folded into what is shown of it. Pure: no store, no clock.

Times in states are the run's own active seconds (`t`): waiting for people and downtime are not in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from orchestrator.cli.runs.path import Stay
from orchestrator.cli.runs.transcript import Transcript
from orchestrator.kernel.history import History, StateStats
from orchestrator.kernel.journal import Record
from orchestrator.kernel.record import Transition
from orchestrator.messages import NO_USAGE, Usage

Body = Mapping[str, Any]

RUNNING = "running"
"""Of a call: its intent is recorded, nothing else yet. Whether it took effect is not known."""

_WAITING = frozenset(("parked", "asked", "approval", "control"))
"""Records that do not make a parked run go on."""


@dataclass(slots=True)
class Call:
    """One tool call. `outcome` is RUNNING, `rolled_back`, or what its `done` record says."""

    key: str
    tool: str
    effect: str = ""
    """Empty for a call that was refused before it had an intent."""
    outcome: str = RUNNING
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Question:
    """What a run asked a person. `why` is `approval`, `unknown_effect` or `undo_failed`."""

    key: str
    tool: str
    digest: str
    why: str
    expires_at: float | None
    arguments: str
    """As they are asked about: the model's, or what a person made of them."""

    def expired(self, now: float) -> bool:
        """Whether an answer comes too late."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(slots=True)
class Story:
    """A run as its records tell it."""

    created: Body = field(default_factory=dict)
    state: str = ""
    """Empty until the first transition."""
    turn: int = 0
    entered_at: float | None = None
    """Wall time (epoch seconds) at which the run came into its state."""
    active: float = 0.0
    """Active seconds so far, as far as any record tells."""
    stays: list[Stay] = field(default_factory=list)
    history: History = field(default_factory=lambda: History(limit=0))
    transitions: int = 0
    calls: dict[str, Call] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)
    """Key of a call -> what is asked about it and not answered yet."""
    decisions: list[tuple[str, Body]] = field(default_factory=list)
    """(`approval`, `control`, `resumed` or `migrated`, body), in order."""
    read: int = 0
    """Number of the last request that the run took from its inbox."""
    usage: Usage = NO_USAGE
    requests: int = 0
    retries: int = 0
    models: Counter[str] = field(default_factory=Counter)
    parked: Body | None = None
    ended: Body | None = None
    error: Body | None = None
    """Of the last transition that a failure made."""
    transcript: Transcript = field(default_factory=Transcript)
    last: int = -1
    """Number of the last record."""
    _entered: float = 0.0

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        """Fold the records of a run, from the first on."""
        story = cls()
        for record in records:
            story.last = record.seq
            story.transcript.take(record.kind, record.body)
            if "t" in record.body:
                story.active = max(story.active, float(record.body["t"]))
            if record.kind not in _WAITING:
                story.parked = None
            take = cls._takes.get(record.kind)
            if take is not None and record.body.get("effect") != "file":
                take(story, record.body)
        story._close()
        return story

    @property
    def running(self) -> list[Call]:
        """Calls whose effect may be under way."""
        return [call for call in self.calls.values() if call.outcome == RUNNING]

    def states(self) -> dict[str, StateStats]:
        """Return visits and times of each state, in the order of first visits."""
        return self.history.states

    # ---- records ----

    def _created(self, body: Body) -> None:
        self.created = body
        self.turn = int((body.get("context") or {}).get("iteration") or 0)

    def _transition(self, body: Body) -> None:
        source, dest = str(body["source"]), str(body["dest"])
        internal = bool(body.get("internal", source == dest))
        t = float(body.get("t", self._entered))
        self.transitions += 1
        self.history.observe(
            Transition(
                graph="",
                run_id="",
                seq=self.transitions,
                event=str(body["event"]),
                source=source,
                dest=dest,
                dwell=max(t - self._entered, 0.0),
                at=0.0,
                iteration=self.turn,
                internal=internal,
            )
        )
        if not internal:
            self.stays.append(Stay(source, max(t - self._entered, 0.0)))
            self.entered_at, self._entered = body.get("at"), t
        self.state = dest
        self.error = body.get("error") or self.error

    def _context(self, body: Body) -> None:
        self.turn = int(body.get("iteration", self.turn))

    def _answer(self, body: Body) -> None:
        self.turn = int(body.get("iteration", self.turn))
        self.requests += 1
        self.retries = max(self.retries, int(body.get("retries") or 0))  # of the whole run, so far
        self.usage += _usage(body.get("usage") or {})
        self.models[str(body.get("model") or "(not named)")] += 1

    def _intent(self, body: Body) -> None:
        for one in body.get("calls") or ():
            key = str(one["key"])
            self.calls[key] = Call(key, str(one.get("tool", "")), str(one.get("effect", "")))
            self.questions.pop(key, None)

    def _done(self, body: Body) -> None:
        key = str(body["key"])
        call = self.calls.setdefault(key, Call(key, str(body.get("tool", ""))))
        call.outcome = str(body.get("outcome", ""))
        call.seconds = float(body.get("seconds") or 0.0)
        self.questions.pop(key, None)

    def _rolled_back(self, body: Body) -> None:
        if (call := self.calls.get(str(body["key"]))) is not None:
            call.outcome = "rolled_back"

    def _asked(self, body: Body) -> None:
        key = str(body["key"])
        self.questions[key] = Question(
            key,
            str(body.get("tool", "")),
            str(body.get("digest", "")),
            str(body.get("why", "approval")),
            body.get("expires_at") or None,  # 0 is never
            str(body.get("arguments") or ""),
        )

    def _decided(self, kind: str, body: Body) -> None:
        self.decisions.append((kind, body))
        self.read = max(self.read, int(body.get("number") or 0))

    def _approval(self, body: Body) -> None:
        self._decided("approval", body)
        question = self.questions.get(str(body.get("key")))
        if question is not None and not body.get("refused") and body.get("digest") == question.digest:
            del self.questions[question.key]

    def _control(self, body: Body) -> None:
        self._decided("control", body)

    def _parked(self, body: Body) -> None:
        self.parked = body

    def _resumed(self, body: Body) -> None:
        self.ended = None  # a run that ended may be taken up again with higher limits
        self._decided("resumed", body)

    def _migrated(self, body: Body) -> None:
        self.state = str(body.get("state", self.state))
        self._decided("migrated", body)

    def _ended(self, body: Body) -> None:
        self.ended = body
        self.questions = {}

    def _close(self) -> None:
        """Add what only the last record settles: arguments of questions, and the stay that is not over."""
        for key, one in self.questions.items():
            if not one.arguments:
                self.questions[key] = replace(one, arguments=self.transcript.call(key).get("arguments", ""))
        if not self.state:
            return
        lasted = self.active - self._entered
        known = self.ended is not None or self.parked is not None
        self.stays.append(Stay(self.state, max(lasted, 0.0) if known else None))
        if known and lasted > 0:
            self.history.states.setdefault(self.state, StateStats(visits=1)).leave(lasted)

    _takes: ClassVar[Mapping[str, Callable[[Story, Body], None]]] = {
        "created": _created,
        "transition": _transition,
        "context": _context,
        "answer": _answer,
        "intent": _intent,
        "done": _done,
        "rolled_back": _rolled_back,
        "asked": _asked,
        "approval": _approval,
        "control": _control,
        "parked": _parked,
        "resumed": _resumed,
        "migrated": _migrated,
        "ended": _ended,
    }


def _usage(raw: Body) -> Usage:
    cost = raw.get("cost")
    return Usage(
        int(raw.get("input_tokens") or 0),
        int(raw.get("output_tokens") or 0),
        int(raw.get("cached_input_tokens") or 0),
        int(raw.get("reasoning_tokens") or 0),
        None if cost is None else float(cost),
    )
