from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.journal.codec import plain
from orchestrator.journal.context import DequeSnapshot, copied, lasting_fields


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


@dataclass
class Open:
    """The fields of Outer, in instances that have a dict."""

    count: int = 0
    pair: Pair = ONE
    still: Still = Still()
    inner: Inner | None = None
    by_name: dict[str, int] = field(default_factory=dict)
    anything: Any = None
    span: tuple[int, ...] = ()


BOTH = pytest.mark.parametrize("kind", [Outer, Open], ids=["slots", "dict"])


class Odd:
    """Neither a dataclass nor a type of JSON."""

    def __iter__(self) -> Any:
        return iter(())


def shows(seen: object, value: object) -> bool:
    """Whether one look finds a value as it was seen."""
    return bool(copied(value) == seen)


@BOTH
def test_the_fields_that_nobody_can_change_in_place_are_told_by_their_types(kind: Any) -> None:
    assert lasting_fields(kind) == {"count", "pair", "still", "span"}


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
        Open(),
        Open(3, Pair(2, "b"), Still(4), Inner(["x"]), {"n": 1}, [{"deep": [1, (2,)]}], (1, 2)),
        {"a": [1, {"b": None}]},
        [Inner(["x"]), 1.5],
        Pair(1, "a"),
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_written_as_the_value_itself_is(value: object) -> None:
    copy = copied(value)
    assert orjson.dumps(copy, default=plain) == orjson.dumps(value, default=plain)
    assert copied(value) == copy


CHANGES = {
    "count": lambda one: setattr(one, "count", 1),
    "pair": lambda one: setattr(one, "pair", Pair(1, "b")),
    "still": lambda one: setattr(one, "still", Still(1)),
    "inner appears": lambda one: setattr(one, "inner", Inner()),
    "by_name": lambda one: one.by_name.update(n=1),
    "anything": lambda one: one.anything.append(1),
    "deep in anything": lambda one: one.anything[0].update(x=2),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_in_place_shows(change: Any, kind: Any) -> None:
    value = kind(anything=[{"x": 1}])
    seen = copied(value)
    assert shows(seen, value)
    change(value)
    assert not shows(seen, value)
    assert copied(value) != seen


@BOTH
def test_a_change_in_an_object_inside_another_shows_in_another_snapshot(kind: Any) -> None:
    value = kind(inner=Inner(["x"]))
    seen = copied(value)
    assert copied(value) == seen
    assert value.inner is not None
    value.inner.names.append("y")
    assert not shows(seen, value)
    assert copied(value) != seen


@BOTH
def test_what_was_taken_stays_as_it_was(kind: Any) -> None:
    value = kind(anything=[1], inner=Inner(["x"]))
    copy = copied(value)
    written = orjson.dumps(copy, default=plain)
    value.anything.append(2)
    value.by_name["n"] = 1
    assert value.inner is not None
    value.inner.names.append("y")
    assert orjson.dumps(copy, default=plain) == written


def test_an_attribute_that_is_no_field_is_not_written() -> None:
    value = Open(1)
    plain_copy = copied(value)
    value.noted = "by a hook"  # type: ignore[attr-defined]
    assert copied(value) == plain_copy


def test_a_private_field_is_not_written() -> None:
    @dataclass
    class Guarded:
        number: int = 1
        _handle: Any = None

    value = Guarded(_handle=object())
    assert copied(value) == {"number": 1}


def test_a_field_that_only_its_class_has_is_written() -> None:
    @dataclass
    class Fixed:
        number: int = 1
        kind: str = field(default="fixed", init=False)

    value = Fixed()
    assert copied(value) == {"number": 1, "kind": "fixed"}


def test_fields_are_written_in_the_order_of_their_class() -> None:
    value = Open(1)
    del value.count
    value.count = 2
    assert list(copied(value)) == [one.name for one in fields(Open)]


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(0, 3),
        "pair": st.builds(Pair, st.integers(0, 1), st.text(max_size=1)),
        "inner": st.none() | st.builds(Inner, st.lists(st.sampled_from("ab"), max_size=2)),
        "by_name": st.dictionaries(st.sampled_from("ab"), st.integers(0, 1)),
        "anything": st.none() | st.lists(st.integers(0, 1), max_size=2),
    },
)


@given(st.lists(FIELDS, max_size=6))
def test_instances_with_slots_and_with_a_dict_are_written_alike(steps: list[dict[str, Any]]) -> None:
    slots, open_ = Outer(), Open()
    seen_slots, seen_open = copied(slots), copied(open_)
    for step in steps:
        for name, new in step.items():
            setattr(slots, name, deepcopy(new))
            setattr(open_, name, deepcopy(new))
        now_slots, now_open = copied(slots), copied(open_)
        assert (
            orjson.dumps(copied(slots), plain)
            == orjson.dumps(copied(open_), plain)
            == orjson.dumps(open_, plain)
        )
        assert (now_slots == seen_slots) is (now_open == seen_open)
        seen_slots, seen_open = now_slots, now_open


def test_a_deque_is_a_window() -> None:
    value = deque([1, 2], maxlen=2)
    seen = copied(value)
    assert type(seen) is DequeSnapshot
    assert shows(seen, value)
    value.append(3)
    assert not shows(seen, value)


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(TypeError):
        copied(Odd())
