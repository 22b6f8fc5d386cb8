"""The graphs that come with the library, by name, and the hooks bound to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.errors import ConfigError
from orchestrator.files.named_object import imported
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import Hooks, collect
from orchestrator.kernel.typed import StateMachine
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.machines.call.graph import CALL
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.rlm.code_mode import CODE_MODE
from orchestrator.machines.rlm.tools_mode import TOOLS_MODE
from orchestrator.machines.team.graph import TEAM

SHIPPED: Mapping[str, Graph] = {
    graph.name: graph for graph in (LLM_LOOP, TEAM, CALL, PIPELINE, APPROVAL, RALPH, CODE_MODE, TOOLS_MODE)
}


def named(name: str) -> Graph:
    """Return a shipped graph, or the one that `module:attribute` names. Raises ConfigError or GraphError."""
    if name in SHIPPED:
        return SHIPPED[name]
    if ":" not in name:
        raise ConfigError(f"unknown graph {name!r}; known: {', '.join(sorted(SHIPPED))}, or module:attribute")
    found = imported(name, "graph")
    if isinstance(found, StateMachine):
        return found.graph
    if not isinstance(found, Graph):
        raise ConfigError(f"graph {name!r} is a {type(found).__name__}, not a Graph or a StateMachine")
    return found


def _llm_loop() -> Hooks:
    from orchestrator_callbacks.llm_loop import after, before, enter, leave
    from orchestrator_callbacks.llm_loop.deps import POINTS

    return collect(LLM_LOOP, enter, leave, before, after, points=POINTS)


def _team() -> Hooks:
    from orchestrator_callbacks.team import after, before, enter

    return collect(TEAM, enter, before, after)


def _call() -> Hooks:
    from orchestrator_callbacks.call import enter, leave

    return collect(CALL, enter, leave)


def _pipeline() -> Hooks:
    from orchestrator_callbacks.pipeline import before, enter, leave

    return collect(PIPELINE, enter, leave, before)


def _ralph() -> Hooks:
    from orchestrator_callbacks.ralph import before, enter

    return collect(RALPH, enter, before)


def _code_mode() -> Hooks:
    from orchestrator_callbacks.rlm import code_mode

    return collect(CODE_MODE, code_mode)


def _tools_mode() -> Hooks:
    from orchestrator_callbacks.rlm import tools_mode

    return collect(TOOLS_MODE, tools_mode)


def _approval() -> Hooks:
    from orchestrator_callbacks.approval import before, enter

    return collect(APPROVAL, enter, before)


HOOKS: Mapping[str, Callable[[], Hooks]] = {
    "llm_loop": _llm_loop,
    "team": _team,
    "call": _call,
    "pipeline": _pipeline,
    "approval": _approval,
    "ralph": _ralph,
    "code_mode": _code_mode,
    "tools_mode": _tools_mode,
}
"""Graph name -> the function that binds its hooks. It raises GraphError with every problem."""
