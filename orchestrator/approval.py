"""Approval: a plan for a project folder that a person approves before its steps are executed."""

from __future__ import annotations

from orchestrator.machines.approval.fault import ApprovalError, GateRefused
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.machines.approval.limits import ApprovalLimits, PlanCaps
from orchestrator.machines.approval.plan import PlanDraft
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.plan_file import FixedPlanner
from orchestrator.runtime.approval.planner import ModelPlanner

__all__ = [
    "APPROVAL",
    "Approval",
    "ApprovalError",
    "ApprovalLimits",
    "FixedPlanner",
    "GateRefused",
    "ModelPlanner",
    "PlanCaps",
    "PlanDraft",
]
