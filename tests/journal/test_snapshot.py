from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import pytest

from orchestrator.journal.codec import plain
from orchestrator.journal.snapshot import Window, lasting_fields, shows, taken


class Pair(NamedTuple):
    left: int
    right: str


ONE = Pair(1, "a")


@dataclass(frozen=True, slots=True)
class Still:
    number: int = 0


@dataclass(slots=True)
class Inner:
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outer:
    count: int = 0
    pair: Pair = ONE
    still: Still = Still()
    inner: Inner | None = None
    by_name: dict[str, int] = field(default_factory=dict)
    anything: Any = None
    span: tuple[int, ...] = ()


class Odd:
    """Neither a dataclass nor a type of JSON."""

    def __iter__(self) -> Any:
        return iter(())


def test_the_fields_that_nobody_can_change_in_place_are_told_by_their_types() -> None:
    assert lasting_fields(Outer) == {"count", "pair", "still", "span"}


def test_nothing_is_told_of_types_that_only_checkers_know() -> None:
    @dataclass
    class Vague:
        number: Unknown  # type: ignore[name-defined]  # noqa: F821

    assert lasting_fields(Vague) == frozenset()


@pytest.mark.parametrize(
    "value",
    [
        Outer(),
        Outer(3, Pair(2, "b"), Still(4), Inner(["x"]), {"n": 1}, [{"deep": [1, (2,)]}], (1, 2)),
        {"a": [1, {"b": None}]},
        [Inner(["x"]), 1.5],
        Pair(1, "a"),
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_written_as_the_value_itself_is(value: object) -> None:
    copy, seen = taken(value)
    assert orjson.dumps(copy, default=plain) == orjson.dumps(value, default=plain)
    assert taken(value) == (copy, seen)


CHANGES = {
    "count": lambda one: setattr(one, "count", 1),
    "pair": lambda one: setattr(one, "pair", Pair(1, "b")),
    "still": lambda one: setattr(one, "still", Still(1)),
    "inner appears": lambda one: setattr(one, "inner", Inner()),
    "by_name": lambda one: one.by_name.update(n=1),
    "anything": lambda one: one.anything.append(1),
    "deep in anything": lambda one: one.anything[0].update(x=2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_in_place_shows(change: Any) -> None:
    value = Outer(anything=[{"x": 1}])
    _, seen = taken(value)
    assert shows(seen, value)
    change(value)
    assert not shows(seen, value)
    assert taken(value)[1] != seen


def test_a_change_in_an_object_inside_another_shows_when_it_is_taken_again() -> None:
    value = Outer(inner=Inner(["x"]))
    _, seen = taken(value)
    assert taken(value)[1] == seen
    assert value.inner is not None
    value.inner.names.append("y")
    assert not shows(seen, value)
    assert taken(value)[1] != seen


def test_what_was_taken_stays_as_it_was() -> None:
    value = Outer(anything=[1], inner=Inner(["x"]))
    copy, _ = taken(value)
    written = orjson.dumps(copy, default=plain)
    value.anything.append(2)
    value.by_name["n"] = 1
    assert value.inner is not None
    value.inner.names.append("y")
    assert orjson.dumps(copy, default=plain) == written


def test_a_deque_is_a_window() -> None:
    value = deque([1, 2], maxlen=2)
    copy, seen = taken(value)
    assert type(copy) is type(seen) is Window
    assert shows(seen, value)
    value.append(3)
    assert not shows(seen, value)


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(TypeError):
        taken(Odd())
