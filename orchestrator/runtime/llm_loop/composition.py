"""Parts of an agent: the machine with its hooks, the handles of the hooks, the observers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.machine import Machine
from orchestrator.llm.port import LLM, Clock, check_params, model_name
from orchestrator.llm.retry import RetryPolicy
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.runtime.llm_loop.agent_tool import RunSampler
from orchestrator.tools.spec import ToolSpec
from orchestrator.tools.tool_set import ToolSet, ToolSource
from orchestrator_callbacks.llm_loop import after, before, enter, leave
from orchestrator_callbacks.llm_loop.deps import POINTS, LoopDeps, Point, ToolProvider, split
from orchestrator_guards.guardrail import Guardrail, guardrails_of


def machine(
    graph: Graph, hooks: Iterable[object], work: object = enter
) -> tuple[Machine, Mapping[str, tuple[Point, ...]]]:
    """Bind our hooks and then the host's to a graph; return the host's middleware separately. Raises GraphError.

    `work` has the `enter_` hooks.
    """
    bound, points = split(collect(graph, work, leave, before, after, extra=tuple(hooks), points=POINTS))
    return Machine(graph, bound), points


def handles(  # noqa: PLR0917 - arguments of Agent with defaults or checks
    llm: LLM,
    tools: Iterable[ToolSource[Any]] | ToolProvider,
    clock: Clock,
    output_type: object,
    retry: RetryPolicy | None,
    params: Mapping[str, Any] | None,
    **others: Any,
) -> LoopDeps:
    """Return the handles of the hooks; `others` are further members of LoopDeps. Raises ConfigError."""
    check_params(llm, params or {})
    return LoopDeps(
        llm=llm,
        tools=ToolSet(tools, clock=clock) if isinstance(tools, Iterable) else tools,
        clock=clock,
        model=model_name(llm),
        output=None if output_type is None or output_type is str else OutputSpec.of(output_type),
        retry=retry or RetryPolicy(),
        params=dict(params or {}),
        sampler=RunSampler,
        **others,
    )


STAGES: Final = ("input_guards", "output_guards")
"""Arguments of an agent with guardrails."""


def guardrails(**given: object) -> dict[str, tuple[Guardrail, ...]]:
    """Return the guardrails of the stages. Raises ConfigError, also for a `retry` of an input."""
    found: dict[str, tuple[Guardrail, ...]] = {}
    for stage, checks in given.items():
        if isinstance(checks, Mapping | str) or not isinstance(checks, Iterable):
            raise ConfigError(f"{stage} is {checks!r:.80}; give a list: {stage}=[my_check]")
        try:
            found[stage] = guardrails_of(checks)
        except ValueError as error:
            raise ConfigError(f"{stage}: {error}") from error
    for guardrail in found.get("input_guards", ()):
        if guardrail.on_refusal == "retry":
            raise ConfigError(
                f"input_guards: guardrail {guardrail.name!r} has on_refusal='retry', but no model has answered yet; "
                "give 'refuse' or 'end'"
            )
    return found


def labels(llm: LLM, tools: Iterable[ToolSpec]) -> dict[str, Any]:
    """Return the names of models and tools, to declare them to the observers."""
    found: dict[str, Any] = {
        "tools": [spec.name for spec in tools],
        "model": model_name(llm),
        "provider": str(getattr(llm, "provider", "_unknown")),
    }
    if models := getattr(llm, "models", None):  # a policy that chooses between several models
        found["models"] = dict(models)
    return found
