"""An orchestrator for LLM agents as an explicit finite state machine.

Names are loaded when first used: importing this package starts nothing and loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.engines.dbos import DbosDispatcher as DbosDispatcher
    from orchestrator.engines.dispatcher import WorkerLimits as WorkerLimits
    from orchestrator.engines.local_engine import LocalEngine as LocalEngine
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
    from orchestrator.kernel.typed import ContextInUse as ContextInUse
    from orchestrator.kernel.typed import StateMachine as StateMachine
    from orchestrator.kernel.typed_machine import UnhandledEventError as UnhandledEventError
    from orchestrator.llm.message import Message as Message
    from orchestrator.llm.message import Request as Request
    from orchestrator.llm.message import Response as Response
    from orchestrator.llm.message import ToolCall as ToolCall
    from orchestrator.llm.message import Usage as Usage
    from orchestrator.llm.retry import RetryPolicy as RetryPolicy
    from orchestrator.machines.approval.caps import PlanCaps as PlanCaps
    from orchestrator.machines.approval.fault import ApprovalError as ApprovalError
    from orchestrator.machines.approval.graph import APPROVAL as APPROVAL
    from orchestrator.machines.approval.limits import ApprovalLimits as ApprovalLimits
    from orchestrator.machines.approval.plan import PlanDraft as PlanDraft
    from orchestrator.machines.approval.refusal import GateRefused as GateRefused
    from orchestrator.machines.code_mode.graph import CODE_MODE as CODE_MODE
    from orchestrator.machines.code_mode.graph import build_code_mode_machine as build_code_mode_machine
    from orchestrator.machines.code_mode.model import CodeBlocksFound as CodeBlocksFound
    from orchestrator.machines.code_mode.model import CodeExecuted as CodeExecuted
    from orchestrator.machines.code_mode.model import CodeModeContext as CodeModeContext
    from orchestrator.machines.code_mode.model import CodeModeEvent as CodeModeEvent
    from orchestrator.machines.code_mode.model import CodeModeState as CodeModeState
    from orchestrator.machines.code_mode.model import DepthExceeded as DepthExceeded
    from orchestrator.machines.code_mode.model import FinalAnswerFound as FinalAnswerFound
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
    from orchestrator.machines.ralph.graph import RALPH as RALPH
    from orchestrator.machines.ralph.limits import RalphLimits as RalphLimits
    from orchestrator.machines.ralph.model import OrchestratorState as OrchestratorState
    from orchestrator.machines.ralph.next_state import RalphEvent as RalphEvent
    from orchestrator.machines.ralph.next_state import next_state as next_state
    from orchestrator.machines.ralph.ports import AgentRequest as AgentRequest
    from orchestrator.machines.rlm.limits import RlmLimits as RlmLimits
    from orchestrator.machines.rlm.model import LLMResponseReceived as LLMResponseReceived
    from orchestrator.machines.rlm.model import MaxIterationsReached as MaxIterationsReached
    from orchestrator.machines.rlm.model import PolicyStop as PolicyStop
    from orchestrator.machines.rlm.policy import ContextCompressor as ContextCompressor
    from orchestrator.machines.rlm.policy import KeepEnds as KeepEnds
    from orchestrator.machines.rlm.policy import NestedCallPolicy as NestedCallPolicy
    from orchestrator.machines.rlm.policy import NestedConfig as NestedConfig
    from orchestrator.machines.rlm.policy import NeverStop as NeverStop
    from orchestrator.machines.rlm.policy import NoCompression as NoCompression
    from orchestrator.machines.rlm.policy import NoNesting as NoNesting
    from orchestrator.machines.rlm.policy import SimpleNestedCallPolicy as SimpleNestedCallPolicy
    from orchestrator.machines.rlm.policy import StopAfter as StopAfter
    from orchestrator.machines.rlm.policy import StoppingPolicy as StoppingPolicy
    from orchestrator.machines.tools_mode.graph import TOOLS_MODE as TOOLS_MODE
    from orchestrator.machines.tools_mode.graph import build_tools_mode_machine as build_tools_mode_machine
    from orchestrator.machines.tools_mode.model import NoToolCalls as NoToolCalls
    from orchestrator.machines.tools_mode.model import ToolCallsFound as ToolCallsFound
    from orchestrator.machines.tools_mode.model import ToolsExecuted as ToolsExecuted
    from orchestrator.machines.tools_mode.model import ToolsModeContext as ToolsModeContext
    from orchestrator.machines.tools_mode.model import ToolsModeEvent as ToolsModeEvent
    from orchestrator.machines.tools_mode.model import ToolsModeState as ToolsModeState
    from orchestrator.providers.replay import ReplayLLM as ReplayLLM
    from orchestrator.providers.replay_tool import ReplayTools as ReplayTools
    from orchestrator.providers.scripted import FunctionLLM as FunctionLLM
    from orchestrator.providers.scripted import ScriptedLLM as ScriptedLLM
    from orchestrator.runtime.approval.approval import Approval as Approval
    from orchestrator.runtime.approval.plan_file import FixedPlanner as FixedPlanner
    from orchestrator.runtime.approval.planner import ModelPlanner as ModelPlanner
    from orchestrator.runtime.llm_loop.agent import Orchestrator as Orchestrator
    from orchestrator.runtime.llm_loop.agent_tool import agent_tool as agent_tool
    from orchestrator.runtime.llm_loop.result import Result as Result
    from orchestrator.runtime.pipeline.orchestration.agent import AgentOrchestrator as AgentOrchestrator
    from orchestrator.runtime.pipeline.orchestration.checkpoint import CheckpointManager as CheckpointManager
    from orchestrator.runtime.pipeline.orchestration.machine import (
        OrchestrationStateMachine as OrchestrationStateMachine,
    )
    from orchestrator.runtime.pipeline.orchestration.model import (
        InvalidTransitionError as InvalidTransitionError,
    )
    from orchestrator.runtime.pipeline.orchestration.model import StateMachineObserver as StateMachineObserver
    from orchestrator.runtime.pipeline.orchestration.model import StateMetrics as StateMetrics
    from orchestrator.runtime.pipeline.orchestration.model import StateTransition as StateTransition
    from orchestrator.runtime.pipeline.pipeline import Pipeline as Pipeline
    from orchestrator.runtime.pipeline.prompt_stage import PromptStage as PromptStage
    from orchestrator.runtime.pipeline.result import PipelineResult as PipelineResult
    from orchestrator.runtime.ralph.command_agent import CommandAgent as CommandAgent
    from orchestrator.runtime.ralph.prompt_agent import PromptAgent as PromptAgent
    from orchestrator.runtime.ralph.ralph import RalphOrchestrator as RalphOrchestrator
    from orchestrator.runtime.ralph.result import RalphResult as RalphResult
    from orchestrator.runtime.rlm.result import RlmResult as RlmResult
    from orchestrator.runtime.rlm.rlm import Rlm as Rlm
    from orchestrator.runtime.service.recovery import Migration as Migration
    from orchestrator.runtime.service.recovery import OpenRun as OpenRun
    from orchestrator.runtime.service.stream import RunStream as RunStream
    from orchestrator.telemetry.log import TransitionLog as TransitionLog
    from orchestrator.telemetry.metrics import Metrics as Metrics
    from orchestrator.telemetry.notice import ParkNotice as ParkNotice
    from orchestrator.telemetry.scope import config_from_context as config_from_context
    from orchestrator.telemetry.scope import logger_from_context as logger_from_context
    from orchestrator.testing.clock import FakeClock as FakeClock
    from orchestrator.tools.result import ToolResult as ToolResult
    from orchestrator.tools.spec import ToolContext as ToolContext
    from orchestrator.tools.spec import ToolSpec as ToolSpec
    from orchestrator.tools.spec import tool as tool
    from orchestrator_callbacks.code_mode.source import CodeModeSource as CodeModeSource
    from orchestrator_callbacks.rlm.loop_policy import PolicyHooks as PolicyHooks
    from orchestrator_callbacks.tools_mode.source import ToolsModeSource as ToolsModeSource
    from orchestrator_guards import Verdict as Verdict

_HOME = {
    "APPROVAL": "machines.approval.graph",
    "AgentOrchestrator": "runtime.pipeline.orchestration.agent",
    "AgentRequest": "machines.ralph.ports",
    "AnswerRefused": "errors",
    "Approval": "runtime.approval.approval",
    "ApprovalLimits": "machines.approval.limits",
    "Attempt": "machines.pipeline.model",
    "BudgetManager": "machines.pipeline.ports",
    "CODE_MODE": "machines.code_mode.graph",
    "WorkerLimits": "engines.dispatcher",
    "CheckpointManager": "runtime.pipeline.orchestration.checkpoint",
    "CodeBlocksFound": "machines.code_mode.model",
    "CodeExecuted": "machines.code_mode.model",
    "CodeModeContext": "machines.code_mode.model",
    "CodeModeEvent": "machines.code_mode.model",
    "CodeModeSource": "orchestrator_callbacks.code_mode.source",
    "CodeModeState": "machines.code_mode.model",
    "CommandAgent": "runtime.ralph.command_agent",
    "ConfigError": "errors",
    "ContextCompressor": "machines.rlm.policy",
    "ContextInUse": "kernel.typed",
    "CrashingJournal": "journal.crashing",
    "DbosDispatcher": "engines.dbos",
    "DepthExceeded": "machines.code_mode.model",
    "Driver": "kernel.driver",
    "Edge": "kernel.graph",
    "Evaluation": "machines.pipeline.model",
    "EventError": "errors",
    "FakeClock": "testing.clock",
    "ApprovalError": "machines.approval.fault",
    "Feedback": "machines.pipeline.model",
    "Fenced": "errors",
    "FinalAnswerFound": "machines.code_mode.model",
    "FixedPlanner": "runtime.approval.plan_file",
    "FunctionLLM": "providers.scripted",
    "GateRefused": "machines.approval.refusal",
    "Graph": "kernel.graph",
    "GraphError": "errors",
    "Held": "errors",
    "History": "kernel.history",
    "Implementation": "machines.pipeline.model",
    "Implementer": "machines.pipeline.ports",
    "InvalidTransitionError": "runtime.pipeline.orchestration.model",
    "Issue": "machines.pipeline.model",
    "JournalError": "errors",
    "Judge": "machines.pipeline.ports",
    "KeepEnds": "machines.rlm.policy",
    "LLMError": "errors",
    "LLMResponseReceived": "machines.rlm.model",
    "LLM_LOOP": "machines.llm_loop.graph",
    "Limits": "machines.llm_loop.limits",
    "LocalEngine": "engines.local_engine",
    "MaxIterationsReached": "machines.rlm.model",
    "MemoryJournal": "journal.memory",
    "Message": "llm.message",
    "Metrics": "telemetry.metrics",
    "Migration": "runtime.service.recovery",
    "ModelPlanner": "runtime.approval.planner",
    "NestedCallPolicy": "machines.rlm.policy",
    "NestedConfig": "machines.rlm.policy",
    "NeverStop": "machines.rlm.policy",
    "NoCompression": "machines.rlm.policy",
    "NoNesting": "machines.rlm.policy",
    "NoToolCalls": "machines.tools_mode.model",
    "NotAdmitting": "errors",
    "OpenRun": "runtime.service.recovery",
    "OrchestrationState": "machines.pipeline.model",
    "OrchestrationStateMachine": "runtime.pipeline.orchestration.machine",
    "Orchestrator": "runtime.llm_loop.agent",
    "OrchestratorError": "errors",
    "OrchestratorState": "machines.ralph.model",
    "OtherGraph": "errors",
    "Outcome": "kernel.outcome",
    "Overloaded": "errors",
    "PIPELINE": "machines.pipeline.graph",
    "ParkNotice": "telemetry.notice",
    "Pipeline": "runtime.pipeline.pipeline",
    "PipelineLimits": "machines.pipeline.limits",
    "PipelineResult": "runtime.pipeline.result",
    "Plan": "machines.pipeline.model",
    "PlanCaps": "machines.approval.caps",
    "PlanDraft": "machines.approval.plan",
    "Planner": "machines.pipeline.ports",
    "PolicyHooks": "orchestrator_callbacks.rlm.loop_policy",
    "PolicyStop": "machines.rlm.model",
    "PostgresJournal": "journal.postgres",
    "ProcrastinateDispatcher": "engines.procrastinate",
    "PromptAgent": "runtime.ralph.prompt_agent",
    "PromptStage": "runtime.pipeline.prompt_stage",
    "Question": "machines.llm_loop.model",
    "RALPH": "machines.ralph.graph",
    "RalphEvent": "machines.ralph.next_state",
    "RalphLimits": "machines.ralph.limits",
    "RalphOrchestrator": "runtime.ralph.ralph",
    "RalphResult": "runtime.ralph.result",
    "Refused": "errors",
    "ReplayLLM": "providers.replay",
    "ReplayTools": "providers.replay_tool",
    "Request": "llm.message",
    "Response": "llm.message",
    "Result": "runtime.llm_loop.result",
    "RetryPolicy": "llm.retry",
    "Rlm": "runtime.rlm.rlm",
    "RlmLimits": "machines.rlm.limits",
    "RlmResult": "runtime.rlm.result",
    "Rubric": "machines.pipeline.rubric",
    "Run": "kernel.run",
    "RunError": "errors",
    "RunExists": "errors",
    "RunStopped": "errors",
    "RunStream": "runtime.service.stream",
    "RunUnknown": "errors",
    "ScriptedLLM": "providers.scripted",
    "Severity": "machines.pipeline.model",
    "SimpleNestedCallPolicy": "machines.rlm.policy",
    "SqliteJournal": "journal.sqlite",
    "SqliteMemory": "journal.sqlite.conversation",
    "StageRequest": "machines.pipeline.ports",
    "StateMachine": "kernel.typed",
    "StateMachineObserver": "runtime.pipeline.orchestration.model",
    "StateMetrics": "runtime.pipeline.orchestration.model",
    "StateTransition": "runtime.pipeline.orchestration.model",
    "StopAfter": "machines.rlm.policy",
    "StoppingPolicy": "machines.rlm.policy",
    "Suspended": "errors",
    "TOOLS_MODE": "machines.tools_mode.graph",
    "TokenDelta": "kernel.record",
    "ToolCall": "llm.message",
    "ToolCallsFound": "machines.tools_mode.model",
    "ToolContext": "tools.spec",
    "ToolResult": "tools.result",
    "ToolSpec": "tools.spec",
    "ToolsExecuted": "machines.tools_mode.model",
    "ToolsModeContext": "machines.tools_mode.model",
    "ToolsModeEvent": "machines.tools_mode.model",
    "ToolsModeSource": "orchestrator_callbacks.tools_mode.source",
    "ToolsModeState": "machines.tools_mode.model",
    "TransitionLog": "telemetry.log",
    "UnhandledEventError": "kernel.typed_machine",
    "Usage": "llm.message",
    "Validation": "machines.pipeline.model",
    "Validator": "machines.pipeline.ports",
    "Verdict": "",
    "Worker": "engines.worker",
    "agent_tool": "runtime.llm_loop.agent_tool",
    "bind": "kernel.machine",
    "bounding": "kernel.graph",
    "build_code_mode_machine": "machines.code_mode.graph",
    "build_tools_mode_machine": "machines.tools_mode.graph",
    "config_from_context": "telemetry.scope",
    "logger_from_context": "telemetry.scope",
    "next_state": "machines.ralph.next_state",
    "tool": "tools.spec",
}
"""Public name -> the module it lives in; empty for the guards' own package, whole for the callbacks'."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(import_module(_module(home)), name)
    globals()[name] = value
    return value


def _module(home: str) -> str:
    if home.startswith("orchestrator_"):
        return home
    return f"{__name__}.{home}" if home else "orchestrator_guards"


def __dir__() -> list[str]:
    return __all__
