"""The retry policies of the error table, for the only retry layer."""

from __future__ import annotations

from orchestrator.llm.retry import RetryPolicy, RetryTable
from orchestrator.machines.approval.fault import RULES, FaultRule


def policy(row: FaultRule) -> RetryPolicy:
    """Return the policy of a row. Delays are exact: two runs of one plan wait equally long."""
    return RetryPolicy(
        attempts=row.retries + 1, base=row.base, max_delay=row.most or row.base, jitter=0.0, deadline=0.0
    )


RETRIES = RetryTable({row.code: policy(row) for row in RULES.values() if row.retries})
"""The policies of all codes with retries."""
