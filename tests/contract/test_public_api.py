"""The names a host may rely on: exactly those, loaded when first used, typed as they are at run time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import kernel, providers, telemetry, testing

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = {
    # an agent and its runs
    "Agent", "Limits", "Result", "Outcome", "RetryPolicy", "RunStream", "Runs", "Runtime", "Question", "Migration",
    # messages and tools
    "Message", "Request", "Response", "Usage", "tool", "agent_tool", "ToolSpec", "ToolContext", "ToolCall",
    "ToolResult",
    # journals and engines
    "MemoryJournal", "SqliteJournal", "SqliteMemory", "PostgresJournal",
    "LocalEngine", "Worker", "WorkerLimits", "DbosDispatcher", "ProcrastinateDispatcher",
    # one's own table
    "Graph", "Edge", "LLM_LOOP", "Verdict", "StateMachine",
    # errors
    "OrchestratorError", "GraphError", "ConfigError", "Refused", "RunError", "RunStopped", "RunExists", "RunUnknown",
    "LLMError", "JournalError", "ModelRetry",
}  # fmt: skip

SPECIFIED = {
    "pipeline": {
        "AgentOrchestrator", "OrchestrationStateMachine", "OrchestrationState", "StateTransition", "StateMetrics",
        "StateMachineObserver", "CheckpointManager", "InvalidTransitionError",
    },
    "ralph": {"RalphOrchestrator", "OrchestratorState"},
    "rlm": {
        "CodeModeState", "CodeModeEvent", "CodeModeContext", "CodeBlocksFound", "CodeExecuted", "DepthExceeded",
        "FinalAnswerFound", "LLMResponseReceived", "MaxIterationsReached", "NoToolCalls", "PolicyStop",
        "StoppingPolicy", "ToolCallsFound", "ToolsExecuted", "ToolsModeContext", "build_code_mode_machine",
    },
}  # fmt: skip
"""Names that the users' specifications spell, by namespace: importable from `orchestrator` too, outside `__all__`."""

NAMESPACES = {
    "pipeline": SPECIFIED["pipeline"] | {
        "Pipeline", "JudgePanel", "PipelineLimits", "PipelineResult", "PromptStage", "Rubric", "PIPELINE",
        # what its stages are given and give
        "StageRequest", "Plan", "Validation", "Issue", "Severity", "Implementation", "Evaluation", "Feedback",
        "Attempt", "Planner", "Validator", "Implementer", "Judge", "BudgetManager",
    },
    "approval": {
        "Approval", "ApprovalLimits", "APPROVAL", "PlanCaps", "GateRefused", "ApprovalError",
        "FixedPlanner", "ModelPlanner", "PlanDraft",
    },
    "ralph": SPECIFIED["ralph"] | {
        "Ralph", "AgentRequest", "CodingAgent", "CodingAnswer", "CodingCall", "CodingPreset",
        "CommandAgent", "PromptAgent", "RalphLimits", "RalphResult", "RALPH", "RalphState",
        "RalphEvent", "OrchestratorEvent", "next_state",
    },
    "rlm": SPECIFIED["rlm"] | {
        "Rlm", "RlmLimits", "RlmResult", "CODE_MODE", "TOOLS_MODE", "build_tools_mode_machine", "ToolsModeState",
        "ToolsModeEvent", "CodeModeSource", "ToolsModeSource", "PolicyHooks", "ContextCompressor", "NestedCallPolicy",
        "NestedConfig", "NeverStop", "StopAfter", "NoCompression", "KeepEnds", "NoNesting", "SimpleNestedCallPolicy",
    },
    "events": {
        "RunStarted", "Transition", "EventFailed", "GuardEvaluated", "OperationAttempt", "LLMCall", "ToolExecution",
        "ToolError", "AnswerLost", "BranchEnded", "HandedOver",
        "BudgetChecked", "JournalWrite", "RunParked", "RunCompleted", "RunAdmitted", "AdmissionRejected",
        "RunRecovered", "RolledBack", "TableRejected", "WorkAbandoned", "Fact", "Observer", "FinishReason",
        "RunEvent", "RunCreated", "RunSuspended", "RunResumed", "StateChanged", "BudgetWarning", "RunFinished",
        "ModelRequestStarted", "ModelRequestRetried", "ModelRequestFinished", "TextDelta", "ReasoningDelta",
        "ToolArgumentsDelta", "ToolStarted", "ToolProgress", "ToolFinished", "QuestionAsked", "QuestionAnswered",
        "ChildRunStarted", "ChildRunFinished", "EventsDropped",
    },
    "branches": {
        "ALL", "ANY", "Branch", "BranchResult", "BranchResults", "Fan", "Join", "MapReduceContext", "Workflow",
        "WorkflowDeps", "WorkflowResult", "ended", "fan_out", "first", "joined", "map_reduce", "quorum",
    },
    "handoffs": {
        "Handoff", "HandoffRecord", "LLM_LOOP_WITH_HANDOFFS", "TEAM", "TeamEvent", "TeamState", "handoff",
    },
    "backtest": {
        "GuardDifference", "JoinComparison", "JoinReport", "Policy", "Report", "RunComparison", "RunTrace", "Saving",
        "backtest", "backtest_joins", "read_trace", "sweep", "trace_of",
    },
    "evaluation": {
        "CallExpectation", "CaseAnswer", "CaseCheck", "CaseLimits", "CaseResult", "CaseRun", "CaseSelection",
        "CaseSummary", "CaseUsage", "EvaluationBudget", "EvaluationCase", "EvaluationChanges", "EvaluationReport",
        "Expectation", "Judge", "Judgement", "OutputExpectation", "RecordedCall", "ToolExpectation",
        "TransitionExpectation", "evaluate",
        "load_cases",
    },
    "notification": {
        "NotificationChannel", "CommandChannel", "FunctionChannel", "Notice", "Notifier", "Webhook", "verify_webhook",
    },
}  # fmt: skip
"""Modules of public names that only re-export."""

BUILDING = {
    "ContextInUse", "Driver", "Edge", "Graph", "Outcome", "Run", "StateMachine", "UnhandledEventError",
    "bind", "bounding",
}  # fmt: skip
"""What `orchestrator.kernel` offers to build and drive a machine of one's own."""

DOUBLES = {
    "CrashingJournal", "FakeClock", "FunctionLLM", "GraphCoverage", "GuardImpure", "MemoryJournal", "ReplayLLM",
    "ReplayTools", "SchemaLLM", "ScriptedLLM", "assert_replays", "call",
    "check_guard", "edge_paths", "parametrize_paths", "path_id", "pure",
    "refuse_real_models", "shortest_paths", "simple_paths", "strict_guards", "walk",
}  # fmt: skip
"""What `orchestrator.testing` offers."""

OPERATING = {
    "Batch", "BoundedWriter", "History", "Metrics", "ParkNotice", "Spans", "TransitionLog", "Watchdog", "asgi_app",
    "config_from_context", "configure_logging", "logger_from_context", "serve_metrics", "wsgi_app",
}  # fmt: skip
"""What `orchestrator.telemetry` offers to an application."""

MODELS = {
    "Anthropic", "Fallback", "RateLimitedModel", "McpServer", "OpenAI", "PydanticAIModel", "RateLimit", "RateLimiter",
    "genai_prices", "price_table",
}  # fmt: skip
"""What `orchestrator.providers` offers beside the doubles."""

EXTRAS = (
    "anthropic", "dbos", "mcp", "openai", "opentelemetry", "procrastinate", "psycopg", "pydantic_ai", "rich", "typer",
)  # fmt: skip
"""Libraries that are installed with an extra only."""


def test_the_public_names_are_exactly_these_and_sorted() -> None:
    assert len(PUBLIC) <= 45
    assert orchestrator.__all__ == sorted(PUBLIC)
    assert dir(orchestrator) == orchestrator.__all__


def test_every_public_name_can_be_had_and_is_what_it_says() -> None:
    for name in orchestrator.__all__:
        value = getattr(orchestrator, name)
        assert getattr(value, "__name__", name) == name, name


@pytest.mark.parametrize(
    ("package", "names"),
    [(telemetry, OPERATING), (providers, MODELS), (kernel, BUILDING), (testing, DOUBLES)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_else_an_application_needs_comes_from_four_packages(package: Any, names: set[str]) -> None:
    assert package.__all__ == sorted(names)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    seen = _typed(package.__file__)
    below = "orchestrator." if package in {testing, providers} else f"{package.__name__}."
    assert {name: module.removeprefix(below) for name, module in seen.items()} == package._HOME


@pytest.mark.parametrize("namespace", sorted(NAMESPACES))
def test_a_namespace_only_re_exports_its_public_names(namespace: str) -> None:
    module = import_module(f"orchestrator.{namespace}")
    assert set(module.__all__) == NAMESPACES[namespace]
    docstring, *statements, listed = ast.parse(Path(module.__file__ or "").read_text()).body
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(listed).startswith("__all__ = ")
    imported = [
        node for node in statements if isinstance(node, ast.ImportFrom) and node.module != "__future__"
    ]
    assert len(imported) == len(statements) - 1, "a namespace holds imports and __all__, nothing else"
    assert sorted(alias.name for node in imported for alias in node.names) == sorted(module.__all__)


def test_the_pages_on_compatibility_and_layers_name_every_namespace() -> None:
    promised = ", ".join(f"`{namespace}`" for namespace in sorted(NAMESPACES))
    assert f"its namespaces ({promised})" in (ROOT / "orchestrator/README.md").read_text(encoding="utf-8")
    layer = f"the namespaces {', '.join(sorted(NAMESPACES))}\n"
    assert layer in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_names_of_the_specifications_are_the_same_objects_outside_of_all() -> None:
    for namespace, names in SPECIFIED.items():
        module = import_module(f"orchestrator.{namespace}")
        for name in names:
            assert getattr(orchestrator, name) is getattr(module, name), name
            assert name not in orchestrator.__all__


EACH_FIRST = """
import gc, os, sys, traceback
import apsw, orjson, prometheus_client, pydantic, pydantic_settings, structlog, tenacity, transitions

gc.freeze()  # or each child would walk through all that is loaded, and copy it
failed = 0
for statements in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            exec(statements)
        except BaseException:
            print(statements, file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    failed |= os.waitpid(child, 0)[1]
sys.exit(bool(failed))
"""
"""Runs each of its arguments where nothing of ours is imported yet; the libraries are imported once for all."""


def test_each_namespace_and_each_order_of_names_can_be_imported_first_and_without_any_extra() -> None:
    first = [f"import orchestrator.{namespace}" for namespace in sorted(NAMESPACES)]
    first.append("from orchestrator import *; Agent, Runtime, Worker")
    first += [
        f"from orchestrator import {name}, tool; assert callable(tool) and tool.__name__ == 'tool'"
        for name in ("Agent", "ToolSpec", "tool")
    ]
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}\n{EACH_FIRST}", *first],
        cwd=ROOT,
        env=_env(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_name_that_moved_to_a_namespace_is_an_attribute_error_in_the_package() -> None:
    with pytest.raises(AttributeError, match="module 'orchestrator' has no attribute 'Pipeline'"):
        _ = orchestrator.Pipeline


def test_the_name_of_the_specification_is_the_class_agent() -> None:
    assert orchestrator.Orchestrator is orchestrator.Agent


def test_type_checkers_see_the_same_names() -> None:
    seen = _typed(orchestrator.__file__)

    assert set(seen) == PUBLIC.union({"Orchestrator", "__version__"}, *SPECIFIED.values())
    for name, module in seen.items():
        home = orchestrator._HOME[name]
        assert module == (f"orchestrator.{home}" if home else "orchestrator_guards"), name


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
