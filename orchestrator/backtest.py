"""Test a policy on recorded runs, before it is in force: `await backtest(Runs(journal), Policy({...}))`."""

from __future__ import annotations

from orchestrator.runtime.backtest.backtest import backtest, read_trace, sweep
from orchestrator.runtime.backtest.comparison import GuardDifference, RunComparison, Saving
from orchestrator.runtime.backtest.joins import JoinComparison, JoinReport, backtest_joins
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.backtest.report import Report
from orchestrator.runtime.backtest.trace import RunTrace, trace_of

__all__ = [
    "GuardDifference",
    "JoinComparison",
    "JoinReport",
    "Policy",
    "Report",
    "RunComparison",
    "RunTrace",
    "Saving",
    "backtest",
    "backtest_joins",
    "read_trace",
    "sweep",
    "trace_of",
]
