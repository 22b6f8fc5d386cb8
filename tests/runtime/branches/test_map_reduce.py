"""`map_reduce`: one agent reads each document, another combines what was found."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from orchestrator import Agent, GraphError, MemoryJournal, Outcome
from orchestrator.branches import ALL, Join, MapReduceContext, Workflow, ended, first, map_reduce
from orchestrator.errors import StoreDown
from orchestrator.llm.message import Request
from orchestrator.testing import CrashingJournal, FunctionLLM


def digest(journal: Any = None, **options: Any) -> Workflow[MapReduceContext, Any]:
    def read(request: Request) -> str:
        text = str(request.messages[-1].text)
        if text == "bad":
            raise RuntimeError("cannot read it")
        return text.upper()

    def write(request: Request) -> str:
        return str(request.messages[-1].text).replace("\n\n", " ")

    reader = Agent(FunctionLLM(read), name="reader", observers=())
    writer = Agent(FunctionLLM(write), name="writer", observers=())
    return map_reduce(reader, writer, name="digest", journal=journal, observers=(), **options)


@pytest.mark.parametrize(
    ("join", "documents", "output", "missing"),
    [
        (ALL, ["a", "b"], "## Document 1 A ## Document 2 B", set()),
        (ALL, ["a", "bad"], None, {1}),
        (ended(1), ["bad", "b"], "## Document 2 B", {0}),
        (ended(2), ["bad", "b"], None, {0}),
        (first(1), ["a", "b"], "## Document 1 A", {1}),
        (ALL, [{"city": "Oslo"}], '## Document 1 {"CITY": "OSLO"}', set()),
    ],
)
async def test_what_the_join_allows_is_combined(
    join: Join, documents: list[Any], output: str | None, missing: set[int]
) -> None:
    ctx = MapReduceContext(documents)
    result = await digest(join=join, concurrency=1).run(ctx, run_id="p1")
    missed = {index for index, error in enumerate(ctx.errors) if error}
    expected = (Outcome.COMPLETED, "none") if output else (Outcome.FAILED, "policy_stop")
    assert (result.outcome, result.reason, result.output, missed) == (*expected, output, missing)


async def test_an_error_of_the_reducer_fails_the_run_with_its_reason() -> None:
    one = digest(combine=lambda parts: "none")
    bad = map_reduce(
        Agent(FunctionLLM(lambda _: "a"), observers=()),
        Agent(FunctionLLM(lambda _: RuntimeError("no")), observers=()),
        observers=(),
    )
    assert (await one.run(MapReduceContext(["a"]))).output == "none"
    result = await bad.run(MapReduceContext(["a"]))
    assert result.outcome is Outcome.FAILED
    assert "the parts were not combined" in str(result.error)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.campaign), "after"])
async def test_a_crash_at_any_write_changes_nothing(when: Any) -> None:
    for at in itertools.count(1):
        inner = MemoryJournal()
        crashing = CrashingJournal(inner, at=at, when=when, on=("create", "append"))
        with contextlib.suppress(StoreDown):
            await digest(crashing).run(MapReduceContext(["a", "b"]), run_id="p1")
        if not crashing.crashed:
            break
        if not [head async for head in inner.runs()]:
            continue
        for owner in {head.owner async for head in inner.runs() if head.owner}:
            inner.bury(owner)
        result = await digest(inner).resume("p1")
        assert (result.outcome, result.output) == (Outcome.COMPLETED, "## Document 1 A ## Document 2 B"), at
    assert at > 10


def test_a_join_of_more_than_there_are_is_refused() -> None:
    with pytest.raises(GraphError, match="the join needs 5 branches and there are at most 3"):
        digest(most=3, join=first(5))
    with pytest.raises(
        GraphError, match="max is 0; give the most branches that one visit may have, 1 or more"
    ):
        digest(most=0)
