"""Run evaluation sets against an agent: `await evaluate(agent, load_cases("support.yaml"))`."""

from __future__ import annotations

from orchestrator.runtime.evaluation.case import (
    CallExpectation,
    CaseAnswer,
    CaseLimits,
    EvaluationCase,
    Expectation,
    OutputExpectation,
    ToolExpectation,
    TransitionExpectation,
)
from orchestrator.runtime.evaluation.case_file import load_cases
from orchestrator.runtime.evaluation.check import CaseCheck, CaseRun, Judge, Judgement, RecordedCall
from orchestrator.runtime.evaluation.evaluation import CaseSelection, EvaluationBudget, evaluate
from orchestrator.runtime.evaluation.report import (
    CaseResult,
    CaseSummary,
    CaseUsage,
    EvaluationChanges,
    EvaluationReport,
)

__all__ = [
    "CallExpectation",
    "CaseAnswer",
    "CaseCheck",
    "CaseLimits",
    "CaseResult",
    "CaseRun",
    "CaseSelection",
    "CaseSummary",
    "CaseUsage",
    "EvaluationBudget",
    "EvaluationCase",
    "EvaluationChanges",
    "EvaluationReport",
    "Expectation",
    "Judge",
    "Judgement",
    "OutputExpectation",
    "RecordedCall",
    "ToolExpectation",
    "TransitionExpectation",
    "evaluate",
    "load_cases",
]
