"""Keep label values closed: an undeclared name folds, so no text from outside ever becomes a series."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.kernel.graph import Graph, guard_name

OTHER = "_other"
UNREGISTERED = "_unregistered"
UNKNOWN = "_unknown"
NO_AGENT = "_none"
"""Label value of runs without an agent."""

CAPS = {"machine": 16, "agent": 32, "tool": 64, "model": 16, "guard": 32, "backend": 8, "journal": 8}

FOLDED = {
    "machine": "transitions_total",
    "agent": "runs_started_total",
    "tool": "tool_calls_total",
    "model": "llm_requests_total",
    "guard": "guard_evaluations_total",
    "backend": "journal_write_duration_seconds",
    "budget": "budget_exceeded_total",
    "outcome": "runs_completed_total",
    "reason": "runs_suspended_total",
}
"""Label -> the metric that counts its folds: one count per fact, not one per series."""

MOST_DEFINITIONS = 4
"""Maximum graphs of one name that machine_info distinguishes."""

_LONGEST = 120


class LabelValues:
    """The values that one label may take, at most `cap`. `fold` is called for each value that becomes `_other`.

    Undeclared names become `rest`. With `admits` the first use declares a name: for names that only code can define.
    """

    __slots__ = ("_admits", "_cap", "_fold", "_full", "_known", "_rest")

    def __init__(
        self, cap: int, fold: Callable[[], None], *, rest: str = OTHER, admits: bool = False
    ) -> None:
        self._cap = cap
        self._fold = fold
        self._rest = rest
        self._admits = admits
        self._known: dict[str, str] = {}
        self._full = False

    def declare(self, name: str) -> str:
        """Add a name and return its label value."""
        name = str(name)
        if name not in self._known:
            if len(self._known) >= self._cap or not is_label(name):
                self._full = True
                return OTHER
            self._known[name] = name
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def of(self, name: str) -> str:
        """Return the label value of a name."""
        value = self._known.get(name)
        if value is not None:
            return value
        if self._admits:
            value = self.declare(name)
        else:
            value = name if name == self._rest else OTHER if self._full else self._rest
        if value == OTHER:
            self._fold()
        return value


def is_label(name: str) -> bool:
    """Return whether a name may be a label value: short, printable, no URL."""
    return 0 < len(name) <= _LONGEST and name.isprintable() and "://" not in name


@dataclass(slots=True)
class MachineNames:
    """The names that facts of one machine may have. Graphs with the same name (one extends the other) share it."""

    name: str
    guards: LabelValues
    states: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)
    edges: set[tuple[str, str, str]] = field(default_factory=set)
    """(source, event, dest)"""
    terminal: set[str] = field(default_factory=set)
    failures: set[tuple[str, str]] = field(default_factory=set)
    """(state, its failure event)"""
    initial: str | None = None
    head: str | None = None
    """The first state of a loop."""
    agents: list[str] = field(default_factory=list)
    """Agents whose runs use it, as label values."""
    dwell: dict[tuple[str, str], float] = field(default_factory=dict)
    """(agent, state) -> its dwell limit in seconds."""
    run_seconds: dict[str, float] = field(default_factory=dict)
    """Agent -> maximum seconds of a run; the largest, if variants of an agent differ."""
    definitions: list[str] = field(default_factory=list)
    """Short fingerprints of the graphs of this name, at most MOST_DEFINITIONS, newest last."""

    def learn(self, graph: Graph, agent: str, run_seconds: float | None = None) -> None:
        """Add the names of an agent's graph; its limits of states replace earlier ones of that agent."""
        if agent not in self.agents:
            self.agents.append(agent)
        if run_seconds:
            self.run_seconds[agent] = max(run_seconds, self.run_seconds.get(agent, 0.0))
        self.dwell |= {
            (agent, state.value): limit[0] for state in graph.states if (limit := graph.dwell_of(state))
        }
        definition = graph.fingerprint[:12]
        self.definitions = [one for one in self.definitions if one != definition][1 - MOST_DEFINITIONS :]
        self.definitions.append(definition)
        self.states |= {state.value for state in graph.states}
        self.events |= {event.value for event in graph.events}
        self.edges |= {(source.value, event.value, dest.value) for source, event, dest, _ in graph.rows}
        self.terminal |= {state.value for state in graph.terminal}
        self.failures |= {
            (state.value, event.value) for state in graph.states if (event := graph.failure_event(state))
        }
        self.initial = graph.initial.value
        self.head = loop_head(graph)

    @property
    def working(self) -> list[str]:
        """The states of an active run, sorted: all but the terminal ones."""
        return sorted(self.states - self.terminal)

    def state(self, name: str) -> str:
        """Return the label value of a state."""
        return name if name in self.states else UNKNOWN

    def event(self, name: str) -> str:
        """Return the label value of an event."""
        return name if name in self.events else UNKNOWN


def guard_names(graph: Graph) -> Iterator[str]:
    """Yield the names of the guards on the edges of a graph."""
    for edge in graph.edges:
        name = guard_name(edge.when)
        if name is not None:
            yield name


def likely_failures(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield the possible failures of a graph as (state, event, reason), so that their series exist early.

    A hook fails in the state that it leaves or, for enter_ and after_, in the state that was entered.
    """
    for source, event, dest, edge in graph.rows:
        yield source.value, event.value, "callback_error"
        yield dest.value, event.value, "callback_error"
        if edge.when is not None:
            yield source.value, event.value, "guard_error"
    for state in graph.states:
        failure = graph.failure_event(state)
        if failure is None:
            continue
        yield state.value, failure.value, "callback_error"
        yield state.value, failure.value, "cancelled"
        yield state.value, failure.value, "timeout"
        if limit := graph.dwell_of(state):
            yield state.value, limit[1].value, "timeout"


def loop_head(graph: Graph) -> str | None:
    """Return the first state, from the initial one on, that a run can return to; None without a cycle."""
    following: dict[str, list[str]] = {}
    for source, _, dest, edge in graph.rows:
        if not edge.internal_in(source):
            following.setdefault(source.value, []).append(dest.value)
    initial = graph.initial.value
    for state in (initial, *_reachable(following, following.get(initial, ()))):
        if state in _reachable(following, following.get(state, ())):
            return state
    return None


def _reachable(following: dict[str, list[str]], start: Iterable[str]) -> list[str]:
    """Return every state that can be reached from `start`, including `start`, nearest first."""
    found: list[str] = []
    ahead = list(start)
    while ahead:
        state = ahead.pop(0)
        if state not in found:
            found.append(state)
            ahead += following.get(state, ())
    return found


def closed(value: str | None, allowed: Container[str], rest: str) -> str:
    """Return the value if it is allowed, else `rest`."""
    return value if value is not None and value in allowed else rest
