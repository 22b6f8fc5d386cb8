"""The pipeline: plan, validate, implement, judge; and the state machine that a host moves itself."""

from __future__ import annotations

from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.model import (
    Attempt,
    BudgetManager,
    Evaluation,
    Feedback,
    Implementation,
    Implementer,
    Issue,
    Judge,
    OrchestrationState,
    PipelineLimits,
    Plan,
    Planner,
    Rubric,
    Severity,
    StageRequest,
    Validation,
    Validator,
)
from orchestrator.runtime.pipeline.judge_panel import JudgePanel
from orchestrator.runtime.pipeline.orchestration import (
    AgentOrchestrator,
    CheckpointManager,
    InvalidTransitionError,
    OrchestrationStateMachine,
    StateMachineObserver,
    StateMetrics,
    StateTransition,
)
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult
from orchestrator.runtime.pipeline.prompt_stage import PromptStage

__all__ = [
    "PIPELINE",
    "AgentOrchestrator",
    "Attempt",
    "BudgetManager",
    "CheckpointManager",
    "Evaluation",
    "Feedback",
    "Implementation",
    "Implementer",
    "InvalidTransitionError",
    "Issue",
    "Judge",
    "JudgePanel",
    "OrchestrationState",
    "OrchestrationStateMachine",
    "Pipeline",
    "PipelineLimits",
    "PipelineResult",
    "Plan",
    "Planner",
    "PromptStage",
    "Rubric",
    "Severity",
    "StageRequest",
    "StateMachineObserver",
    "StateMetrics",
    "StateTransition",
    "Validation",
    "Validator",
]
