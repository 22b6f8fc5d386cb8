"""A panel of judges for the pipeline: each judge is a branch of the state `judging`, and enough of them have to agree.

The vote of a judge is what its scores mean by the rubric: approve, refine or replan. The judges that agree give the
evaluation; if too few do, the lowest score counts, so that work on which they differ is never approved.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.branch import BranchResult, Fan, joined, quorum
from orchestrator.kernel.graph import Graph
from orchestrator.machines.pipeline.model import Evaluation, OrchestrationState, Rubric, StageRequest
from orchestrator.runtime.branches.fan_out import Branch, fan_out
from orchestrator.runtime.pipeline.prompt_stage import BoundStage, PromptStage, limits_within
from orchestrator.runtime.service.child_run import current_scope
from orchestrator_callbacks.pipeline import stage as pipeline_stage

if TYPE_CHECKING:
    from orchestrator.runtime.pipeline.pipeline import Pipeline


class JudgePanel:
    """Several judges for a Pipeline, of which `agree` have to come to the same decision.

    Args:
        judges: PromptStages, for example of different models or prompts.
        agree: How many must agree; more than half of them by default.
        concurrency: Most judges that work at the same time; 0 is unlimited.

    Raises:
        ConfigError: There are fewer judges than must agree, or one is no PromptStage.

    Example:
        panel = JudgePanel([PromptStage(model, "Judge the facts."), PromptStage(other, "Judge the style.")], agree=2)
        pipeline = Pipeline(plan, validate, implement, panel)
    """

    effect = "idempotent"

    def __init__(self, judges: Sequence[PromptStage], *, agree: int = 0, concurrency: int = 0) -> None:
        self._judges = tuple(judges)
        self._agree = agree or len(self._judges) // 2 + 1
        self._concurrency = concurrency
        if not all(isinstance(judge, PromptStage) for judge in self._judges):
            raise ConfigError("a judge of a panel is no PromptStage; give PromptStage(model, prompt)")
        if not 1 <= self._agree <= len(self._judges):
            raise ConfigError(
                f"agree is {self._agree} and there are {len(self._judges)} judges; give 1 to {len(self._judges)}"
            )

    def graph(self, graph: Graph, rubric: Rubric) -> Graph:
        """Return the graph of the pipeline with the judges as branches."""
        fan = Fan(
            max=len(self._judges),
            concurrency=self._concurrency,
            join=quorum(self._agree, lambda scores: _decision(scores, rubric)),
        )
        return graph.extend(branches={**graph.branches, OrchestrationState.JUDGING: fan})

    def bound(self, pipeline: Pipeline, stage: OrchestrationState) -> BoundPanel:
        """Return the port of the panel in a pipeline. Raises ConfigError for another stage than judging."""
        if stage is not OrchestrationState.JUDGING:
            raise ConfigError(f"a JudgePanel is no {stage.value} stage; give it as the judge")
        return BoundPanel([judge.bound(pipeline, stage) for judge in self._judges])


class BoundPanel:
    """A JudgePanel as a port of a pipeline."""

    effect = "idempotent"

    def __init__(self, judges: Sequence[BoundStage]) -> None:
        self.judges = tuple(judges)

    async def __call__(self, request: StageRequest) -> Evaluation:
        """Start, continue or read the judges. Raises RunError if none completed."""
        scope = current_scope()
        if scope is None or scope.run.run_id != request.run_id:
            raise ConfigError("a panel works only inside a run of its pipeline")
        share = None if request.remaining_tokens is None else request.remaining_tokens // len(self.judges)
        branches = [
            Branch(judge.agent, judge.prompt(request), limits=limits_within(judge.limits, share))
            for judge in self.judges
        ]
        results = await fan_out(scope.run, branches, on_end=lambda one: request.spend(one.tokens))
        completed = [one for one in results if one.ok]
        if not completed:
            raise RunError(f"no judge of the panel completed: {results[0].error}")
        rubric: Rubric = scope.run.ctx.rubric
        if joined(results).ok:
            return _agreed(completed, rubric)
        return min(map(_evaluation, completed), key=lambda one: one.score)


def _agreed(completed: Sequence[BranchResult[Any]], rubric: Rubric) -> Evaluation:
    """Return the mean of the judges whose decision most of them share."""
    votes = [_decision(one.value, rubric) for one in completed]
    most = max(votes, key=votes.count)
    chosen = [_evaluation(one) for one, vote in zip(completed, votes, strict=True) if vote == most]
    names = {name for one in chosen for name in one.categories}
    categories = {
        name: fmean(one.categories[name] for one in chosen if name in one.categories)
        for name in sorted(names)
    }
    comments = "\n\n".join(one.comments for one in chosen if one.comments)
    return Evaluation(fmean(one.score for one in chosen), categories, comments)


def _decision(scores: Any, rubric: Rubric) -> str:
    fix = pipeline_stage.evaluation_of(scores).against(rubric).fix
    return "approve" if fix is None else fix.value


def _evaluation(result: BranchResult[Any]) -> Evaluation:
    return pipeline_stage.evaluation_of(result.value)
