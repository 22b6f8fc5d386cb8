"""The page of a run, its parts, and its records."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import orjson
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import Console, PageFault, detail_of, moment, status_of
from orchestrator.console.start_page import not_forked, not_repeated
from orchestrator.drawing.stylesheet import StatusStyle
from orchestrator.drawing.svg import GraphMarks, svg
from orchestrator.drawing.timeline import described, timeline_svg
from orchestrator.errors import ConfigError, Corrupt
from orchestrator.journal.redacted import parted
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Posted, Record, RunHead
from orchestrator.machines.team.model import TEAM_GRAPH
from orchestrator.machines.timeline import Lane, Timeline
from orchestrator.runtime.evaluation.case_file import cases_text, recorded_case
from orchestrator.runtime.runs.listing import GuardHistory, guard_histories
from orchestrator.runtime.runs.origin import AGENTS
from orchestrator.runtime.runs.outline import text_of
from orchestrator.runtime.runs.result import FORKED_FROM, fork_of
from orchestrator.runtime.runs.story import RUNNING, CallStory, RunDetails, Story, TranscriptEntry, run_marks
from orchestrator.runtime.runs.timeline import read_timeline
from orchestrator.runtime.service.ownership import difference
from orchestrator.tools.result import RETURNED

DRAWN: Final = 40
"""Most states of a graph that is drawn."""
_STEPS: Final = 2
"""Steps from the centre to the states that are listed at once."""


class Way(NamedTuple):
    """An edge that leaves a state."""

    event: str
    dest: str
    times: int


class ListedState(NamedTuple):
    """A state with the ways out of it."""

    name: str
    note: str
    is_centre: bool
    ways: list[Way]


class StateList(NamedTuple):
    """The states around a centre, and the others."""

    centre: str
    near: list[ListedState]
    others: list[ListedState]


class GraphView(NamedTuple):
    """A graph on a page: its drawing, or its list if it has more states than DRAWN; neither for an unknown graph."""

    drawing: Markup
    states: StateList | None

    @classmethod
    def of(cls, graph: Graph | None, marks: GraphMarks, centre: str) -> Self:
        """Return the view of a graph with these marks. The list shows the states around `centre` first."""
        if graph is None:
            return cls(Markup(), None)
        if len(graph.states) > DRAWN:
            return cls(Markup(), state_list(graph, marks, centre))
        return cls(Markup(svg(graph, marks, styled=False)), None)  # noqa: S704 - the drawing escapes its texts


def state_list(graph: Graph, marks: GraphMarks, centre: str) -> StateList:
    """Return the states of a graph: those within two steps of the centre, in either direction, and the others.

    Args:
        graph: The graph.
        marks: The path taken.
        centre: A state; an unknown one is replaced by the initial state.
    """
    names = [state.value for state in graph.states]
    centre = centre if centre in names else graph.initial.value
    rows = [(source, edge.event, edge.dest) for edge in graph.edges for source in edge.sources]
    rows = [(str(source), str(event), str(dest)) for source, event, dest in rows]
    near = {centre}
    for _ in range(_STEPS):
        near |= {dest for source, _, dest in rows if source in near} | {
            source for source, _, dest in rows if dest in near
        }
    listed = []
    for name in names:
        ways = [
            Way(event, dest, marks.times(name, event, dest)) for source, event, dest in rows if source == name
        ]
        ways.sort(key=lambda way: -way.times)
        listed.append(ListedState(name, marks.notes.get(name, ""), name == centre, ways))
    return StateList(
        centre,
        [state for state in listed if state.name in near],
        [state for state in listed if state.name not in near],
    )


COLUMNS: Final = 12
"""Most columns of the guards by turn; a column of a longer run is the maximum of several turns."""
TURNS: Final = 100
"""Turns of a page of the transcript."""
MESSAGES: Final = 60
"""Most messages of a turn: the last ones before the first answer, the first ones of a turn."""
OPENED: Final = 12
"""Most turns of a run whose turns are all open."""
FOLDED: Final = 1_500
"""Characters of a message from which its text is folded."""
LONGEST: Final = 20_000
"""Characters of a message or a result that a page shows."""
_SCHEMAS: Final = 60_000
"""Characters of the descriptions and schemas of tools that a page shows."""
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
    text: str
    """The content, if it may be shown."""
    cut: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether the text is folded: it would push the other messages away."""
        return len(self.text) > FOLDED


class OfferedTool(NamedTuple):
    """A tool that the model of a run is offered."""

    name: str
    digest: str
    """Of its schema, effect and approval flag."""
    effect: str = ""
    approval: str = ""
    description: str = ""
    schema: str = ""
    """JSON of its parameters; empty if it may not be shown, or if the records do not have it."""


class ModelInput(NamedTuple):
    """What a model reads besides the conversation."""

    system: Line | None
    tools: Sequence[OfferedTool]
    has_schemas: bool
    """Whether the journal has the schemas: it has none of a run of an earlier version, or before its first answer."""
    left_out: int
    """Tools whose schema is not on the page, because the others fill it."""

    @classmethod
    def of(cls, story: Story, offered: Sequence[Mapping[str, Any]] | None, *, content: bool) -> Self:
        """Return it from the history of a run, and from the tools that its first answer names."""
        first = story.conversation[:1]
        system = _line(first[0], content=content) if first and is_system(first[0]) else None
        if offered is None:
            names = story.created.get("definition") or {}
            plain = [OfferedTool(str(name), str(digest)) for name, digest in names.items()]
            return cls(system, plain, has_schemas=False, left_out=0)
        tools, room = [], _SCHEMAS
        for one in offered:
            texts = str(one.get("description", "")), orjson.dumps(one.get("parameters")).decode()
            room -= sum(map(len, texts))
            name, digest, effect, approval = (
                str(one.get(key, "")) for key in ("name", "digest", "effect", "approval")
            )
            description, schema = texts if content and room >= 0 else ("", "")
            tools.append(OfferedTool(name, digest, effect, approval, description, schema))
        return cls(
            system, tools, has_schemas=True, left_out=sum(not one.schema for one in tools) if content else 0
        )


def is_system(entry: TranscriptEntry) -> bool:
    """Return whether a message is the system prompt."""
    return entry.message.get("role") in {"system", "developer"}


class TranscriptTurn(NamedTuple):
    """A turn as one line, and its messages if it is open."""

    number: int
    """0 has the messages before the first answer."""
    path: Sequence[str]
    """The states that the run entered."""
    tools: Sequence[tuple[str, int]]
    usage: str
    cost_micros: int | None
    seconds: float | None
    lines: Sequence[Line]
    left_out: int
    """Messages of an open turn that are not on the page."""
    is_pinned: bool
    """Whether it is always open."""
    changed_tools: str
    """How the tools changed before it, when the run was resumed; "" if they did not."""


class TranscriptPage(NamedTuple):
    """The turns of a page, and the numbers of turns before and after it."""

    turns: Sequence[TranscriptTurn]
    earlier: int
    later: int


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
    def meters(self) -> list[Meter]:
        """The budgets with a limit, as the guards counted them last."""
        return [
            Meter(guard.name, guard.last.observed, guard.last.limit, _UNITS.get(guard.name, ""))
            for guard in self.guards
            if guard.last.is_budget
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

    def transcript(self, until: int | None, opened: int | None, *, content: bool) -> TranscriptPage:
        """Return the turns up to number `until` (None: up to the last), at most TURNS of them.

        Args:
            until: The last turn of the page.
            opened: A turn whose messages are on the page. Those of the last turn are, and of a short run all are.
            content: Whether the messages have their text.
        """
        grouped: dict[int, list[TranscriptEntry]] = {}
        turn = 0
        for place, entry in enumerate(self.story.conversation):
            if place == 0 and is_system(entry):
                continue  # the page has it above
            if entry.answer is not None:
                turn = int(entry.answer.get("iteration") or turn + 1)
            grouped.setdefault(turn, []).append(entry)
        numbers = list(grouped)
        page = [number for number in numbers if until is None or number <= until][-TURNS:]
        is_short = len(numbers) <= OPENED
        last = numbers[-1] if numbers else 0
        starts = {start.turn: start.at for start in self.line.turns}
        states = self._states_by_turn(page)
        changed = self._changed_tools()
        found = []
        for number in page:
            is_pinned = is_short or number in {0, last}
            is_open = is_pinned or number == opened
            entries = grouped[number]
            shown = (entries[-MESSAGES:] if number == 0 else entries[:MESSAGES]) if is_open else []
            at = starts.get(number)
            end = next((starts[later] for later in (number + 1,) if later in starts), self.line.end)
            usage = next((entry.answer.get("usage") or {} for entry in entries if entry.answer), {})
            tools = Counter(name for entry in entries for name in _calls_of(entry.message))
            found.append(
                TranscriptTurn(
                    number=number,
                    path=states.get(number, ()),
                    tools=[(name, times) for name, times in tools.items()],
                    usage=_meta(entries[0]),
                    cost_micros=usage.get("cost_micros"),
                    seconds=None if at is None else end - at,
                    lines=[_line(entry, content=content) for entry in shown],
                    left_out=len(entries) - len(shown) if is_open else 0,
                    is_pinned=is_pinned,
                    changed_tools=changed.get(number, ""),
                )
            )
        first, end_of_page = (
            (numbers.index(page[0]), numbers.index(page[-1])) if page else (0, len(numbers) - 1)
        )
        return TranscriptPage(found, earlier=first, later=len(numbers) - 1 - end_of_page)

    def _changed_tools(self) -> dict[int, str]:
        """Return how the tools changed before a turn, by its number."""
        found, tools, turn = {}, self.story.created.get("definition"), 0
        for record in self.records:
            if record.kind == "answer":
                turn = int(record.body.get("iteration") or turn + 1)
            elif record.kind == "resumed" and "definition" in record.body:
                if change := difference(tools, record.body["definition"]):
                    found[turn + 1] = change
                tools = record.body["definition"]
        return found

    def _states_by_turn(self, page: Sequence[int]) -> dict[int, list[str]]:
        """Return the states that the run entered in each turn of a page, in order."""
        starts = [start.at for start in self.line.turns]
        found: dict[int, list[str]] = {}
        for span in self.line.spans:
            if span.lane is Lane.STATE and starts:
                turn = self.line.turns[max(bisect_right(starts, span.start) - 1, 0)].turn
                if page and page[0] <= turn <= page[-1]:
                    found.setdefault(turn, []).append(span.name)
        return found


def _cell(guard: GuardHistory, turns: range) -> Cell:
    shares = [guard.shares[turn] for turn in turns if turn in guard.shares]
    if not shares:
        return Cell("", "n")
    share = max(shares)
    refused = any(turn in guard.refusals for turn in turns)
    heat = "x" if refused else next((name for limit, name in _HEATS if share >= limit), "0")
    return Cell(f"{share * 100:.0f}", "w" if heat == "x" and not refused else heat)


def _calls_of(message: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that a message calls."""
    return [str((call.get("function") or call).get("name", "")) for call in message.get("tool_calls") or ()]


def _line(entry: TranscriptEntry, *, content: bool) -> Line:
    message = entry.message
    text, calls, role = text_of(message.get("content")), _calls_of(message), str(message.get("role", ""))
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
        text=spoken[:LONGEST] if content else "",
        cut=content and len(spoken) > LONGEST,
    )


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or call
    return f"{function.get('name', '')}({function.get('arguments', '')})"


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
        error = entry.done.get("error") or {}  # its message is content, and the result of the call has it
        told = " ".join(filter(None, (outcome, error.get("type"), error.get("where"))))
        return f"{seconds * 1e3:,.0f} ms" if outcome == "ok" else f"{told}, {seconds * 1e3:,.0f} ms"
    return ""


_LOG: Final = logging.getLogger("orchestrator.console")
_PAGE: Final = 100
_DECIDED: Final[Mapping[str, str]] = {
    "approve": "approved", "reject": "rejected", "respond": "answered", "cancel": "asked to cancel",
    "pause": "asked to pause", "resume": "asked to resume", "resumed": "resumed", "migrated": "migrated",
    "recovered": "recovered", "request_changes": "requested changes to",
}  # fmt: skip
_LONGEST: Final = 20_000
FORKS: Final = 5
"""Forks that the page of a run lists."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


async def run(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of a run. Raises RunUnknown, Corrupt, StoreDown."""
    run_id = str(request.path_params["run_id"])
    head = await console.runs.head(run_id)
    family = await console.runs.family(run_id)
    tree = family
    # A short text that changes with the run, the other runs of its tree and the requests to it.
    heads, ahead = [], [family]
    while ahead:
        branch = ahead.pop()
        heads.append((branch.head.run_id, branch.head.seq, branch.head.epoch, branch.head.owner))
        ahead += branch.children
        tree = branch if branch.head.run_id == run_id else tree
    requests = len(await console.runs.journal.inbox(run_id))
    forks = await _forks(console, run_id)
    seen = f"{zlib.crc32(repr((heads, requests, forks)).encode()):08x}"
    if request.query_params.get("seen") == seen:
        return Response(status_code=204)  # nothing to swap: the records of a long run are not read again
    # Read the records of a run once, for its story and its timeline, in a thread: a long run has many.
    story, now = Story(head.run_id), time.time()
    children = [branch.head for branch in tree.children]
    records = await console.runs.records(head.run_id)
    line = await asyncio.to_thread(
        read_timeline, records, head=head, now=now, children=children, stored=story
    )
    story.close()
    details = RunDetails(head, story, await story.unread(console.runs.journal))
    view = RunSections.of(details, records, line, now)
    pending = await console.runs.pending(run_id) if tree.children else []
    content = console.may_read(request, actor)
    if content:
        _LOG.info("console: content of run %s was shown to %s", run_id, actor.name)
    turns = TurnWindow.of(request.query_params.get("turns", ""))
    drawn, words = view.timeline(turns)
    until, opened = (_turn(request.query_params.get(name, "")) for name in ("until", "turn"))
    if until is None and opened is not None:  # a link to a turn, from the timeline or another person
        until = opened + TURNS // 2
    elif until is None and turns is not None:
        until = turns.last
    transcript = view.transcript(until, opened, content=content)
    # The definition of a team has its members, not tools: their models read the tools, in the runs of its segments.
    offered = [] if head.graph == TEAM_GRAPH else await _offered(console, records)
    reads = ModelInput.of(story, offered, content=content)
    return await console.page(
        request,
        actor,
        "run",
        view=view,
        head=head,
        story=view.story,
        family=family,
        below=[question for question in pending if question.run_id != run_id],
        timeline=Markup(drawn),  # noqa: S704 - its texts are escaped by the drawing
        words=words,
        turns=turns,
        seen=seen,
        graph=view.graph(console.graphs),
        transcript=transcript,
        reads=reads,
        until=until,
        opened=opened,
        content=content,
        asks=console.may_ask(actor),
        fork=fork_of(view.records),
        forks=forks,
        forks_shown=FORKS,
        not_repeated=not_repeated(head),
        not_forked=not_forked(head),
        not_a_case=_not_a_case(head),
        may_export=_may_export(console, actor),
        decisions=[_decision(kind, body) for kind, body in view.story.decisions],
        address=request.url.path,
    )


async def _offered(console: Console, records: Sequence[Record]) -> list[Mapping[str, Any]] | None:
    """Return the tools that the first answer of a run names; None if it names none, or if they cannot be read."""
    named = next((one.body.get("offered") for one in records if one.kind == "answer"), None)
    try:
        return None if named is None else orjson.loads(await console.runs.journal.blob(str(named)))
    except (Corrupt, ValueError):
        return None  # the check of the journal reports it


async def _forks(console: Console, run_id: str) -> list[str]:
    """Return the ids of the newest forks of a run, at most one more than FORKS. Child runs have the tags, too."""
    found = await console.runs.page(tag={FORKED_FROM: run_id}, limit=10 * FORKS)
    return [head.run_id for head in found.runs if head.parent_run_id is None][: FORKS + 1]


def _not_a_case(head: RunHead) -> str:
    """Return why a run cannot become a case of an evaluation set, as a sentence; "" if it can."""
    if head.status != "ended":
        return "This run has not ended, so a case could not expect its outcome."
    if head.graph not in AGENTS:
        return (
            f"Only runs of an agent become cases of an evaluation set, and this one belongs to {head.graph}."
        )
    return ""


def _may_export(console: Console, actor: Actor) -> bool:
    return console.content != "never" and actor.may_read_content


async def case(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with a run as a case of an evaluation set, a file of one line. Raises PageFault, RunError."""
    run_id = str(request.path_params["run_id"])
    if not _may_export(console, actor):
        raise PageFault(
            403, "A case has the messages of its run, and content is not shown to you in this console."
        )
    why = _not_a_case(await console.runs.head(run_id))
    if why:
        raise PageFault(409, why)
    try:
        found = await recorded_case(run_id, await console.runs.records(run_id))
    except ConfigError as error:
        raise PageFault(409, str(error)) from error
    _LOG.info("console: run %s was given to %s as a case", run_id, actor.name)
    name = _UNSAFE.sub("_", run_id)[:100]
    return Response(
        cases_text([found], ".jsonl"),
        media_type="application/jsonl",
        headers={"content-disposition": f'attachment; filename="case-{name}.jsonl"'},
    )


def _turn(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None  # noqa: PLR2004


def _decision(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    what = str({"approval": body.get("decision"), "control": body.get("kind")}.get(kind) or kind)
    return {
        "what": _DECIDED.get(what, what),
        "key": str(body.get("key") or ""),
        "by": str(body.get("by") or "unknown"),
        "at": moment(float(body["at"])) if body.get("at") else "",
        "why": str(body.get("why") or ""),
        "refused": str(body.get("refused") or ""),
    }


async def records(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the records of a run, newest first. Raises RunUnknown, Corrupt, StoreDown."""
    run_id = str(request.path_params["run_id"])
    head = await console.runs.head(run_id)
    found = await console.runs.records(run_id)
    until = request.query_params.get("until", "")
    end = min(int(until), len(found)) if until.isdecimal() else len(found)
    content = console.may_read(request, actor)
    if content:
        _LOG.info("console: records of run %s were shown to %s", run_id, actor.name)
    shown = [_record(one, content=content) for one in found[max(0, end - _PAGE) : end][::-1]]
    return await console.page(
        request,
        actor,
        "records",
        head=head,
        records=shown,
        total=len(found),
        first=max(0, end - _PAGE),
        content=content,
        asks=console.may_ask(actor),
    )


def _record(record: Record, *, content: bool) -> dict[str, Any]:
    parts = parted(record.kind, record.body)
    body = record.body if content else parts.shown
    text = orjson.dumps(body, option=orjson.OPT_INDENT_2, default=str).decode()
    return {
        "seq": record.seq,
        "kind": record.kind,
        "epoch": record.epoch,
        "hash": record.hash,
        "at": moment(record.body.get("at")),
        "text": text[:_LONGEST],
        "cut": len(text) > _LONGEST,
        "left_out": [] if content else parts.left_out,
    }
