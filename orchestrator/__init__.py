"""An orchestrator for LLM agents as an explicit finite state machine.

Names are loaded when first used: importing this package starts nothing and loads nothing else
(in a notebook, the drawings of graphs). Further names are in
`orchestrator.pipeline`, `approval`, `ralph` and `rlm` (the machines), `events` (what observers receive), `errors`,
`kernel` (machines of one's own), `providers`, `telemetry` and `testing`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.around import DbosDispatcher as DbosDispatcher
    from orchestrator.around import PostgresJournal as PostgresJournal
    from orchestrator.around import ProcrastinateDispatcher as ProcrastinateDispatcher
    from orchestrator.engines.dispatcher import WorkerLimits as WorkerLimits
    from orchestrator.engines.local_engine import LocalEngine as LocalEngine
    from orchestrator.engines.worker import Worker as Worker
    from orchestrator.errors import ConfigError as ConfigError
    from orchestrator.errors import GraphError as GraphError
    from orchestrator.errors import JournalError as JournalError
    from orchestrator.errors import LLMError as LLMError
    from orchestrator.errors import ModelRetry as ModelRetry
    from orchestrator.errors import OrchestratorError as OrchestratorError
    from orchestrator.errors import Refused as Refused
    from orchestrator.errors import RunError as RunError
    from orchestrator.errors import RunExists as RunExists
    from orchestrator.errors import RunStopped as RunStopped
    from orchestrator.errors import RunUnknown as RunUnknown
    from orchestrator.journal.memory import MemoryJournal as MemoryJournal
    from orchestrator.journal.sqlite import SqliteJournal as SqliteJournal
    from orchestrator.journal.sqlite.conversation import SqliteMemory as SqliteMemory
    from orchestrator.kernel.graph import Edge as Edge
    from orchestrator.kernel.graph import Graph as Graph
    from orchestrator.kernel.outcome import Outcome as Outcome
    from orchestrator.kernel.typed import StateMachine as StateMachine
    from orchestrator.llm.message import Message as Message
    from orchestrator.llm.message import Request as Request
    from orchestrator.llm.message import Response as Response
    from orchestrator.llm.message import ToolCall as ToolCall
    from orchestrator.llm.message import Usage as Usage
    from orchestrator.llm.retry import RetryPolicy as RetryPolicy
    from orchestrator.machines.llm_loop.graph import LLM_LOOP as LLM_LOOP
    from orchestrator.machines.llm_loop.limits import Limits as Limits
    from orchestrator.machines.pipeline.model import OrchestrationState as OrchestrationState
    from orchestrator.machines.question import Question as Question
    from orchestrator.machines.ralph.model import OrchestratorState as OrchestratorState
    from orchestrator.machines.rlm.code_mode import CodeBlocksFound as CodeBlocksFound
    from orchestrator.machines.rlm.code_mode import CodeExecuted as CodeExecuted
    from orchestrator.machines.rlm.code_mode import CodeModeContext as CodeModeContext
    from orchestrator.machines.rlm.code_mode import CodeModeEvent as CodeModeEvent
    from orchestrator.machines.rlm.code_mode import CodeModeState as CodeModeState
    from orchestrator.machines.rlm.code_mode import DepthExceeded as DepthExceeded
    from orchestrator.machines.rlm.code_mode import FinalAnswerFound as FinalAnswerFound
    from orchestrator.machines.rlm.code_mode import build_code_mode_machine as build_code_mode_machine
    from orchestrator.machines.rlm.model import LLMResponseReceived as LLMResponseReceived
    from orchestrator.machines.rlm.model import MaxIterationsReached as MaxIterationsReached
    from orchestrator.machines.rlm.model import PolicyStop as PolicyStop
    from orchestrator.machines.rlm.policy import StoppingPolicy as StoppingPolicy
    from orchestrator.machines.rlm.tools_mode import NoToolCalls as NoToolCalls
    from orchestrator.machines.rlm.tools_mode import ToolCallsFound as ToolCallsFound
    from orchestrator.machines.rlm.tools_mode import ToolsExecuted as ToolsExecuted
    from orchestrator.machines.rlm.tools_mode import ToolsModeContext as ToolsModeContext
    from orchestrator.runtime.llm_loop.agent import Agent as Agent
    from orchestrator.runtime.llm_loop.agent import Orchestrator as Orchestrator
    from orchestrator.runtime.llm_loop.agent_tool import agent_tool as agent_tool
    from orchestrator.runtime.llm_loop.result import Result as Result
    from orchestrator.runtime.pipeline.orchestration import AgentOrchestrator as AgentOrchestrator
    from orchestrator.runtime.pipeline.orchestration import CheckpointManager as CheckpointManager
    from orchestrator.runtime.pipeline.orchestration import (
        InvalidTransitionError as InvalidTransitionError,
    )
    from orchestrator.runtime.pipeline.orchestration import (
        OrchestrationStateMachine as OrchestrationStateMachine,
    )
    from orchestrator.runtime.pipeline.orchestration import (
        StateMachineObserver as StateMachineObserver,
    )
    from orchestrator.runtime.pipeline.orchestration import StateMetrics as StateMetrics
    from orchestrator.runtime.pipeline.orchestration import StateTransition as StateTransition
    from orchestrator.runtime.ralph.ralph import RalphOrchestrator as RalphOrchestrator
    from orchestrator.runtime.run_stream import RunStream as RunStream
    from orchestrator.runtime.runs.runs import Runs as Runs
    from orchestrator.runtime.service.recovery import Migration as Migration
    from orchestrator.runtime.service.runtime import Runtime as Runtime
    from orchestrator.tools.result import ToolResult as ToolResult
    from orchestrator.tools.spec import ToolContext as ToolContext
    from orchestrator.tools.spec import ToolSpec as ToolSpec
    from orchestrator.tools.spec import tool as tool
    from orchestrator.version import __version__ as __version__
    from orchestrator_guards import Verdict as Verdict

_PUBLIC = {
    "Agent": "runtime.llm_loop.agent",
    "ConfigError": "errors",
    "DbosDispatcher": "around",
    "Edge": "kernel.graph",
    "Graph": "kernel.graph",
    "GraphError": "errors",
    "JournalError": "errors",
    "LLMError": "errors",
    "LLM_LOOP": "machines.llm_loop.graph",
    "Limits": "machines.llm_loop.limits",
    "LocalEngine": "engines.local_engine",
    "MemoryJournal": "journal.memory",
    "Message": "llm.message",
    "Migration": "runtime.service.recovery",
    "ModelRetry": "errors",
    "OrchestratorError": "errors",
    "Outcome": "kernel.outcome",
    "PostgresJournal": "around",
    "ProcrastinateDispatcher": "around",
    "Question": "machines.question",
    "Refused": "errors",
    "Request": "llm.message",
    "Response": "llm.message",
    "Result": "runtime.llm_loop.result",
    "RetryPolicy": "llm.retry",
    "RunError": "errors",
    "RunExists": "errors",
    "RunStopped": "errors",
    "RunStream": "runtime.run_stream",
    "RunUnknown": "errors",
    "Runs": "runtime.runs.runs",
    "Runtime": "runtime.service.runtime",
    "SqliteJournal": "journal.sqlite",
    "SqliteMemory": "journal.sqlite.conversation",
    "StateMachine": "kernel.typed",
    "ToolCall": "llm.message",
    "ToolContext": "tools.spec",
    "ToolResult": "tools.result",
    "ToolSpec": "tools.spec",
    "Usage": "llm.message",
    "Verdict": "",
    "Worker": "engines.worker",
    "WorkerLimits": "engines.dispatcher",
    "agent_tool": "runtime.llm_loop.agent_tool",
    "tool": "tools.spec",
}
"""Public name -> the module it lives in; empty for the guards' own package."""

_SPECIFIED = {
    "AgentOrchestrator": "runtime.pipeline.orchestration",
    "CheckpointManager": "runtime.pipeline.orchestration",
    "CodeBlocksFound": "machines.rlm.code_mode",
    "CodeExecuted": "machines.rlm.code_mode",
    "CodeModeContext": "machines.rlm.code_mode",
    "CodeModeEvent": "machines.rlm.code_mode",
    "CodeModeState": "machines.rlm.code_mode",
    "DepthExceeded": "machines.rlm.code_mode",
    "FinalAnswerFound": "machines.rlm.code_mode",
    "InvalidTransitionError": "runtime.pipeline.orchestration",
    "LLMResponseReceived": "machines.rlm.model",
    "MaxIterationsReached": "machines.rlm.model",
    "NoToolCalls": "machines.rlm.tools_mode",
    "OrchestrationState": "machines.pipeline.model",
    "OrchestrationStateMachine": "runtime.pipeline.orchestration",
    "Orchestrator": "runtime.llm_loop.agent",
    "OrchestratorState": "machines.ralph.model",
    "PolicyStop": "machines.rlm.model",
    "RalphOrchestrator": "runtime.ralph.ralph",
    "StateMachineObserver": "runtime.pipeline.orchestration",
    "StateMetrics": "runtime.pipeline.orchestration",
    "StateTransition": "runtime.pipeline.orchestration",
    "StoppingPolicy": "machines.rlm.policy",
    "ToolCallsFound": "machines.rlm.tools_mode",
    "ToolsExecuted": "machines.rlm.tools_mode",
    "ToolsModeContext": "machines.rlm.tools_mode",
    "build_code_mode_machine": "machines.rlm.code_mode",
}
"""The same for names that the specifications of the machines spell: importable here, and public in their namespaces."""

_HOME = _PUBLIC | _SPECIFIED | {"__version__": "version"}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    try:
        value = getattr(import_module(f"{__name__}.{home}" if home else "orchestrator_guards"), name)
    except ImportError as missing:
        if (without := _without_extra(name, missing)) is None:
            raise
        return without
    globals()[name] = value
    return value


def _without_extra(name: str, missing: ImportError) -> type | None:
    """Return a class that raises MissingExtra when it is called, so that `import *` works without any extra."""
    from orchestrator.errors import MissingExtra

    if not isinstance(missing, MissingExtra):
        return None

    def refuse(*_: object, **__: object) -> object:
        raise missing

    return type(name, (), {"__new__": refuse})


def __dir__() -> list[str]:
    return __all__


def _draw_in_notebooks() -> None:
    """Load the drawings of graphs if IPython is loaded: the kernel, whose objects notebooks show, draws nothing."""
    if "IPython" in sys.modules:
        from orchestrator.around import bundle  # noqa: F401 - the module that has it adds the drawings


_draw_in_notebooks()
