"""The same pack as manifests for the Prometheus operator and for Grafana's sidecar that loads dashboards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.kernel.graph import Graph
from orchestrator.ops.document import yaml
from orchestrator.ops.rule import Profile
from orchestrator.ops.rule_file import NOTE, alert_groups, recording_groups

_LABELS = {"app.kubernetes.io/name": "orchestrator", "app.kubernetes.io/component": "monitoring"}
PORT = "metrics"
"""Name of the container port that exposes /metrics."""


def manifests(graphs: Iterable[Graph], dashboards: Mapping[str, str], profile: Profile) -> dict[str, str]:
    """Return file name -> manifest."""
    rules = {"groups": [*recording_groups(graphs, profile), *alert_groups(profile)]}
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
            data={name: _compact(text) for name, text in sorted(dashboards.items())},
        ),
    }
    return {name: yaml(data, note=NOTE) for name, data in found.items()}


def _compact(text: str) -> str:
    """Return JSON without spaces: `kubectl apply` refuses a manifest of more than 262,144 bytes."""
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


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
