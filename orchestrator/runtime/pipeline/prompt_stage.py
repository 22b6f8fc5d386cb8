"""A model as a stage of the pipeline: a prompt and an output schema, executed by the LLM loop.

Such a stage is a child run of the pipeline's run, in the same journal under the key of the stage. Therefore it is
resumed after a crash, it is stopped with its parent, and its usage counts for the stage.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Usage
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import OrchestrationState, StageRequest
from orchestrator.runtime.llm_loop.agent import Agent, child_agent, run_child
from orchestrator.runtime.llm_loop.hosting import LoopHosting

if TYPE_CHECKING:
    from orchestrator.runtime.pipeline.pipeline import Pipeline

_TEXT: Mapping[str, str] = {"type": "string"}

_ISSUES: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "issues": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "severity": {"enum": ["error", "warning", "info"]},
                    "message": _TEXT,
                    "where": _TEXT,
                },
                "required": ["severity", "message"],
            },
        }
    },
    "required": ["issues"],
}

_SCORES: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "score": {"type": "number"},
        "categories": {"type": "object", "additionalProperties": {"type": "number"}},
        "comments": _TEXT,
    },
    "required": ["score"],
}

OUTPUTS: Mapping[OrchestrationState, object] = {
    OrchestrationState.VALIDATING: _ISSUES,
    OrchestrationState.JUDGING: _SCORES,
}
"""Stage -> schema of its answers by default; a plan and an implementation are free text."""


class PromptStage:
    """A stage that a model executes, for any of the four stages of a Pipeline.

    Args:
        model: The model.
        prompt: Text that precedes all data of the stage, or a function that returns the whole prompt for a
            StageRequest.
        output_type: As for Agent; the schema of the stage by default.
        limits: Limits of one stage. Its tokens are also limited by the rest of the pipeline's budget.
        instructions, tools, retry, params: As for Agent.

    Raises:
        ConfigError: The prompt is empty.
    """

    effect = "idempotent"

    def __init__(
        self,
        model: LLM,
        prompt: str | Callable[[StageRequest], str],
        *,
        output_type: object = None,
        instructions: str | None = None,
        tools: Iterable[Any] = (),
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(prompt) and not str(prompt or "").strip():
            raise ConfigError("the prompt of a stage is empty; give text, or a function of the request")
        self._prompt = prompt
        self._output_type = output_type
        self._limits = limits
        self._options = {
            "model": model,
            "instructions": instructions,
            "tools": tuple(tools),
            "limits": limits,
            "retry": retry,
            "params": params,
        }

    def bound(self, pipeline: Pipeline, stage: OrchestrationState) -> BoundStage:
        """Return the port of this stage in a pipeline, with runs in its journal and facts for its observers."""
        output = OUTPUTS.get(stage) if self._output_type is None else self._output_type
        return BoundStage(child_agent(pipeline, output, self._options), self._prompt, self._limits)


class BoundStage:
    """A PromptStage as a port of a pipeline."""

    effect = "idempotent"

    def __init__(
        self, agent: Agent, prompt: str | Callable[[StageRequest], str], limits: Limits | None = None
    ) -> None:
        self.agent = agent
        """The agent that executes the stage."""
        self.limits = limits or Limits()
        """The limits of a run of the stage."""
        self._prompt = prompt

    def prompt(self, request: StageRequest) -> str:
        """Return the prompt of the stage for a request."""
        return self._prompt(request) if callable(self._prompt) else rendered(self._prompt, request)

    @property
    def hosting(self) -> LoopHosting:
        """Engine-only interface of the stage's agent."""
        return self.agent.hosting

    async def __call__(self, request: StageRequest) -> Any:
        """Start or resume the model's run. Raises RunStopped if it did not complete."""
        result = await run_child(
            self.agent,
            request.run_id,
            request.key,
            self.prompt(request),
            lender=functools.partial(limits_within, remaining=request.remaining_tokens),
            follower=lambda found: request.spend(_total(found.usage)),
        )
        return result.raise_for_outcome().output


def limits_within(limits: Limits, remaining: int | None) -> Limits:
    """Return the limits of a stage's run: its own, and at most the remaining tokens in each direction.

    At least one token is given, because 0 would mean no limit.
    """
    if remaining is None:
        return limits
    most = max(1, remaining)

    def least(own: int) -> int:
        return min(own, most) if own else most

    return replace(
        limits,
        max_input_tokens=least(limits.max_input_tokens),
        max_output_tokens=least(limits.max_output_tokens),
    )


def rendered(prompt: str, request: StageRequest) -> str:
    """Return the prompt of a stage: the instruction, then all data of the stage."""
    parts = [prompt.strip(), _part("Specification", request.spec)]
    if request.plan is not None:
        title = "The plan before this one" if request.stage is OrchestrationState.PLANNING else "Plan"
        parts.append(_part(title, request.plan.content))
    if request.implementation is not None and request.stage is not OrchestrationState.PLANNING:
        title = (
            "Implementation"
            if request.stage is OrchestrationState.JUDGING
            else "The implementation before this one"
        )
        parts.append(_part(title, request.implementation.content))
    if request.feedback:
        parts.append(_part("Feedback, oldest first", "\n\n".join(one.text for one in request.feedback)))
    return "\n\n".join(parts)


def _part(title: str, content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
    return f"## {title}\n\n{text}"


def _total(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
