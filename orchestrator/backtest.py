"""Test a policy on recorded runs, before it is in force: `await backtest(Runs(journal), Policy({...}))`."""

from __future__ import annotations

from orchestrator.runtime.backtest import (
    GuardDifference,
    Policy,
    Report,
    RunComparison,
    RunTrace,
    Saving,
    backtest,
    read_trace,
    sweep,
    trace_of,
)

__all__ = [
    "GuardDifference",
    "Policy",
    "Report",
    "RunComparison",
    "RunTrace",
    "Saving",
    "backtest",
    "read_trace",
    "sweep",
    "trace_of",
]
