"""Guards that change or look outside are found, and the pictures of their contexts show which part changed."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestrator_guards as guards
from orchestrator.kernel.graph import bounding, guard_name
from orchestrator.kernel.purity import CHECK_PURITY
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP, may_continue, may_restart
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext, Progress, RunUsage
from orchestrator.testing.paths import edge_paths, walk
from orchestrator.testing.purity import GuardImpure, check_guard, difference, picture, pure, strict_guards
from tests.testing.gate import GATE, Visitor, is_member

# ---- waiting ----


async def waits(_: object) -> bool:
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize("guard", [waits, lambda ctx: asyncio.sleep(0, ctx)])
def test_a_guard_that_awaits_fails_and_leaves_no_coroutine_behind(guard: Callable[[Any], Any]) -> None:
    with pytest.raises(GuardImpure, match="it returned an awaitable; a guard may not await"):
        check_guard(guard, 1)


async def test_a_guard_that_schedules_a_task_fails() -> None:
    tasks: list[asyncio.Task[bool]] = []

    def guard(ctx: object) -> bool:
        tasks.append(asyncio.create_task(waits(ctx)))
        return True

    with pytest.raises(GuardImpure, match="it used the event loop: create_task"):
        check_guard(guard, 1)
    await asyncio.gather(*tasks)


# ---- fickleness ----


def test_a_flaky_guard_fails() -> None:
    turns = itertools.count()
    with pytest.raises(
        GuardImpure, match="it answered equal contexts differently: answer: True became False"
    ):
        check_guard(lambda _: next(turns) < 3, 1)


def test_a_verdict_that_differs_in_a_number_only_is_another_answer() -> None:
    turns = itertools.count()
    with pytest.raises(GuardImpure, match=r"answer\.observed: 0 became 1"):
        check_guard(lambda _: guards.iterations(next(turns), 20), 1)


def test_an_answer_of_nan_is_the_same_answer() -> None:
    assert check_guard(lambda c: guards.elapsed(float("nan"), c), 1.0).ok is False


# ---- what is shipped ----


@st.composite
def contexts(draw: st.DrawFn) -> LoopContext:
    number = st.integers(0, 5)
    limits = Limits(
        max_iterations=draw(number),
        max_tool_errors=draw(number),
        max_input_tokens=draw(number),
        max_output_tokens=draw(number),
        max_cost=draw(number),
        max_seconds=draw(number),
        max_retries=draw(number),
        max_restarts=draw(number),
        wrap_up_turns=draw(st.integers(0, 1)),
    )
    usage = Usage(draw(number), draw(number), cost=draw(number))
    spent = RunUsage(usage, seconds=draw(number), retries=draw(number))
    turn = guards.fingerprint([guards.ObservedCall("read", "{}", "same")])
    turns, seen = (turn,) * draw(number), Progress({"read": draw(number)})
    return LoopContext(
        [Message("user", "hello")],
        limits,
        1,
        iteration=draw(number),
        spent=spent,
        progress=seen,
        turns=turns,
        wrapping_up=draw(st.booleans()),
    )


@pytest.mark.parametrize("guard", [may_continue, may_restart])
@given(ctx=contexts())
def test_the_shipped_guards_are_pure(guard: Callable[[LoopContext], Any], ctx: LoopContext) -> None:
    assert check_guard(guard, ctx) == guard(ctx)


def test_every_guard_of_the_shipped_table_is_among_those() -> None:
    assert {edge.when for edge in LLM_LOOP.edges} == {None, may_continue, may_restart}


# ---- strict graphs ----


def test_a_strict_graph_is_the_same_table() -> None:
    strict = strict_guards(LLM_LOOP)
    assert strict.fingerprint == LLM_LOOP.fingerprint
    assert strict.describe() == LLM_LOOP.describe()
    assert strict.lint() == []
    assert [edge.when is None for edge in strict.edges] == [edge.when is None for edge in LLM_LOOP.edges]


def test_a_wrapped_guard_keeps_name_and_marks_even_of_an_object() -> None:
    class Cap:
        bounding = True

        def __call__(self, ctx: object) -> bool:
            return True

    wrapped: Any = pure(Cap())
    assert guard_name(wrapped) == "Cap"
    assert wrapped.bounding is True
    assert guard_name(pure(bounding(may_restart))) == "may_restart"


@pytest.mark.parametrize(
    ("visitor", "dest"),
    [(Visitor(member=True), "open"), (Visitor(known=True), "idle"), (Visitor(), "shut")],
)
async def test_a_strict_graph_decides_as_the_graph_itself(visitor: Visitor, dest: str) -> None:
    path = next(path for path in edge_paths(GATE) if path[-1].event == "decide" and path[-1].dest == dest)
    assert (await walk(strict_guards(GATE), path, visitor)).run.state == dest


async def test_an_impure_guard_fails_a_walk_through_the_strict_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECK_PURITY, "0")

    def counts(visitor: Visitor) -> bool:
        visitor.iteration += 1
        return True

    edges = (replace(edge, when=counts) if edge.when is is_member else edge for edge in GATE.edges)
    impure = replace(GATE, edges=tuple(edges))
    path = next(path for path in edge_paths(impure) if path[-1].dest == "open")
    await walk(impure, path, Visitor())
    with pytest.raises(GuardImpure, match=r"ctx\.iteration: 0 became 1"):
        await walk(strict_guards(impure), path, Visitor())


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
