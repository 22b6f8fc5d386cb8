"""A model in the place of a port: a prompt and an output schema, run through the LLM loop.

Such a stage is a run of its own below the run of the pipeline: in the same journal, under the key of the stage, so that
after a crash it goes on where it stood; stopped with it; and what it used counts for the stage that it is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Usage
from orchestrator.llm.port import LLM, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import OrchestrationState
from orchestrator.machines.pipeline.ports import StageRequest
from orchestrator.runtime.llm_loop.agent import Orchestrator
from orchestrator.runtime.service.child_agent import agent_below, run_below
from orchestrator.runtime.service.hosting import LoopHosting

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
"""Stage -> the schema of its answers, where none is given; a plan and an implementation are free text then."""


class PromptStage:
    """A stage done by a model. Give it to a Pipeline, in any of the four places.

    `prompt` is text, put before everything that the stage is to know, or a function of the StageRequest that returns
    the whole of it. `output_type` and the rest are as for Orchestrator; `limits` are those of one stage, and of tokens
    no more than what is left of the pipeline's budget is lent to it.
    """

    effect = "idempotent"

    def __init__(
        self,
        llm: LLM,
        prompt: str | Callable[[StageRequest], str],
        *,
        output_type: object = None,
        instructions: str | None = None,
        tools: Iterable[Any] = (),
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        params: Mapping[str, Any] | None = None,
        price: Price | None = None,
    ) -> None:
        if not callable(prompt) and not str(prompt or "").strip():
            raise ConfigError("the prompt of a stage is empty; give text, or a function of the request")
        self._prompt = prompt
        self._output_type = output_type
        self._options = {
            "llm": llm,
            "instructions": instructions,
            "tools": tuple(tools),
            "limits": limits,
            "retry": retry,
            "params": params,
            "price": price,
        }

    def bound(
        self, pipeline: Pipeline, stage: OrchestrationState
    ) -> Callable[[StageRequest], Awaitable[Any]]:
        """Return the port that this is in a pipeline: its runs live there, in its journal, told to its observers."""
        output = OUTPUTS.get(stage) if self._output_type is None else self._output_type
        return BoundStage(agent_below(pipeline, output, self._options), self._prompt)


class BoundStage:
    """A PromptStage in its place."""

    effect = "idempotent"

    def __init__(self, agent: Orchestrator, prompt: str | Callable[[StageRequest], str]) -> None:
        self._agent = agent
        self._prompt = prompt

    @property
    def hosting(self) -> LoopHosting:
        """For the engine that runs the pipeline."""
        return self._agent.hosting

    async def __call__(self, request: StageRequest) -> Any:
        """Run the model, or go on with its run. Raises the RunStopped of one that did not complete."""
        prompt = self._prompt(request) if callable(self._prompt) else rendered(self._prompt, request)
        result = await run_below(
            self._agent,
            request.run_id,
            request.key,
            prompt,
            lent=functools.partial(lent, remaining=request.remaining_tokens),
            heard=lambda found: request.spend(_total(found.usage)),
        )
        return result.raise_for_outcome().output


def lent(limits: Limits, remaining: int | None) -> Limits:
    """Return the limits of a stage's run: its own, and no more tokens in either direction than remain.

    At least one is lent: 0 would be no limit.
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
    """Return the prompt of a stage: what to do, and after it everything that the stage is to know."""
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
