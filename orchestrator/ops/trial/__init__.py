"""promtool's unit tests of the alerts: for each at least one case in which it fires and one in which it must not."""

from __future__ import annotations

from orchestrator.ops.trial.case import Case
from orchestrator.ops.trial.process import PROCESS_CASES
from orchestrator.ops.trial.run import RUN_CASES
from orchestrator.ops.trial.work import WORK_CASES

CASES: tuple[Case, ...] = (*RUN_CASES, *WORK_CASES, *PROCESS_CASES)
