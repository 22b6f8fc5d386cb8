"""How often what is tried again: the policies of the table of errors, for the only retry layer there is."""

from __future__ import annotations

from orchestrator.llm.retry import RetryPolicy, RetryTable
from orchestrator.machines.approval.fault import RULES, FaultRule


def policy(row: FaultRule) -> RetryPolicy:
    """Return what a row says. Delays are exact: two runs of one plan wait alike."""
    return RetryPolicy(
        attempts=row.retries + 1, base=row.base, max_delay=row.most or row.base, jitter=0.0, deadline=0.0
    )


RETRIES = RetryTable({row.code: policy(row) for row in RULES.values() if row.retries})
"""Of every code that is tried again at all."""
