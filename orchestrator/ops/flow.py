"""Derive the flow of runs from a graph: the edges forward, the edges back, and the waiting states."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.kernel.graph import Graph


class FlowRow(NamedTuple):
    """One edge that changes the state."""

    source: str
    event: str
    dest: str


def depth(graph: Graph) -> dict[str, int]:
    """Return for each state its distance from the initial one in steps, without failures."""
    found = {graph.initial.value: 0}
    ahead = [graph.initial.value]
    while ahead:
        state = ahead.pop(0)
        for step in steps(graph):
            if step.source == state and step.dest not in found:
                found[step.dest] = found[state] + 1
                ahead.append(step.dest)
    return found


def steps(graph: Graph) -> list[FlowRow]:
    """Return the edges that change the state and are not failures, in the order of the graph."""
    return [
        FlowRow(source.value, event.value, dest.value)
        for source, event, dest, edge in graph.rows
        if not edge.internal_in(source) and graph.failure_event(source) != event
    ]


def returns(graph: Graph) -> list[FlowRow]:
    """Return the edges back to an earlier state, or to one at the same distance from the start: laps and rework."""
    far = depth(graph)
    return [
        step
        for step in steps(graph)
        if step.source in far and far[step.dest] <= far[step.source] and step.dest not in graph.terminal
    ]


def waits(graph: Graph) -> list[str]:
    """Return the states that park a run until a person answers."""
    return [state.value for state in graph.states if state in graph.waiting]


def in_order(graph: Graph) -> list[str]:
    """Return the states in the order in which a run reaches them, terminal ones last."""
    far = depth(graph)
    last = len(graph.states)
    return sorted(
        (state.value for state in graph.states),
        key=lambda name: (name in graph.terminal, far.get(name, last)),
    )
