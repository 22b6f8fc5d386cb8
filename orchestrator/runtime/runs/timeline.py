"""The records of a run as a timeline: states, requests, tools, child runs, people, processes. Pure.

Only what the records say is shown. Most records have a time; those without one happened after the record before. The
time of a crash is not known: the process worked at its last record, and another one had the run when it resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from orchestrator.journal.ledger import TOOL
from orchestrator.journal.redacted import tool_word
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.machines.llm_loop.graph import BUDGET_OF, STALL_OF
from orchestrator.machines.llm_loop.model import LoopState
from orchestrator.machines.timeline import BudgetUse, Kind, Lane, Timeline, TimeMark, TimeSpan, TurnStart
from orchestrator.tools.result import RETURNED
from orchestrator_guards.evaluation import GUARDS, read_row

_LARGEST = 1e15


class OpenCall(NamedTuple):
    """A call or question that has no result yet."""

    lane: Lane
    kind: Kind
    name: str
    since: float


@dataclass(slots=True)
class TimelineBuilder:
    """The spans and marks so far, and the present state, process, calls and questions of the run."""

    run_id: str
    stored: StoredRun
    """The run so far."""
    spans: list[TimeSpan] = field(default_factory=list)
    marks: list[TimeMark] = field(default_factory=list)
    turns: list[TurnStart] = field(default_factory=list)
    budgets: list[BudgetUse] = field(default_factory=list)
    start: float = 0.0
    at: float = 0.0
    """Time of the last record that has one."""
    epoch: int = 0
    state: str = ""
    state_since: float = 0.0
    entered: float = 0.0
    """Time of the entry into the state, also before a crash."""
    state_kind: Kind = field(init=False)
    process_since: float | None = None
    """Start of the work of the present process; None while none works."""
    process: str = ""
    parked_since: float | None = None
    parked_for: str = ""
    asks_a_person: bool = False
    """Whether it was parked with an open question."""
    under_way: dict[str, OpenCall] = field(default_factory=dict)
    crowded: set[str] = field(default_factory=set)
    """Beginnings of the ids of branches that have no span of their own."""
    ended: bool = False

    def __post_init__(self) -> None:
        self.state_kind = Kind.WORK

    @property
    def turn(self) -> int:
        """Number of the answer that is next."""
        return self.turns[-1].turn + 1 if self.turns else 1

    # ---- processes ----

    def work(self, name: str) -> None:
        """Start the work of a process."""
        self.process, self.process_since = name, self.at

    def stop_work(self) -> None:
        """End the work of the process, if one works."""
        if self.process_since is not None:
            self.span(Lane.PROCESS, Kind.WORK, self.process_since, self.at, self.process)
            self.process_since = None

    def park(self, reason: str) -> None:
        """End the work of the process; the run waits."""
        self.close_state(self.at)
        self.stop_work()
        self.parked_since, self.parked_for = self.at, reason
        self.asks_a_person = any(one.lane is Lane.PERSON for one in self.under_way.values())

    def unpark(self) -> None:
        """End the wait of a parked run."""
        if self.parked_since is None:
            return
        self.span(Lane.PROCESS, Kind.IDLE, self.parked_since, self.at, f"parked: {self.parked_for}")
        self.close_state(self.at)
        self.parked_since = None

    def crash(self, at: float) -> None:
        """End what was under way at the last record: another process has the run at `at`."""
        self.close_state(self.at)
        self.stop_work()
        if self.asks_the_model:
            self.span(Lane.MODEL, Kind.LOST, self.at, at, "answer lost", turn=self.turn)
        for key, call in self.under_way.items():
            if call.lane is not Lane.PERSON:
                self.span(call.lane, Kind.LOST, call.since, at, call.name, note="result not known")
                self.under_way[key] = call._replace(since=at)
        self.mark(Lane.PROCESS, Kind.CRASH, "the process ended here or later")
        self.span(Lane.PROCESS, Kind.DOWN, self.at, at, "no process")
        self.state_since = at

    @property
    def asks_the_model(self) -> bool:
        """Whether a request to the model is under way, or was when the process ended."""
        return self.state == LoopState.AWAIT_LLM and self.stored.asks_the_model

    def charged(self) -> float:
        """Return the tokens that were charged for lost answers so far."""
        usage = (self.stored.context.get("spent") or {}).get("usage") or {}
        return number(usage.get("estimated_input_tokens")) + number(usage.get("estimated_output_tokens"))

    # ---- the end ----

    def finish(self, head: RunHead, now: float) -> None:
        """Add what lasts: the present state, request, calls, questions and process."""
        orphaned = self.process_since is not None and head.owner is None
        if self.ended:
            for one in self.under_way.values():
                self.span(one.lane, one.kind, one.since, self.at, one.name)
        elif orphaned:
            self.crash(now)
        else:
            asks = self.asks_the_model and self.parked_since is None
            if asks:
                self.state_kind = Kind.MODEL
                self.turns.append(TurnStart(self.turn, self.entered))
                self.span(Lane.MODEL, Kind.MODEL, self.state_since, None, "", turn=self.turns[-1].turn)
            for one in self.under_way.values():
                self.span(one.lane, one.kind, one.since, None, one.name)
            if self.process_since is not None:
                self.span(Lane.PROCESS, Kind.WORK, self.process_since, None, self.process)
            elif self.parked_since is not None:
                self.span(Lane.PROCESS, Kind.IDLE, self.parked_since, None, f"parked: {self.parked_for}")
            self.close_state(None)

    def add_children(self, above: RunHead, children: Iterable[RunHead]) -> None:
        """Add child runs that are not calls of the run `above`, with the name of another agent than its own."""
        prefix = f"{self.run_id}:"
        keys = {span.name for span in self.spans if span.lane is Lane.CHILD}
        for head in children:
            name = head.run_id.removeprefix(prefix)
            if head.run_id.startswith(prefix) and keys and head.agent in keys:
                continue
            if head.run_id.startswith(tuple(self.crowded)):
                continue
            end = None if head.status == "open" else head.updated_at
            failed = head.outcome not in {"", "completed", "partial"}
            kind = Kind.FAILED if failed else Kind.CHILD
            if head.agent != above.agent:
                name = f"{name} {head.agent}"
            self.span(Lane.CHILD, kind, head.created_at, end, name, note=head.outcome)

    def timeline(self, now: float) -> Timeline:
        """Return what was read."""
        end = self.at if self.ended else max(now, self.at)
        return Timeline(
            name=self.run_id,
            start=self.start,
            end=max(end, self.start),
            live=not self.ended,
            turns=tuple(self.turns),
            spans=tuple(sorted(self.spans, key=lambda one: one.start)),
            marks=tuple(sorted(self.marks, key=lambda one: one.at)),
            budgets=tuple(self.budgets),
        )

    # ---- parts ----

    def close_state(self, at: float | None) -> None:
        """End the present part of the state; a parked part is a part of its own."""
        kind = self.state_kind
        if self.parked_since is not None:
            kind = Kind.PERSON if self.asks_a_person else Kind.IDLE
        elif at is None and any(one.lane in {Lane.TOOLS, Lane.CHILD} for one in self.under_way.values()):
            kind = Kind.TOOL
        if at is None or at > self.state_since:
            self.span(Lane.STATE, kind, self.state_since, at, self.state, turn=self.turn)
        if at is not None:
            self.state_since, self.state_kind = at, Kind.WORK

    def span(
        self,
        lane: Lane,
        kind: Kind,
        start: float,
        end: float | None,
        name: str = "",
        *,
        note: str = "",
        turn: int = 0,
    ) -> None:
        """Add a span. Its times are at least the start of the run, and it never ends before its start."""
        start = max(start, self.start)
        last = None if end is None else max(start, end)
        self.spans.append(
            TimeSpan(lane=lane, kind=kind, start=start, end=last, name=name, note=note, turn=turn)
        )

    def mark(self, lane: Lane, kind: Kind, name: str) -> None:
        """Add a mark at the time of the present record."""
        self.marks.append(TimeMark(lane=lane, kind=kind, at=self.at, name=name, turn=self.turn))


def number(value: object) -> float:
    """Return a number of a record, 0 for anything else."""
    if type(value) is float and -_LARGEST < value < _LARGEST:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        found = float(value)
    except (OverflowError, ValueError):
        return 0.0
    return found if math.isfinite(found) else 0.0


Body = Mapping[str, Any]

MOST_BRANCHES = 50
"""Branches of a state that have spans of their own; of more, only the whole is shown."""
_QUEUED = 0.01
"""Seconds of waiting for a slot from which on they are shown."""
_VERBS = {"approve": "approves", "reject": "rejects", "respond": "answers", "cancel": "cancels"}
_VERBS |= {"request_changes": "requests changes", "pause": "pauses", "resume": "resumes"}


def read_timeline(
    records: Iterable[Record],
    *,
    head: RunHead,
    now: float,
    children: Sequence[RunHead] = (),
    stored: StoredRun | None = None,
) -> Timeline:
    """Return the timeline of a run.

    Args:
        records: All records of the run, from the first.
        head: The run.
        now: Epoch seconds; the end of the timeline of a run that has not ended.
        children: Child runs, for those that no record of the run names.
        stored: Run without records, which has read them afterwards, for a caller that needs both.
    """
    reader = _Reader(head.run_id, stored or StoredRun(head.run_id))
    for record in records:
        reader.read(record)
    reader.finish(head, now)
    reader.add_children(head, children)
    return reader.timeline(now)


@dataclass(slots=True)
class _Reader(TimelineBuilder):
    """Reads the records of one run in their order."""

    untimed: Body | None = None
    """An answer without the times of its attempts: it lasted until the next record that has a time."""
    retries: int = 0

    # ---- records ----

    def read(self, record: Record) -> None:
        """Add the next record."""
        at = max(_time_of(record), self.at)
        if self.epoch and record.epoch > self.epoch and self.process_since is not None:
            self.crash(at)
        self.epoch = max(record.epoch, self.epoch)
        if self.untimed is not None and at > self.at:
            self._add_untimed(at)
        self.at = at
        charged = self.charged() if record.kind == "resumed" else 0.0
        self.stored.fold(record.kind, record.body)
        take = self._TAKES.get(record.kind)
        if take is not None:
            take(self, record.body)
        if record.kind == "resumed" and (more := self.charged() - charged) > 0:
            for index in range(len(self.spans) - 1, -1, -1):  # beside the last lost answer
                span = self.spans[index]
                if span.kind is Kind.LOST and span.lane is Lane.MODEL:
                    self.spans[index] = replace(span, note=f"charged {more:,.0f} tokens")
                    break

    def _created(self, body: Body) -> None:
        self.start = self.entered = self.state_since = self.at
        if "deposited" not in body:
            self.work(f"process {self.epoch}")

    def _transition(self, body: Body) -> None:
        self._attempts(body, self.turn)
        self._guards(body)
        source, dest = str(body.get("source", "")), str(body.get("dest", ""))
        self._close_steps()
        if source != dest or not body.get("internal", True):
            self.state = source
            self.close_state(self.at)
            self.state, self.entered = dest, self.at
        if (error := body.get("error")) and isinstance(error, Mapping):
            self.mark(Lane.STATE, Kind.FAILED, str(error.get("type") or "error"))

    def _answer(self, body: Body) -> None:
        turn = int(number(body.get("iteration"))) or self.turn
        if not self.turns or self.turns[-1].turn < turn:
            self.turns.append(TurnStart(turn, self.entered))
        self.state_kind = Kind.MODEL
        if body.get("attempts"):
            self._attempts(body, turn)
        else:
            self.untimed = body

    def _attempts(self, body: Body, turn: int) -> None:
        """Add the attempts of a request: rows of start, seconds, kind of error, seconds of waiting, model."""
        for row in body.get("attempts") or ():
            begin, seconds, error, wait, model = (*row, *("", "", "", "", "")[len(row) :])[:5]
            start, end = number(begin), number(begin) + number(seconds)
            name = str(model or body.get("model") or "")
            kind = Kind.FAILED if error else Kind.MODEL
            self.span(Lane.MODEL, kind, start, end, name, note=str(error), turn=turn)
            if number(wait) > 0:
                self.span(Lane.MODEL, Kind.WAIT, end, end + number(wait), "waits", turn=turn)
            self.state_kind = Kind.MODEL

    def _add_untimed(self, at: float) -> None:
        body, self.untimed = self.untimed or {}, None
        retries = int(number(body.get("retries")))
        more, self.retries = retries - self.retries, max(retries, self.retries)
        kind = Kind.UNKNOWN if more > 0 else Kind.MODEL
        note = f"{more + 1} attempts, times not recorded" if more > 0 else ""
        turn = int(number(body.get("iteration")))
        self.span(Lane.MODEL, kind, self.at, at, str(body.get("model") or ""), note=note, turn=turn)

    def _guards(self, body: Body) -> None:
        for row in body.get(GUARDS) or ():
            try:
                verdict = read_row(row).verdict
            except (TypeError, ValueError):
                continue
            if verdict.guard in BUDGET_OF and verdict.limit > 0:
                self.budgets.append(BudgetUse(self.at, verdict.guard, verdict.observed, verdict.limit))
            if not verdict.ok and (verdict.guard in BUDGET_OF or verdict.guard in STALL_OF):
                text = f"{verdict.guard} {verdict.observed:,g} of {verdict.limit:,g}"
                self.mark(Lane.STATE, Kind.WARNING, text)

    # ---- calls ----

    def _intent(self, body: Body) -> None:
        if body.get("effect") != TOOL:
            return
        for call in body.get("calls") or ():
            child = call.get("agent") is not None
            lane, kind = (Lane.CHILD, Kind.CHILD) if child else (Lane.TOOLS, Kind.TOOL)
            name = str(call["agent"]) if child else tool_word(call)
            self.under_way[str(call["key"])] = OpenCall(lane, kind, name, self.at)

    def _done(self, body: Body) -> None:
        if body.get("effect") != TOOL:
            return
        key, outcome = str(body.get("key", "")), str(body.get("outcome", ""))
        found = self.under_way.pop(key, OpenCall(Lane.TOOLS, Kind.TOOL, tool_word(body), self.at))
        start = number(body.get("at")) or found.since
        seconds, queued = number(body.get("seconds")), number(body.get("queued"))
        kind = found.kind if outcome in RETURNED else Kind.FAILED
        note = "" if outcome == "ok" else outcome
        turn = int(number(key.partition(":")[0]))
        self.span(found.lane, kind, start, start + seconds, found.name, note=note, turn=turn)
        if queued >= _QUEUED:
            self.span(found.lane, Kind.WAIT, start - queued, start, "waits for a slot", turn=turn)
        if self.state_kind is Kind.WORK:
            self.state_kind = Kind.TOOL

    def _fan(self, body: Body) -> None:
        """Begin a span for all branches of a state; a few have spans of their own, too."""
        items = body.get("items")
        count = len(items) if isinstance(items, Sequence) else 0
        name = f"{count:,} branches of {body.get('state', '')}, {body.get('join', '')}"
        self.under_way["fan"] = OpenCall(Lane.CHILD, Kind.CHILD, name, self.at)
        if count > MOST_BRANCHES:
            self.crowded.add(f"{self.run_id}:{body.get('state', '')}.{body.get('visit', '')}:")

    def _joined(self, body: Body) -> None:
        if (fan := self.under_way.pop("fan", None)) is not None:
            words = f"{body.get('observed', '')} of {body.get('limit', '')} needed"
            self.span(
                fan.lane,
                fan.kind if body.get("ok") else Kind.FAILED,
                fan.since,
                self.at,
                fan.name,
                note=words,
            )

    def _rolled_back(self, body: Body) -> None:
        self.under_way.pop(str(body.get("key", "")), None)

    def _step(self, body: Body) -> None:
        """Add a step of a plan: it runs until the next one, or until the state is left."""
        self._close_steps()
        label = str(body.get("step", ""))
        if body.get("status") == "running":
            self.under_way[f"step {label}"] = OpenCall(Lane.TOOLS, Kind.TOOL, f"step {label}", self.at)

    def _close_steps(self) -> None:
        for key in [key for key in self.under_way if key.startswith("step ")]:
            step = self.under_way.pop(key)
            self.span(step.lane, step.kind, step.since, self.at, step.name)

    # ---- people ----

    def _question(self, body: Body) -> None:
        self.under_way.pop(
            str(body.get("key", "")), None
        )  # a call of a process that ended, which is asked about
        name = str(body.get("tool") or body.get("key") or "question")
        self.under_way[f"question {body.get('key', '')}"] = OpenCall(Lane.PERSON, Kind.PERSON, name, self.at)

    def _approval(self, body: Body) -> None:
        key, decision = str(body.get("key", "")), str(body.get("decision", ""))
        if (question := self.under_way.pop(f"question {key}", None)) is not None:
            self.span(Lane.PERSON, Kind.PERSON, question.since, self.at, question.name)
        self._decision(body, decision, key)

    def _control(self, body: Body) -> None:
        self._decision(body, str(body.get("kind", "")), str(body.get("key") or ""))

    def _decision(self, body: Body, verb: str, key: str) -> None:
        words = (str(body.get("by") or "unknown"), _VERBS.get(verb, verb), key)
        self.mark(Lane.PERSON, Kind.DECISION, " ".join(filter(None, words)))

    def _parked(self, body: Body) -> None:
        self._attempts(body, self.turn)
        self._guards(body)
        self.park(str(body.get("reason", "")))

    def _unparked(self, body: Body) -> None:
        del body
        self.unpark()
        self.work(self.process or f"process {self.epoch}")

    def _resumed(self, body: Body) -> None:
        self.unpark()
        by = str(body.get("by") or "")
        self.mark(Lane.PROCESS, Kind.RESUMED, f"{by} resumes" if by else "resumes")
        self.state_since = self.at
        self.work(f"process {self.epoch}")

    def _moved(self, body: Body) -> None:
        """Take the state of a migration or a recovery."""
        self.unpark()
        self.close_state(self.at)
        self.state, self.entered = str(body.get("state") or self.state), self.at

    def _ended(self, body: Body) -> None:
        del body
        self.unpark()
        self.close_state(self.at)
        self.stop_work()
        self.ended = True

    _TAKES: ClassVar[Mapping[str, Callable[[_Reader, Body], None]]] = {
        "created": _created,
        "transition": _transition,
        "answer": _answer,
        "intent": _intent,
        "done": _done,
        "rolled_back": _rolled_back,
        "fan": _fan,
        "joined": _joined,
        "step": _step,
        "asked": _question,
        "approval": _approval,
        "control": _control,
        "parked": _parked,
        "unparked": _unparked,
        "resumed": _resumed,
        "migrated": _moved,
        "recovered": _moved,
        "ended": _ended,
    }


def _time_of(record: Record) -> float:
    """Return the time of a record, at least: `at` of a result is the start of its call, an answer has its attempts."""
    at = number(record.body.get("at"))
    if record.kind == "done":
        return at + number(record.body.get("seconds")) if at else 0.0
    if record.kind == "answer" and (rows := record.body.get("attempts")):
        return sum(map(number, rows[-1][:2]))
    return at
