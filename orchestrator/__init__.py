"""An orchestrator for LLM agents as an explicit finite state machine.

Names are loaded when first used: importing this package starts nothing and loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.engines.dbos import DbosDispatcher as DbosDispatcher
    from orchestrator.engines.dispatcher import Caps as Caps
    from orchestrator.engines.local import LocalEngine as LocalEngine
    from orchestrator.engines.procrastinate import ProcrastinateDispatcher as ProcrastinateDispatcher
    from orchestrator.engines.worker import Worker as Worker
    from orchestrator.errors import AnswerRefused as AnswerRefused
    from orchestrator.errors import ConfigError as ConfigError
    from orchestrator.errors import EventError as EventError
    from orchestrator.errors import Fenced as Fenced
    from orchestrator.errors import GraphError as GraphError
    from orchestrator.errors import Held as Held
    from orchestrator.errors import JournalError as JournalError
    from orchestrator.errors import LLMError as LLMError
    from orchestrator.errors import NotAdmitting as NotAdmitting
    from orchestrator.errors import OrchestratorError as OrchestratorError
    from orchestrator.errors import OtherGraph as OtherGraph
    from orchestrator.errors import Overloaded as Overloaded
    from orchestrator.errors import Refused as Refused
    from orchestrator.errors import RunError as RunError
    from orchestrator.errors import RunExists as RunExists
    from orchestrator.errors import RunStopped as RunStopped
    from orchestrator.errors import RunUnknown as RunUnknown
    from orchestrator.errors import Suspended as Suspended
    from orchestrator.journal.crashing import CrashingJournal as CrashingJournal
    from orchestrator.journal.memory import MemoryJournal as MemoryJournal
    from orchestrator.journal.postgres import PostgresJournal as PostgresJournal
    from orchestrator.journal.sqlite import SqliteJournal as SqliteJournal
    from orchestrator.journal.sqlite.conversation import SqliteMemory as SqliteMemory
    from orchestrator.kernel.driver import Driver as Driver
    from orchestrator.kernel.graph import Edge as Edge
    from orchestrator.kernel.graph import Graph as Graph
    from orchestrator.kernel.graph import bounding as bounding
    from orchestrator.kernel.history import History as History
    from orchestrator.kernel.machine import bind as bind
    from orchestrator.kernel.outcome import Outcome as Outcome
    from orchestrator.kernel.record import TokenDelta as TokenDelta
    from orchestrator.kernel.run import Run as Run
    from orchestrator.machines.llm_loop.graph import LLM_LOOP as LLM_LOOP
    from orchestrator.machines.llm_loop.limits import Limits as Limits
    from orchestrator.machines.llm_loop.model import Question as Question
    from orchestrator.machines.pipeline.graph import PIPELINE as PIPELINE
    from orchestrator.machines.pipeline.limits import PipelineLimits as PipelineLimits
    from orchestrator.machines.pipeline.model import Attempt as Attempt
    from orchestrator.machines.pipeline.model import Evaluation as Evaluation
    from orchestrator.machines.pipeline.model import Feedback as Feedback
    from orchestrator.machines.pipeline.model import Implementation as Implementation
    from orchestrator.machines.pipeline.model import Issue as Issue
    from orchestrator.machines.pipeline.model import OrchestrationState as OrchestrationState
    from orchestrator.machines.pipeline.model import Plan as Plan
    from orchestrator.machines.pipeline.model import Severity as Severity
    from orchestrator.machines.pipeline.model import Validation as Validation
    from orchestrator.machines.pipeline.ports import BudgetManager as BudgetManager
    from orchestrator.machines.pipeline.ports import Implementer as Implementer
    from orchestrator.machines.pipeline.ports import Judge as Judge
    from orchestrator.machines.pipeline.ports import Planner as Planner
    from orchestrator.machines.pipeline.ports import StageRequest as StageRequest
    from orchestrator.machines.pipeline.ports import Validator as Validator
    from orchestrator.machines.pipeline.rubric import Rubric as Rubric
    from orchestrator.messages import Message as Message
    from orchestrator.messages import Request as Request
    from orchestrator.messages import Response as Response
    from orchestrator.messages import ToolCall as ToolCall
    from orchestrator.messages import Usage as Usage
    from orchestrator.providers.replay import ReplayLLM as ReplayLLM
    from orchestrator.providers.replay_tool import ReplayTools as ReplayTools
    from orchestrator.providers.scripted import FunctionLLM as FunctionLLM
    from orchestrator.providers.scripted import ScriptedLLM as ScriptedLLM
    from orchestrator.retry import RetryPolicy as RetryPolicy
    from orchestrator.runtime.llm_loop import Orchestrator as Orchestrator
    from orchestrator.runtime.orchestration.agent import AgentOrchestrator as AgentOrchestrator
    from orchestrator.runtime.orchestration.checkpoint import CheckpointManager as CheckpointManager
    from orchestrator.runtime.orchestration.machine import (
        OrchestrationStateMachine as OrchestrationStateMachine,
    )
    from orchestrator.runtime.orchestration.model import InvalidTransitionError as InvalidTransitionError
    from orchestrator.runtime.orchestration.model import StateMachineObserver as StateMachineObserver
    from orchestrator.runtime.orchestration.model import StateMetrics as StateMetrics
    from orchestrator.runtime.orchestration.model import StateTransition as StateTransition
    from orchestrator.runtime.pipeline import Pipeline as Pipeline
    from orchestrator.runtime.pipeline_result import PipelineResult as PipelineResult
    from orchestrator.runtime.prompt_stage import PromptStage as PromptStage
    from orchestrator.runtime.recovery import Migration as Migration
    from orchestrator.runtime.recovery import OpenRun as OpenRun
    from orchestrator.runtime.result import Result as Result
    from orchestrator.runtime.stream import RunStream as RunStream
    from orchestrator.runtime.subagent import agent_tool as agent_tool
    from orchestrator.scope import config_from_context as config_from_context
    from orchestrator.scope import logger_from_context as logger_from_context
    from orchestrator.telemetry.log import TransitionLog as TransitionLog
    from orchestrator.telemetry.metrics import Metrics as Metrics
    from orchestrator.telemetry.notice import ParkNotice as ParkNotice
    from orchestrator.testing.clock import FakeClock as FakeClock
    from orchestrator.toolresult import ToolResult as ToolResult
    from orchestrator.toolspec import ToolContext as ToolContext
    from orchestrator.toolspec import ToolSpec as ToolSpec
    from orchestrator.toolspec import tool as tool
    from orchestrator_guards import Verdict as Verdict

_HOME = {
    "AgentOrchestrator": "runtime.orchestration.agent",
    "AnswerRefused": "errors",
    "Attempt": "machines.pipeline.model",
    "BudgetManager": "machines.pipeline.ports",
    "Caps": "engines.dispatcher",
    "CheckpointManager": "runtime.orchestration.checkpoint",
    "ConfigError": "errors",
    "CrashingJournal": "journal.crashing",
    "DbosDispatcher": "engines.dbos",
    "Driver": "kernel.driver",
    "Edge": "kernel.graph",
    "Evaluation": "machines.pipeline.model",
    "EventError": "errors",
    "FakeClock": "testing.clock",
    "Feedback": "machines.pipeline.model",
    "Fenced": "errors",
    "FunctionLLM": "providers.scripted",
    "Graph": "kernel.graph",
    "GraphError": "errors",
    "Held": "errors",
    "History": "kernel.history",
    "Implementation": "machines.pipeline.model",
    "Implementer": "machines.pipeline.ports",
    "InvalidTransitionError": "runtime.orchestration.model",
    "Issue": "machines.pipeline.model",
    "JournalError": "errors",
    "Judge": "machines.pipeline.ports",
    "LLMError": "errors",
    "LLM_LOOP": "machines.llm_loop.graph",
    "Limits": "machines.llm_loop.limits",
    "LocalEngine": "engines.local",
    "MemoryJournal": "journal.memory",
    "Message": "messages",
    "Metrics": "telemetry.metrics",
    "Migration": "runtime.recovery",
    "NotAdmitting": "errors",
    "OpenRun": "runtime.recovery",
    "OrchestrationState": "machines.pipeline.model",
    "OrchestrationStateMachine": "runtime.orchestration.machine",
    "Orchestrator": "runtime.llm_loop",
    "OrchestratorError": "errors",
    "OtherGraph": "errors",
    "Outcome": "kernel.outcome",
    "Overloaded": "errors",
    "PIPELINE": "machines.pipeline.graph",
    "ParkNotice": "telemetry.notice",
    "Pipeline": "runtime.pipeline",
    "PipelineLimits": "machines.pipeline.limits",
    "PipelineResult": "runtime.pipeline_result",
    "Plan": "machines.pipeline.model",
    "Planner": "machines.pipeline.ports",
    "PostgresJournal": "journal.postgres",
    "ProcrastinateDispatcher": "engines.procrastinate",
    "PromptStage": "runtime.prompt_stage",
    "Question": "machines.llm_loop.model",
    "Refused": "errors",
    "ReplayLLM": "providers.replay",
    "ReplayTools": "providers.replay_tool",
    "Request": "messages",
    "Response": "messages",
    "Result": "runtime.result",
    "RetryPolicy": "retry",
    "Rubric": "machines.pipeline.rubric",
    "Run": "kernel.run",
    "RunError": "errors",
    "RunExists": "errors",
    "RunStopped": "errors",
    "RunStream": "runtime.stream",
    "RunUnknown": "errors",
    "ScriptedLLM": "providers.scripted",
    "Severity": "machines.pipeline.model",
    "SqliteJournal": "journal.sqlite",
    "SqliteMemory": "journal.sqlite.conversation",
    "StageRequest": "machines.pipeline.ports",
    "StateMachineObserver": "runtime.orchestration.model",
    "StateMetrics": "runtime.orchestration.model",
    "StateTransition": "runtime.orchestration.model",
    "Suspended": "errors",
    "TokenDelta": "kernel.record",
    "ToolCall": "messages",
    "ToolContext": "toolspec",
    "ToolResult": "toolresult",
    "ToolSpec": "toolspec",
    "TransitionLog": "telemetry.log",
    "Usage": "messages",
    "Validation": "machines.pipeline.model",
    "Validator": "machines.pipeline.ports",
    "Verdict": "",
    "Worker": "engines.worker",
    "agent_tool": "runtime.subagent",
    "bind": "kernel.machine",
    "bounding": "kernel.graph",
    "config_from_context": "scope",
    "logger_from_context": "scope",
    "tool": "toolspec",
}
"""Public name -> the module it lives in; empty for the guards' own package."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(import_module(f"{__name__}.{home}" if home else "orchestrator_guards"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
