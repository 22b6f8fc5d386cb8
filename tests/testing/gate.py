"""A small graph with everything the kit must cope with: rival guards, an internal edge, a waiting state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.kernel.graph import Edge, Graph


class State(StrEnum):
    IDLE = "idle"
    CHECKING = "checking"
    OPEN = "open"
    SHUT = "shut"


class Event(StrEnum):
    LOOK = "look"
    KNOCK = "knock"
    DECIDE = "decide"
    LEAVE = "leave"


@dataclass(slots=True)
class Visitor:
    iteration: int = 0
    member: bool = False
    known: bool = False


def is_member(visitor: Visitor) -> bool:
    return visitor.member


def is_known(visitor: Visitor) -> bool:
    return visitor.known


S, E = State, Event

GATE = Graph(
    name="gate",
    states=State,
    events=Event,
    initial=S.IDLE,
    terminal=frozenset((S.SHUT,)),
    waiting=frozenset((S.IDLE,)),
    dwell={S.IDLE: None},
    edges=(
        Edge(E.LOOK, (S.IDLE,), S.IDLE),
        Edge(E.KNOCK, (S.IDLE,), S.CHECKING),
        Edge(E.DECIDE, (S.CHECKING,), S.OPEN, is_member),
        Edge(E.DECIDE, (S.CHECKING,), S.IDLE, is_known),
        Edge(E.DECIDE, (S.CHECKING,), S.SHUT),
        Edge(E.LEAVE, (S.OPEN,), S.SHUT),
    ),
)
