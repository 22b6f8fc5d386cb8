"""Read the trace of a run from its records, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Final, NamedTuple

from orchestrator.journal.ledger import TOOL
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.llm.usage import Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState
from orchestrator.runtime.backtest.policy import limits_of
from orchestrator.runtime.backtest.trace import Kind, Point, Row, RunTrace, TracedCall, fingerprint_of, named
from orchestrator.tools.result import RETURNED
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_guards import TurnFingerprint, call_key, tool_key
from orchestrator_guards.evaluation import GUARDS

_KINDS: Final[Mapping[str, Kind]] = {
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


def trace_of(run_id: str, records: Iterable[Record]) -> RunTrace:
    """Return the trace of a run. A run of another graph or in another form has a `problem` and no points."""
    reader = _TraceReader(run_id)
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
        if kind in {"turn", "completion"} and not rows and body.get("event") in _UNDECIDED:
            return
        point = self._point(kind, record, before, rows)
        self.trace.points.append(point)
        if body.get("event") == LoopEvent.RESTART_LOOP or self._compacted(before):
            self._failed = self._worked = 0

    def _compacted(self, before: _Position) -> bool:
        return bool(self._stored.context["context"]["compacted_at"] != before.context[2])

    def _point(self, kind: Kind, record: Record, before: _Position, rows: list[Any]) -> Point:
        context, body = self._stored.context, record.body
        spent = context["spent"]
        decided = kind in {"turn", "completion"}  # its counters changed before the decision
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
        else:
            self._add_completion(point)
        return point

    def _add_request(self, point: Point, before: _Position) -> None:
        answer = self._stored.answer
        # the rows behind the cost of the request are about the wrap-up turn
        budgets = takewhile(lambda row: row[4:5] != ["request_cost"], point.rows)
        point.checked = any(row[1] == "iterations" for row in budgets)
        own = _own_rows(point.rows) if self._is_child else len(point.rows)
        point.by_parents = [row for row in point.rows[own:] if not _is_about_answer(row, point.limits)]
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
            if context["turns"] and _keeps_turns(point.limits):
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

    def _add_completion(self, point: Point) -> None:
        context = self._stored.context
        point.streaks = context["progress"]["error_streaks"]
        point.warned = bool(context["progress"]["warning"])
        if context["turns"] and point.limits["max_no_progress"]:
            point.turn, point.window = fingerprint_of(context["turns"][-1]), len(context["turns"])

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


def _is_about_answer(row: Row, limits: Mapping[str, Any]) -> bool:
    """Return whether a row is about the answer to a request, under the limits of the run itself."""
    return row[1] == "retries" or (row[1] == "cost_unknown" and requires_price(limits_of(limits)))


def _keeps_turns(limits: Mapping[str, Any]) -> bool:
    return bool(limits["max_no_progress"] or limits["max_restarts"])


def _position_of(body: Mapping[str, Any]) -> int:
    return int(str(body["key"]).rpartition(":")[2])


def _usage(spent: Mapping[str, Any]) -> Usage:
    """Return the usage of a run and its child runs, as its limits count it."""
    own = Usage.of(spent["usage"])
    below = (spent.get("below") or {}).get("usage")
    return own if below is None else own + Usage.of(below)


_UNDECIDED: Final = frozenset((LoopEvent.FAILURE, LoopEvent.COMPLETION_SUCCESS, ""))
"""Events that leave the decision states without a decision of a guard."""
