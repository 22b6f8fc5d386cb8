"""A timeline while the records of its run are read: what is under way, and what has ended."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from orchestrator.drawing.timeline.value import (
    BudgetUse,
    Kind,
    Lane,
    Timeline,
    TimeMark,
    TimeSpan,
    TurnStart,
)
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.machines.llm_loop.model import LoopState

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
        self._lose(at)
        self.mark(Lane.PROCESS, Kind.CRASH, "the process ended here or later")
        self.span(Lane.PROCESS, Kind.DOWN, self.at, at, "no process")
        self.state_since = at

    def _lose(self, at: float) -> None:
        if self.asks_the_model:
            self.span(Lane.MODEL, Kind.LOST, self.at, at, "answer lost", turn=self.turn)
        for key, call in self.under_way.items():
            if call.lane is not Lane.PERSON:
                self.span(call.lane, Kind.LOST, call.since, at, call.name, note="result not known")
                self.under_way[key] = call._replace(since=at)

    @property
    def asks_the_model(self) -> bool:
        """Whether a request to the model is under way, or was when the process ended."""
        return self.state == LoopState.AWAIT_LLM and self.stored.asks_the_model

    def charged(self) -> float:
        """Return the tokens that were charged for lost answers so far."""
        usage = (self.stored.context.get("spent") or {}).get("usage") or {}
        return number(usage.get("estimated_input_tokens")) + number(usage.get("estimated_output_tokens"))

    def note_charge(self, tokens: float) -> None:
        """Write the charge beside the last lost answer."""
        for index in range(len(self.spans) - 1, -1, -1):
            span = self.spans[index]
            if span.kind is Kind.LOST and span.lane is Lane.MODEL:
                self.spans[index] = replace(span, note=f"charged {tokens:,.0f} tokens")
                return

    # ---- the end ----

    def finish(self, head: RunHead, now: float) -> None:
        """Add what lasts: the present state, request, calls, questions and process."""
        orphaned = self.process_since is not None and head.owner is None
        if self.ended:
            self._close_open()
        elif orphaned:
            self.crash(now)
        else:
            self._leave_open()

    def _close_open(self) -> None:
        for one in self.under_way.values():
            self.span(one.lane, one.kind, one.since, self.at, one.name)

    def _leave_open(self) -> None:
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

    def add_children(self, children: Iterable[RunHead]) -> None:
        """Add child runs that are not calls of this run."""
        prefix = f"{self.run_id}:"
        keys = {span.name for span in self.spans if span.lane is Lane.CHILD}
        for head in children:
            name = head.run_id.removeprefix(prefix)
            if head.run_id.startswith(prefix) and keys and head.agent in keys:
                continue
            end = None if head.status == "open" else head.updated_at
            failed = head.outcome not in {"", "completed", "partial"}
            kind = Kind.FAILED if failed else Kind.CHILD
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
