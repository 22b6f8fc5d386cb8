"""The trace of a recorded run: its decisions as raw inputs of its guards, read from its records in one pass.

A trace has numbers, digests and names of tools, no texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import takewhile
from typing import Any, ClassVar, Final, Literal, NamedTuple

import orjson

from orchestrator.journal.ledger import TOOL
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.llm.usage import Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState
from orchestrator.machines.team.model import TEAM_GRAPH, TeamEvent
from orchestrator.tools.result import RETURNED
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_guards import TurnFingerprint, call_key, tool_key
from orchestrator_guards.evaluation import GUARDS, read_row
from orchestrator_guards.progress import digest

Kind = Literal["input", "request", "calls", "turn", "output", "completion", "handoff"]
"""The guardrails of the input, a request to the model, the calls of its answer, the decision about another turn, the
guardrails of the output, an unusable final answer; the decision about a further segment of a team."""
FORMAT: Final = "orchestrator-trace/1"
"""The format of an exported trace."""
Row = Sequence[Any]


class TracedCall(NamedTuple):
    """A tool call at its admission."""

    tool: str
    """The key of its tool."""
    key: str
    """Digest of tool and arguments."""
    successes: int
    """Its consecutive equal successes before."""
    policy: str | None
    """Meaning of a repetition for the tool; None if the records do not have it."""
    denied: bool
    """Whether it was refused before it could run."""


@dataclass(slots=True)
class Point:
    """A place of a run at which guards are evaluated, with their inputs."""

    kind: Kind
    seq: int
    """Number of the record."""
    t: float
    """Active seconds of the run."""
    event: str
    """Event of the transition that followed; "" if the run was parked."""
    limits: Mapping[str, Any]
    """The limits that were in force."""
    iteration: int
    """Answers of the model before the decision."""
    usage: Usage
    """Usage before the decision, with child runs."""
    seconds: float
    """Active seconds as the guards count them."""
    tool_calls: int
    by_tool: Mapping[str, int]
    restarts: int
    retries: int
    """Retries of the run, those of this request included."""
    completions: int
    """Repeated requests for an answer so far."""
    rows: list[Row]
    """Recorded evaluations of guards."""
    rows_lost: bool = False
    """Whether a crash lost the evaluations: the event was stored before, the rows were not."""
    checked: bool = False
    """Whether the budgets were evaluated before the request."""
    by_parents: list[Row] = field(default_factory=list)
    """Those of the recorded evaluations that are about the limits of its parent runs."""
    most: tuple[int, ...] = ()
    """Maximum costs of the request, in micro-units, if the records have them."""
    unpriced: bool = False
    """Whether the cost of the answer is unknown."""
    context: tuple[int, ...] = ()
    """Tokens in the context, its limit, and the iteration of the last compaction, before a request."""
    compactions: int = 0
    """Compactions before the request."""
    results: tuple[int, ...] = ()
    """Failed and successful calls among the messages of the request."""
    warned: bool = False
    """Whether the decision left a warning for the model."""
    streaks: Mapping[str, int] | None = None
    """Tool -> consecutive errors; None if the records do not have them."""
    turn: TurnFingerprint | None = None
    """Fingerprint of the turn; None if the records do not have it."""
    window: int = 0
    """Fingerprints in the window of the progress guard after the turn; 0 if the records do not say."""
    calls: tuple[TracedCall, ...] = ()
    handoffs: tuple[int, ...] = ()
    """Handoffs before the decision about one, and how many of them equal it."""


@dataclass(slots=True)
class RunTrace:
    """The decisions of one run, and its end."""

    run_id: str
    graph: str = ""
    agent: str = ""
    outcome: str = ""
    """"" for a run that has not ended."""
    reason: str = ""
    points: list[Point] = field(default_factory=list)
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    problem: str = ""
    """Why the run cannot be evaluated; "" if it can."""
    currency: str = ""
    """Currency of its cost; "" if its records name none."""
    digests: bool = False
    """Whether digests replace the names of tools."""

    def as_json(self) -> dict[str, Any]:
        """Return the trace as plain data. Names of tools are replaced by digests, because a model may invent names."""
        plain = {name: getattr(self, name) for name in ("run_id", "graph", "agent", "outcome", "reason")}
        return {
            "format": FORMAT,
            **plain,
            "requests": self.requests,
            "usage": asdict(self.usage),
            "currency": self.currency,
            "seconds": self.seconds,
            "problem": self.problem,
            "points": [_point_json(one) for one in self.points],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunTrace:
        """Return the trace in plain data. Raises ValueError for data of another form."""
        if data.get("format") != FORMAT:
            raise ValueError(f"the format is {data.get('format')!r:.60}; it must be {FORMAT!r}")
        try:
            points = [_point(one) for one in data["points"]]
            plain = {
                name: str(data[name]) for name in ("run_id", "graph", "agent", "outcome", "reason", "problem")
            }
            return cls(
                **plain,
                points=points,
                requests=int(data["requests"]),
                usage=Usage.of(data["usage"]),
                currency=str(data.get("currency", "")),  # earlier versions wrote none
                seconds=float(data["seconds"]),
                digests=True,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the trace has another form ({type(error).__name__}: {error})") from None


def named(tool: str) -> str:
    """Return the digest of a tool's name."""
    return digest(tool_key(tool))


def _named_keys(numbers: Mapping[str, int]) -> dict[str, int]:
    return {named(tool): count for tool, count in numbers.items()}


def _point_json(point: Point) -> dict[str, Any]:
    plain = {name: getattr(point, name) for name in Point.__slots__}
    caps = point.limits.get("tool_caps") or {}
    return plain | {
        "limits": {**point.limits, "tool_caps": _named_keys(caps)},
        "usage": asdict(point.usage),
        "by_tool": _named_keys(point.by_tool),
        "rows": [_row_json(row) for row in point.rows],
        "by_parents": [_row_json(row) for row in point.by_parents],
        "streaks": None if point.streaks is None else _named_keys(point.streaks),
        "turn": None if point.turn is None else _turn_json(point.turn),
        "calls": [[named(call.tool), *call[1:]] for call in point.calls],
    }


def _row_json(row: Row) -> list[Any]:
    return [
        [_turn_json(TurnFingerprint(*turn)) for turn in value] if isinstance(value, list) else value
        for value in row
    ]


def _turn_json(turn: TurnFingerprint) -> list[Any]:
    return [*turn._replace(tools=frozenset())[:4], sorted(map(named, turn.tools)), *turn[5:]]


def _point(data: Mapping[str, Any]) -> Point:
    made = {"by_parents": [], **{name: data[name] for name in Point.__slots__ if name in data}}
    turn = data["turn"]
    return Point(
        **made
        | {
            "usage": Usage.of(data["usage"]),
            "turn": None if turn is None else fingerprint_of(turn),
            "calls": tuple(TracedCall(*call) for call in data["calls"]),
            **{name: tuple(data[name]) for name in ("most", "context", "results")},
            "handoffs": tuple(data.get("handoffs", ())),  # earlier versions wrote none
        }
    )


def limits_of(members: Mapping[str, Any]) -> Limits:
    """Return the limits with these members. Members that this version does not have are left out."""
    return _limits(orjson.dumps(dict(members), default=dict, option=orjson.OPT_SORT_KEYS))


@functools.lru_cache(maxsize=256)
def _limits(members: bytes) -> Limits:
    plain = orjson.loads(members)
    given = {item.name: plain[item.name] for item in fields(Limits) if item.name in plain}
    if "context_warnings" in given:
        given["context_warnings"] = tuple(given["context_warnings"])
    return Limits(**given)


def fingerprint_of(plain: Iterable[Any]) -> TurnFingerprint:
    """Return the fingerprint of a turn in its JSON form."""
    calls, results, failed, text, tools, errors, advances, waits = plain
    return TurnFingerprint(
        tuple(calls), tuple(results), failed, text, frozenset(tools), tuple(errors), advances, waits
    )


_KINDS: Final[Mapping[str, Kind]] = {
    LoopState.INIT: "input",
    LoopState.AWAIT_LLM: "request",
    LoopState.UPDATE_BUDGETS: "turn",
    LoopState.HANDLE_COMPLETION: "completion",
}
"""State whose work evaluates guards -> kind of the point."""
_CALLS: Final = LoopEvent.RESPONSE_WITH_TOOLS


class _Position(NamedTuple):
    """The counters of a run before a transition. The records that follow change them in place."""

    iteration: int
    spent: Mapping[str, Any]
    completions: int
    streaks: Mapping[str, int]
    successes: Mapping[str, Any]
    context: tuple[int, int, int]
    results: tuple[int, int]


def trace_of(run_id: str, records: Sequence[Record]) -> RunTrace:
    """Return the trace of a run. A run of another graph or in another form has a `problem` and no points."""
    is_team = bool(records) and records[0].body.get("graph") == TEAM_GRAPH
    reader: _TeamReader | _TraceReader = _TeamReader(run_id) if is_team else _TraceReader(run_id)
    try:
        for record in records:
            reader.read(record)
            if reader.trace.problem:
                break
        return reader.close()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reader.trace.points = []
        reader.trace.problem = f"its records have another form ({type(error).__name__})"
        return reader.trace


class _TraceReader:
    def __init__(self, run_id: str) -> None:
        self.trace = RunTrace(run_id)
        self._stored = StoredRun(run_id)
        self._open: tuple[Record, str, _Position] | None = None
        """A transition whose context follows, its source, and the position before."""
        self._entered: _Position | None = None
        """The position at the start of the work whose event is stored, until its transition."""
        self._decided = self._lost = False
        """Whether the rows of that event are in a `parked` record, or were lost in a crash."""
        self._forms: dict[int, str] = {}
        """Position of a call -> its arguments in canonical form, if they differ from the text of the model."""
        self._denied: set[int] = set()
        self._policies: dict[str, str] = {}
        """Key of a tool -> the meaning of its repetition, as far as the records show it."""
        self._tools: dict[str, str] = {}
        """Digest of the key of each called tool -> the key. The rows of guards name a tool by its digest."""
        self._failed = self._worked = 0
        self._is_child = False

    def read(self, record: Record) -> None:
        """Add one more record."""
        if self._open is not None and record.kind != "context":
            self._close_point()
        read = self._READERS.get(record.kind)
        if read is None:
            self._stored.fold(record.kind, record.body)
        else:
            read(self, record)
        if self._open is not None and record.kind == "context":
            self._close_point()

    def close(self) -> RunTrace:
        """Return the trace."""
        if self._open is not None:
            self._close_point()
        stored, trace = self._stored, self.trace
        if trace.problem:
            trace.points = []
            return trace
        ended = stored.ended or {}
        trace.outcome, trace.reason = str(ended.get("outcome", "")), str(ended.get("reason", ""))
        trace.usage, trace.seconds = _usage(stored.context["spent"]), stored.elapsed
        if not any(point.rows for point in trace.points) and any(
            point.kind == "turn" for point in trace.points
        ):
            trace.problem = "an older version recorded it, without the inputs of its guards"
        return trace

    # ---- records ----

    def _read_created(self, record: Record) -> None:
        body, trace = record.body, self.trace
        trace.graph, trace.agent = str(body.get("graph", "")), str(body.get("agent") or "")
        trace.currency = str(body.get("currency") or "")
        self._is_child = bool(body.get("parent_run_id"))
        if trace.graph != LLM_LOOP.name:
            trace.problem = f"it is a run of graph {trace.graph!r}, not of {LLM_LOOP.name}"
            return
        self._stored.fold(record.kind, body)
        if not isinstance(self._stored.context.get("spent"), dict):
            trace.problem = "an older version recorded it, in another form"

    def _read_migrated(self, record: Record) -> None:
        del record
        self.trace.problem = "it was migrated from another version of its graph"

    def _read_answer(self, record: Record) -> None:
        self._forms.clear()
        self._denied.clear()
        self.trace.requests += 1
        self._stored.fold(record.kind, record.body)

    def _read_intent(self, record: Record) -> None:
        for call in record.body.get("calls") or ():
            if "arguments" in call:
                self._forms.setdefault(call["position"], call["arguments"])
        self._stored.fold(record.kind, record.body)

    def _read_question(self, record: Record) -> None:
        if "arguments" in record.body:
            self._forms.setdefault(_position_of(record.body), record.body["arguments"])
        self._stored.fold(record.kind, record.body)

    def _read_done(self, record: Record) -> None:
        body = record.body
        self._stored.fold(record.kind, body)
        if body.get("effect") != TOOL:
            return
        if body["outcome"] in RETURNED:
            self._worked += 1
        else:
            self._failed += 1
        if body["outcome"] == "denied":
            self._denied.add(_position_of(body))
        if body.get("call"):
            self._forms.setdefault(_position_of(body), body["call"]["arguments"])

    def _read_transition(self, record: Record) -> None:
        source = str(record.body["source"])
        kind = _KINDS.get(source)
        if kind is None and record.body["event"] != _CALLS:
            self._stored.fold(record.kind, record.body)
            return
        if not self._decided or record.body.get(GUARDS):
            self._open = record, source, self._entered or self._position()
        self._stored.fold(record.kind, record.body)
        self._entered, self._decided = None, False

    def _read_context(self, record: Record) -> None:
        if self._open is None and self._entered is None and record.body.get("next"):
            self._entered = self._position()
        self._stored.fold(record.kind, record.body)

    def _read_resumed(self, record: Record) -> None:
        self._lost = self._stored.next is not None and not self._decided
        self._stored.fold(record.kind, record.body)

    def _read_parked(self, record: Record) -> None:
        if record.body.get(GUARDS):
            self._open = record, self._stored.state, self._entered or self._position()
            self._decided = self._stored.next is not None
        self._stored.fold(record.kind, record.body)

    # ---- points ----

    def _position(self) -> _Position:
        context = self._stored.context
        progress, window = context["progress"], context["context"]
        return _Position(
            int(context["iteration"]),
            dict(context["spent"]),
            int(context["completion"]["retries"]),
            progress["error_streaks"],
            progress["successes"],
            (window["tokens"], window["limit"], window["compacted_at"]),
            (self._failed, self._worked),
        )

    def _close_point(self) -> None:
        if self._open is None:
            return
        (record, source, before), self._open = self._open, None
        kind = _KINDS.get(source, "calls")
        body = record.body
        rows = list(body.get(GUARDS) or ())
        if guardrails := [row for row in rows if read_row(row).guardrail is not None]:
            rows = [row for row in rows if row not in guardrails]
            stage: Kind = "output" if kind == "completion" else "input"
            self.trace.points.append(self._point(stage, record, before, guardrails))
        if kind == "input":
            return
        if kind in {"turn", "completion"} and not rows and body.get("event") in _UNDECIDED:
            return
        point = self._point(kind, record, before, rows)
        self.trace.points.append(point)
        compacted = self._stored.context["context"]["compacted_at"] != before.context[2]
        if compacted or body.get("event") == LoopEvent.RESTART_LOOP:
            self._failed = self._worked = 0

    def _point(self, kind: Kind, record: Record, before: _Position, rows: list[Any]) -> Point:
        context, body = self._stored.context, record.body
        spent = context["spent"]
        decided = kind in {"turn", "output", "completion"}  # its counters changed before the decision
        point = Point(
            kind=kind,
            seq=record.seq,
            t=float(body.get("t", 0.0)),
            event=str(body.get("event", self._stored.next or "")),
            limits=context["limits"],
            iteration=int(context["iteration"]) if decided else before.iteration,
            usage=_usage(spent if decided else before.spent),
            seconds=float((spent if decided else before.spent)["seconds"]),
            tool_calls=int(before.spent["tool_calls"]),
            by_tool=before.spent["by_tool"],
            restarts=int(before.spent["restarts"]),
            retries=int(spent["retries"]),
            completions=before.completions,
            rows=rows,
            rows_lost=self._lost and not rows,
        )
        self._lost = False
        if kind == "request":
            self._add_request(point, before)
        elif kind == "calls":
            self._add_calls(point, before)
        elif kind == "turn":
            self._add_turn(point)
        elif kind == "completion":
            point.streaks = context["progress"]["error_streaks"]
            point.warned = bool(context["progress"]["warning"])
            if context["turns"] and point.limits["max_no_progress"]:
                point.turn, point.window = fingerprint_of(context["turns"][-1]), len(context["turns"])
        return point

    def _add_request(self, point: Point, before: _Position) -> None:
        answer = self._stored.answer
        # the rows behind the cost of the request are about the wrap-up turn
        budgets = takewhile(lambda row: row[4:5] != ["request_cost"], point.rows)
        point.checked = any(row[1] == "iterations" for row in budgets)
        own = _own_rows(point.rows) if self._is_child else len(point.rows)
        point.by_parents = [
            row
            for row in point.rows[own:]
            if not (
                row[1] == "retries" or (row[1] == "cost_unknown" and requires_price(limits_of(point.limits)))
            )
        ]
        point.most = tuple(row[6] for row in point.rows[:own] if row[4:5] == ["request_cost"])
        point.retries = max(point.retries, int(answer.get("retries") or 0))
        point.unpriced = any(row[1] == "cost_unknown" for row in point.rows) or (
            point.event == LoopEvent.LLM_RESPONSE and Usage.of(answer.get("usage") or {}).cost_micros is None
        )
        point.context, point.results = before.context, before.results
        point.compactions = int(before.spent["compactions"])

    def _add_calls(self, point: Point, before: _Position) -> None:
        policies = iter([row[7] for row in point.rows if row[4:5] == ["repeated_success"]])
        point.calls = tuple(self._calls(before, point, policies))

    def _calls(self, before: _Position, point: Point, policies: Iterable[str]) -> Iterable[TracedCall]:
        given = next(
            (one["tool_calls"] for one in reversed(self._stored.messages) if one.get("tool_calls")), ()
        )
        kept = iter(policies)
        for position, one in enumerate(given):
            function = one["function"]
            tool = tool_key(function["name"])
            self._tools[named(tool)] = tool
            key = call_key(function["name"], self._forms.get(position, function["arguments"]))
            last = before.successes.get(tool)
            successes = last[2] if last is not None and last[0] == key else 0
            if successes and point.limits["max_repeated_success"] and (policy := next(kept, None)):
                self._policies[tool] = policy
            yield TracedCall(tool, key, successes, self._policies.get(tool), position in self._denied)

    def _add_turn(self, point: Point) -> None:
        restarted = point.event == LoopEvent.RESTART_LOOP
        context = self._stored.context
        point.warned = bool(context["progress"]["warning"])
        if not restarted:
            point.streaks = context["progress"]["error_streaks"]
            if context["turns"] and (point.limits["max_no_progress"] or point.limits["max_restarts"]):
                point.turn, point.window = fingerprint_of(context["turns"][-1]), len(context["turns"])
                self._learn(point.turn)
            return
        row = next((one for one in point.rows if one[1] == "tool_errors"), None)
        if row is not None:
            tool = str(row[5])
            point.streaks = {self._tools.get(tool, tool): row[6]}
        elif point.limits["max_tool_errors"]:
            point.streaks = {}
        window = next((row[5] for row in point.rows if row[4:5] == ["progress"]), None)
        if isinstance(window, list | tuple) and window:
            turn = fingerprint_of(window[-1])
            tools = frozenset(self._tools.get(tool, tool) for tool in turn.tools)  # as in the turns before it
            point.turn, point.window = turn._replace(tools=tools), len(window)

    def _learn(self, turn: TurnFingerprint) -> None:
        """Learn the meaning of a repetition from the fingerprint of a turn."""
        if not (turn.waits or turn.advances):
            policy = "strict"
        elif len(turn.tools) == 1:
            policy = "poll" if turn.waits else "cumulative"
        else:
            return
        for tool in turn.tools:
            self._policies.setdefault(tool, policy)

    _READERS: ClassVar[Mapping[str, Callable[[_TraceReader, Record], None]]] = {
        "created": _read_created,
        "migrated": _read_migrated,
        "answer": _read_answer,
        "intent": _read_intent,
        "asked": _read_question,
        "done": _read_done,
        "transition": _read_transition,
        "parked": _read_parked,
        "context": _read_context,
        "resumed": _read_resumed,
    }


def _own_rows(rows: Sequence[Row]) -> int:
    """Return the number of rows of a request about the run's own budgets: whole budgets, then the cost of the request.

    The rows of each parent run start with another guard, and have no iterations.
    """
    first = max((place for place, row in enumerate(rows, 1) if row[1] == "iterations"), default=0)
    return first + sum(1 for _ in takewhile(lambda row: row[4:5] == ["request_cost"], rows[first:]))


def _position_of(body: Mapping[str, Any]) -> int:
    return int(str(body["key"]).rpartition(":")[2])


class _TeamReader:
    """Reads the decisions about handoffs of a run of a team. Those of its segments are in runs of their own."""

    def __init__(self, run_id: str) -> None:
        self.trace = RunTrace(run_id)
        self._stored = StoredRun(run_id)
        self._open: Record | None = None
        """A transition with a decision; a context that follows has its numbers."""

    def read(self, record: Record) -> None:
        """Add one more record."""
        if record.kind != "context":
            self._close_point()
        self._stored.fold(record.kind, record.body)
        if record.kind == "migrated":
            self.trace.problem = "it was migrated from another version of its graph"
        if record.kind == "transition" and record.body.get(GUARDS):
            self._open = record

    def close(self) -> RunTrace:
        """Return the trace."""
        self._close_point()
        stored, trace = self._stored, self.trace
        created, ended = stored.created, stored.ended or {}
        trace.graph, trace.agent = TEAM_GRAPH, str(created.get("agent") or "")
        trace.currency = str(created.get("currency") or "")
        trace.outcome, trace.reason = str(ended.get("outcome", "")), str(ended.get("reason", ""))
        trace.requests = int(stored.context["iteration"])
        trace.usage, trace.seconds = _usage(stored.context["spent"]), stored.elapsed
        return trace

    def _close_point(self) -> None:
        if self._open is None:
            return
        record, self._open = self._open, None
        context = self._stored.context
        spent, taken, proposed = context["spent"], context["handoffs"], context["proposed"]
        self.trace.points.append(
            Point(
                kind="handoff",
                seq=record.seq,
                t=float(record.body.get("t", 0.0)),
                event=str(record.body["event"]),
                limits=context["limits"],
                iteration=int(context["iteration"]),
                usage=_usage(spent),
                seconds=float(spent["seconds"]),
                tool_calls=int(spent["tool_calls"]),
                by_tool=spent["by_tool"],
                restarts=int(spent["restarts"]),
                retries=int(spent["retries"]),
                completions=0,
                rows=list(record.body[GUARDS]),
                handoffs=(len(taken), sum(one["digest"] == proposed["digest"] for one in taken)),
            )
        )


def _usage(spent: Mapping[str, Any]) -> Usage:
    """Return the usage of a run and its child runs, as its limits count it."""
    own = Usage.of(spent["usage"])
    below = (spent.get("below") or {}).get("usage")
    return own if below is None else own + Usage.of(below)


_UNDECIDED: Final = frozenset((LoopEvent.FAILURE, LoopEvent.COMPLETION_SUCCESS, TeamEvent.HAND_OVER, ""))
"""Events that leave the decision states without a decision of a guard."""
