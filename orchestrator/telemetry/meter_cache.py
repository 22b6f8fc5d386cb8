"""Meters of what happens in every turn, looked up once for each combination of names.

A lookup of `labels()` costs more than what it counts. Names that are not declared are not cached: each of their uses
counts as a fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.telemetry.edge import MOST_NOTED, EdgeMeters, LatestGauge
from orchestrator.telemetry.labels import NO_AGENT, OTHER, MachineNames

if TYPE_CHECKING:
    from orchestrator.telemetry.instrument import Counter, Histogram, Instruments

Add: TypeAlias = Callable[[float], None]
"""Adds to a counter, observes in a histogram or sets a gauge."""


@dataclass(frozen=True, slots=True)
class ModelMeters:
    """The meters of one answered request to a model, looked up once for each (machine, agent, state, model)."""

    run: tuple[str, str]
    """(machine, agent): these two are label values, like those of `model`."""
    model: tuple[str, str, str]
    """(agent, provider, model)."""
    attempt: Add
    request: Add
    seconds: Histogram
    input: tuple[Add, Add]
    """For the tokens of the model, and of the state."""
    output: tuple[Add, Add]


@dataclass(frozen=True, slots=True)
class ToolMeters:
    """The meters of one call of a tool that ran, looked up once for each (machine, agent, tool, outcome)."""

    attempt: Add
    call: Add
    seconds: Histogram


@dataclass(frozen=True, slots=True)
class StoreMeters:
    """The meters of one append to a journal, looked up once for each backend."""

    seconds: Add
    set_time: Add


class MeterCache:
    """The meters of one registry. Agents are keyed as facts name them: an empty name for a run without an agent."""

    def __init__(self, use: Instruments, *, at_once: bool = False) -> None:
        self._use = use
        self._at_once = at_once
        self.edges: dict[tuple[str, str, str, str, str], EdgeMeters] = {}
        """(machine, agent, source, event, dest) -> meters of a transition, if all five were declared."""
        self._latest: dict[tuple[str, str], LatestGauge] = {}
        self._singles = 0
        self.answers: dict[tuple[str, str, str, str], ModelMeters] = {}
        """(machine, agent, state, model) -> meters of an answer, if all four were declared."""
        self.calls: dict[tuple[str, str, str, str], ToolMeters] = {}
        """(machine, agent, tool, outcome) -> meters of a call, if the first three were declared."""
        self.guards: dict[tuple[str, str, str, bool], Add] = {}
        """(machine, agent, guard, allowed) -> counter of evaluations, if the first three were declared."""
        self.appends: dict[str, StoreMeters] = {}
        """Backend -> meters of an append, if it was declared."""

    def names_changed(self, names: MachineNames) -> None:
        """Use the names that a machine has now."""
        for (machine, _, *edge), meters in self.edges.items():  # they may be in use
            if machine == names.name:
                _learn(meters, names, *edge)
        for cached in (self.answers, self.calls, self.guards, self.appends):
            cached.clear()

    # ---- transitions ----

    def edge(self, machine: str, agent: str, source: str, event: str, dest: str) -> EdgeMeters:
        """Return the meters of an edge. In an undeclared one each name that was not declared is `_unknown`."""
        names, use = self._use.machine(machine), self._use
        run = (names.name, use.agent(agent))
        known = (source, event, dest) in names.edges and run == (machine, agent or NO_AGENT)
        key = (machine, agent, source, event, dest)
        source, event, dest = names.state(source), names.event(event), names.state(dest)
        if run not in self._latest:
            self._latest[run] = LatestGauge(use.gauges["last_transition_timestamp_seconds", *run].set)
        meters = EdgeMeters(
            use.counters["transitions_total", *run, source, event, dest].inc,
            use.counters["state_entries_total", *run, dest].inc,
            self._latest[run],
            stay=use.histograms["state_duration_seconds", *run, source],
            overhead=use.histograms["transition_overhead_seconds", *run],
            lap=use.histograms["iteration_duration_seconds", *run].take,
            at_once=self._at_once or not known,
        )
        _learn(meters, names, source, event, dest)
        return self.edges.setdefault(key, meters) if known else meters

    def settle(self) -> None:
        """Add up the pending transitions of all edges."""
        for meters in tuple(self.edges.values()):
            if meters.noted:
                meters.settle()

    def make_room(self, meters: EdgeMeters) -> None:
        """Add up this edge, which has enough pending transitions, and all others.

        If an edge is added up at each transition, the others follow only every MOST_NOTED times.
        """
        meters.settle()
        if meters.most == 1:
            self._singles += 1
            if self._singles % MOST_NOTED:
                return
        self.settle()
        use = self._use
        children: tuple[Histogram | Counter, ...] = (*use.histograms.values(), *use.counters.values())
        for child in children:
            if child.noted:
                child.settle()

    # ---- calls, guards and the journal ----

    def answer(self, machine: str, agent: str, state: str, model: str) -> ModelMeters:
        """Return the meters of an answered request."""
        use = self._use
        names, about = use.machine(machine), use.model(model)
        run, state_label, count = (names.name, use.agent(agent)), names.state(state), use.counters
        of_agent = (run[1], *about)

        def tokens(direction: str) -> tuple[Add, Add]:
            of_model = count["llm_tokens_total", *run, *about, direction]
            return of_model.add, count["state_tokens_total", *run, state_label, direction].add

        meters = ModelMeters(
            run,
            of_agent,
            count["attempts_total", *run, "llm"].add,
            count["llm_requests_total", *of_agent, "ok"].add,
            use.histograms["llm_request_duration_seconds", *of_agent],
            tokens("input"),
            tokens("output"),
        )
        if (*run, state_label, about[1]) == (machine, agent or NO_AGENT, state, model) and model != OTHER:
            self.answers[machine, agent, state, model] = meters
        return meters

    def call(self, machine: str, agent: str, tool: str, outcome: str) -> ToolMeters:
        """Return the meters of a call that ran. `outcome` is one of the catalogue."""
        use = self._use
        run, label = use.run(machine, agent), use.tool(tool)
        meters = ToolMeters(
            use.counters["attempts_total", *run, "tool"].add,
            use.counters["tool_calls_total", run[1], label, outcome].add,
            use.histograms["tool_call_duration_seconds", run[1], label],
        )
        if (*run, label) == (machine, agent or NO_AGENT, tool) and tool != OTHER:
            self.calls[machine, agent, tool, outcome] = meters
        return meters

    def append(self, backend: str) -> StoreMeters:
        """Return the meters of an append."""
        use = self._use
        label = use.backend(backend)
        meters = StoreMeters(
            use.histograms["journal_write_duration_seconds", label, "append"].take,
            use.gauges["journal_last_success_timestamp_seconds", label].set,
        )
        if label == backend != OTHER:
            self.appends[backend] = meters
        return meters

    def ask(self, machine: str, agent: str, guard: str, *, allowed: bool) -> Add:
        """Return the counter of evaluations that a guard allowed or denied."""
        use = self._use
        names = use.machine(machine)
        run, label = (names.name, use.agent(agent)), names.guards.of(guard)
        count = use.counters["guard_evaluations_total", *run, label, "allow" if allowed else "deny"].add
        if (*run, label) == (machine, agent or NO_AGENT, guard) and guard != OTHER:
            self.guards[machine, agent, guard, allowed] = count
        return count


def _learn(meters: EdgeMeters, names: MachineNames, source: str, event: str, dest: str) -> None:
    meters.begins = source == names.head
    meters.ends = dest == names.head or (dest in names.terminal and (source, event) not in names.failures)
