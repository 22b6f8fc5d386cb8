"""The parts of a run's page, from its records. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from orchestrator.console.state_list import GraphView
from orchestrator.console.status import detail_of, status_of
from orchestrator.drawing.status import StatusStyle
from orchestrator.drawing.timeline.svg import described, timeline_svg
from orchestrator.drawing.timeline.value import Timeline
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Posted, Record, RunHead
from orchestrator.runtime.runs.details import RunDetails
from orchestrator.runtime.runs.graph_marks import run_marks
from orchestrator.runtime.runs.story import RUNNING, CallStory, Story
from orchestrator.runtime.runs.transcript import TranscriptEntry
from orchestrator.runtime.runs.verdicts import GuardHistory, guard_histories
from orchestrator.tools.result import RETURNED

COLUMNS: Final = 40
"""Most columns of the guards by turn; a column of a longer run is the maximum of several turns."""
MESSAGES: Final = 60
"""Messages of a page of the transcript."""
LONGEST: Final = 20_000
"""Characters of a message or a result that a page shows."""
_HEATS: Final = ((1.0, "x"), (0.9, "w"), (0.5, "2"), (0.25, "1"))
_RECORDS: Final = 12
ZOOMS: Final = (1, 10, 100)
"""Numbers of turns that a part of the timeline has."""
_WALL: Final = 0.9
_UNITS: Final[Mapping[str, str]] = {"elapsed": " s"}


class TurnWindow(NamedTuple):
    """A part of a timeline: the first and the last turn, from 1."""

    first: int
    last: int

    @classmethod
    def of(cls, text: str) -> TurnWindow | None:
        """Read `FIRST-LAST`; None for any other text."""
        first, dash, last = text.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            return None
        return cls(int(first), int(last))

    @property
    def text(self) -> str:
        """Return it as a part of an address."""
        return f"{max(self.first, 1)}-{self.last}"


class Meter(NamedTuple):
    """A budget: the use of a limit, as the guard counts it."""

    name: str
    used: float
    limit: float
    unit: str

    @property
    def share(self) -> float:
        """The used share, at most 1."""
        return min(max(self.used / self.limit, 0.0), 1.0)

    @property
    def word(self) -> str:
        """How full it is, as a class."""
        return "over" if self.used >= self.limit else "near" if self.share >= _WALL else "fine"


class Cell(NamedTuple):
    """A guard in a column of turns."""

    text: str
    heat: str


class GuardRow(NamedTuple):
    """A guard over all turns."""

    name: str
    cells: list[Cell]
    evaluated: int
    refused: int


@dataclass(frozen=True, slots=True)
class Line:
    """A message of the transcript, without its content."""

    role: str
    name: str
    length: int
    calls: Sequence[str]
    meta: str
    turn: int
    text: str
    """The content, if it may be shown."""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RunSections:
    """Everything on the page of a run but the content of its messages."""

    details: RunDetails
    records: Sequence[Record]
    line: Timeline
    guards: list[GuardHistory]
    calls: Sequence[CallStory]
    now: float

    @classmethod
    def of(cls, details: RunDetails, records: Sequence[Record], line: Timeline, now: float) -> RunSections:
        """Return the parts of a run, from its records, which were read already, and their timeline."""
        story = details.story
        if details.head.status == "open" and details.head.owner is not None:
            story.go_on(now - details.head.updated_at)
        return cls(details, records, line, guard_histories(records), list(story.calls.values()), now)

    @property
    def head(self) -> RunHead:
        """The head of the run."""
        return self.details.head

    @property
    def story(self) -> Story:
        """The history of the run."""
        return self.details.story

    @property
    def status(self) -> StatusStyle:
        """Its status."""
        return status_of(self.head)

    @property
    def detail(self) -> str:
        """The detail of its status."""
        return detail_of(self.head)

    @property
    def unread(self) -> list[Posted]:
        """Requests that the run has not read."""
        return self.details.unread

    @property
    def ended_by(self) -> str:
        """The verdict that ended the run, as a sentence; "" if no guard did."""
        refused = [guard for guard in self.guards if not guard.last.ok]
        if self.head.status != "ended" or not refused:
            return ""
        last = refused[-1].last
        return f"Guard {last.guard} refused: {last.observed:,} of {last.limit:,}."

    @property
    def error(self) -> str:
        """The error that failed the run, without its text."""
        return self.story.error_facts

    @property
    def meters(self) -> list[Meter]:
        """The budgets with a limit, as the guards counted them last."""
        return [
            Meter(guard.name, guard.last.observed, guard.last.limit, _UNITS.get(guard.name, ""))
            for guard in self.guards
            if guard.last.limit > 0
        ]

    @property
    def columns(self) -> list[str]:
        """The headings of the guards' columns."""
        turns, step = self._turns
        if step == 1:
            return [str(turn) for turn in range(1, turns + 1)]
        return [f"{first}" for first in range(1, turns + 1, step)]

    @property
    def _turns(self) -> tuple[int, int]:
        turns = max((turn for guard in self.guards for turn in guard.shares), default=0)
        return turns, max(1, math.ceil(turns / COLUMNS))

    def rows(self) -> list[GuardRow]:
        """Return a row for each guard with a limit."""
        turns, step = self._turns
        found = []
        for guard in self.guards:
            if not guard.shares:
                continue
            cells = [_cell(guard, range(first, first + step)) for first in range(1, turns + 1, step)]
            found.append(GuardRow(guard.name, cells, guard.evaluated, guard.refused))
        return found

    def tools(self) -> list[dict[str, Any]]:
        """Return calls, outcomes and seconds of each tool."""
        grouped: dict[str, dict[str, Any]] = {}
        for call in self.calls:
            start = {"tool": call.tool, "effect": call.effect, "calls": 0, "failed": 0, "seconds": 0.0}
            row = grouped.setdefault(call.tool, start)
            row["calls"] += 1
            row["seconds"] += call.seconds
            row["failed"] += call.outcome not in RETURNED | {RUNNING}
        return sorted(grouped.values(), key=lambda row: -row["seconds"])

    def times(self) -> list[tuple[str, int, float, float]]:
        """Return state, visits, seconds and share of the time, the longest first."""
        states = self.story.states()
        whole = sum(stats.total for stats in states.values()) or 1.0
        found = [(name, stats.visits, stats.total, stats.total / whole) for name, stats in states.items()]
        return sorted(found, key=lambda row: -row[2])

    def last_records(self) -> list[Record]:
        """Return the last records, newest first."""
        return list(self.records[-_RECORDS:])[::-1]

    def graph(self, graphs: Mapping[str, Graph]) -> GraphView:
        """Return the graph with the path of the run."""
        marks = run_marks(self.head, self.story, self.now)
        return GraphView.of(graphs.get(self.head.graph), marks, self.story.state)

    @property
    def open_calls(self) -> int:
        """The number of calls without a result."""
        return sum(call.outcome == RUNNING for call in self.calls)

    def timeline(self, turns: TurnWindow | None) -> tuple[str, str]:
        """Return the drawing of the timeline, or of these turns of it, and the whole in words."""
        part = self.line if turns is None else self.line.between(turns.first, turns.last)
        return timeline_svg(part, header=False, styled=False), described(self.line)

    def windows(self, turns: TurnWindow | None) -> list[TurnWindow]:
        """Return the parts of the timeline that the page offers: the last 1, 10 and 100 turns, and the neighbours."""
        last = self.story.turn
        found = [TurnWindow(last - size + 1, last) for size in ZOOMS if last > size]
        if turns is not None:
            width = turns.last - turns.first + 1
            beside = (TurnWindow(turns.first + step, turns.last + step) for step in (-width, width))
            found += [one for one in beside if one.last >= 1 and one.first <= last]
        return found

    def transcript(self, until: int | None, *, content: bool) -> tuple[list[Line], int]:
        """Return the messages before number `until` (None: up to the last), and the number of the first of them."""
        said = self.story.conversation
        end = len(said) if until is None else max(min(until, len(said)), 0)
        first = max(0, end - MESSAGES)
        return _lines(said, first, end, content=content), first


def _cell(guard: GuardHistory, turns: range) -> Cell:
    shares = [guard.shares[turn] for turn in turns if turn in guard.shares]
    if not shares:
        return Cell("", "n")
    share = max(shares)
    refused = any(turn in guard.refusals for turn in turns)
    heat = "x" if refused else next((name for limit, name in _HEATS if share >= limit), "0")
    return Cell(f"{share * 100:.0f}", "w" if heat == "x" and not refused else heat)


def _lines(said: Sequence[TranscriptEntry], first: int, end: int, *, content: bool) -> list[Line]:
    found: list[Line] = []
    turn = 0
    for number, entry in enumerate(said[:end]):
        if entry.answer is not None:
            turn = int(entry.answer.get("iteration") or turn + 1)
        if number >= first:
            found.append(_line(entry, turn, content=content))
    return found


def _line(entry: TranscriptEntry, turn: int, *, content: bool) -> Line:
    message = entry.message
    text = _text(message.get("content"))
    role = str(message.get("role", ""))
    calls = [str((call.get("function") or call).get("name", "")) for call in message.get("tool_calls") or ()]
    spoken = text
    if content and calls:
        each = [_call_text(call) for call in message.get("tool_calls") or ()]
        spoken = "\n".join(part for part in (text, *each) if part)
    return Line(
        role={"assistant": "model", "tool": "result"}.get(role, role),
        name=str(message.get("name") or "") if role == "tool" else "",
        length=len(text),
        calls=calls,
        meta=_meta(entry),
        turn=turn,
        text=spoken[:LONGEST] if content else "",
        cut=content and len(spoken) > LONGEST,
    )


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or call
    return f"{function.get('name', '')}({function.get('arguments', '')})"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [
        str(part.get("text") or f"[{part.get('type', 'part')}]")
        for part in parts
        if isinstance(part, Mapping)
    ]
    return "\n".join(texts)


def _meta(entry: TranscriptEntry) -> str:
    if entry.answer is not None:
        usage = entry.answer.get("usage") or {}
        mark = "about " if usage.get("estimated_input_tokens") else ""  # the server reported none
        return (
            f"{mark}{int(usage.get('input_tokens') or 0):,} in, {int(usage.get('output_tokens') or 0):,} out"
        )
    if entry.done is not None:
        seconds = float(entry.done.get("seconds") or 0.0)
        outcome = str(entry.done.get("outcome", ""))
        return f"{seconds * 1e3:,.0f} ms" if outcome == "ok" else f"{outcome}, {seconds * 1e3:,.0f} ms"
    return ""
