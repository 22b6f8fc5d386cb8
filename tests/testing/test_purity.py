from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
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
from orchestrator.testing.purity import GuardImpure, check_guard, pure, strict_guards
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
