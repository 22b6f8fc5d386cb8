"""One test of an alert or of a recorded expression: the scraped series, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.ops.alert import ALERTS
from orchestrator.ops.rule import JOURNAL, JOURNALS, Alert, Profile, said_by
from orchestrator.ops.run_flow import QA_CYCLES, REWORKS, TASKS_FAILED, TASKS_QUALIFIED

JOB = "orchestrator"
INSTANCE = "a:9464"
AGENT = {"agent": "support"}
LOOP = {"machine": "llm_loop"} | AGENT
"""The labels of the runs of one agent."""
_LABEL = re.compile(r"\{\{ \$labels\.([a-z_]+) \}\}")
_VALUE = re.compile(r"\{\{ \$value \|[^}]*\}\}")


def series(name: str, values: str, **labels: str) -> tuple[str, str]:
    """Return a series and its values, in promtool's notation: `0+6x60` is 0, then 60 increments of 6, one per step."""
    whole = {"job": JOB, "instance": INSTANCE} | labels
    chosen = ", ".join(f'{label}="{value}"' for label, value in whole.items())
    selector = f"{name}{{{chosen}}}"
    return selector, values


def buckets(name: str, counts: Mapping[str, str], **labels: str) -> list[tuple[str, str]]:
    """Return a histogram by its buckets: upper bound -> values."""
    return [
        series(f"orchestrator_{name}_bucket", values, le=bound, **labels) for bound, values in counts.items()
    ]


def spread(
    name: str, below: str, edge: str, above: str, count: str = "0+100x60", **labels: str
) -> list[tuple[str, str]]:
    """Return a histogram of `count` observations, `below` of them up to `edge`, all of them up to `above`."""
    return buckets(name, {edge: below, above: count, "+Inf": count}, **labels)


@dataclass(frozen=True, slots=True)
class Firing:
    """One firing alert: its labels without those of the rule, and its value in the description."""

    labels: Mapping[str, str]
    value: str = ""
    rule: int = 0
    """Index among the rules of that name."""
    journal: str = "unknown "
    """Engine and path of the journal in the description."""


def firing(value: str = "", /, **labels: str) -> Firing:
    """Return an alert of our job with additional labels."""
    return Firing({"job": JOB} | labels, value)


def firing_there(value: str = "", /, **labels: str) -> Firing:
    """Return an alert whose expression distinguishes instances."""
    return firing(value, instance=INSTANCE, **labels)


ID = "1f2e3d4c"
"""Identity of a journal."""
_FILE = {"backend": "sqlite", "path": "/data/runs.db"}
JOURNAL_TEXT = "sqlite /data/runs.db "
"""The text of an alert about it."""


def journal_info(values: str = "1x200", *, instance: str = INSTANCE) -> tuple[str, str]:
    """Return the series that names the engine and the path of a journal."""
    return series("orchestrator_journal_info", values, instance=instance, journal=ID, **_FILE)


def firing_of_journal(value: str, /, **labels: str) -> Firing:
    """Return an alert about a journal, which no process and no job owns."""
    return Firing({"journal": ID} | labels, value, journal=JOURNAL_TEXT)


NOWHERE = Firing({})
"""An alert without any label of a series."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test. `title` gives the reason why it must fire, or must not."""

    alert: str
    """Name without the prefix."""
    title: str
    series: Sequence[tuple[str, str]]
    at: str
    fires: Sequence[Firing] = ()
    step: str = "1m"
    """Between samples and between evaluations. Days in steps of minutes would take minutes to test."""


def rules_of(name: str) -> list[Alert]:
    """Return the rules of that name, in order."""
    return [alert for alert in ALERTS if alert.name == name]


def group_data(case: Case, profile: Profile) -> dict[str, Any]:
    """Return one entry of promtool's `tests`."""
    return {
        "name": f"{case.alert}: {case.title}",
        "interval": case.step,
        "input_series": [{"series": name, "values": values} for name, values in case.series],
        "alert_rule_test": [
            {
                "eval_time": case.at,
                "alertname": rules_of(case.alert)[0].full_name,
                "exp_alerts": [_expected(case.alert, fired, profile) for fired in case.fires],
            }
        ],
    }


def unit_tests(cases: Iterable[Case], groups: Mapping[str, str], profile: Profile) -> dict[str, Any]:
    """Return a file of promtool's unit tests, all of one step. `groups` are those of the rule files: name -> file.

    promtool evaluates groups in any order without an instruction: alerts must follow the records that they read.
    """
    chosen = list(cases)
    (step,) = {case.step for case in chosen}
    return {
        "rule_files": list(dict.fromkeys(groups.values())),
        "evaluation_interval": step,
        "group_eval_order": list(groups),
        "tests": [group_data(case, profile) for case in chosen],
    }


def _expected(name: str, fired: Firing, profile: Profile) -> dict[str, Any]:
    rule = rules_of(name)[fired.rule]
    of_rule = {
        "severity": rule.severity.value,
        "component": "orchestrator",
        **profile.labels,
        **rule.labels,
    }
    said = {key: _rendered(text, fired) for key, text in said_by(rule, profile).items()}
    return {"exp_labels": {**of_rule, **fired.labels}, "exp_annotations": said}


def _rendered(text: str, fired: Firing) -> str:
    """Return an annotation as Prometheus renders it. Raises KeyError for a label that the alert does not have."""
    for query in (JOURNAL, JOURNALS):
        text = text.replace(query, fired.journal)
    return _VALUE.sub(fired.value, _LABEL.sub(lambda found: fired.labels[found[1]], text))


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
