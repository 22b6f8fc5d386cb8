"""Backtest a policy on recorded runs: which would have ended differently, what it saves, and whom it hurts.

`trace_reader` reads the decisions of a run as raw inputs (`trace`), `evaluator` evaluates them under a `policy` with
the functions of the loop itself, `comparison` proves the recorded policy and finds the first difference, and
`report` counts.
"""

from __future__ import annotations

from orchestrator.runtime.backtest.backtest import backtest, read_trace, sweep
from orchestrator.runtime.backtest.comparison import GuardDifference, RunComparison, Saving
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.backtest.report import Report
from orchestrator.runtime.backtest.trace import RunTrace
from orchestrator.runtime.backtest.trace_reader import trace_of

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
