from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.testing.purity import GuardImpure, check_guard, difference, picture


@dataclass(slots=True)
class Inner:
    names: list[str] = field(default_factory=lambda: ["a"])


@dataclass(slots=True)
class Slotted:
    iteration: int = 0
    inner: Inner = field(default_factory=Inner)
    counts: dict[str, int] = field(default_factory=lambda: {"x": 1})
    tools: set[str] = field(default_factory=lambda: {"t"})
    window: deque[int] = field(default_factory=lambda: deque((1, 2), maxlen=2))
    lazy: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    plain: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(n=1))
    raw: bytearray = field(default_factory=lambda: bytearray(b"a"))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: setattr(c, "iteration", 1), "ctx.iteration: 0 became 1"),
        (lambda c: c.inner.names.append("b"), "ctx.inner.names: list of 1 became list of 2"),
        (lambda c: c.inner.names.__setitem__(0, "b"), "ctx.inner.names[0]: 'a' became 'b'"),
        (lambda c: c.counts.update(x=2), "ctx.counts['x']: 1 became 2"),
        (lambda c: c.counts.update(x=True), "ctx.counts['x']: 1 became True"),
        (lambda c: c.counts.clear(), "ctx.counts: ('x',) became ()"),
        (lambda c: c.tools.discard("t"), "ctx.tools: frozenset({'t'}) became frozenset()"),
        (lambda c: c.window.append(3), "ctx.window[0]: 1 became 2"),
        (lambda c: c.lazy["read"], "ctx.lazy: () became ('read',)"),
        (lambda c: setattr(c.plain, "n", 2), "ctx.plain.n: 1 became 2"),
        (lambda c: setattr(c.plain, "m", 2), "ctx.plain: ('.n',) became ('.n', '.m')"),
        (lambda c: c.raw.extend(b"b"), "ctx.raw: b'a' became b'ab'"),
    ],
)
def test_a_guard_that_changes_its_context_fails_and_the_place_is_named(
    change: Callable[[Slotted], object], where: str
) -> None:
    def guard(ctx: Slotted) -> bool:
        change(ctx)
        return True

    with pytest.raises(GuardImpure) as caught:
        check_guard(guard, Slotted())
    assert str(caught.value) == f"guard guard is impure: it changed its context: {where}"
    assert caught.value.guard == "guard"


def test_the_context_given_to_check_guard_is_never_touched() -> None:
    ctx = Slotted()
    with pytest.raises(GuardImpure):
        check_guard(lambda c: c.inner.names.clear(), ctx)
    assert ctx == Slotted()


def test_slots_are_looked_into_private_and_inherited_ones_too() -> None:
    class Base:
        __slots__ = ("__hidden", "unset")

        def __init__(self) -> None:
            self.__hidden = [0]

        def grow(self) -> None:
            self.__hidden.append(1)

    class Derived(Base):
        __slots__ = "one"  # noqa: PLC0205 - Python allows it

        def __init__(self) -> None:
            super().__init__()
            self.one = 1

    with pytest.raises(GuardImpure, match=r"ctx\._Base__hidden: list of 1 became list of 2"):
        check_guard(lambda c: c.grow(), Derived())
    with pytest.raises(GuardImpure, match=r"ctx\.one: 1 became 2"):
        check_guard(lambda c: setattr(c, "one", 2), Derived())


def test_a_change_that_is_taken_back_is_none() -> None:
    def guard(ctx: Slotted) -> bool:
        ctx.iteration += 1
        ctx.iteration -= 1
        return True

    assert check_guard(guard, Slotted()) is True


def test_cycles_and_shared_parts_are_looked_at_once() -> None:
    shared: list[Any] = [1]
    ctx: dict[str, Any] = {"a": shared, "b": shared}
    ctx["self"] = ctx
    assert check_guard(lambda c: c["self"] is c, ctx)
    before = picture(ctx)
    ctx["a"] = [1]
    assert difference(before, picture(ctx)) is not None  # no longer the same list


def test_filling_a_cache_is_no_change() -> None:
    class Lazy:
        @cached_property
        def answer(self) -> int:
            return 42

    assert check_guard(lambda c: c.answer == 42, Lazy())
    assert check_guard(lambda c: str(c) == "x", Path("x"))


def test_what_has_no_parts_is_compared_by_identity_or_by_value() -> None:
    class Thing:
        __slots__ = ()

    thing, other = Thing(), Thing()
    assert difference(picture(thing), picture(thing)) is None
    assert difference(picture(thing), picture(other)) is not None
    assert difference(picture(Path("x")), picture(Path("x"))) is None
    assert difference(picture(len), picture(print)) is not None


class Colour(StrEnum):
    RED = "red"


plain: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(Colour),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.builds(deque, st.lists(inner))
        | st.sets(st.integers())
        | st.builds(SimpleNamespace, value=inner)
    ),
    max_leaves=10,
)


@given(plain)
def test_a_copy_of_plain_data_has_the_same_picture(data: object) -> None:
    assert difference(picture(data), picture(deepcopy(data))) is None


@given(plain, plain)
def test_data_that_differs_has_another_picture(one: object, other: object) -> None:
    if one != other:
        assert difference(picture(one), picture(other)) is not None
