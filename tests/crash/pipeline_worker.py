"""A process that drives one run of the pipeline over SQLite until it ends or is killed.

As a script it is a nursery, as `tests.crash.loop_worker` is: it imports everything once, then forks a child for each
line of its input. An order says what the child does with the run in `folder`, and where it dies:

    do       run, or resume
    kill     "", "before" or "after" the `at`-th write to the journal, "stage": at the `at`-th boundary of a stage's
             work (its begin, its middle, its end)
    model    the planner is a model, and its stage a run of its own below

What happens outside stands in `folder/world`, a line each: a stage began or ended, or how the run ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineLimits,
    Plan,
    Severity,
    StageRequest,
    Validation,
)
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult
from orchestrator.runtime.pipeline.prompt_stage import PromptStage
from tests.crash import mortal
from tests.crash.mortal import RUN, Fate, crashing, nursery

LIMITS = PipelineLimits(max_iterations=4)

# What each stage gives, by (plans before it, refinements before it): two plans are not valid, one implementation is
# refined, one plan is given up, the fourth succeeds.
SCORES = {(3, 0): 6.0, (3, 1): 3.0, (4, 1): 9.0}
MADE: dict[OrchestrationState, Callable[[StageRequest], Any]] = {
    OrchestrationState.PLANNING: lambda request: Plan(f"plan {request.iteration + 1}", 100),
    OrchestrationState.VALIDATING: lambda request: Validation(
        (Issue(Severity.ERROR, "not yet"),) if request.iteration < 3 else (), 1
    ),
    OrchestrationState.IMPLEMENTING: lambda request: Implementation(
        f"code {request.iteration}.{request.refinement}", 50
    ),
    OrchestrationState.JUDGING: lambda request: Evaluation(
        SCORES[request.iteration, request.refinement], tokens=7
    ),
}


class World(mortal.World):
    """The stages, and where the process dies in them."""

    async def stage(self, request: StageRequest) -> Any:
        """Be any of the four, with its three places to die."""
        await self.fate.point("before")
        self.say("began", key=request.key)
        await self.fate.point("within")
        self.say("ended", key=request.key)
        made = MADE[request.stage](request)
        await self.fate.point("after")
        return made

    async def model(self, request: Request) -> Response:
        """Be the model that plans."""
        await self.fate.point("before")
        prompt = str(request.messages[-1].content)
        number = int(prompt)
        self.say("asked", number=number)
        await self.fate.point("within")
        return Response(f"plan {number}", (), "stop", Usage(60, 40))

    def pipeline(self, journal: Journal, *, model: bool) -> Pipeline:
        planner: Any = self.stage
        if model:
            planner = PromptStage(FunctionLLM(self.model), lambda request: str(request.iteration + 1))
        rest = (self.stage, self.stage, self.stage)
        return Pipeline(planner, *rest, limits=LIMITS, journal=journal, observers=())


def told(result: PipelineResult) -> dict[str, Any]:
    """A result as the tests compare it: all but the times."""
    return {
        "outcome": str(result.outcome),
        "reason": result.reason,
        "output": result.output,
        "tokens": result.tokens,
        "iterations": result.iterations,
        "refinements": result.refinements,
        "feedback": [[one.kind.value, one.text, one.iteration] for one in result.feedback],
        "best": None if result.best is None else [result.best.score, result.best.implementation],
        "moves": [[one.seq, one.event, one.iteration, one.tokens, one.reason] for one in result.transitions],
    }


async def live(folder: Path, *, do: str, kill: str = "", at: int = 0, model: bool = False) -> None:
    fate = Fate(at if kill == "stage" else 0)
    world = World(folder, fate)
    inner = SqliteJournal(folder / "journal.db")
    journal = crashing(inner, kill if kill in {"before", "after"} else "", at)
    pipeline = world.pipeline(journal, model=model)
    result = await (pipeline.run("spec", run_id=RUN) if do == "run" else pipeline.resume(RUN))
    world.say("counted", writes=len(journal.writes), points=fate.passed)
    world.say("result", **told(result))
    await inner.close()


def warmed() -> None:
    """Do once, in memory, what would take each child a while the first time."""
    pipeline = World(None, Fate(0)).pipeline(MemoryJournal(), model=True)
    pipeline.run_sync("warm", run_id="warm")
    asyncio.run(pipeline.resume("warm"))


if __name__ == "__main__":
    warmed()
    nursery(live)
