"""The names a host may rely on: exactly those, loaded when first used, typed as they are at run time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import providers, telemetry

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = {
    # running an agent
    "Orchestrator", "Limits", "Result", "Outcome", "RetryPolicy", "tool", "agent_tool", "ToolSpec", "ToolContext",
    "Request", "Response", "Message", "ToolCall", "ToolResult", "Usage", "config_from_context", "logger_from_context",
    "RunStream", "TokenDelta",
    # telemetry and journal
    "Metrics", "TransitionLog", "ParkNotice", "MemoryJournal", "SqliteJournal", "SqliteMemory",
    "PostgresJournal",
    # stored runs and people
    "OpenRun", "Question", "Migration", "LocalEngine",
    # workers of one database
    "Worker", "DbosDispatcher", "ProcrastinateDispatcher", "WorkerLimits",
    # doubles
    "CrashingJournal", "ScriptedLLM", "FunctionLLM", "ReplayLLM", "ReplayTools", "FakeClock",
    # one's own machines
    "Graph", "Edge", "bind", "Driver", "Run", "History", "LLM_LOOP", "Verdict", "bounding", "StateMachine",
    # the pipeline: its runtime, and the state machine that a host moves itself
    "Pipeline", "PipelineLimits", "PipelineResult", "PromptStage", "Rubric", "PIPELINE", "AgentOrchestrator",
    "OrchestrationStateMachine", "OrchestrationState", "StateTransition", "StateMetrics", "StateMachineObserver",
    "CheckpointManager", "InvalidTransitionError",
    # what its stages are given and give
    "StageRequest", "Plan", "Validation", "Issue", "Severity", "Implementation", "Evaluation", "Feedback", "Attempt",
    "Planner", "Validator", "Implementer", "Judge", "BudgetManager",
    # the agents of the ralph loop
    "AgentRequest", "CommandAgent", "PromptAgent",
    # the loop itself, and seed 002's pure function
    "RalphOrchestrator", "RalphLimits", "RalphResult", "RALPH", "OrchestratorState", "RalphEvent", "next_state",
    # the two modes of RLM: their runtime, machines, events and policies
    "CODE_MODE", "build_code_mode_machine", "TOOLS_MODE", "build_tools_mode_machine", "CodeModeState",
    "CodeModeEvent", "CodeModeContext", "DepthExceeded", "CodeBlocksFound", "FinalAnswerFound", "CodeExecuted",
    "ToolsModeState", "ToolsModeEvent", "ToolsModeContext", "ToolCallsFound", "ToolsExecuted", "NoToolCalls",
    "LLMResponseReceived", "MaxIterationsReached", "PolicyStop", "RlmLimits", "StoppingPolicy", "ContextCompressor",
    "NestedCallPolicy", "NestedConfig", "NeverStop", "StopAfter", "NoCompression", "KeepEnds", "NoNesting",
    "SimpleNestedCallPolicy", "Rlm", "RlmResult",
    "CodeModeSource", "ToolsModeSource", "PolicyHooks",
    # approval: plans for a project, carried out once a person says so
    "Approval", "ApprovalLimits", "APPROVAL", "PlanCaps", "GateRefused", "ApprovalError",
    "FixedPlanner", "ModelPlanner", "PlanDraft",
    # errors
    "OrchestratorError", "GraphError", "ConfigError", "EventError", "Refused", "RunError", "RunStopped", "LLMError",
    "RunExists", "RunUnknown", "Held", "Suspended", "OtherGraph", "AnswerRefused", "JournalError",
    "Fenced", "NotAdmitting", "Overloaded", "UnhandledEventError", "ContextInUse",
}  # fmt: skip

OPERATING = {
    "Batch", "BoundedWriter", "Spans", "Watchdog", "asgi_app", "configure_logging", "serve_metrics", "wsgi_app",
}  # fmt: skip
"""What `orchestrator.telemetry` offers to an application beside the observers above."""

MODELS = {
    "Anthropic", "Fallback", "RateLimitedModel", "McpServer", "OpenAI", "RateLimit", "RateLimiter", "genai_prices",
    "price_table",
}  # fmt: skip
"""What `orchestrator.providers` offers beside the doubles above."""


def test_the_public_names_are_exactly_these_and_sorted() -> None:
    assert orchestrator.__all__ == sorted(PUBLIC)
    assert dir(orchestrator) == orchestrator.__all__


def test_every_public_name_can_be_had_and_is_what_it_says() -> None:
    for name in orchestrator.__all__:
        value = getattr(orchestrator, name)
        assert getattr(value, "__name__", name) == name, name


@pytest.mark.parametrize(("package", "names"), [(telemetry, OPERATING), (providers, MODELS)])
def test_what_else_an_application_needs_comes_from_two_packages(package: Any, names: set[str]) -> None:
    assert package.__all__ == sorted(names)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    seen = _typed(package.__file__)
    assert {name: module.rpartition(".")[2] for name, module in seen.items()} == package._HOME


def test_importing_in_any_order_gives_the_function_tool() -> None:
    for first in ("Orchestrator", "ToolSpec", "tool"):
        script = f"from orchestrator import {first}, tool; assert callable(tool) and tool.__name__ == 'tool'"
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=_env(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()


def test_type_checkers_see_the_same_names() -> None:
    seen = _typed(orchestrator.__file__)

    assert set(seen) == PUBLIC
    for name, module in seen.items():
        home = orchestrator._HOME[name]
        if not home.startswith("orchestrator_"):
            home = f"orchestrator.{home}" if home else "orchestrator_guards"
        assert module == home, name


def _typed(file: str | None) -> dict[str, str]:
    """Return public name -> module, as type checkers read it."""
    tree = ast.parse(Path(file or "").read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.asname: f"{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def _env() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "callbacks", "guards"))
    return {**os.environ, "PYTHONPATH": paths}
