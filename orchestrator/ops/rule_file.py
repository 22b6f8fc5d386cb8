"""The rule files of Prometheus, as text: recorded expressions, alerts, and their unit tests.

The form is block style, keys in the given order, text over several lines as a literal block. Any other text that YAML
could misread is quoted as in JSON, which is a subset of YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator.kernel.graph import Graph
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.ops.alert import GROUPS
from orchestrator.ops.recording import SHARED, SLO, of_graphs
from orchestrator.ops.rule import Profile, alert_data, group, recording_data
from orchestrator.ops.trial import CASES
from orchestrator.ops.trial_case import RECORDED_CASES, recorded_tests, unit_tests

Data: TypeAlias = "bool | int | float | str | Sequence[Data] | Mapping[str, Data] | None"

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./:=()-]*(?: [A-Za-z0-9_./=()-]+)*\Z")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"))


def yaml(data: Data, *, note: str = "") -> str:
    """Return a document, with `note` as its first comment."""
    top = "".join(f"# {line}\n" for line in note.splitlines())
    return top + "\n".join(_block(data, 0)) + "\n"


def _block(data: Data, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if not _nested(data):
        yield indent + _scalar(data)
    elif isinstance(data, Mapping):
        for key, value in data.items():
            head = f"{indent}{_scalar(key)}:"
            if _nested(value):
                yield head
                yield from _block(value, depth + 1)
            else:
                yield f"{head} {_text(value, depth + 1)}"
    elif isinstance(data, Sequence) and not isinstance(data, str):
        for value in data:
            inner = (
                list(_block(value, depth + 1)) if _nested(value) else [f"{indent}  {_text(value, depth + 1)}"]
            )
            yield f"{indent}- {inner[0].lstrip()}"
            yield from inner[1:]


def _nested(value: Data) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _text(value: Data, depth: int) -> str:
    if isinstance(value, str) and "\n" in value and not value[0].isspace() and not value.endswith("\n\n"):
        keep = "|" if value.endswith("\n") else "|-"
        lines = value.removesuffix("\n").split("\n")
        return "\n".join([keep, *("  " * depth + line if line else "" for line in lines)])
    return _scalar(value)


def _scalar(value: Data) -> str:
    if isinstance(value, str):
        plain = _PLAIN.match(value) and value.lower() not in _WORDS and not value.endswith(":")
        return value if plain and ": " not in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, Sequence):
        return "[]"
    return json.dumps(value)


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
