"""The pack as files: what is committed is what the tables give, and a user's own graphs get the same."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import main
from orchestrator.cli.ops import whole
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.chart import chart
from orchestrator.ops.operations import OPERATIONS
from orchestrator.ops.pack import Data, dashboards, of_graph, pack, write
from orchestrator.ops.pack import yaml as as_yaml
from orchestrator.ops.panel import SCHEMA_VERSION, PanelKind, dashboard_data
from orchestrator.ops.rule import Profile, Thresholds, number
from orchestrator.ops.run_flow import in_order, returns, waits
from tests.dashboards.lint import GRAPHS, YAML_LOADER
from tests.dashboards.monitoring import ROOT
from tests.derived import HINT
from tests.kernel.toy import TOY

COMMITTED = ROOT / "dashboards"
APPLIED = 262_144
"""Most bytes that `kubectl apply` accepts: it stores each object in an annotation of the object."""
BY_HAND = {"README.md", "rendered.webp", "console.webp"}
loaded = functools.partial(yaml.load, Loader=YAML_LOADER)


def test_what_is_committed_is_what_the_tables_give() -> None:
    made = whole(GRAPHS, Profile())
    there = {
        str(file.relative_to(COMMITTED)): file.read_text(encoding="utf-8")
        for file in COMMITTED.rglob("*")
        if file.is_file() and file.name not in BY_HAND
    }
    assert there.keys() == made.keys()
    differing = [path for path, text in made.items() if there[path] != text]
    assert differing == [], HINT


def test_a_second_writing_changes_nothing(tmp_path: Path) -> None:
    made = pack(GRAPHS)
    assert len(write(tmp_path, made)) == len(made)
    assert write(tmp_path, made) == []


def exported(folder: Path, *options: str) -> int | str | None:
    """Export a pack into a folder; return the exit code."""
    with pytest.raises(SystemExit) as end:
        main(["ops", "export", str(folder), *options])
    return end.value.code


def test_the_command_counts_what_it_wrote_and_what_it_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for _ in range(2):
        assert exported(tmp_path) == 0
        said.append(capsys.readouterr().out.splitlines()[-1])
        count = sum(file.is_file() for file in tmp_path.rglob("*"))
        (tmp_path / "metrics.md").unlink()
    assert said == [
        f"{count} written: {count} files in {tmp_path}",
        f"1 written, {count - 1} unchanged: {count} files in {tmp_path}",
    ]


def test_the_command_writes_a_pack_for_a_graph_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the module of the graph is below it
    graphs = ("--graph", "tests.kernel.toy:TOY", "--graph", "llm_loop")
    assert exported(tmp_path, "--kubernetes", *graphs, "--runbooks", "https://runbooks.example/x/") == 0
    flow = json.loads((tmp_path / "grafana" / "run_flow.json").read_text())
    rows = [panel["title"] for panel in flow["panels"] if panel["type"] == "row"]
    assert rows == ["How do runs move through toy?", "How do runs move through llm_loop?"]
    rules = (tmp_path / "prometheus" / "rules.yml").read_text()
    assert 'machine="toy"' in rules
    assert (
        "https://runbooks.example/x/OrchestratorRunStuck.md"
        in (tmp_path / "prometheus/alerts.yml").read_text()
    )


def test_two_graphs_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(tmp_path, "--graph", "llm_loop", "--graph", "llm_loop") == 2
    assert "two graphs are called llm_loop" in capsys.readouterr().err


def test_manifests_hold_the_same_rules_and_dashboards() -> None:
    made = pack(GRAPHS, kubernetes=True)
    rule = loaded(made["kubernetes/prometheusrule.yaml"])
    files = ("prometheus/rules.yml", "prometheus/alerts.yml")
    plain = [one for file in files for one in loaded(made[file])["groups"]]
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"]["groups"] == plain
    drawn = loaded(made["kubernetes/dashboards.yaml"])
    assert drawn["data"].keys() == {"operations.json", "run_flow.json"}
    for name, text in drawn["data"].items():
        assert json.loads(text) == json.loads(made[f"grafana/{name}"])
    assert max(len(json.dumps(loaded(made[path]))) for path in made if "kubernetes/" in path) < APPLIED
    monitor = loaded(made["kubernetes/podmonitor.yaml"])
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0] == {
        "sourceLabels": ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"],
        "separator": "/",
        "targetLabel": "instance",
    }


def test_the_chart_has_the_same_rules_and_dashboards_with_its_default_values(tmp_path: Path) -> None:
    profile = Profile(thresholds=Thresholds(retries=0.5), runbooks="https://runbooks.example")
    made = chart(GRAPHS, profile)
    values = loaded(made["helm/values.yaml"])
    jsonschema.validate(values, json.loads(made["helm/values.schema.json"]))
    assert values["rules"]["runbooks"] == profile.runbooks
    assert values["thresholds"] == pytest.approx(asdict(profile.thresholds))
    rules = made["helm/rules.yaml"]
    for name, value in values["thresholds"].items():
        assert f"<{name}>" in rules, name
        rules = rules.replace(f"<{name}>", number(value))
    plain = pack(GRAPHS, profile=profile)
    files = ("prometheus/rules.yml", "prometheus/alerts.yml")
    assert loaded(rules)["groups"] == [one for file in files for one in loaded(plain[file])["groups"]]
    for name in ("operations.json", "run_flow.json"):
        assert json.loads(made[f"helm/dashboards/{name}"]) == json.loads(plain[f"grafana/{name}"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"thresholds": {"retry": 0.5}},
        {"thresholds": {"retries": -1}},
        {"thresholds": {"retries": "half"}},
        {"threshold": {"retries": 0.5}},
        {"monitor": {"kind": "Pod"}},
        {"rules": {"interval": "often"}},
    ],
)
def test_the_schema_of_the_chart_refuses_values_that_no_template_reads(wrong: dict[str, object]) -> None:
    schema = json.loads(chart([LLM_LOOP], Profile())["helm/values.schema.json"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


# ---- dashboards ----


@pytest.mark.parametrize("dashboard", dashboards([LLM_LOOP, TOY]), ids=lambda one: one.uid)
def test_a_dashboard_is_complete(dashboard: object) -> None:
    data = dashboard_data(dashboard)  # type: ignore[arg-type]
    panels = data["panels"]
    assert data["schemaVersion"] == SCHEMA_VERSION
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    variables = [one["name"] for one in data["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "machine", "agent"]
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] not in ("row", "text"):
            assert panel["description"]
            assert panel["targets"]
            assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
            drawn = panel["type"] in {"timeseries", "heatmap"}
            assert {target["exemplar"] for target in panel["targets"]} == {drawn}


def test_critical_and_warning_have_colours_of_their_own() -> None:
    (panel,) = (one for one in dashboard_data(OPERATIONS)["panels"] if one["title"] == "Firing alerts")
    colours = {
        override["matcher"]["options"]: override["properties"][0]["value"]["steps"][1]["color"]
        for override in panel["fieldConfig"]["overrides"]
    }
    assert colours == {"critical": "red", "warning": "orange", "info": "blue"}


@pytest.mark.parametrize("dashboard", dashboards([LLM_LOOP, TOY]), ids=lambda one: one.uid)
def test_panels_do_not_overlap(dashboard: object) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard_data(dashboard)["panels"]:  # type: ignore[arg-type]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells


def test_titles_are_unique_and_lines_have_names() -> None:
    for dashboard in dashboards([LLM_LOOP]):
        titles = [panel.title for panel in dashboard.panels]
        assert len(titles) == len(set(titles))
        for panel in dashboard.panels:
            assert panel.kind is PanelKind.TEXT or all(query.legend for query in panel.queries)


def test_the_seven_questions_stand_in_order() -> None:
    assert [row.title for row in OPERATIONS.rows] == [
        "Is it healthy?",
        "What are runs doing?",
        "Where does time go?",
        "Guards, retries, budgets",
        "Models and tokens",
        "Tools",
        "Durability and runtime",
    ]


# ---- what is read off a table ----


def test_the_ways_back_of_the_loop() -> None:
    assert {"budget_ok", "restart_loop", "completion_retry"} <= {step.event for step in returns(LLM_LOOP)}
    assert "start_loop" not in {step.event for step in returns(LLM_LOOP)}
    assert in_order(LLM_LOOP)[0] == "init"
    assert set(in_order(LLM_LOOP)[-2:]) == {"finalize", "terminate_error"}


def test_states_that_wait_for_people_are_counted_and_others_are_not() -> None:
    assert waits(LLM_LOOP) == []
    assert [rule.name for rule in of_graph(LLM_LOOP)] == [
        "machine_agent:orchestrator_returns_per_runs:ratio_rate1h"
    ]
    assert waits(TOY) == ["ask"]
    assert any("waits_per_runs" in rule.name and 'state=~"ask"' in rule.expr for rule in of_graph(TOY))


# ---- YAML ----

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)
LINES = st.lists(TEXT, max_size=4).map("\n".join)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | LINES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(DATA)
def test_what_is_written_as_yaml_is_read_as_the_same(data: Data) -> None:
    assert loaded(as_yaml(data)) == data


def test_the_smallest_profile_writes_valid_yaml() -> None:
    for path, text in pack(GRAPHS, profile=Profile(runbooks="r"), kubernetes=True).items():
        if path.endswith((".yml", ".yaml")):
            assert loaded(text)
