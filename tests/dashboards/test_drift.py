"""Every metric, label and label value that a panel, rule, test, runbook or console names exists in the catalogue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import ORPHANED, PARKED, RUNNING
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.alert import ALERTS
from orchestrator.ops.pack import SHARED, SLO, of_graphs
from orchestrator.ops.rule import seconds
from orchestrator.telemetry.catalogue import BACKENDS, CATALOGUE, PREFIX, MetricKind, MetricSource
from orchestrator.telemetry.exposition.stored import (
    ExpectedSuccess,
    JournalCollector,
    JournalSnapshot,
    StoredRunStatus,
)
from tests.dashboards.lint import (
    GRAPHS,
    REASONED,
    TARGET,
    Matcher,
    case_series,
    console_queries,
    expressions,
    filled,
    known,
    nodes,
    row_of,
    selectors,
    values_of,
)

UNUSED = {
    "batch_last_success_timestamp_seconds": "pushed by batch jobs of the host, whose schedule only the host knows",
    "batch_last_duration_seconds": "as above: no process that is scraped has it",
    "llm_unknown_finish_reasons_total": "for whoever adopts a new server; the log line and the journal name the answer",
    "branches_total": "branches are runs, which panels count by outcome; the guide describes those of a state",
    "handoffs_total": "which agents hand over is a question about the agents, and no alarm; the guide describes it",
    "journal_ended_runs": "what a store holds, for whoever asks it; how runs end is drawn from runs_completed_total",
}
"""Metrics that no panel and no alert uses, on purpose."""
VALUES = {
    "state": {state.value for graph in GRAPHS for state in graph.states},
    "from_state": {state.value for graph in GRAPHS for state in graph.states},
    "event": {event.value for graph in GRAPHS for event in graph.events},
    "machine": {graph.name for graph in GRAPHS},
    "tool": {"_unregistered"},
    "agent": {"_other"},
    "backend": set(BACKENDS),
}
"""What a matcher on such a label may say."""
SCRAPE_SECONDS = 15


def problems(where: str, expression: str) -> list[str]:
    """Return what is wrong with the names in an expression."""
    found = []
    names = known()
    for named in selectors(where, expression):
        if named.metric not in names:
            found.append(f"{where}: no metric {named.metric}")
            continue
        for matcher in named.matchers:
            if matcher.label not in names[named.metric]:
                found.append(f"{where}: {named.metric} has no label {matcher.label}")
            else:
                found += [f"{where}: {named.metric}{{{one}}}" for one in wrong_values(named.metric, matcher)]
    return found


def wrong_values(metric: str, matcher: Matcher) -> list[str]:
    row = row_of(metric)
    if row is None or matcher.value in ("", ".*", "x") or matcher.label in TARGET:
        return []
    if matcher.label == "le":
        bounds = {str(float(bound)) for bound in row.buckets} | {"+Inf"}
        return [f"le={value}" for value in values_of(matcher) if value not in bounds]
    allowed = set(row.values.get(matcher.label) or VALUES.get(matcher.label, ()))
    return [f"{matcher.label}={value}" for value in values_of(matcher) if value not in allowed]


def test_every_name_in_an_expression_exists() -> None:
    assert [problem for where, expression in expressions() for problem in problems(where, expression)] == []


def test_the_series_of_unit_tests_exist() -> None:
    wrong = []
    names = known()
    for where, series in case_series():
        for named in selectors(where, series):
            labels = {matcher.label for matcher in named.matchers}
            if named.metric not in names or not labels <= names[named.metric]:
                wrong.append(f"{where}: {series}")
            else:
                closed = [one for one in named.matchers if one.label not in REASONED]
                wrong += [f"{where}: {bad}" for one in closed for bad in wrong_values(named.metric, one)]
    assert wrong == []


def test_every_metric_is_used_or_says_why_not() -> None:
    named = [row_of(one.metric) for where, text in expressions() for one in selectors(where, text)]
    used = {row.name for row in named if row is not None}
    assert {row.name for row in CATALOGUE} - used == UNUSED.keys()


def test_what_a_watched_journal_tells_is_in_the_catalogue_with_its_labels_and_values() -> None:
    journal = MemoryJournal()
    expected = {"support": ExpectedSuccess(3600.0, 3)}
    collector = JournalCollector(journal, {("llm_loop", "await_llm"): 600.0}, alone=True, expected=expected)
    standing = tuple(
        StoredRunStatus("llm_loop", status, "await_llm", 1.0, 1.0, agent="support")
        for status in (RUNNING, ORPHANED, PARKED)
    )
    ended = Counter({("llm_loop", "support", "completed", "none"): 1})
    waiting = Counter({("llm_loop", "support"): 1})
    snapshot = JournalSnapshot(3.0, 0.1, 4096, standing, ended, ended, 1, waiting_for_agent=waiting)
    collector.show(snapshot)
    told = {sample.name: sample for family in collector.collect() for sample in family.samples}
    stored = {PREFIX + row.name for row in CATALOGUE if row.made is MetricSource.STORED}
    assert stored <= told.keys()
    for name, sample in told.items():
        row = row_of(name)
        assert row is not None, name
        assert set(sample.labels) == set(row.labels), name
        assert all(sample.labels[label] in values for label, values in row.values.items()), name


def test_what_a_scrape_never_has_is_not_drawn() -> None:
    assert {row.name for row in CATALOGUE if row.made is MetricSource.PUSHED} <= UNUSED.keys()


def calls(*functions: str) -> Iterator[tuple[str, Any]]:
    """Yield where and what, of every call of these functions in an expression."""
    for where, expression in expressions():
        for node in nodes(promql_parser.parse(expression)):
            if isinstance(node, promql_parser.Call) and node.func.name in functions:
                yield where, node


def test_rates_are_taken_of_counters_over_enough_scrapes() -> None:
    taken = [(where, call.args[0]) for where, call in calls("rate", "increase")]
    assert len(taken) > 100
    assert [where for where, of in taken if of.range.total_seconds() < 4 * SCRAPE_SECONDS] == []
    rows = [(where, row_of(of.vector_selector.name)) for where, of in taken]
    counters = (MetricKind.COUNTER, MetricKind.HISTOGRAM)
    assert [where for where, row in rows if row is not None and row.kind not in counters] == []


def test_quantiles_keep_their_bounds() -> None:
    sums = [(where, getattr(call.args[1], "modifier", None)) for where, call in calls("histogram_quantile")]
    grouped = [(where, modifier) for where, modifier in sums if modifier is not None]
    assert len(grouped) > 10
    by = promql_parser.AggModifierType.By
    assert [where for where, one in grouped if ("le" in one.labels) != (one.type == by)] == []


def test_every_alert_waits_or_is_kept_and_the_watchdog_is_the_only_exception() -> None:
    hasty = {alert.name for alert in ALERTS if alert.wait is None and alert.keep is None}
    assert hasty == {"Watchdog"}


def test_every_ratio_of_rates_has_least_traffic() -> None:
    ratio = re.compile(r"rate\([^)]*\)+\s*/")
    bare = {
        alert.name
        for alert in ALERTS
        if ratio.search(alert.expr) and not re.search(r"<least_\w+>", alert.expr)
    }
    assert bare == set()


def test_the_burn_windows_of_an_alert_are_twelve_to_one() -> None:
    for alert in ALERTS:
        if "long" in alert.labels:
            assert seconds(alert.labels["long"]) == 12 * seconds(alert.labels["short"])


def test_the_console_was_read() -> None:
    assert len(console_queries()) > 20


PLANTED = [
    ('orchestrator_runs_completed_total{outcome="budget-exceeded"}', "outcome=budget-exceeded"),
    ('orchestrator_runs_completed_total{outcom="failed"}', "no label outcom"),
    ("orchestrator_run_completed_total", "no metric orchestrator_run_completed_total"),
    ('rate(orchestrator_budget_consumed_ratio_bucket{le="0.90"}[5m])', "le=0.90"),
    ('orchestrator_tool_calls_total{outcome=~"error|time_out"}', "outcome=time_out"),
    ('orchestrator_runs_active{state="waiting"}', "state=waiting"),
    (
        "sum(rate(machine_agent:orchestrator_runs:rate5m[5m]))",
        "no metric machine_agent:orchestrator_runs:rate5m",
    ),
]


@pytest.mark.parametrize(("expression", "problem"), PLANTED)
def test_a_planted_slip_is_found(expression: str, problem: str) -> None:
    (found,) = problems("here", expression)
    assert problem in found


def test_recorded_names_follow_the_convention() -> None:
    for rule in (*SLO, *SHARED, *of_graphs([LLM_LOOP])):
        assert re.fullmatch(rf"[a-z_]+:{PREFIX}[a-z_]+:[a-z0-9_]+", rule.name)
        assert "$" not in filled(rule.expr)
