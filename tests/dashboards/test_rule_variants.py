"""Each rule, with what happens to series between a process and Prometheus.

Further cases are made of those of a rule, whose samples are a minute apart: its processes restart again and again,
every third sample is missing, or a whole metric is. A rule that fires does so for the same labels, and one that does
not stays silent. Without one of its metrics a rule may be silent, and fires for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from orchestrator.ops.alert import ALERTS
from orchestrator.ops.pack import SHARED, SLO, yaml
from orchestrator.ops.rule import Profile, alert_data, group, recording_data
from orchestrator.ops.trial import CASES, Case
from tests.dashboards.test_rules import promtool

_LIFE = 11
"""Samples of a process until it restarts."""
_COUNTER = re.compile(r"\w+_(total|bucket|count|sum)\{")
_RUN = re.compile(r"(-?[\d.e]+)(?:([+-])([\d.e]+))?x(\d+)")

_LABEL = re.compile(r'(\w+)="([^"]*)"')
_BURNS = {"RunErrorBudgetBurn", "RunLatencyBudgetBurn"}
"""Their windows of days take minutes to evaluate; restarts and missing metrics are among their own cases."""
EXCEPTIONS = {
    ("RunAgingWithoutTimeout", "without"): "it is about states that lack the metric of a time limit",
    ("EventLoopBlocked", "thinned"): "two minutes without a sample look like two minutes without a move",
    (
        "RecoveryLoop",
        "restarting",
    ): "a process that restarts recovers runs again; these counters would stay at 0",
}
"""(alert, what happens) -> why it changes what fires."""

Samples: TypeAlias = list[float | str]
"""Numbers, and the words `_` for no sample and `stale` for the end of a series."""
Labels: TypeAlias = frozenset[tuple[str, str]]


def expanded(values: str) -> Samples:
    """Return the samples of a series in the notation of promtool."""
    found: Samples = []
    for word in values.split():
        if word.startswith("_"):
            found += ["_"] * int(word.removeprefix("_x") if "x" in word else 1)
        elif run := _RUN.fullmatch(word):
            start, sign, step, times = run.groups()
            by = float(f"{sign}{step}") if sign else 0.0
            found += [float(start) + by * number for number in range(int(times) + 1)]
        else:
            found.append(word if word == "stale" else float(word))
    return found


def restarting(name: str, samples: Samples) -> Samples:
    """Return the samples of processes that follow each other: a counter starts at 0 with each."""
    if not _COUNTER.match(name):
        return samples
    found: Samples = []
    start = 0.0
    for number, value in enumerate(samples):
        if isinstance(value, str):
            found.append(value)
            continue
        start = value if number % _LIFE == 0 else min(start, value)
        found.append(value - start)
    return found


def thinned(_: str, samples: Samples) -> Samples:
    """Return the samples without every third one."""
    return ["_" if number % 3 == 1 and value != "stale" else value for number, value in enumerate(samples)]


def changed(case: Case, how: Callable[[str, Samples], Samples]) -> Case:
    """Return a case with all of its series changed."""
    found = []
    for name, values in case.series:
        samples = [one if isinstance(one, str) else f"{one:.12g}" for one in how(name, expanded(values))]
        found.append((name, " ".join(samples)))
    return replace(case, series=found)


def without(case: Case) -> Iterator[Case]:
    """Yield the case without one of its metrics, for each of them."""
    names = [name.partition("{")[0] for name, _ in case.series]
    for missing in dict.fromkeys(names):
        left = [one for one, name in zip(case.series, names, strict=True) if name != missing]
        if left:
            yield replace(case, series=left)


def firing(folder: Path, cases: Sequence[Case]) -> list[set[Labels]]:
    """Return the labels of the alerts that fire in each case, all of one alert and one step.

    promtool expects a series that does not exist, and quotes in its complaint what there is.
    """
    profile = Profile()
    rules = [alert for alert in ALERTS if alert.name == cases[0].alert]
    read = " ".join(alert.expr for alert in rules)
    groups = {
        "recorded": [recording_data(rule, profile) for rule in (*SLO, *SHARED) if rule.name in read],
        "alerts": [alert_data(alert, profile) for alert in rules],
    }
    data = {"groups": [group(name, rules, profile.interval) for name, rules in groups.items() if rules]}
    (folder / "rules.yml").write_text(yaml(data))
    whole: dict[str, Any] = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": cases[0].step,
        "group_eval_order": list(groups),
        "tests": [_test(number, case) for number, case in enumerate(cases)],
    }
    (folder / "tests.yml").write_text(yaml(whole))
    done = promtool("test", "rules", folder / "tests.yml")
    parts = re.split(r"number!=\W+(\d+)", done.stdout + done.stderr)
    got = {
        int(number): text.partition("got:")[2] for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    assert sorted(got) == list(range(len(cases))), done.stdout + done.stderr
    return [
        {frozenset(_LABEL.findall(one)) for one in re.findall(r"\{[^}]*\}", got[number])}
        for number in sorted(got)
    ]


def _test(number: int, case: Case) -> dict[str, Any]:
    fires = f'ALERTS{{alertname="Orchestrator{case.alert}", alertstate="firing", number!="{number}"}}'
    expected = {"expr": fires, "eval_time": case.at, "exp_samples": [{"labels": "nothing", "value": 0}]}
    series = [{"series": name, "values": values} for name, values in case.series]
    return {"interval": case.step, "input_series": series, "promql_expr_test": [expected]}


@pytest.mark.canary("AbandonedWork")
@pytest.mark.campaign
@pytest.mark.system("promtool")
@pytest.mark.parametrize("name", sorted({alert.name for alert in ALERTS} - _BURNS))
def test_restarts_and_missing_samples_and_metrics_change_no_alert(tmp_path: Path, name: str) -> None:
    variants = [one for case in CASES if case.alert == name for one in _variants(case)]
    variants.sort(key=lambda one: one[1].step)
    found: dict[str, set[str]] = {}
    base: set[Labels] = set()
    for _, group_of_step in groupby(variants, key=lambda one: one[1].step):
        chosen = list(group_of_step)
        for (what, case), fires in zip(chosen, firing(tmp_path, [case for _, case in chosen]), strict=True):
            if what == "itself":
                base = fires
                assert bool(fires) is bool(case.fires)
            elif not fires <= base or (what != "without" and fires < base):
                found.setdefault(what, set()).add(case.title)
    assert found.keys() == {what for alert, what in EXCEPTIONS if alert == name}, found


def _variants(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield a case and its variants, each with what happens to its series."""
    yield "itself", case
    if " restart" not in case.title:  # its processes do that already
        yield "restarting", changed(case, restarting)
    if case.step == "1m" and "every other minute" not in case.title:
        yield "thinned", changed(case, thinned)
    for missing in without(case):
        yield "without", missing
