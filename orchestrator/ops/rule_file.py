"""The rule files of Prometheus, as text: recorded expressions, alerts, and their unit tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.kernel.graph import Graph
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.ops.alert import GROUPS
from orchestrator.ops.document import yaml
from orchestrator.ops.recording import SHARED, SLO, of_graphs
from orchestrator.ops.rule import Profile, alert_data, group, recording_data
from orchestrator.ops.trial import CASES
from orchestrator.ops.trial.case import unit_tests
from orchestrator.ops.trial.recorded import RECORDED_CASES, recorded_tests

NOTE = "Written by `orchestrator ops export`: change the tables in orchestrator/ops, not this file."


def recording_groups(graphs: Iterable[Graph], profile: Profile) -> list[dict[str, Any]]:
    """Return the groups of recorded expressions."""
    own = of_graphs(graphs)
    parts = {"orchestrator-objective": SLO, "orchestrator-shared": SHARED, "orchestrator-graphs": own}
    return [
        group(name, (recording_data(rule, profile) for rule in rules), profile.interval)
        for name, rules in parts.items()
        if rules
    ]


def alert_groups(profile: Profile) -> list[dict[str, Any]]:
    """Return the groups of alerts."""
    return [
        group(name, (alert_data(alert, profile) for alert in alerts), profile.interval)
        for name, alerts in GROUPS.items()
    ]


def rules_yaml(graphs: Iterable[Graph], profile: Profile) -> str:
    """Return rules.yml."""
    return yaml({"groups": recording_groups(graphs, profile)}, note=NOTE)


def alerts_yaml(profile: Profile) -> str:
    """Return alerts.yml."""
    return yaml({"groups": alert_groups(profile)}, note=NOTE)


def trial_files(graphs: Iterable[Graph], profile: Profile) -> dict[str, str]:
    """Return every unit test of `promtool test rules`: by the minute, and in longer steps for hours or days."""
    groups = {group["name"]: "rules.yml" for group in recording_groups(graphs, profile)}
    groups |= dict.fromkeys(GROUPS, "alerts.yml")
    found = {}
    for step, name in {"1m": "tests.yml", "5m": "tests-hours.yml", "15m": "tests-days.yml"}.items():
        chosen = (case for case in CASES if case.step == step)
        found[name] = yaml(unit_tests(chosen, groups, profile), note=NOTE)
    recorded = {name: file for name, file in groups.items() if file == "rules.yml"}
    if RALPH.name in {graph.name for graph in graphs}:
        found["tests-recorded.yml"] = yaml(recorded_tests(RECORDED_CASES, recorded), note=NOTE)
    return found
