"""The decisions of a recorded run as raw inputs of its guards: numbers, digests and names of tools, no texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

from orchestrator.llm.usage import Usage
from orchestrator_guards import TurnFingerprint, tool_key
from orchestrator_guards.turn import digest

Kind = Literal["request", "calls", "turn", "completion"]
"""A request to the model, the calls of its answer, the decision about another turn, an unusable final answer."""
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
        }
    )


def fingerprint_of(plain: Iterable[Any]) -> TurnFingerprint:
    """Return the fingerprint of a turn in its JSON form."""
    calls, results, failed, text, tools, errors, advances, waits = plain
    return TurnFingerprint(
        tuple(calls), tuple(results), failed, text, frozenset(tools), tuple(errors), advances, waits
    )
