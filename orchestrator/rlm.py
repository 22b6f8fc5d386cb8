"""RLM: code mode and tools mode, with their events, policies and machines."""

from __future__ import annotations

from orchestrator.machines.rlm.code_mode import (
    CODE_MODE,
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeEvent,
    CodeModeState,
    DepthExceeded,
    FinalAnswerFound,
    build_code_mode_machine,
)
from orchestrator.machines.rlm.model import LLMResponseReceived, MaxIterationsReached, PolicyStop, RlmLimits
from orchestrator.machines.rlm.policy import (
    ContextCompressor,
    KeepEnds,
    NestedCallPolicy,
    NestedConfig,
    NeverStop,
    NoCompression,
    NoNesting,
    SimpleNestedCallPolicy,
    StopAfter,
    StoppingPolicy,
)
from orchestrator.machines.rlm.tools_mode import (
    TOOLS_MODE,
    NoToolCalls,
    ToolCallsFound,
    ToolsExecuted,
    ToolsModeContext,
    ToolsModeEvent,
    ToolsModeState,
    build_tools_mode_machine,
)
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.rlm.run_record import RlmResult
from orchestrator_callbacks.rlm.code_mode import CodeModeSource
from orchestrator_callbacks.rlm.loop_policy import PolicyHooks
from orchestrator_callbacks.rlm.tools_mode import ToolsModeSource

__all__ = [
    "CODE_MODE",
    "TOOLS_MODE",
    "CodeBlocksFound",
    "CodeExecuted",
    "CodeModeContext",
    "CodeModeEvent",
    "CodeModeSource",
    "CodeModeState",
    "ContextCompressor",
    "DepthExceeded",
    "FinalAnswerFound",
    "KeepEnds",
    "LLMResponseReceived",
    "MaxIterationsReached",
    "NestedCallPolicy",
    "NestedConfig",
    "NeverStop",
    "NoCompression",
    "NoNesting",
    "NoToolCalls",
    "PolicyHooks",
    "PolicyStop",
    "Rlm",
    "RlmLimits",
    "RlmResult",
    "SimpleNestedCallPolicy",
    "StopAfter",
    "StoppingPolicy",
    "ToolCallsFound",
    "ToolsExecuted",
    "ToolsModeContext",
    "ToolsModeEvent",
    "ToolsModeSource",
    "ToolsModeState",
    "build_code_mode_machine",
    "build_tools_mode_machine",
]
