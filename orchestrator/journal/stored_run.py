"""Read the state of a stored run in one pass over its records, without its graph, model or tools.

The records of a run of approval have the whole plan, so any process that reads the journal can show it, and an answer
names the digest of exactly these bytes. Only a process with the project's folder carries the answer out.

The decisions of guards have the inputs that lead to the same verdict again. The record of a transition, or of the
parking of a run, has one row for each guard that led to it, which `evaluation.read_row` reads. The window of the
progress guard is not repeated there: the row names the field of the context that has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final, Self

import orjson

from orchestrator.journal.codec import drafts_in
from orchestrator.journal.ledger import EffectEntry, EffectLedger
from orchestrator.kernel.journal import NOTIFIED, Draft, Journal, Posted, Record
from orchestrator.machines.approval.model import ApprovalState, PlanStatus
from orchestrator.machines.question import Question
from orchestrator_guards.evaluation import FUNCTIONS, GUARDS, Guard, GuardEvaluation, read_row

PLAN: Final = "plan"
"""Reason and tool of the question; also the name in `RunHead.waiting`."""


def plan_question(state: str, context: Mapping[str, Any]) -> Question | None:
    """Return the question about the plan that waits for approval, or None.

    Args:
        state: State of the run.
        context: Plain context of the run, at least `plan`, `plan_status`, `consent` and `expires_at`.
    """
    plan = context.get("plan")
    if state != ApprovalState.AWAITING_APPROVAL or not plan or context.get("consent"):
        return None
    if context.get("plan_status") != PlanStatus.PENDING:
        return None
    text = orjson.dumps(plan, option=orjson.OPT_SORT_KEYS)
    runs = any(step.get("kind") == "run" for step in plan.get("steps") or ())
    return Question(
        key=f"{plan.get('id', '')}.{plan.get('version', '')}",
        tool=PLAN,
        arguments=text.decode(),
        digest=hashlib.sha256(text).hexdigest(),
        why=PLAN,
        expires_at=float(context.get("expires_at") or 0.0),
        effect="irreversible" if runs else "compensable",  # a command cannot be undone, files can
    )


_GROWING = "messages"
WAITS_FOR_AGENT: Final = frozenset(("deps_required", "other_graph"))
"""Reasons of parked runs that wait for an agent. `before` in the record is the reason for which one was parked
before."""
_MOVING = frozenset(("transition", "context", "recovered"))
"""Kinds of records that change the state or the context of a run, and no list of it."""
_NO_FIELDS = frozenset(("next", "error"))
"""Members of a `context` record beside fields of the context."""


@dataclass(slots=True)
class StoredRun:
    """A run as described by its records."""

    run_id: str
    created: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    """Fingerprint of the present graph; a migration and a change of the live machine change it."""
    table_changes: tuple[str, ...] = ()
    """How that graph was changed while its machine was live."""
    agent_version: str = ""
    """Version of the agent that drove it last."""
    definition: Mapping[str, str] | None = None
    """Tools of that agent, name -> digest; None if the records do not have them."""
    state: str = ""
    """Empty before the first transition: the graph's initial state."""
    step: Mapping[str, Any] = field(default_factory=dict)
    """The last transition: seq, event, source, dest, at, t."""
    seq: int = 0
    next: str | None = None
    """The event to fire; None: the work of the present state is to be done (again)."""
    elapsed: float = 0.0
    """Seconds the run has been active."""
    context: dict[str, Any] = field(default_factory=dict)
    """The plain context, without the messages."""
    messages: list[Any] = field(default_factory=list)
    """Messages in OpenAI form, or `{"done": key}` for the result of a call."""
    ledger: EffectLedger = field(default_factory=EffectLedger)
    answer: Mapping[str, Any] = field(default_factory=dict)
    """The last answer of the model: iteration, model, finish_reason, usage."""
    failure: Mapping[str, Any] | None = None
    """The error that failed the run, or None."""
    parked: Mapping[str, Any] | None = None
    """The last record, if it parks the run."""
    ended: Mapping[str, Any] | None = None
    handled: set[str] = field(default_factory=set)
    """Ids of the requests that were read."""
    refused: dict[str, str] = field(default_factory=dict)
    """Id of a read request -> reason why it was not carried out."""
    inbox: int = 0
    """Number of the last of them."""
    requested: Mapping[str, Any] | None = None
    """The pause that is still in force."""
    remembered: bool = False
    """Whether memory has stored the exchange."""
    programs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Programs that its owner started, without a record of their end: mark -> call, name, host."""
    branches: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last `fan` record, and the `joined` record of its decision if there is one."""
    begun: bool = False
    """Whether a process has driven it, so that it was more than queued for others."""
    _own: set[str] = field(default_factory=set)
    """Fields of the context whose parts are a copy; those of a record must not change."""

    @classmethod
    def of(cls, run_id: str, records: Iterable[Record]) -> Self:
        """Read the records of a run, from the first."""
        run = cls(run_id)
        fold = run.fold
        for kind, body in drafts_in(records):
            fold(kind, body)
        return run

    def fold(self, kind: str, body: Mapping[str, Any]) -> None:
        """Add one more record."""
        self.parked = self.ended = None
        take = self._TAKES.get(kind)
        if take is not None:
            take(self, body)

    @property
    def tenant(self) -> str:
        """The tenant of a run that was queued for workers."""
        return str((self.created.get("deposited") or {}).get("tenant", ""))

    @property
    def asks_the_model(self) -> bool:
        """Whether the model may already have been asked for the missing answer."""
        return self.next is None and self._parked_for in {"", "interrupted"}

    @property
    def unbegun(self) -> bool:
        """Whether the work of the present state has not started, because the run was paused there."""
        return self._parked_for in {"paused", "shutdown"} and self.next is None

    @property
    def _parked_for(self) -> str:
        """Why the run was parked, "" if it was not. A run that waits for an agent was left for an earlier reason."""
        parked = self.parked or {}
        reason = parked.get("reason", "")
        return str(parked.get("before", "") if reason in WAITS_FOR_AGENT else reason)

    @property
    def questions(self) -> dict[str, Question]:
        """Key of a call -> the open question to a person, in the order of the calls."""
        if self.ended is not None:
            return {}
        found = {entry.key: self._question(entry, entry.asked or {}) for entry in self.ledger.waiting}
        plan = plan_question(self.state, self.context)
        return found if plan is None else {**found, plan.key: plan}

    def moved_by(self, drafts: Iterable[Draft]) -> StoredRun:
        """Return a copy whose state and context these records have changed; the rest is shared."""
        moved = copy(self)
        moved.context, moved._own = dict(self.context), set()  # noqa: SLF001 - a copy of this class
        for draft in drafts:
            if draft.kind in _MOVING:
                moved.fold(draft.kind, draft.body)
        return moved

    @property
    def decided(self) -> dict[str, Mapping[str, Any]]:
        """Key of a call -> the answer that counted."""
        entries = self.ledger.entries.values()
        return {entry.key: entry.answer for entry in entries if entry.answer is not None}

    async def unread(self, journal: Journal) -> list[Posted]:
        """Return the unread requests to the run, in order. Raises RunUnknown, Corrupt, StoreDown.

        A pause may be read before an earlier answer, so the number of the last read request is not sufficient.
        """
        inbox = await journal.inbox(self.run_id)
        return [one for one in inbox if one.kind != NOTIFIED and one.id not in self.handled]

    def _question(self, entry: EffectEntry, record_body: Mapping[str, Any]) -> Question:
        made = (item.get("tool_calls") for item in reversed(self.messages))
        calls: Sequence[Any] = next((calls for calls in made if calls), ())
        said = calls[entry.position]["function"]["arguments"] if entry.position < len(calls) else ""
        return Question.from_record(
            entry.key, entry.tool, said, record_body, self.ledger.effect_of(entry.key)
        )

    def _created(self, body: Mapping[str, Any]) -> None:
        self.created = body
        self._take_table(body)
        self.begun = "deposited" not in body
        self._take_agent(body)
        if not self.begun:
            self.definition = None  # of the process that deposited it, which has no tools to run
        self._merge(body.get("context") or {})

    def _transition(self, body: Mapping[str, Any]) -> None:
        self.step, self.state, self.seq = body, body["dest"], body["seq"]
        self.next = None
        self.elapsed = float(body.get("t", 0.0))
        if "error" in body:
            self.failure = body["error"]
        if "fingerprint" in body:
            self._take_table(body)

    def _take_table(self, body: Mapping[str, Any]) -> None:
        """Take the table that a record names."""
        self.fingerprint = str(body.get("fingerprint", ""))
        self.table_changes = tuple(body.get("table_changes", ()))

    def _context(self, body: Mapping[str, Any]) -> None:
        self.next = body.get("next")
        if "error" in body:
            self.failure = body["error"]
        self._merge(body)

    def _resumed(self, body: Mapping[str, Any]) -> None:
        self.requested, self.begun = None, True
        self._take_agent(body)
        self.programs.clear()  # they were ended before, or a person states that they were
        self._merge(body.get("context") or {})

    def _take_agent(self, body: Mapping[str, Any]) -> None:
        """Take the version and the tools of the agent that drives the run from now on, if the record has them."""
        self.agent_version = str(body.get("agent_version", self.agent_version) or "")
        self.definition = body.get("definition", self.definition)

    def _migrated(self, body: Mapping[str, Any]) -> None:
        self._take_table({**body, "fingerprint": body["to"]})
        self.state, self.next = body.get("state", self.state), body.get("next")
        self.context, self.messages, self._own = {}, [], set()
        self._merge(body["context"])

    def _recovered(self, body: Mapping[str, Any]) -> None:
        """Apply a recovery: only this record moves the run without an edge of the graph."""
        self.state, self.next = str(body["state"]), None
        self._merge(body.get("context") or {})

    def _parked(self, body: Mapping[str, Any]) -> None:
        self.parked = body
        self.elapsed = float(body.get("t", self.elapsed))
        if "fingerprint" in body:
            self._take_table(body)

    def _ended(self, body: Mapping[str, Any]) -> None:
        self.ended = body
        self.elapsed = float(body.get("t", self.elapsed))

    def _answer(self, body: Mapping[str, Any]) -> None:
        self.answer = body

    def _control(self, body: Mapping[str, Any]) -> None:
        self.handled.add(str(body.get("id", "")))
        self.inbox = max(self.inbox, int(body.get("number") or 0))
        if body.get("refused"):
            self.refused[str(body.get("id", ""))] = str(body["refused"])
        if body.get("kind") == "pause" and not body.get("refused"):
            self.requested = body
        elif body.get("kind") == "resume":
            self.requested = None

    def _program(self, body: Mapping[str, Any]) -> None:
        self.programs[str(body["mark"])] = body

    def _program_ended(self, body: Mapping[str, Any]) -> None:
        self.programs.pop(str(body["mark"]), None)

    def _memory(self, body: Mapping[str, Any]) -> None:
        self.remembered = bool(body.get("stored"))

    def _merge(self, changes: Mapping[str, Any]) -> None:
        context, own = self.context, self._own
        for name, value in changes.items():
            if name == _GROWING:
                if isinstance(value, dict):
                    self._say(value.get("keep", len(self.messages)), value["add"])
                else:
                    self._say(0, value)
            elif "." in name:
                field_, part = _field_and_part(name)
                if field_ not in own:
                    context[field_] = dict(context[field_])
                    own.add(field_)
                context[field_][part] = value
            elif name not in _NO_FIELDS:
                own.discard(name)
                moved = isinstance(value, dict) and "last" in value
                context[name] = _window(context[name], value) if moved else value

    def _say(self, keep: int, added: Sequence[Any]) -> None:
        """Keep the first `keep` messages, then add these."""
        self.messages[keep:] = added

    def _intent(self, body: Mapping[str, Any]) -> None:
        self.ledger.announce(body, self.definition or {})

    def _done(self, body: Mapping[str, Any]) -> None:
        self.ledger.finish(body)

    def _rolled_back(self, body: Mapping[str, Any]) -> None:
        self.ledger.roll_back(body)

    def _question_record(self, body: Mapping[str, Any]) -> None:
        self.ledger.ask(body)

    def _approval(self, body: Mapping[str, Any]) -> None:
        self.ledger.decide(body)
        self._control(body)

    def _fan(self, body: Mapping[str, Any]) -> None:
        self.branches = {"fan": body}

    def _joined(self, body: Mapping[str, Any]) -> None:
        self.branches["joined"] = body

    _TAKES: ClassVar[Mapping[str, Callable[[StoredRun, Mapping[str, Any]], None]]] = {
        "created": _created,
        "transition": _transition,
        "context": _context,
        "resumed": _resumed,
        "migrated": _migrated,
        "recovered": _recovered,
        "parked": _parked,
        "ended": _ended,
        "answer": _answer,
        "memory": _memory,
        "control": _control,
        "approval": _approval,
        "asked": _question_record,
        "intent": _intent,
        "done": _done,
        "rolled_back": _rolled_back,
        "program": _program,
        "program_ended": _program_ended,
        "fan": _fan,
        "joined": _joined,
    }


@lru_cache(1_000)
def _field_and_part(name: str) -> tuple[str, str]:
    """Return the two names in the path of a part of a field: `spent.seconds`."""
    field_, _, part = name.partition(".")
    return field_, part


def _window(before: Sequence[Any], moved: Mapping[str, Any]) -> list[Any]:
    """Return a window after a change."""
    return [*before[len(before) - moved["last"] :], *moved["add"]]


# ---- the decisions of guards ----


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """One evaluation of a guard, and its place in the run."""

    seq: int
    """Number of the record."""
    state: str
    """The state in which it was evaluated."""
    event: str
    """Event of the transition that followed; "" if the run was parked."""
    evaluation: GuardEvaluation


@dataclass(slots=True)
class GuardCheck:
    """The result of the evaluation of all recorded decisions again."""

    confirmed: int = 0
    unknown: int = 0
    """Decisions of guards that are not given: those of a host."""
    different: list[GuardDecision] = field(default_factory=list)
    """Decisions for which the guard gives another verdict."""


def guard_decisions(run_id: str, records: Iterable[Record]) -> Iterator[GuardDecision]:
    """Yield the decisions of a run, in their order. Raises ValueError for a row of another form."""
    stored = StoredRun(run_id)
    waiting: list[GuardDecision] = []
    for record in records:
        if waiting and record.kind != "context":  # the context of a transition is the record after it
            yield from _resolved(waiting, stored)
            waiting = []
        state = stored.state
        stored.fold(record.kind, record.body)
        if record.kind == "transition":
            state = str(record.body["source"])
        event = str(record.body.get("event", ""))
        rows = record.body.get(GUARDS, ()) if record.kind in _KINDS else ()
        waiting += (GuardDecision(record.seq, state, event, read_row(row)) for row in rows)
    yield from _resolved(waiting, stored)


def check_decisions(
    run_id: str, records: Iterable[Record], functions: Mapping[str, Guard] = FUNCTIONS
) -> GuardCheck:
    """Evaluate each recorded decision of a run again. Raises ValueError for a row or inputs of another form."""
    found = GuardCheck()
    for decision in guard_decisions(run_id, records):
        if not decision.evaluation.is_known(functions):
            found.unknown += 1
        elif decision.evaluation.holds(functions):
            found.confirmed += 1
        else:
            found.different.append(decision)
    return found


_KINDS = frozenset(("transition", "parked"))


def _resolved(waiting: Iterable[GuardDecision], stored: StoredRun) -> Iterator[GuardDecision]:
    """Put the value of the context into each input that names a field of it."""
    for one in waiting:
        evaluation = one.evaluation
        window = evaluation.named.get("window")
        if isinstance(window, str):
            inputs = tuple(stored.context[window] if name == window else name for name in evaluation.inputs)
            evaluation = evaluation._replace(inputs=inputs)
        yield GuardDecision(one.seq, one.state, one.event, evaluation)
