"""promtool's unit tests of the alerts: for each at least one case in which it fires and one in which it must not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_plus

from orchestrator.ops.alert import ALERTS
from orchestrator.ops.rule import JOURNAL, JOURNALS, RUNS_OF_AGENT, Alert, Profile, said_by
from orchestrator.ops.run_flow import QA_CYCLES, REWORKS, TASKS_FAILED, TASKS_QUALIFIED

JOB = "orchestrator"
INSTANCE = "a:9464"
AGENT = {"agent": "support"}
LOOP = {"machine": "llm_loop"} | AGENT
"""The labels of the runs of one agent."""
_LABEL = re.compile(r"\{\{ \$labels\.([a-z_]+) \}\}")
_VALUE = re.compile(r"\{\{ \$value \|[^}]*\}\}")


def series(name: str, values: str, /, **labels: str) -> tuple[str, str]:
    """Return a series and its values, in promtool's notation: `0+6x60` is 0, then 60 increments of 6, one per step."""
    whole = {"job": JOB, "instance": INSTANCE} | labels
    chosen = ", ".join(f'{label}="{value}"' for label, value in whole.items())
    selector = f"{name}{{{chosen}}}"
    return selector, values


def restarted(step: int) -> str:
    """Return a counter of two processes, one after the other, that is scraped every other minute."""
    life = " _ ".join(str(step * count) for count in range(1, 16))
    return f"{life} _ {life}"


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
    agent = fired.labels.get("agent", "_")
    text = text.replace(RUNS_OF_AGENT, "" if agent.startswith("_") else f"?agent={quote_plus(agent)}")
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


# ---- the cases ----


def ended(outcome: str, values: str, reason: str = "none") -> tuple[str, str]:
    """Return runs of one outcome."""
    return series("orchestrator_runs_completed_total", values, **LOOP, outcome=outcome, reason=reason)


def refused(values: str, reason: str = "journal_error") -> tuple[str, str]:
    """Return runs that were refused before they existed."""
    return series("orchestrator_runs_rejected_total", values, **LOOP, reason=reason)


def slow(values: str) -> tuple[str, str]:
    """Return answers that took longer than the objective of their agent."""
    return series("orchestrator_runs_slow_total", values, **LOOP)


def _burning(value: str, rule: int) -> Firing:
    """Return the alert of one pair of windows."""
    return Firing(firing(**LOOP).labels, value, rule)


_BURN = "RunErrorBudgetBurn"
_SLOW = "RunLatencyBudgetBurn"
BURN_CASES = (
    Case(
        _BURN,
        "one run in five fails: both pages, and soon the tickets",
        [ended("completed", "0+8x80"), ended("failed", "0+2x80", "llm_error")],
        "20m",
        [_burning("20%", 0), _burning("20%", 1)],
    ),
    Case(
        _BURN,
        "a burst that is over leaves the slow page and no fast one",
        [ended("completed", "0+8x90"), ended("failed", "0+2x40 80+0x50", "llm_error")],
        "60m",
        [_burning("14.29%", 1)],
    ),
    Case(
        _BURN,
        "what people stopped does not count, neither for nor against",
        [
            ended("completed", "0+99x80"),
            ended("failed", "0+1x80", "llm_error"),
            ended("cancelled", "0+500x80", "caller"),
            ended("rejected", "0+500x80", "operator"),
        ],
        "60m",
    ),
    Case(
        _BURN,
        "one failed run among three is no page",
        [ended("completed", "0+0x60 0 1 2 2+0x60"), ended("failed", "0+0x60 0 0 1 1+0x60", "internal")],
        "66m",
    ),
    Case(
        _BURN,
        "half an hour of every tenth failing is no fast page",
        [ended("completed", "0+9x90"), ended("failed", "0+1x90", "llm_error")],
        "12m",
    ),
    Case(
        _BURN,
        "a slow burn of four in a hundred makes the ticket of a day",
        [ended("completed", "0+96x107"), ended("failed", "0+4x107", "tool_error")],
        "26h",
        [_burning("4%", 2), _burning("4%", 3)],
        "15m",
    ),
    Case(
        _BURN,
        "twice the objective makes the ticket of three days only",
        [ended("completed", "0+98x107"), ended("failed", "0+2x107", "tool_error")],
        "26h",
        [_burning("2%", 3)],
        "15m",
    ),
    Case(
        _BURN,
        "within the objective",
        [ended("completed", "0+995x107"), ended("failed", "0+5x107", "tool_error")],
        "26h",
        step="15m",
    ),
    Case(
        _BURN,
        "three runs a day are too few for a ticket",
        [ended("completed", "0x60 1x47"), ended("failed", "0x60 1x27 2x20", "internal")],
        "26h",
        step="15m",
    ),
)

HIDDEN_CASES = (
    Case(
        _BURN,
        "runs that make no progress",
        [
            ended("completed", "0+8x80"),
            ended("failed", "0x80"),
            ended("no_progress", "0+2x80", "stalled"),
        ],
        "20m",
        [_burning("20%", 0), _burning("20%", 1)],
    ),
    Case(
        _BURN,
        "submissions that a full disk refuses, and no run",
        [ended("completed", "0x80"), ended("failed", "0x80"), refused("0+2x80")],
        "20m",
        [_burning("100%", 0), _burning("100%", 1)],
    ),
    Case(
        _BURN,
        "limits cut off more than the usual tenth of the runs",
        [
            ended("completed", "0+6x80"),
            ended("failed", "0x80"),
            ended("budget_exceeded", "0+4x80", "max_iterations"),
        ],
        "20m",
        [_burning("30%", 0), _burning("30%", 1)],
    ),
    Case(
        _BURN,
        "limits cut off a tenth, as they always do",
        [
            ended("completed", "0+90x80"),
            ended("failed", "0x80"),
            ended("budget_exceeded", "0+10x80", "max_iterations"),
        ],
        "60m",
    ),
    Case(
        _BURN,
        "one run a minute, and all fail",
        [ended("completed", "0x80"), ended("failed", "0+1x80", "llm_error")],
        "30m",
        [_burning("100%", 0), _burning("100%", 1)],
    ),
    Case(
        _BURN,
        "one agent fails all of its runs at 0.9 % of the traffic",
        [
            series(
                "orchestrator_runs_completed_total",
                "0+991x80",
                **LOOP | {"agent": "big"},
                outcome="completed",
            ),
            series("orchestrator_runs_completed_total", "0x80", **LOOP | {"agent": "big"}, outcome="failed"),
            ended("completed", "0x80"),
            ended("failed", "0+9x80", "llm_error"),
        ],
        "20m",
        [_burning("100%", 0), _burning("100%", 1)],
    ),
    Case(
        _BURN,
        "a journal that is served alone has no refusals",
        [ended("completed", "0+8x80"), ended("failed", "0+2x80", "llm_error")],
        "30m",
        [_burning("20%", 0), _burning("20%", 1)],
    ),
)

LATENCY_CASES = (
    Case(
        _SLOW,
        "nine of ten answers are late",
        [ended("completed", "0+10x80"), slow("0+9x80")],
        "20m",
        [_burning("90%", 0), _burning("90%", 1)],
    ),
    Case(
        _SLOW,
        "a third is late: no page within an hour, the slow page",
        [ended("completed", "0+9x100"), slow("0+3x100")],
        "40m",
        [_burning("33.33%", 1)],
    ),
    Case(
        _SLOW,
        "one in five makes the tickets",
        [ended("completed", "0+100x107"), slow("0+20x107")],
        "26h",
        [_burning("20%", 2), _burning("20%", 3)],
        "15m",
    ),
    Case(
        _SLOW,
        "one in ten makes the ticket of three days only",
        [ended("completed", "0+100x107"), slow("0+10x107")],
        "26h",
        [_burning("10%", 3)],
        "15m",
    ),
    Case(
        _SLOW,
        "one in fifty is within the objective",
        [ended("completed", "0+100x107"), slow("0+2x107")],
        "26h",
        step="15m",
    ),
    Case(
        _SLOW,
        "a burst that is over leaves the slow page and no fast one",
        [ended("completed", "0+10x90"), slow("0+9x40 360+0x50")],
        "50m",
        [_burning("72%", 1)],
    ),
    Case(_SLOW, "three answers say nothing", [ended("completed", "0x5 3x60"), slow("0x5 3x60")], "10m"),
    Case(
        _SLOW,
        "three answers a day say nothing",
        [ended("completed", "0x60 1x27 2x20"), slow("0x60 1x27 2x20")],
        "26h",
        step="15m",
    ),
    Case(_SLOW, "an agent without an objective", [ended("completed", "0+10x80")], "30m"),
)

OBJECTIVE_CASES = (*BURN_CASES, *HIDDEN_CASES, *LATENCY_CASES)


CLOCK = series("orchestrator_process_time_seconds", "0+60x200")
"""The clock of a process, in steps of a minute."""


_STATE = LOOP | {"state": "await_llm"}
_ENTERED = "orchestrator_oldest_run_state_entered_timestamp_seconds"
_LIMIT = "orchestrator_state_timeout_seconds"
_BESIDE = "b:9464"
"""Another process with the same journal."""


def in_journal(
    values: str, status: str = "orphaned", reason: str = "none", instance: str = INSTANCE
) -> tuple[str, str]:
    """Return runs of a journal that have not ended."""
    where = {**LOOP, "status": status, "reason": reason, "instance": instance}
    return series("orchestrator_journal_runs", values, journal=ID, **where)


def parked(reason: str, machine: str = "llm_loop", values: str = "0x130") -> tuple[str, str]:
    """Return the time of the oldest parked run of a journal."""
    where = {**AGENT, "machine": machine, "status": "parked", "reason": reason}
    return series("orchestrator_journal_oldest_update_timestamp_seconds", values, journal=ID, **where)


def rolled_back(values: str, outcome: str = "failed") -> tuple[str, str]:
    """Return rollbacks of effects."""
    return series("orchestrator_rollbacks_total", values, **LOOP, outcome=outcome)


def _share(near: str, count: str) -> list[tuple[str, str]]:
    where = LOOP | {"budget": "input_tokens"}
    return [
        *buckets("budget_consumed_ratio", {"0.9": near, "+Inf": count}, **where),
        series("orchestrator_budget_consumed_ratio_count", count, **where),
    ]


_TOKENS = LOOP | {"provider": "openai", "model": "m", "direction": "input"}

_NIGHT, _DAY = 96, 96  # steps of five minutes: eight hours each, and eight more of the night
_OFFICE = (
    f"0x{_NIGHT} 0+300000x{_DAY} {300000 * _DAY}x{2 * _NIGHT}"
    f" {300000 * _DAY}+300000x{_DAY} {600000 * _DAY}x{2 * _NIGHT} {600000 * _DAY}+300000x{_DAY}"
)
"""Tokens of an agent that works in office hours."""

_OPENAI = {"provider": "openai", "model": "m"}
_USD = {"currency": "USD"}


def _spent(values: str, **labels: str) -> tuple[str, str]:
    """Return the cost of requests in millionths."""
    return series("orchestrator_llm_cost_micros_total", values, **LOOP | _OPENAI | labels)


def _currency(name: str = "USD", values: str = "1x200", **labels: str) -> tuple[str, str]:
    return series("orchestrator_llm_currency_info", values, **LOOP | labels, currency=name)


def _ceiling(values: str = "5x200", **labels: str) -> tuple[str, str]:
    return series("orchestrator_cost_ceiling_per_hour", values, **AGENT | labels)


def _release(instance: str, version: str, at: str, runs: str, tokens: str) -> list[tuple[str, str]]:
    """Return a process with one version of the agent, from its start on: the values of an hour in steps of 15 min."""
    where = {"instance": instance}
    return [
        series("orchestrator_agent_info", f"{at}1x300", **AGENT, **where, version=version, definition="d1"),
        series(
            "orchestrator_runs_completed_total",
            f"{at}{runs}",
            **LOOP,
            **where,
            outcome="completed",
            reason="none",
        ),
        series(
            "orchestrator_llm_tokens_total", f"{at}{tokens}", **LOOP, **where, **_OPENAI, direction="input"
        ),
    ]


_LAST = "orchestrator_agent_last_success_timestamp_seconds"
_ATTEMPTS = "orchestrator_agent_attempts_since_success"

SUCCESS_CASES = (
    Case(
        "AgentNotSucceeding",
        "an agent of the night has failed three times",
        [
            series(_ATTEMPTS, "0x96 1x96 2x96 3x20", agent="nightly"),
            series("orchestrator_agent_attempts_limit", "3x400", agent="nightly"),
        ],
        "73h",
        [firing(agent="nightly")],
        "15m",
    ),
    Case(
        "AgentNotSucceeding",
        "twice is not three times, and another agent has no limit",
        [
            series(_ATTEMPTS, "0x96 1x96 2x96", agent="nightly"),
            series(_ATTEMPTS, "9x300", agent="other"),
            series("orchestrator_agent_attempts_limit", "3x400", agent="nightly"),
        ],
        "70h",
        step="15m",
    ),
    Case(
        "AgentNotSucceeding",
        "an agent of the night has not run for two days, by two processes that read the journal",
        [
            series("orchestrator_process_time_seconds", "0+900x300"),
            series("orchestrator_process_time_seconds", "0+900x300", instance=_BESIDE),
            series(_LAST, "3600x300", agent="nightly"),
            series(_LAST, "3600x300", agent="nightly", instance=_BESIDE),
            series("orchestrator_agent_success_within_seconds", "93600x300", agent="nightly"),
        ],
        "48h",
        [firing(agent="nightly")],
        "15m",
    ),
    Case(
        "AgentNotSucceeding",
        "it succeeded last night, and a restart and missing scrapes change nothing",
        [
            series("orchestrator_process_time_seconds", "0+900x300"),
            series(_LAST, "3600x96 90000x20 _x4 90000x80", agent="nightly"),
            series("orchestrator_agent_success_within_seconds", "93600x300", agent="nightly"),
        ],
        "48h",
        step="15m",
    ),
    Case(
        "AgentNotSucceeding",
        "without a time nothing is late",
        [series("orchestrator_process_time_seconds", "0+900x300"), series(_LAST, "0x300", agent="nightly")],
        "70h",
        step="15m",
    ),
    Case(
        "RunsWaitingForAgent",
        "the agent of two answered runs was renamed",
        [series("orchestrator_journal_runs_waiting_for_agent", "2x60", **LOOP)],
        "30m",
        [firing("2", **LOOP)],
    ),
    Case(
        "RunsWaitingForAgent",
        "a deployment without the agent for ten minutes",
        [series("orchestrator_journal_runs_waiting_for_agent", "0x5 2x10 0x30", **LOOP)],
        "21m",
    ),
    Case(
        "RunsWaitingForAgent",
        "questions without an answer wait for a person",
        [in_journal("3x60", "parked", "approval")],
        "30m",
    ),
)

COST_CASES = (
    Case(
        "CostCeilingExceeded",
        "two processes together spend seven dollars an hour, and five are allowed",
        [
            _spent("0+60000x100"),
            _spent("0+60000x100", instance=_BESIDE),
            _currency(),
            _currency(instance=_BESIDE),
            _ceiling(),
            _ceiling(instance=_BESIDE),
        ],
        "40m",
        [firing("7.2", **AGENT, **_USD)],
    ),
    Case(
        "CostCeilingExceeded",
        "seven dollars an hour, of a process that restarts and is scraped every other minute",
        [
            _spent(restarted(240000)),
            _currency(values=" _ ".join("1" * 31)),
            _ceiling(" _ ".join("5" * 31)),
        ],
        "50m",
        [firing("7.2", **AGENT, **_USD)],
    ),
    Case(
        "CostCeilingExceeded",
        "four dollars and four euros an hour are not eight of anything",
        [
            _spent("0+66000x100"),
            _spent("0+66000x100", instance=_BESIDE),
            _currency(),
            _currency("EUR", instance=_BESIDE),
            _ceiling(),
        ],
        "40m",
    ),
    Case(
        "CostCeilingExceeded",
        "another agent has the ceiling",
        [_spent("0+600000x100"), _currency(), _ceiling(agent="other")],
        "40m",
    ),
    Case("CostCeilingExceeded", "without a ceiling", [_spent("0+600000x100"), _currency()], "40m"),
    Case(
        "CostCeilingExceeded",
        "a worker whose currency is gone, beside one that has it",
        [_spent("0+60000x100"), _currency(values="0x200"), _currency("EUR"), _ceiling()],
        "40m",
    ),
    Case(
        "LLMRequestsUnpriced",
        "a model that the price table lacks",
        [series("orchestrator_llm_requests_unpriced_total", "0x5 3x60", **AGENT, **_OPENAI)],
        "20m",
        [firing("3", **AGENT, **_OPENAI)],
    ),
    Case(
        "LLMRequestsUnpriced",
        "every answer had a price within the hour",
        [series("orchestrator_llm_requests_unpriced_total", "7x100", **AGENT, **_OPENAI)],
        "80m",
    ),
    Case(
        "TokenRateHigh",
        "a new agent without any earlier day uses ten thousand tokens a second",
        [series("orchestrator_llm_tokens_total", "0+600000x60", **_TOKENS)],
        "30m",
        [firing("10k", **LOOP)],
    ),
    Case(
        "TokenRateHigh",
        "a thousand tokens a second, of processes that restart",
        [series("orchestrator_llm_tokens_total", restarted(120000), **_TOKENS)],
        "40m",
    ),
    Case(
        "ReleaseUsesMoreTokens",
        "a new version uses twice as many, on another instance",
        [
            *_release("a:1", "1", "", "0+20x120", "0+20000x120"),
            *_release("b:1", "2", "_x40 ", "0+20x80", "0+40000x80"),
        ],
        "11h30m",
        [firing("2", **LOOP, version="2")],
        "15m",
    ),
    Case(
        "ReleaseUsesMoreTokens",
        "a new version uses twice as many, after a restart of the same instance",
        [
            series("orchestrator_agent_info", "1x39 stale", **AGENT, version="1", definition="d1"),
            series("orchestrator_agent_info", "_x40 1x80", **AGENT, version="2", definition="d2"),
            ended("completed", "0+20x39 0+20x80"),
            series(
                "orchestrator_llm_tokens_total", "0+20000x39 0+40000x80", **LOOP, **_OPENAI, direction="input"
            ),
        ],
        "12h",
        [firing("2", **LOOP, version="2")],
        "15m",
    ),
    Case(
        "ReleaseUsesMoreTokens",
        "a new version uses a tenth more",
        [
            *_release("a:1", "1", "", "0+20x120", "0+20000x120"),
            *_release("b:1", "2", "_x40 ", "0+20x80", "0+22000x80"),
        ],
        "11h30m",
        step="15m",
    ),
    Case(
        "ReleaseUsesMoreTokens",
        "the version before uses more than the new one",
        [
            *_release("a:1", "1", "", "0+20x120", "0+40000x120"),
            *_release("b:1", "2", "_x40 ", "0+20x80", "0+20000x80"),
        ],
        "11h30m",
        step="15m",
    ),
    Case(
        "ReleaseUsesMoreTokens",
        "a process with two versions counts for neither",
        [
            *_release("a:1", "1", "", "0+20x120", "0+20000x120"),
            *_release("b:1", "2", "_x40 ", "0+20x80", "0+40000x80"),
            series(
                "orchestrator_agent_info", "_x40 1x80", **AGENT, instance="b:1", version="1", definition="d1"
            ),
        ],
        "11h30m",
        step="15m",
    ),
    Case(
        "ReleaseUsesMoreTokens",
        "the first version of an agent",
        _release("a:1", "1", "", "0+20x120", "0+90000x120"),
        "2h",
        step="15m",
    ),
)

RUN_CASES = (
    *OBJECTIVE_CASES,
    *COST_CASES,
    *SUCCESS_CASES,
    Case(
        "RunStuck",
        "in a state for longer than one and a half times its limit",
        [CLOCK, series(_ENTERED, "0x30", **_STATE), series(_LIMIT, "120x30", **_STATE)],
        "10m",
        [firing_there("10m 0s", **_STATE)],
    ),
    Case(
        "RunStuck",
        "held by keep_firing_for while one scrape misses it",
        [CLOCK, series(_ENTERED, "0x10 600+60x20", **_STATE), series(_LIMIT, "120x30", **_STATE)],
        "13m",
        [firing_there("10m 0s", **_STATE)],
    ),
    Case(
        "RunStuck",
        "the clock of the host is two hours behind, and its runs are quick",
        [
            series("orchestrator_process_time_seconds", "-7200+60x200"),
            series(_ENTERED, "-7205+60x200", **_STATE),
            series(_LIMIT, "120x200", **_STATE),
        ],
        "3h",
    ),
    Case(
        "RunStuck",
        "the clock of the host is two hours behind, and a run is stuck",
        [
            series("orchestrator_process_time_seconds", "-7200+60x200"),
            series(_ENTERED, "-7200x200", **_STATE),
            series(_LIMIT, "120x200", **_STATE),
        ],
        "20m",
        [firing_there("20m 0s", **_STATE)],
    ),
    Case(
        "RunStuck",
        "another process has another clock",
        [
            CLOCK,
            series("orchestrator_process_time_seconds", "7200+60x200", instance=_BESIDE),
            series(_ENTERED, "-5+60x200", **_STATE),
            series(_LIMIT, "120x200", **_STATE),
        ],
        "20m",
    ),
    Case(
        "RunStuck",
        "a process that does not say its time",
        [series(_ENTERED, "0x30", **_STATE), series(_LIMIT, "120x30", **_STATE)],
        "10m",
    ),
    Case(
        "RunStuck",
        "the engine still has time to end it itself",
        [CLOCK, series(_ENTERED, "0x30", **_STATE), series(_LIMIT, "600x30", **_STATE)],
        "14m",
    ),
    Case(
        "RunAgingWithoutTimeout",
        "two hours in a state that declares no limit",
        [CLOCK, series(_ENTERED, "0x130", **_STATE)],
        "2h",
        [firing_there("2h 0m 0s", **_STATE)],
    ),
    Case(
        "RunAgingWithoutTimeout",
        "states with a limit have an alert of their own",
        [CLOCK, series(_ENTERED, "0x130", **_STATE), series(_LIMIT, "120x130", **_STATE)],
        "2h",
    ),
    Case("RunAgingWithoutTimeout", "half an hour old", [CLOCK, series(_ENTERED, "0x130", **_STATE)], "30m"),
    Case(
        "RunOverdue",
        "the deadline has passed by a fifth",
        [
            CLOCK,
            series("orchestrator_oldest_run_started_timestamp_seconds", "0x60", **LOOP),
            series("orchestrator_run_timeout_seconds", "600x60", **LOOP),
        ],
        "20m",
        [firing_there("20m 0s", **LOOP)],
    ),
    Case(
        "RunOverdue",
        "late, but not by a fifth",
        [
            CLOCK,
            series("orchestrator_oldest_run_started_timestamp_seconds", "0x60", **LOOP),
            series("orchestrator_run_timeout_seconds", "1200x60", **LOOP),
        ],
        "22m",
    ),
    Case(
        "EngineStalled",
        "active runs and no transition for longer than any state may last",
        [
            CLOCK,
            series("orchestrator_last_transition_timestamp_seconds", "0x60", **LOOP),
            series(_LIMIT, "300x60", **_STATE),
            series(_LIMIT, "60x60", **LOOP, state="init"),
            series("orchestrator_runs_active", "2x60", **_STATE),
        ],
        "20m",
        [firing_there("20m 0s", **LOOP)],
    ),
    Case(
        "EngineStalled",
        "nothing to do is no stall",
        [
            CLOCK,
            series("orchestrator_last_transition_timestamp_seconds", "0x60", **LOOP),
            series(_LIMIT, "300x60", **_STATE),
            series("orchestrator_runs_active", "0x60", **_STATE),
        ],
        "20m",
    ),
    Case(
        "EngineStalled",
        "a state may last that long",
        [
            CLOCK,
            series("orchestrator_last_transition_timestamp_seconds", "0x60", **LOOP),
            series(_LIMIT, "900x60", **_STATE),
            series("orchestrator_runs_active", "2x60", **_STATE),
        ],
        "20m",
    ),
    Case(
        "ApprovalWaiting",
        "a question has been open for two hours, in the journal of two processes",
        [
            CLOCK,
            series("orchestrator_process_time_seconds", "0+60x200", instance=_BESIDE),
            parked("approval", values="60x130"),
            series(
                "orchestrator_journal_oldest_update_timestamp_seconds",
                "60x130",
                **{"instance": _BESIDE, **LOOP, "journal": ID, "status": "parked", "reason": "approval"},
            ),
            journal_info(),
            journal_info(instance=_BESIDE),
        ],
        "2h",
        [firing_of_journal("1h 59m 0s", **LOOP, reason="approval")],
    ),
    Case(
        "ApprovalWaiting",
        "questions of a planner have been open for two hours",
        [CLOCK, parked("questions", "ralph"), journal_info()],
        "2h",
        [firing_of_journal("2h 0m 0s", machine="ralph", **AGENT, reason="questions")],
    ),
    Case(
        "ApprovalWaiting",
        "half an hour is no reason to ask",
        [CLOCK, parked("approval")],
        "30m",
    ),
    Case(
        "ApprovalWaiting",
        "a paused run has no question",
        [CLOCK, parked("paused")],
        "2h",
    ),
    Case(
        "ApprovalWaiting",
        "a running run and an orphan have no question",
        [
            CLOCK,
            *(
                series(
                    "orchestrator_journal_oldest_update_timestamp_seconds",
                    "0x130",
                    **LOOP,
                    journal=ID,
                    status=status,
                    reason="none",
                )
                for status in ("running", "orphaned")
            ),
        ],
        "2h",
    ),
    Case(
        "RecoveryLoop",
        "four starts within the hour, with runs taken up",
        [
            series("process_start_time_seconds", "1x5 2x5 3x5 4x20"),
            series("orchestrator_recoveries_total", "3x40", **LOOP, outcome="resumed"),
        ],
        "25m",
        [firing_there("3", **LOOP)],
    ),
    Case(
        "RecoveryLoop",
        "a run without progress",
        [in_journal("1x10", "parked", "poison"), in_journal("1x10", "parked", "poison", _BESIDE)],
        "5m",
        [firing_of_journal("1", **LOOP)],
    ),
    Case(
        "RecoveryLoop",
        "one deployment takes up everything that was under way",
        [
            series("process_start_time_seconds", "1x10 2x30"),
            series("orchestrator_recoveries_total", "0x10 250x30", **LOOP, outcome="resumed"),
            in_journal("0x40", "parked", "poison"),
            in_journal("9x40", "parked", "approval"),
        ],
        "30m",
    ),
    Case(
        "RecoveryLoop",
        "starts without runs to resume have another alert",
        [
            series("process_start_time_seconds", "1x5 2x5 3x5 4x20"),
            series("orchestrator_recoveries_total", "0x40", **LOOP, outcome="resumed"),
        ],
        "25m",
    ),
    Case(
        "RunsOrphaned",
        "two runs without an owner, in the journal of two processes",
        [
            in_journal("2x30"),
            in_journal("2x30", instance=_BESIDE),
            journal_info(),
            journal_info(instance=_BESIDE),
        ],
        "20m",
        [firing_of_journal("2", **LOOP)],
    ),
    Case(
        "RunsOrphaned",
        "a process ends and another one watches its journal",
        [in_journal("2x8 _x22"), in_journal("_x5 2x25", instance=_BESIDE), journal_info(instance=_BESIDE)],
        "20m",
        [firing_of_journal("2", **LOOP)],
    ),
    Case("RunsOrphaned", "a deployment that takes them up", [in_journal("0x5 9x10 0x20")], "25m"),
    Case(
        "RunsOrphaned",
        "held by keep_firing_for while one look misses them",
        [in_journal("2x20 0x2 2x10"), journal_info()],
        "22m",
        [firing_of_journal("2", **LOOP)],
    ),
    Case(
        "RunsOrphaned",
        "runs under way, and those that wait for people",
        [in_journal("7x30", "running"), in_journal("3x30", "parked", "approval"), in_journal("0x30")],
        "20m",
    ),
    Case(
        "RollbackFailed",
        "one failure is enough",
        [rolled_back("0x20 1x30")],
        "25m",
        [firing(**LOOP, outcome="failed")],
    ),
    Case(
        "RollbackFailed",
        "a process that took up its runs before it was scraped",
        [rolled_back("_x5 1x30")],
        "10m",
        [firing(**LOOP, outcome="failed")],
    ),
    Case("RollbackFailed", "long ago", [rolled_back("1x50")], "40m"),
    Case(
        "RollbackFailed",
        "rollbacks that worked",
        [rolled_back("0+1x30", "undone"), rolled_back("0x30")],
        "10m",
    ),
    Case(
        "BudgetExceededHigh",
        "a third of the runs is cut off",
        [ended("completed", "0+4x60"), ended("budget_exceeded", "0+2x60", "max_iterations")],
        "40m",
        [firing("33.33%", **LOOP)],
    ),
    Case(
        "BudgetExceededHigh",
        "one in fifty is policy at work",
        [ended("completed", "0+49x60"), ended("budget_exceeded", "0+1x60", "max_iterations")],
        "40m",
    ),
    Case(
        "BudgetExceededHigh",
        "three runs say nothing",
        [ended("completed", "0x20 1x40"), ended("budget_exceeded", "0x20 2x40", "time")],
        "45m",
    ),
    Case(
        "NoAnswerRatioHigh",
        "the model answers every run with empty text",
        [ended("completed", "0x60"), ended("completed", "0+1x60", "empty_answer")],
        "45m",
        [firing("100%", **LOOP)],
    ),
    Case(
        "NoAnswerRatioHigh",
        "a third of the answers is cut, of processes that restart and are scraped every other minute",
        [ended("completed", restarted(4)), ended("partial", restarted(2), "truncated")],
        "50m",
        [firing("33.33%", **LOOP)],
    ),
    Case(
        "NoAnswerRatioHigh",
        "one agent refuses everything beside a large one",
        [
            *(
                series(
                    "orchestrator_runs_completed_total",
                    values,
                    **LOOP | {"agent": "big"},
                    outcome=outcome,
                    reason=reason,
                )
                for outcome, reason, values in (
                    ("completed", "none", "0+900x60"),
                    ("partial", "refused", "0x60"),
                )
            ),
            ended("completed", "0x60"),
            ended("partial", "0+1x60", "refused"),
        ],
        "45m",
        [firing("100%", **LOOP)],
    ),
    Case(
        "NoAnswerRatioHigh",
        "one empty answer in ten",
        [ended("completed", "0+9x60"), ended("completed", "0+1x60", "empty_answer")],
        "45m",
    ),
    Case(
        "NoAnswerRatioHigh",
        "answers that a limit cut short have an alert of their own",
        [
            ended("completed", "0+5x60"),
            ended("partial", "0+5x60", "tokens"),
            ended("partial", "0x60", "filtered"),
        ],
        "45m",
    ),
    Case(
        "NoAnswerRatioHigh",
        "failed runs have an alert of their own, and three answers say nothing",
        [ended("failed", "0+5x60", "llm_error"), ended("completed", "0x40 3x20", "empty_answer")],
        "50m",
    ),
    Case(
        "BudgetHeadroomLow",
        "half of the runs use more than nine tenths",
        _share("0+2x120", "0+4x120"),
        "100m",
        [firing("50%", **LOOP, budget="input_tokens")],
    ),
    Case(
        "BudgetHeadroomLow",
        "one in ten comes near",
        _share("0+9x120", "0+10x120"),
        "100m",
    ),
    Case(
        "BudgetHeadroomLow",
        "two runs say nothing",
        _share("0x120", "0x20 2x100"),
        "60m",
    ),
    Case(
        "TokenBurnAnomaly",
        "ten times yesterday's tokens",
        [series("orchestrator_llm_tokens_total", "0+30000x60 1800000+300000x24", **_TOKENS)],
        "6h",
        [firing("1k", **LOOP)],
        "5m",
    ),
    Case(
        "TokenBurnAnomaly",
        "as ever",
        [series("orchestrator_llm_tokens_total", "0+300000x84", **_TOKENS)],
        "6h",
        step="5m",
    ),
    Case(
        "TokenBurnAnomaly",
        "ten times next to nothing",
        [series("orchestrator_llm_tokens_total", "0+30x60 1800+300x24", **_TOKENS)],
        "6h",
        step="5m",
    ),
    Case(
        "TokenBurnAnomaly",
        "steady office hours, on the third morning",
        [series("orchestrator_llm_tokens_total", _OFFICE, **_TOKENS)],
        "58h",
        step="5m",
    ),
)


_EDGE = LOOP | {"from_state": "await_llm", "event": "llm_response"}
_MODEL = AGENT | {"provider": "openai", "model": "m"}
_LLM = LOOP | {"operation": "llm"}


def failed(values: str, reason: str) -> tuple[str, str]:
    """Return events that did not commit."""
    return series("orchestrator_transition_failures_total", values, reason=reason, **_EDGE)


def done(values: str) -> tuple[str, str]:
    """Return transitions."""
    return series("orchestrator_transitions_total", values, to_state="evaluate_response", **_EDGE)


def tool(values: str, outcome: str, name: str = "search") -> tuple[str, str]:
    """Return tool calls."""
    return series("orchestrator_tool_calls_total", values, tool=name, outcome=outcome, **AGENT)


def answers(values: str, outcome: str) -> tuple[str, str]:
    """Return requests to a model."""
    return series("orchestrator_llm_requests_total", values, outcome=outcome, **_MODEL)


def took(fast: str, count: str) -> list[tuple[str, str]]:
    """Return requests by their time: up to 40.96 s, and all of them."""
    return [
        *spread("llm_request_duration_seconds", fast, "40.96", "81.92", count, **_MODEL),
        series("orchestrator_llm_request_duration_seconds_count", count, **_MODEL),
    ]


def attempts(all_: str, again: str) -> list[tuple[str, str]]:
    """Return attempts and those among them that were retries."""
    return [
        series("orchestrator_attempts_total", all_, **_LLM),
        series("orchestrator_retries_total", again, reason="rate_limited", **_LLM),
    ]


def given_up(all_: str, lost: str) -> list[tuple[str, str]]:
    """Return attempts and how many calls were given up."""
    return [
        series("orchestrator_attempts_total", all_, **_LLM),
        series("orchestrator_retries_exhausted_total", lost, **_LLM),
    ]


WORK_CASES = (
    Case(
        "TransitionFailureRatioHigh",
        "one event in ten fails",
        [done("0+90x30"), failed("0+10x30", "callback_error")],
        "20m",
        [firing("10%", **LOOP)],
    ),
    Case(
        "TransitionFailureRatioHigh",
        "one in a hundred",
        [done("0+99x30"), failed("0+1x30", "callback_error")],
        "20m",
    ),
    Case(
        "TransitionFailureRatioHigh",
        "what hooks refused and people cancelled is no failure",
        [
            done("0+50x30"),
            failed("0+25x30", "refused"),
            failed("0+25x30", "cancelled"),
            failed("0x30", "callback_error"),
        ],
        "20m",
    ),
    Case(
        "TransitionFailureRatioHigh",
        "too little happens for a share to mean anything",
        [
            done("0 0 0 1 1 1 1 1 1 2 2 2 2 2 2 2"),
            failed("0 0 0 1 1 1 1 1 1 2 2 2 2 2 2 2", "callback_error"),
        ],
        "12m",
    ),
    Case(
        "UndeclaredTransition",
        "the series is born with its first event",
        [failed("_x5 1x40", "undeclared_edge")],
        "8m",
        [firing_there(reason="undeclared_edge", **_EDGE)],
    ),
    Case(
        "UndeclaredTransition",
        "a further event on a series that was there",
        [failed("1x30 2x5", "unknown_event")],
        "33m",
        [firing_there(reason="unknown_event", **_EDGE)],
    ),
    Case("UndeclaredTransition", "long ago", [failed("1x80", "undeclared_edge")], "70m"),
    Case("UndeclaredTransition", "other failures", [failed("0+5x30", "callback_error")], "20m"),
    Case(
        "GuardErrors",
        "a guard raised once",
        [
            series(
                "orchestrator_guard_evaluations_total",
                "0x5 1x30",
                **LOOP,
                guard="may_continue",
                result="error",
            )
        ],
        "8m",
        [firing(**LOOP, guard="may_continue", result="error")],
    ),
    Case(
        "GuardErrors",
        "to say no is what guards are for",
        [
            series(
                "orchestrator_guard_evaluations_total",
                "0+5x30",
                **LOOP,
                guard="may_continue",
                result="deny",
            ),
            series(
                "orchestrator_guard_evaluations_total",
                "0x30",
                **LOOP,
                guard="may_continue",
                result="error",
            ),
        ],
        "8m",
    ),
    Case(
        "RetryStorm",
        "half of the attempts are retries",
        attempts("0+60x30", "0+30x30"),
        "20m",
        [firing("50%", **_LLM)],
    ),
    Case("RetryStorm", "one in ten", attempts("0+60x30", "0+6x30"), "20m"),
    Case("RetryStorm", "two attempts an hour", attempts("0x12 2x30", "0x12 1x30"), "16m"),
    Case("RetryStorm", "it has only begun", attempts("0x10 0+60x30", "0x10 0+30x30"), "13m"),
    Case(
        "RetriesExhausted",
        "one attempt in ten was the last",
        given_up("0+60x30", "0+6x30"),
        "20m",
        [firing("10%", **_LLM)],
    ),
    Case("RetriesExhausted", "one in a hundred", given_up("0+100x30", "0+1x30"), "20m"),
    Case("RetriesExhausted", "two attempts an hour", given_up("0x12 2x30", "0x12 1x30"), "20m"),
    Case(
        "ToolErrorRatioHigh",
        "half of the calls fail",
        [tool("0+30x30", "ok"), tool("0+20x30", "error"), tool("0+10x30", "timeout")],
        "20m",
        [firing("50%", tool="search", **AGENT)],
    ),
    Case(
        "ToolErrorRatioHigh",
        "calls of tools that do not exist have their own alert",
        [tool("0+30x30", "error", "_unregistered"), tool("0+30x30", "ok")],
        "20m",
    ),
    Case("ToolErrorRatioHigh", "one in ten fails", [tool("0+27x30", "ok"), tool("0+3x30", "error")], "20m"),
    Case(
        "ToolErrorRatioHigh",
        "calls that people refused did not fail",
        [tool("0+10x30", "ok"), tool("0+30x30", "denied"), tool("0x30", "error")],
        "20m",
    ),
    Case(
        "ToolErrorRatioHigh",
        "one call a minute, and all fail",
        [tool("0x40", "ok"), tool("0+1x40", "error")],
        "30m",
        [firing("100%", tool="search", **AGENT)],
    ),
    Case(
        "ToolErrorRatioHigh",
        "two calls an hour",
        [tool("0x12 1x30", "ok"), tool("0x12 1x30", "error")],
        "20m",
    ),
    Case(
        "UnregisteredToolCalls",
        "a fifth of the calls is invented",
        [tool("0+48x60", "ok"), tool("0+12x60", "invalid_args", "_unregistered")],
        "45m",
        [firing("20%", **AGENT)],
    ),
    Case(
        "UnregisteredToolCalls",
        "one in a hundred",
        [tool("0+99x60", "ok"), tool("0+1x60", "invalid_args", "_unregistered")],
        "45m",
    ),
    Case(
        "UnregisteredToolCalls",
        "two calls an hour",
        [tool("0x25 1x40", "ok"), tool("0x25 1x40", "invalid_args", "_unregistered")],
        "38m",
    ),
    Case(
        "LLMErrorRatioHigh",
        "every second request fails",
        [answers("0+30x30", "ok"), answers("0+30x30", "server_error")],
        "20m",
        [firing("50%", **_MODEL)],
    ),
    Case("LLMErrorRatioHigh", "one in ten", [answers("0+27x30", "ok"), answers("0+3x30", "timeout")], "20m"),
    Case(
        "LLMErrorRatioHigh",
        "cancelled by us",
        [answers("0+30x30", "ok"), answers("0+60x30", "cancelled"), answers("0x30", "timeout")],
        "20m",
    ),
    Case(
        "LLMErrorRatioHigh",
        "one request a minute, and all fail",
        [answers("0x40", "ok"), answers("0+1x40", "auth")],
        "30m",
        [firing("100%", **_MODEL)],
    ),
    Case(
        "LLMErrorRatioHigh",
        "two requests an hour",
        [answers("0x12 1x30", "ok"), answers("0x12 1x30", "auth")],
        "16m",
    ),
    Case(
        "LLMLatencyHigh",
        "one in ten takes longer than 41 seconds",
        took("0+54x60", "0+60x60"),
        "40m",
        [firing("10%", le="40.96", **_MODEL)],
    ),
    Case("LLMLatencyHigh", "two requests an hour", took("0x60", "0x12 2x40"), "22m"),
    Case("LLMLatencyHigh", "nearly all are quick", took("0+59x60", "0+60x60"), "40m"),
)


_SQLITE = {"backend": "sqlite"}
_APPEND = {"backend": "sqlite", "operation": "append"}


def load(active: str, queued: str) -> list[tuple[str, str]]:
    """Return the runs of two machines on the four slots of one engine, and the queued ones."""
    return [
        series("orchestrator_runs_active", active, state="await_llm", **LOOP),
        series("orchestrator_runs_active", "1x60", state="process_tools", machine="pipeline", **AGENT),
        series("orchestrator_runs_queued", queued, **LOOP),
        series("orchestrator_run_slots", "4x60", machine="llm_loop"),
        series("orchestrator_run_slots", "4x60", machine="pipeline"),
    ]


def journal(values: str, reason: str = "io") -> tuple[str, str]:
    """Return failed writes."""
    return series("orchestrator_journal_write_failures_total", values, reason=reason, **_SQLITE)


def _target(identity: str, values: str, **labels: str) -> tuple[str, str]:
    return series("orchestrator_target_info", values, identity=identity, **labels)


def series_of(name: str, values: str, /, **labels: str) -> tuple[str, str]:
    """Return a counter of telemetry about itself."""
    return series(f"orchestrator_{name}", values, **labels)


def appends(less: str, edge: str, count: str = "0+100x60", **labels: str) -> list[tuple[str, str]]:
    """Return `count` appends, `less` of them within `edge` seconds, all of them within half a second."""
    name = "journal_write_duration_seconds"
    return [
        *spread(name, less, edge, "0.5", count, **_APPEND, **labels),
        series(f"orchestrator_{name}_count", count, **_APPEND, **labels),
    ]


PROCESS_CASES = (
    Case(
        "QueueSaturated",
        "four of four slots taken, three runs wait",
        load("3x60", "3x60"),
        "30m",
        [firing_there("4")],
    ),
    Case("QueueSaturated", "full, and no run waits", load("3x60", "0x60"), "30m"),
    Case("QueueSaturated", "two of four slots", load("1x60", "1x60"), "30m"),
    Case("QueueSaturated", "ten minutes", load("1x20 3x40", "3x60"), "30m"),
    Case(
        "QueueWaitHigh",
        "one in ten waits for more than a minute",
        spread("run_queue_wait_seconds", "0+90x60", "60.0", "300.0", **LOOP),
        "40m",
        [firing("2m 59s", **LOOP)],
    ),
    Case(
        "QueueWaitHigh",
        "nearly all start at once",
        spread("run_queue_wait_seconds", "0+99x60", "1.0", "300.0", **LOOP),
        "40m",
    ),
    Case(
        "JournalWritesFailing",
        "one write failed",
        [
            journal("0x5 1x20"),
            journal_info(),
            series("orchestrator_journal_info", "1x20", journal="5a6b7c8d", backend="postgres", path="db"),
        ],
        "8m",
        [replace(firing_there(**_SQLITE), journal=JOURNAL_TEXT)],
    ),
    Case("JournalWritesFailing", "none did", [journal("0x30"), journal("7x30", "locked")], "8m"),
    Case(
        "JournalSlow",
        "two in a hundred take longer than a tenth of a second",
        appends("0+98x60", "0.1"),
        "40m",
        [firing_there("300ms", **_SQLITE, operation="append")],
    ),
    Case(
        "JournalSlow",
        "one bad disk among many processes",
        [
            *appends("0+100x60", "0.1"),
            *appends("0+10000x60", "0.1", "0+10000x60", instance="c:9464"),
            *appends("0+98x60", "0.1", instance=_BESIDE),
            journal_info(instance=_BESIDE),
        ],
        "40m",
        [
            Firing(
                {"job": JOB, "instance": _BESIDE, **_SQLITE, "operation": "append"},
                "300ms",
                journal=JOURNAL_TEXT,
            )
        ],
    ),
    Case(
        "JournalSlow",
        "the counters of a restarted process start at 0, and it is scraped every other minute",
        appends(restarted(196), "0.1", restarted(200)),
        "40m",
        [firing_there("300ms", **_SQLITE, operation="append")],
    ),
    Case(
        "JournalSlow",
        "all are quick",
        appends("0+100x60", "0.005"),
        "40m",
    ),
    Case(
        "JournalSlow",
        "one slow write every five minutes",
        appends("0x60", "0.1", "0x4 1x4 2x4 3x4 4x4 5x4 6x4 7x4 8x4 9x4"),
        "40m",
    ),
    Case(
        "JournalGrowing",
        "two gigabytes, another one every hour",
        [series("orchestrator_journal_bytes", "2e9+1e8x96", **_SQLITE)],
        "7h",
        [firing_there("9.686Gi", **_SQLITE)],
        "5m",
    ),
    Case(
        "JournalGrowing",
        "large and steady",
        [series("orchestrator_journal_bytes", "2e9+5e4x96", **_SQLITE)],
        "7h",
        step="5m",
    ),
    Case(
        "JournalGrowing",
        "it grows, and is still small",
        [series("orchestrator_journal_bytes", "1e6+5e5x96", **_SQLITE)],
        "7h",
        step="5m",
    ),
    Case(
        "EventLoopLagHigh",
        "five in a hundred wake-ups come more than half a second late",
        spread("event_loop_lag_seconds", "0+95x60", "0.5", "1.0"),
        "20m",
        [firing_there()],
    ),
    Case(
        "EventLoopBlocked",
        "it has not moved for minutes",
        [series_of("event_loop_age_seconds", "0.1x5 60+60x20")],
        "8m",
        [firing_there("3m 0s")],
    ),
    Case("EventLoopBlocked", "it moves", [series_of("event_loop_age_seconds", "0.1x30")], "8m"),
    Case(
        "EventLoopBlocked",
        "one stall of five seconds",
        [series_of("event_loop_age_seconds", "0.1x5 5.1 0.1x20")],
        "7m",
    ),
    Case(
        "EventLoopBlocked",
        "held by keep_firing_for while one scrape misses it",
        [series_of("event_loop_age_seconds", "0.1x5 60+60x5 0.1x20")],
        "12m",
        [firing_there("6m 0s")],
    ),
    Case(
        "EventLoopLagHigh",
        "three blocks within half an hour among thousands of quick wake-ups",
        [
            *spread("event_loop_lag_seconds", "0+600x5 3000+600x44", "0.025", "+Inf", "0+600x5 3001+600x44"),
            series_of("event_loop_blocked_total", "0x5 1x5 2x5 3x34"),
        ],
        "26m",
        [firing_there()],
    ),
    Case(
        "EventLoopLagHigh",
        "one stall of five seconds",
        [
            *spread("event_loop_lag_seconds", "0+600x5 3000+600x24", "0.025", "+Inf", "0+600x5 3001+600x24"),
            series_of("event_loop_blocked_total", "0x5 1x24"),
        ],
        "12m",
    ),
    Case(
        "EventLoopLagHigh",
        "a block of an hour ago",
        [
            *spread("event_loop_lag_seconds", "0+600x60", "0.025", "1.0", "0+600x60"),
            series_of("event_loop_blocked_total", "3x60"),
        ],
        "20m",
    ),
    Case(
        "EventLoopLagHigh",
        "all come in time",
        spread("event_loop_lag_seconds", "0+100x60", "0.025", "1.0"),
        "20m",
    ),
    Case(
        "TransitionOverheadHigh",
        "five in a hundred take more than 2.5 ms",
        spread("transition_overhead_seconds", "0+95x60", "0.0025", "0.01", **LOOP),
        "40m",
        [firing("8.5ms", machine="llm_loop")],
    ),
    Case(
        "TransitionOverheadHigh",
        "all are quick",
        spread("transition_overhead_seconds", "0+100x60", "5e-05", "0.01", **LOOP),
        "40m",
    ),
    Case(
        "AgentsFolded",
        "runs of agents beyond the maximum",
        [
            series_of("runs_started_total", "0x5 4x30", machine="llm_loop", agent="_other", origin="new"),
            series_of("runs_started_total", "0x5 3x30", machine="ralph", agent="_other", origin="resumed"),
        ],
        "15m",
        [firing_there("7")],
    ),
    Case(
        "AgentsFolded",
        "every agent has series of its own",
        [
            series_of("runs_started_total", "0+5x30", **LOOP, origin="new"),
            series_of("runs_started_total", "0x30", machine="llm_loop", agent="_other", origin="new"),
        ],
        "15m",
    ),
    Case(
        "AbandonedWork",
        "two hundred threads of one tool",
        [series_of("abandoned_work", "200x40", **LOOP, kind="tool", name="crawl")],
        "15m",
        [firing_there("200", **LOOP, kind="tool", name="crawl")],
    ),
    Case(
        "AbandonedWork",
        "three calls that will end",
        [series_of("abandoned_work", "3x40", **LOOP, kind="tool", name="crawl")],
        "15m",
    ),
    Case(
        "AbandonedWork",
        "a process that restarts, with samples that are missing",
        [series_of("abandoned_work", "200x5 _x7 0x30", **LOOP, kind="tool", name="crawl")],
        "15m",
    ),
    Case(
        "ClockSkew",
        "two hours behind",
        [series_of("process_time_seconds", "-7200+60x30")],
        "10m",
        [firing_there("2h 0m 0s")],
    ),
    Case(
        "ClockSkew",
        "a minute ahead, scraped every other minute",
        [series_of("process_time_seconds", "60 _ 180 _ 300 _ 420 _ 540 _ 660 _ 780")],
        "11m",
        [firing_there("1m 0s")],
    ),
    Case("ClockSkew", "twenty seconds", [series_of("process_time_seconds", "20+60x30")], "10m"),
    Case(
        "ClockSkew",
        "a right clock that is scraped every other minute",
        [series_of("process_time_seconds", "0 _ 120 _ 240 _ 360 _ 480 _ 600 _ 720")],
        "11m",
    ),
    Case(
        "ClockSkew", "a process that does not say its time", [series_of("runs_active", "1x30", **LOOP)], "10m"
    ),
    Case(
        "DuplicateInstance",
        "two processes behind one port answer in turns",
        [_target("a", " ".join(["1 stale"] * 15)), _target("b", "_ " + " ".join(["1 stale"] * 15))],
        "25m",
        [firing_there("2")],
    ),
    Case(
        "DuplicateInstance",
        "two targets with one label, each scraped every minute",
        [_target("a", "1x30"), _target("b", "1x30")],
        "15m",
        [firing_there("2")],
    ),
    Case("DuplicateInstance", "one restart", [_target("a", "1x15"), _target("b", "_x15 stale 1x30")], "25m"),
    Case(
        "DuplicateInstance",
        "a new process every three minutes",
        [_target(f"{life}", f"_x{3 * life} 1x2 stale") for life in range(1, 12)],
        "26m",
    ),
    Case(
        "DuplicateInstance",
        "two processes with two labels",
        [_target("a", "1x30"), _target("b", "1x30", instance=_BESIDE)],
        "25m",
    ),
    Case(
        "DuplicateInstance",
        "one process that misses scrapes",
        [_target("a", "1x5 _x4 1x2 stale _x2 1x20")],
        "25m",
    ),
    Case(
        "TelemetryDegraded",
        "an observer raised",
        [series_of("telemetry_errors_total", "0x5 1x20", component="logs")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "log lines were lost",
        [series_of("log_records_dropped_total", "0x5 40x20")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "a model invented more names than fit",
        [series_of("label_overflow_total", "0x5 1x20", metric="tool_calls_total", label="tool")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "a journal that is watched cannot be read",
        [series_of("journal_read_failures_total", "0x5 1x20")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "all is told",
        [
            series_of("journal_read_failures_total", "2x30"),
            series_of("telemetry_errors_total", "2x30", component="logs"),
            series_of("log_records_dropped_total", "0x30"),
            series_of("label_overflow_total", "3x30", metric="tool_calls_total", label="tool"),
        ],
        "20m",
    ),
    Case("TargetDown", "no answer for five minutes", [series("up", "0x10")], "5m", [firing_there()]),
    Case("TargetDown", "one missed scrape", [series("up", "1 1 1 1 0 1 1 1 1")], "5m"),
    Case("TargetDown", "a target of another job", [series("up", "0x10", job="node")], "5m"),
    Case("MetricsAbsent", "nothing at all", [], "10m", [NOWHERE]),
    Case(
        "MetricsAbsent",
        "one process is enough",
        [series("orchestrator_build_info", "1x20", version="1", python="3.11")],
        "10m",
    ),
    Case("Watchdog", "always", [], "1m", [NOWHERE]),
)


CASES: tuple[Case, ...] = (*RUN_CASES, *WORK_CASES, *PROCESS_CASES)
