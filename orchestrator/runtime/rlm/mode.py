"""The two modes as one table: machine, context and limits of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.typed import StateMachine
from orchestrator.kernel.typed_machine import TypedMachine
from orchestrator.machines.code_mode.graph import CODE_MODE, build_code_mode_machine
from orchestrator.machines.code_mode.model import CodeModeContext
from orchestrator.machines.rlm.limits import CODE_LIMITS, TOOLS_LIMITS, RlmLimits
from orchestrator.machines.rlm.model import ModeContext
from orchestrator.machines.tools_mode.graph import TOOLS_MODE, build_tools_mode_machine
from orchestrator.machines.tools_mode.model import ToolsModeContext
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.code_mode import enter as code_enter
from orchestrator_callbacks.tools_mode import enter as tools_enter


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode."""

    graph: Graph
    build: Callable[[], StateMachine[Any, Any, Any]]
    hooks: object
    context: type[ModeContext]
    limits: RlmLimits
    laps: tuple[str, ...]
    """Events that complete a turn."""
    own_tools: tuple[str, ...] = ()

    def machine(self, graph: Graph, hooks: Iterable[object]) -> TypedMachine:
        """Return the compiled machine with our hooks and then the host's. Raises GraphError."""
        return self.build().machine(graph, hooks=collect(graph, self.hooks, extra=tuple(hooks)))

    def offers(self, tools: Sequence[ToolSpec]) -> list[Any]:
        """Return the tools to declare to metrics, including those that a run adds for its data."""
        return [*tools, *(SimpleNamespace(name=name) for name in self.own_tools)]


MODES: Mapping[str, Mode] = {
    "code": Mode(
        CODE_MODE,
        build_code_mode_machine,
        code_enter,
        CodeModeContext,
        CODE_LIMITS,
        ("CodeExecuted", "MaxIterationsReached"),
    ),
    "tools": Mode(
        TOOLS_MODE,
        build_tools_mode_machine,
        tools_enter,
        ToolsModeContext,
        TOOLS_LIMITS,
        ("ToolsExecuted", "MaxIterationsReached"),
        ("context_read", "context_search", "context_query"),
    ),
}


def tool_names(offered: Iterable[tuple[str, Sequence[ToolSpec]]]) -> list[str]:
    """Return the names of all tools of runs of these modes."""
    known = [(MODES[mode], tools) for mode, tools in offered if mode in MODES]
    return sorted({one.name for mode, tools in known for one in mode.offers(tools)})


def mode_of(name: object) -> Mode:
    """Return the mode of this name. Raises ConfigError."""
    if not isinstance(name, str) or name not in MODES:
        raise ConfigError(f"mode is {name!r}; allowed: {', '.join(MODES)}")
    return MODES[name]
