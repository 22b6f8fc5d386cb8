"""Every alert, in the order of the rule file."""

from __future__ import annotations

from orchestrator.ops.alert.process import PROCESS_ALERTS
from orchestrator.ops.alert.run import RUN_ALERTS
from orchestrator.ops.alert.work import WORK_ALERTS
from orchestrator.ops.rule import Alert

ALERTS: tuple[Alert, ...] = (*RUN_ALERTS, *WORK_ALERTS, *PROCESS_ALERTS)

GROUPS: dict[str, tuple[Alert, ...]] = {
    "orchestrator-runs": RUN_ALERTS,
    "orchestrator-work": WORK_ALERTS,
    "orchestrator-processes": PROCESS_ALERTS,
}
"""Name of the group in the rule file -> its alerts."""

NAMES = tuple(dict.fromkeys(alert.full_name for alert in ALERTS))
"""Each name once: there are as many runbooks."""
