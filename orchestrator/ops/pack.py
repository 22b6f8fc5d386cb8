"""Generate all files of a folder `dashboards/`, for any graphs, also as manifests for Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from orchestrator.kernel.graph import Graph
from orchestrator.ops.alert import NAMES
from orchestrator.ops.grafana import grafana_json
from orchestrator.ops.operations import OPERATIONS
from orchestrator.ops.panel import Dashboard
from orchestrator.ops.rule import Profile
from orchestrator.ops.rule_file import (
    NOTE,
    alert_groups,
    alerts_yaml,
    recording_groups,
    rules_yaml,
    trial_files,
    yaml,
)
from orchestrator.ops.run_flow import run_flow

_LABELS = {"app.kubernetes.io/name": "orchestrator", "app.kubernetes.io/component": "monitoring"}
PORT = "metrics"
"""Name of the container port that exposes /metrics."""


def manifests(graphs: Iterable[Graph], dashboards: Mapping[str, str], profile: Profile) -> dict[str, str]:
    """Return file name -> manifest."""
    rules = {"groups": [*recording_groups(graphs, profile), *alert_groups(profile)]}
    # JSON without spaces: `kubectl apply` refuses a manifest of more than 262,144 bytes.
    found = {
        "podmonitor.yaml": _manifest(
            "monitoring.coreos.com/v1", "PodMonitor", "orchestrator", spec=_monitor()
        ),
        "prometheusrule.yaml": _manifest(
            "monitoring.coreos.com/v1", "PrometheusRule", "orchestrator", spec=rules
        ),
        "dashboards.yaml": _manifest(
            "v1",
            "ConfigMap",
            "orchestrator-dashboards",
            labels={"grafana_dashboard": "1"},
            data={
                name: json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
                for name, text in sorted(dashboards.items())
            },
        ),
    }
    return {name: yaml(data, note=NOTE) for name, data in found.items()}


def _manifest(
    version: str, kind: str, name: str, *, labels: Mapping[str, str] | None = None, **body: Any
) -> dict[str, Any]:
    metadata = {"name": name, "labels": {**_LABELS, **(labels or {})}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def _monitor() -> dict[str, Any]:
    """Return the scrape of pods. The pod is the instance: rules aggregate over instances only.

    Pods of a StatefulSet have the same names in each namespace, hence the namespace in the label.
    """
    return {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "orchestrator"}},
        "jobLabel": "app.kubernetes.io/name",
        "podMetricsEndpoints": [
            {
                "port": PORT,
                "path": "/metrics",
                "interval": "15s",
                "scrapeTimeout": "10s",
                "relabelings": [
                    {
                        "sourceLabels": ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"],
                        "separator": "/",
                        "targetLabel": "instance",
                    },
                    {"action": "labeldrop", "regex": "pod|container|endpoint"},
                ],
            }
        ],
        "sampleLimit": 50000,
    }


WRITTEN_BY_HAND = (
    "alertmanager/example.yml",
    "consoles/orchestrator.html",
    "consoles/orchestrator.lib",
    "prometheus/scrape-example.yml",
    *(f"runbooks/{name}.md" for name in NAMES),
)
"""Files of the pack that are not generated."""


def dashboards(graphs: Sequence[Graph]) -> tuple[Dashboard, ...]:
    """Return every dashboard."""
    return (OPERATIONS, run_flow(graphs))


def pack(
    graphs: Sequence[Graph], *, profile: Profile | None = None, kubernetes: bool = False
) -> dict[str, str]:
    """Return path -> text of every file. `kubernetes` adds manifests with the same content."""
    profile = profile or Profile()
    drawn = {f"{page.uid.removeprefix('orchestrator-')}.json": page for page in dashboards(graphs)}
    json = {name.replace("-", "_"): grafana_json(page) for name, page in drawn.items()}
    found = {f"grafana/{name}": text for name, text in json.items()}
    found["prometheus/rules.yml"] = rules_yaml(graphs, profile)
    found["prometheus/alerts.yml"] = alerts_yaml(profile)
    found |= {f"prometheus/{name}": text for name, text in trial_files(graphs, profile).items()}
    found |= {path: shipped(path) for path in WRITTEN_BY_HAND}
    if kubernetes:
        made = manifests(graphs, json, profile)
        found |= {f"kubernetes/{name}": text for name, text in made.items()}
    return dict(sorted(found.items()))


def shipped(path: str) -> str:
    """Return a file of the package."""
    place: Traversable = package_files("orchestrator.ops") / "files"
    return place.joinpath(*path.split("/")).read_text(encoding="utf-8")


def write(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write the files to a folder and return the changed ones. Other files there stay."""
    changed = []
    for path, text in texts.items():
        file = folder / path
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        changed.append(file)
    return changed
