"""The rules themselves: promtool's checks, and whether their tests notice when a rule is spoilt."""

from __future__ import annotations

import inspect
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.ops import export_pack, routing_labels
from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.pack import SHARED, SLO, alert_groups, alerts_yaml, rules_yaml, trial_files, yaml
from orchestrator.ops.rule import (
    Alert,
    AlertSeverity,
    Profile,
    Thresholds,
    alert_data,
    group,
    recording_data,
    smoke,
)
from orchestrator.ops.trial import CASES, Case, unit_tests
from orchestrator.telemetry.catalogue import ROWS
from orchestrator.telemetry.exposition.page import STALE
from orchestrator.telemetry.watchdog import Watchdog
from tests.dashboards.lint import expressions
from tests.dashboards.monitoring import ROOT
from tests.tiers import SOAK

ENDLESS = "9000h"
ALWAYS_FIRES = {"Watchdog"}
_COMPARISON = re.compile(r"(?<![=!<>])(>=|<=|==|>|<)(?![=~])")
_FLIPPED = {">": "<", "<": ">", ">=": "<", "<=": ">", "==": "!="}
BY_ALERT = {name: [case for case in CASES if case.alert == name] for name in {alert.name for alert in ALERTS}}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], check=False, capture_output=True, text=True, timeout=300
    )


def run_cases(
    folder: Path, alerts: list[Alert], cases: list[Case], profile: Profile | None = None
) -> list[str]:
    """Return the problems that promtool has with these alerts and cases, one text for each step."""
    profile = profile or Profile()
    data = group("here", (alert_data(alert, profile) for alert in alerts), profile.interval)
    (folder / "alerts.yml").write_text(yaml({"groups": [data]}))
    groups = {"here": "alerts.yml"}
    if any(":orchestrator_" in alert.expr for alert in alerts):
        needed = [rule for rule in (*SLO, *SHARED) if any(rule.name in alert.expr for alert in alerts)]
        recorded = group("recorded", (recording_data(rule, profile) for rule in needed), profile.interval)
        (folder / "rules.yml").write_text(yaml({"groups": [recorded]}))
        groups = {"recorded": "rules.yml", "here": "alerts.yml"}
    problems = []
    for step in sorted({case.step for case in cases}):
        chosen = [case for case in cases if case.step == step]
        (folder / "tests.yml").write_text(yaml(unit_tests(chosen, groups, profile)))
        done = promtool("test", "rules", folder / "tests.yml")
        if done.returncode:
            problems.append(done.stdout + done.stderr)
    return problems


def spoilt(alert: Alert) -> Iterator[tuple[str, Alert]]:
    """Yield ways in which a rule can be wrong: comparisons flipped, thresholds a thousandfold, endless."""
    bare = re.sub(r"<[a-z_]+>", lambda found: "x" * len(found[0]), alert.expr)
    for found in _COMPARISON.finditer(bare):
        start, end = found.span()
        flipped = alert.expr[:start] + _FLIPPED[found[0]] + alert.expr[end:]
        yield f"{found[0]} at {start} flipped", replace(alert, expr=flipped)
    for start, text in _thresholds(alert.expr):
        value = Profile().expression(text)
        larger = f"{float(value) * 1000:g}" if float(value) else "1e15"
        yield (
            f"{text} at {start} a thousandfold",
            replace(alert, expr=alert.expr[:start] + larger + alert.expr[start + len(text) :]),
        )
    yield "endless", replace(alert, wait=ENDLESS)


def _thresholds(expr: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers that something is compared with: names of Thresholds, and figures after a comparison."""
    for found in re.finditer(r"<(?!journal_horizon_s)[a-z_]+>|(?<=[<>=] )\d+(?:\.\d+)?\b", expr):
        yield found.start(), found[0]


MUTANTS = [(alert, what, mutant) for alert in ALERTS for what, mutant in spoilt(alert)]


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    silent = {case.alert for case in CASES if not case.fires}
    firing = {(case.alert, fired.rule) for case in CASES for fired in case.fires}
    rules = {(alert.name, [one for one in ALERTS if one.name == alert.name].index(alert)) for alert in ALERTS}
    assert {alert.name for alert in ALERTS} - silent == ALWAYS_FIRES
    assert rules - firing == set()


def test_ages_are_measured_with_the_clock_of_the_process() -> None:
    told = [where for where, expression in expressions() if re.search(r"(?<!\w)time\(\)", expression)]
    assert told == []


def test_titles_of_cases_are_unique() -> None:
    names = [(case.alert, case.title) for case in CASES]
    assert len(names) == len(set(names))


def test_the_pages_are_those_that_users_feel() -> None:
    critical = {alert.name for alert in ALERTS if alert.severity is AlertSeverity.CRITICAL}
    assert critical == {
        "RunErrorBudgetBurn",
        "RunLatencyBudgetBurn",
        "CostCeilingExceeded",
        "EventLoopBlocked",
        "RunStuck",
        "EngineStalled",
        "RollbackFailed",
        "JournalWritesFailing",
        "TargetDown",
        "MetricsAbsent",
    }
    said = (ROOT / "dashboards" / "README.md").read_text(encoding="utf-8")
    assert f"{len(NAMES)} alerts in {len(ALERTS)} rules" in said
    assert f"{len(NAMES)} alerts with unit tests" in said
    assert f"{len(NAMES)} alerts with runbooks" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.system("promtool")
@pytest.mark.parametrize("profile", [Profile(), smoke()], ids=["shipped", "smoke"])
@pytest.mark.parametrize(
    "graphs",
    [[LLM_LOOP], [PIPELINE, LLM_LOOP.extend(name="review")], list(SHIPPED.values())],
    ids=["one", "two", "shipped"],
)
def test_promtool_finds_nothing_wrong(tmp_path: Path, graphs: list[Graph], profile: Profile) -> None:
    (tmp_path / "rules.yml").write_text(rules_yaml(graphs, profile))
    (tmp_path / "alerts.yml").write_text(alerts_yaml(profile))
    done = promtool(
        "check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yml", tmp_path / "alerts.yml"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.canary("Watchdog", "MetricsAbsent")
@pytest.mark.campaign
@pytest.mark.system("promtool")
@pytest.mark.parametrize("name", sorted(BY_ALERT))
def test_the_cases_of_an_alert_pass(tmp_path: Path, name: str) -> None:
    assert run_cases(tmp_path, [alert for alert in ALERTS if alert.name == name], BY_ALERT[name]) == []


@pytest.mark.soak
@pytest.mark.system("promtool")
@pytest.mark.parametrize("file", ["tests.yml", "tests-hours.yml", "tests-days.yml"])
def test_the_shipped_unit_tests_pass(file: str) -> None:
    done = promtool("test", "rules", ROOT / "dashboards" / "prometheus" / file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
@pytest.mark.campaign
@pytest.mark.system("promtool")
def test_a_spoilt_rule_is_noticed_by_its_cases(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    quick = [one for one in MUTANTS if all(case.step == "1m" for case in BY_ALERT[one[0].name])]
    chosen = random.Random(seed).sample(MUTANTS if SOAK else quick, campaign(12, len(MUTANTS)))
    survivors = []
    for alert, what, mutant in chosen:
        rules = [mutant if one is alert else one for one in ALERTS if one.name == alert.name]
        if not run_cases(tmp_path, rules, BY_ALERT[alert.name]):
            survivors.append(f"{alert.name} {dict(alert.labels)}: {what}")
    assert survivors == []


def test_every_rule_can_be_spoilt_in_more_than_one_way() -> None:
    ways = {alert.name: len(list(spoilt(alert))) for alert in ALERTS}
    assert {name for name, number in ways.items() if number < 3} == {
        "CostCeilingExceeded",
        "MetricsAbsent",
        "Watchdog",
    }


def test_the_smoke_profile_has_the_same_expressions_thirty_times_as_fast() -> None:
    slow, fast = Profile(), smoke(30)
    for alert in ALERTS:
        figures = re.compile(r"\[[\w:]+\]|offset \w+|\d+(\.\d+)?\b")
        there, here = (figures.sub("#", one.expression(alert.expr)) for one in (slow, fast))
        assert here == there
    assert fast.expression("rate(x[30m]) > <run_age_s>") == "rate(x[60s]) > 120"
    assert fast.expression("rate(x[1m] offset 1h) > <queue_wait_s>") == "rate(x[5s] offset 120s) > 5"


def test_a_threshold_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        Thresholds().put_into("x > <no_such>")


def test_the_alert_of_a_blocked_loop_the_watchdog_and_the_health_page_share_one_threshold() -> None:
    after = inspect.signature(Watchdog).parameters["blocked_after"].default
    assert Thresholds().loop_blocked_s == after == STALE


def test_a_slow_request_is_one_above_the_bound_of_a_bucket() -> None:
    bounds = ROWS["llm_request_duration_seconds"].buckets
    assert {Thresholds().llm_slow_after, smoke().thresholds.llm_slow_after} <= set(bounds)


def test_labels_for_routing_are_on_every_alert_and_in_its_tests(tmp_path: Path) -> None:
    profile = Profile(labels={"team": "agents"})
    rules = [rule for part in alert_groups(profile) for rule in part["rules"]]
    assert {rule["labels"]["team"] for rule in rules} == {"agents"}
    for rule in rules:
        assert {"severity", "component"} <= rule["labels"].keys()
    assert "team: agents" in trial_files([LLM_LOOP], profile)["tests.yml"]
    both = Profile(labels=routing_labels(["team=agents", "service=shop"]))
    assert export_pack(tmp_path, [], both, kubernetes=True) == 0
    for file in ("prometheus/alerts.yml", "kubernetes/prometheusrule.yaml"):
        assert "team: agents" in (tmp_path / file).read_text()
        assert "service: shop" in (tmp_path / file).read_text()


@pytest.mark.parametrize("name", ["RunStuck", "JournalSlow", "AgentNotSucceeding"])
def test_an_alert_links_to_the_runs_of_its_agent_in_the_console(tmp_path: Path, name: str) -> None:
    profile = Profile(console="https://console.example")
    assert run_cases(tmp_path, [one for one in ALERTS if one.name == name], BY_ALERT[name], profile) == []
    links = re.findall(r'console: "?(.*?)"?$', (tmp_path / "tests.yml").read_text(), re.MULTILINE)
    of_agents = name != "JournalSlow"
    assert links
    assert any("?agent=" in link for link in links) is of_agents
    assert all(link.startswith("https://console.example/") for link in links)


def test_without_an_address_of_the_console_no_alert_has_a_link() -> None:
    assert "console" not in {key for alert in ALERTS for key in alert_data(alert, Profile())["annotations"]}


def test_a_label_is_given_once() -> None:
    with pytest.raises(ConfigError, match="--label team is"):
        routing_labels(["team=a", "team=b"])


@pytest.mark.parametrize("text", ["team", "team=", "=agents", "a-b=c", "severity=low", "agent=x", "1a=b", ""])
def test_a_label_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--label"):
        routing_labels([text])
