"""The pack as a chart for Helm: the rules with their thresholds as values, a monitor of the pods, the dashboards.

The templates are files of the package. The rules are data that a template reads, and not a template: the text of an
alert has templates of Prometheus, which Helm would fill in. A threshold is `<name>` in an expression, as in the tables,
and Helm replaces it by its value. A schema refuses values that no template reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from orchestrator.kernel.graph import Graph
from orchestrator.ops.pack import (
    NOTE,
    alert_groups,
    dashboard_files,
    minified,
    recording_groups,
    shipped,
    yaml,
)
from orchestrator.ops.rule import Profile, Thresholds, number
from orchestrator.version import __version__

_BY_HAND: Final = tuple(
    f"helm/templates/{name}"
    for name in ("_helpers.tpl", "dashboards.yaml", "monitor.yaml", "prometheusrule.yaml")
)


class _Names(Thresholds):
    """Thresholds that stay names in the expressions."""

    def put_into(self, expression: str) -> str:
        return expression


def chart(graphs: Sequence[Graph], profile: Profile) -> dict[str, str]:
    """Return path -> text of every file of the chart.

    Labels of the profile are part of the rules; its thresholds and its runbooks are the defaults of the values.
    """
    named = replace(profile, thresholds=_Names())
    rules = {"groups": [*recording_groups(graphs, named), *alert_groups(named)]}
    about = {
        "apiVersion": "v2",
        "name": "orchestrator-monitoring",
        "description": "Rules, alerts, dashboards and scrape targets of fsm-orchestrator",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
    }
    found = {path: shipped(path) for path in _BY_HAND}
    found["helm/Chart.yaml"] = yaml(about, note=NOTE)
    found["helm/rules.yaml"] = yaml(rules, note=NOTE)
    found["helm/values.yaml"] = _values(profile)
    found["helm/values.schema.json"] = json.dumps(_SCHEMA, indent=2) + "\n"
    drawn = dashboard_files(graphs, profile.console)
    return found | {f"helm/dashboards/{name}": minified(text) for name, text in drawn.items()}


def _values(profile: Profile) -> str:
    text = shipped("helm/values.yaml").replace(
        "runbooks: runbooks", f"runbooks: {json.dumps(profile.runbooks)}"
    )
    lines = (f"  {name}: {number(value)}" for name, value in asdict(profile.thresholds).items())
    return "\n".join([text + "# Described in orchestrator/ops/rule.py.", "thresholds:", *lines, ""])


def _object(**members: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": members}


_TEXT = {"type": "string"}
_DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_NUMBER = {"type": ["number", "string"], "minimum": 0, "pattern": "^[0-9]+([.][0-9]+)?$"}
"""`helm --set` makes a text of a number with a decimal point."""
_SCHEMA: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_object(
        **{"global": {"type": "object"}},  # Helm adds it where the chart is a dependency of another one
        namespace=_TEXT,
        labels=_LABELS,
        rules=_object(interval=_DURATION, labels=_LABELS, runbooks=_TEXT),
        monitor=_object(
            kind={"enum": ["PodMonitor", "ServiceMonitor", ""]},
            matchLabels=_LABELS,
            namespaces={"type": "array", "items": _TEXT},
            port=_TEXT,
            path=_TEXT,
            interval=_DURATION,
            scrapeTimeout=_DURATION,
            sampleLimit={"type": "integer", "minimum": 0},
        ),
        dashboards=_object(enabled={"type": "boolean"}, namespace=_TEXT, labels=_LABELS, annotations=_LABELS),
        thresholds=_object(**dict.fromkeys(asdict(Thresholds()), _NUMBER)),
    ),
}
