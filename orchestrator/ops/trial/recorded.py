"""Cases of recorded expressions: the scraped series, and the recorded value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.ops.ralph import QA_CYCLES, REWORKS, TASKS_FAILED, TASKS_QUALIFIED
from orchestrator.ops.trial.case import JOB, series


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """One test of one recorded expression; `value` None: there is no such series."""

    rule: str
    title: str
    series: Sequence[tuple[str, str]]
    value: float | None
    at: str = "90m"


def _taken(event: str, values: str, source: str = "Reviewing", dest: str = "Executing") -> tuple[str, str]:
    named = {"machine": "ralph", "agent": "planner", "from_state": source, "event": event, "to_state": dest}
    return series("orchestrator_transitions_total", values, **named)


def _ended(values: str) -> tuple[str, str]:
    named = {"machine": "ralph", "agent": "planner", "outcome": "completed", "reason": "none"}
    return series("orchestrator_runs_completed_total", values, **named)


_EIGHT_OF_TEN = [
    _taken("qualified", "0+8x120"),
    _taken("attempts_exhausted", "0+1x120", dest="Failed"),
    _taken("attempts_exhausted", "0+1x120", "Executing", "Failed"),
    _taken("rework", "0+4x120"),
    _taken("executor_failed", "0+1x120", "Executing"),
    _taken("executor_completed", "0+14x120", "Executing", "Reviewing"),
]
_OTHER = [
    series(
        "orchestrator_transitions_total", "0+9x120", machine="llm_loop", agent="planner", event="qualified"
    )
]

RECORDED_CASES = (
    RecordedCase(TASKS_QUALIFIED, "eight of ten tasks qualify", _EIGHT_OF_TEN, 0.8),
    RecordedCase(TASKS_FAILED, "two of ten fail too often, in either state", _EIGHT_OF_TEN, 0.2),
    RecordedCase(REWORKS, "rework after a review and without one, per task", _EIGHT_OF_TEN, 0.5),
    RecordedCase(
        QA_CYCLES,
        "three rounds of questions in two runs",
        [_taken("qa_needed", "0+3x120", "Planning", "Planning"), _ended("0+2x120")],
        1.5,
    ),
    *(
        RecordedCase(rule, "another graph's events count for nothing", _OTHER, None)
        for rule in (TASKS_QUALIFIED, TASKS_FAILED, REWORKS, QA_CYCLES)
    ),
)


def recorded_tests(cases: Iterable[RecordedCase], rule_files: Mapping[str, str]) -> dict[str, Any]:
    """Return a file of promtool's unit tests. `rule_files` are the groups: name -> file."""
    return {
        "rule_files": list(dict.fromkeys(rule_files.values())),
        "evaluation_interval": "1m",
        "group_eval_order": list(rule_files),
        "tests": [_test(case) for case in cases],
    }


def _test(case: RecordedCase) -> dict[str, Any]:
    labels = f'{{agent="planner", job="{JOB}", machine="ralph"}}'
    samples = [] if case.value is None else [{"labels": f"{case.rule}{labels}", "value": case.value}]
    return {
        "name": f"{case.rule}: {case.title}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series],
        "promql_expr_test": [{"expr": case.rule, "eval_time": case.at, "exp_samples": samples}],
    }
