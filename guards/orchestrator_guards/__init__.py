"""Guards: pure decisions. Numbers and digests in, a `Verdict` out; the standard library only.

Guards have no clock, no I/O and no context: a guard uses only its arguments.
"""

from __future__ import annotations

from orchestrator_guards.approval import (
    DIGEST_VERSION,
    Refusal,
    approval_digest,
    describe_answer,
    judge_answer,
    repeats_answer,
    stale_approval,
)
from orchestrator_guards.attempts import (
    completion_retries,
    planning_retries,
    qa_cycles,
    refinements,
    replans,
    structured_retries,
    task_attempts,
)
from orchestrator_guards.budget import (
    affordable,
    cost,
    cost_unknown,
    elapsed,
    host_budget,
    input_tokens,
    iterations,
    next_streak,
    output_tokens,
    request_cost,
    reserve,
    restarts,
    retries,
    sub_calls,
    tokens,
    tool_calls,
    tool_cap,
    tool_errors,
    tool_key,
)
from orchestrator_guards.condition import (
    present,
)
from orchestrator_guards.gate import (
    GATES,
    BlockedGate,
    first_blocked,
)
from orchestrator_guards.progress import (
    Escalation,
    escalation,
    expected,
    progress,
    repeated_success,
)
from orchestrator_guards.quality import (
    Analysis,
    Fix,
    Grade,
    analysis,
    grade,
)
from orchestrator_guards.repetition import (
    CHANGE_PATIENCE,
    MAX_PERIOD,
    POLL_PATIENCE,
    WINDOW,
    Stall,
    StallKind,
    stall,
    window_size,
)
from orchestrator_guards.result import (
    FAILURE_PHRASES,
    failed_result,
)
from orchestrator_guards.turn import (
    ObservedCall,
    Policy,
    TurnFingerprint,
    call_key,
    call_keys,
    fingerprint,
)
from orchestrator_guards.verdict import (
    GUARD_NAMES,
    Verdict,
    first_refusal,
)

__all__ = [
    "CHANGE_PATIENCE",
    "DIGEST_VERSION",
    "FAILURE_PHRASES",
    "GATES",
    "GUARD_NAMES",
    "MAX_PERIOD",
    "POLL_PATIENCE",
    "WINDOW",
    "Analysis",
    "BlockedGate",
    "Escalation",
    "Fix",
    "Grade",
    "ObservedCall",
    "Policy",
    "Refusal",
    "Stall",
    "StallKind",
    "TurnFingerprint",
    "Verdict",
    "affordable",
    "analysis",
    "approval_digest",
    "call_key",
    "call_keys",
    "completion_retries",
    "cost",
    "cost_unknown",
    "describe_answer",
    "elapsed",
    "escalation",
    "expected",
    "failed_result",
    "fingerprint",
    "first_blocked",
    "first_refusal",
    "grade",
    "host_budget",
    "input_tokens",
    "iterations",
    "judge_answer",
    "next_streak",
    "output_tokens",
    "planning_retries",
    "present",
    "progress",
    "qa_cycles",
    "refinements",
    "repeated_success",
    "repeats_answer",
    "replans",
    "request_cost",
    "reserve",
    "restarts",
    "retries",
    "stale_approval",
    "stall",
    "structured_retries",
    "sub_calls",
    "task_attempts",
    "tokens",
    "tool_calls",
    "tool_cap",
    "tool_errors",
    "tool_key",
    "window_size",
]
