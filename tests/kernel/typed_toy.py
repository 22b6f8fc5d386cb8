"""What the tests of typed machines share: a small one, its events and a context that writes down what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from orchestrator.kernel.fact import Fact
from orchestrator.kernel.typed import StateMachine


class Place(Enum):
    START = auto()
    WORK = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class Go:
    number: int = 0


@dataclass(slots=True, frozen=True)
class Again:
    number: int = 0


@dataclass(slots=True, frozen=True)
class Finish:
    answer: str = ""


Happening: TypeAlias = Go | Again | Finish


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)
    iteration: int = 0

    def add(self, line: str) -> None:
        self.lines.append(line)


Toy: TypeAlias = StateMachine[Place, Happening, Notes]
Source: TypeAlias = Callable[[Place, Notes], Happening | None]


def toy(**options: Any) -> Toy:
    """START -Go-> WORK -Again-> WORK -Finish-> DONE, every hook and action noted."""
    machine: Toy = StateMachine("toy", **options)
    for place in Place:
        name = place.name.lower()
        machine.state(
            place,
            on_enter=lambda notes, name=name: notes.add(f"enter {name}"),  # type: ignore[misc]
            on_exit=lambda notes, name=name: notes.add(f"exit {name}"),  # type: ignore[misc]
        )
    machine.terminal(Place.DONE)
    machine.transition(
        Place.START, Go, Place.WORK, action=lambda event, notes: notes.add(f"go {event.number}")
    )
    machine.transition(
        Place.WORK, Again, Place.WORK, action=lambda event, notes: notes.add(f"again {event.number}")
    )
    machine.transition(
        Place.WORK, Finish, Place.DONE, action=lambda event, notes: notes.add(f"finish {event.answer}")
    )
    return machine


def plain(**options: Any) -> Toy:
    """The same three states without hooks and rows."""
    machine: Toy = StateMachine("toy", **options)
    for place in Place:
        machine.state(place)
    return machine.terminal(Place.DONE)


def gives(*events: Happening | None) -> Source:
    """A source that gives these, in order, whatever the state is; then None."""
    left = list(events)
    return lambda _place, _notes: left.pop(0) if left else None


class Facts:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[Fact] = []
        self.declared: list[str] = []

    def declare(self, graph: Any) -> None:
        self.declared.append(graph.name)

    def observe(self, fact: Fact) -> None:
        self.all.append(fact)

    def of(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.all if isinstance(fact, kind)]


def names(facts: Iterable[Any]) -> list[tuple[str, str, str]]:
    return [(fact.source, fact.event, fact.dest) for fact in facts]
