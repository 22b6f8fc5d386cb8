"""A machine with one state that has branches, for the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.branches import Branch, Fan, Workflow, fan_out, joined
from orchestrator.kernel import Edge, Graph, Run


class S(StrEnum):
    SPREAD = "spread"
    DONE = "done"
    SHORT = "short"
    FAILED = "failed"


class E(StrEnum):
    ENOUGH = "enough"
    TOO_FEW = "too_few"
    FAILURE = "failure"


@dataclass
class SpreadContext:
    items: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    said: str = ""
    iteration: int = 0


def spread(fan: Fan) -> Graph:
    return Graph(
        name="spread",
        states=S,
        events=E,
        initial=S.SPREAD,
        terminal=frozenset((S.DONE, S.SHORT, S.FAILED)),
        failure=E.FAILURE,
        context=SpreadContext,
        edges=(
            Edge(E.ENOUGH, (S.SPREAD,), S.DONE),
            Edge(E.TOO_FEW, (S.SPREAD,), S.SHORT),
            Edge(E.FAILURE, (S.SPREAD,), S.FAILED),
        ),
        branches={S.SPREAD: fan},
    )


class Hooks:
    def __init__(self, branch: Callable[[Any], Branch[Any]]) -> None:
        self._branch = branch
        self.results: list[Any] = []

    async def enter_spread(self, run: Run[SpreadContext, Any]) -> E:
        results = await fan_out(run, [self._branch(item) for item in run.ctx.items])
        self.results.append(results)
        verdict = joined(results)
        run.ctx.values = [one.value for one in results]
        run.ctx.outcomes = [one.outcome.value if one.started else "not_started" for one in results]
        run.ctx.said = verdict.explain()
        return E.ENOUGH if verdict.ok else E.TOO_FEW


def workflow(
    fan: Fan, branch: Callable[[Any], Branch[Any]], **options: Any
) -> Workflow[SpreadContext, Sequence[Any]]:
    if "runtime" not in options:
        options.setdefault("observers", ())
    return Workflow(spread(fan), [Hooks(branch)], output=lambda ctx: ctx.values, name="spreader", **options)
