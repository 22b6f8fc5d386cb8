"""Codes that are shown, stored or used as labels: scripts, dashboards and journals compare them as text."""

from __future__ import annotations

from enum import StrEnum

from orchestrator.engines.run_queue import Phase
from orchestrator.files.rollback import ChangeKind, UndoOutcome
from orchestrator.kernel.lint import LintRule
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.approval.fault import FaultFamily, FaultSeverity, RecoveryPath
from orchestrator.machines.approval.model import PlanStatus
from orchestrator.machines.approval.plan import IntentKind, StepKind, Strength
from orchestrator.machines.pipeline.model import FeedbackKind, Severity
from orchestrator_guards import Escalation, Fix, Grade, StallKind

CODES: dict[type[StrEnum], str] = {
    Phase: "queued | running | waiting | ready | over",
    ChangeKind: "create | edit | delete",
    UndoOutcome: "restored | already | kept",
    LintRule: (
        "unknown_name | taken_name | reserved_name | role_conflict | no_end | unreachable | trap | "
        "no_way_out | terminal_exit | guard_overlap | guard_gap | async_guard | "
        "unbounded_cycle | waiting_without_limit | bad_dwell | missing_failure | internal_in_working_state | "
        "unused_event | stray_hook | no_hook | sync_hook | hook_arguments | guard_arguments | duplicate_hook | "
        "missing_enter | bad_branches | terminal_without_failure | unknown_callback"
    ),
    Outcome: "completed | partial | budget_exceeded | no_progress | cancelled | rejected | failed",
    FaultFamily: (
        "validation | file_system | provider | build | state | resource | security | configuration | command"
    ),
    FaultSeverity: "warning | error | fatal",
    RecoveryPath: "Retry | Modify | Configure | Install | Report | Restart",
    IntentKind: "CreateProject | AddFeature | FixBug | BuildPackage | Unknown",
    Strength: "MUST | MUST_NOT | PREFER",
    PlanStatus: "pending | approved | rejected | expired | completed | cancelled | failed",
    StepKind: "create | edit | delete | run",
    FeedbackKind: "validation_failure | judge_soft_failure | judge_hard_failure",
    Severity: "error | warning | info",
    Escalation: "none | warn | block | stop",
    Fix: "refine_implementation | replan",
    Grade: "approve | soft | hard",
    StallKind: "repeat | repeat_result | alternation | error_cycle | monologue",
}


def test_codes_stay_as_they_are() -> None:
    assert {codes: " | ".join(codes) for codes in CODES} == CODES
