"""What the tests of the pipeline share: ports that answer by script, a pipeline of them, and drawing with weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from orchestrator.machines.pipeline.model import Evaluation, Issue, OrchestrationState, Severity, StageRequest
from orchestrator.machines.pipeline.progress import Made
from orchestrator.runtime.pipeline.pipeline import Pipeline
from tests.with_runtime import with_runtime

BAD = [Issue(Severity.ERROR, "two steps have no test", "steps[1]"), Issue(Severity.INFO, "short")]
GOOD: list[Issue] = [Issue(Severity.WARNING, "no estimate")]
SOFT = Evaluation(6.0, {"timing_coverage": 4.0, "energy_matching": 8.0}, "the middle is missing")
HARD = Evaluation(3.0, {"energy_matching": 2.0}, "not what was asked")
PASS = Evaluation(8.5)


class Port:
    """Gives one item of its script after the other; the last one for ever. An exception is raised."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.requests: list[StageRequest] = []

    async def __call__(self, request: StageRequest) -> Made | Any:
        self.requests.append(request)
        item = self.script[min(len(self.requests), len(self.script)) - 1]
        if isinstance(item, BaseException):
            raise item
        return item


class Stages:
    """Four ports by script."""

    def __init__(
        self,
        plan: Iterable[Any] = ({"steps": 1},),
        valid: Iterable[Any] = (GOOD,),
        made: Iterable[Any] = ("code",),
        judged: Iterable[Any] = (PASS,),
    ) -> None:
        self.planner, self.validator = Port(*plan), Port(*valid)
        self.implementer, self.judge = Port(*made), Port(*judged)

    def pipeline(self, **options: Any) -> Pipeline:
        """A silent pipeline of them."""
        ports = (self.planner, self.validator, self.implementer, self.judge)
        return Pipeline(*ports, **with_runtime(**{"observers": (), **options}))

    @property
    def calls(self) -> dict[OrchestrationState, int]:
        """How often each stage was carried out."""
        ports = (self.planner, self.validator, self.implementer, self.judge)
        stages = (
            OrchestrationState.PLANNING,
            OrchestrationState.VALIDATING,
            OrchestrationState.IMPLEMENTING,
            OrchestrationState.JUDGING,
        )
        return {stage: len(port.requests) for stage, port in zip(stages, ports, strict=True)}


class Purse:
    """A host's budget that says it is exhausted from the `at`-th time it is asked on."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.asked = 0

    def is_exhausted(self) -> bool:
        self.asked += 1
        return bool(self.at) and self.asked >= self.at


def weighted(
    usual: st.SearchStrategy[Any], *seldom: st.SearchStrategy[Any], of: int
) -> st.SearchStrategy[Any]:
    """Draw the usual, and each of the others about once in `of` times; `one_of` has no weights.

    The others lie in the middle of what is drawn from: examples are shrunk to one end, and tried at both.
    """
    middle = (of - len(seldom)) // 2
    drawn_from = [*[usual] * middle, *seldom, *[usual] * (of - len(seldom) - middle)]
    return st.integers(0, of - 1).flatmap(lambda drawn: drawn_from[drawn])
