"""Generate all files of a folder `dashboards/`, for any graphs, also as manifests for Kubernetes.

The rule files are YAML in block style, keys in the given order, text over several lines as a literal block. Any other
text that YAML could misread is quoted as in JSON, which is a subset of YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.kernel.graph import Graph
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.ops.alert import GROUPS, NAMES
from orchestrator.ops.operations import OPERATIONS
from orchestrator.ops.panel import Dashboard, grafana_json
from orchestrator.ops.rule import Profile, RecordingRule, alert_data, group, recording_data
from orchestrator.ops.run_flow import RALPH_RECORDINGS, returns, run_flow, waits
from orchestrator.ops.trial import CASES, RECORDED_CASES, recorded_tests, unit_tests

# ---- recorded expressions: for alerts over days, for several panels, and for statistics of one graph ----

BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")

_COMPLETED = "sum without (instance, outcome, reason) (rate(orchestrator_runs_completed_total{{{0}}}[{1}]))"
_REFUSED = "sum without (instance, reason) (rate(orchestrator_runs_rejected_total[{0}]))"


def _counted(window: str) -> str:
    """Return the rate of runs that ended, without those that people stopped (cancelled, rejected)."""
    return _COMPLETED.format('outcome!~"cancelled|rejected"', window)


def _failed_per_runs(window: str) -> str:
    """Return the share of bad runs: failed, without progress, refused, and cut off by a limit beyond the usual share.

    A journal that is served alone has no refusals, hence `or 0 * …`.
    """
    ended, refused = _counted(window), f"({_REFUSED.format(window)}\n  or 0 * {_counted(window)})"
    failed = _COMPLETED.format('outcome=~"failed|no_progress"', window)
    exceeded = _COMPLETED.format('outcome="budget_exceeded"', window)
    cut_off = f"clamp_min({exceeded} - <cut_off> * {ended}, 0)"
    return f"({failed}\n  + ({cut_off}\n  or 0 * {ended})\n  + {refused})\n/\n({ended} + {refused})"


SLO = tuple(
    RecordingRule(
        f"machine_agent:orchestrator_runs_failed_per_runs:ratio_rate{window}", _failed_per_runs(window)
    )
    for window in BURN_WINDOWS
) + tuple(
    RecordingRule(
        f"machine_agent:orchestrator_runs_slow_per_runs:ratio_rate{window}",
        f"sum without (instance) (rate(orchestrator_runs_slow_total[{window}]))\n/\n"
        + _COMPLETED.format('outcome=~"completed|partial"', window),
    )
    for window in BURN_WINDOWS
)
"""The two objectives: the share of runs that failed, and the share of answers slower than the agent's objective."""

# A process with two versions of an agent counts for neither: in a rolling release of workers, which share a folder.
_VERSIONS = "max by (job, instance, agent, version) (orchestrator_agent_info == 1)"
_BY_VERSION = (
    f"* on (job, instance, agent) group_left (version)\n  ({_VERSIONS}\n    unless on (job, instance, agent)"
    f" (count by (job, instance, agent) ({_VERSIONS}) > 1))"
)
# One currency for each process and agent, and each sum has it as a label.
_IN_CURRENCY = (
    "* on (job, instance, machine, agent) group_left (currency)\n"
    "  topk by (job, instance, machine, agent) (1, orchestrator_llm_currency_info == 1)"
)
_COST = "rate(orchestrator_llm_cost_micros_total[{0}]) / 1e6\n  " + _IN_CURRENCY

SHARED = (
    RecordingRule(
        "machine_agent_currency:orchestrator_llm_cost:rate15m",
        f"sum without (instance, provider, model) (\n  {_COST.format('15m')}\n)",
    ),
    RecordingRule(
        "machine_agent_currency:orchestrator_llm_cost_per_runs:ratio_rate1h",
        f"sum without (instance, provider, model) (\n  {_COST.format('1h')}\n)\n"
        "/ on (job, machine, agent) group_left ()\n"
        "(sum without (instance, outcome, reason)"
        ' (rate(orchestrator_runs_completed_total{outcome=~"completed|partial"}[1h])) > 0)',
    ),
    RecordingRule(
        "machine_agent_version:orchestrator_runs_answered:rate1h",
        "sum without (instance, outcome, reason) (\n"
        '  rate(orchestrator_runs_completed_total{outcome=~"completed|partial"}[1h])\n'
        f"  {_BY_VERSION}\n)",
    ),
    RecordingRule(
        "machine_agent_version:orchestrator_llm_tokens_per_runs:ratio_rate1h",
        "sum without (instance, provider, model, direction) (\n  rate(orchestrator_llm_tokens_total[1h])\n"
        f"  {_BY_VERSION}\n)\n/\n(machine_agent_version:orchestrator_runs_answered:rate1h > 0)",
    ),
    RecordingRule(
        "machine_agent:orchestrator_llm_tokens:rate15m",
        "sum without (instance, provider, model, direction) (rate(orchestrator_llm_tokens_total[15m]))",
    ),
    RecordingRule(
        "machine_agent_state:orchestrator_state_duration_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum without (instance) (rate(orchestrator_state_duration_seconds_bucket[5m])))",
    ),
    RecordingRule(
        "machine_agent:orchestrator_transitions:rate5m",
        "sum without (instance, from_state, event, to_state) (rate(orchestrator_transitions_total[5m]))",
    ),
    RecordingRule(
        "machine_agent:orchestrator_runs_completed_per_runs:ratio_rate1h",
        "sum without (instance, outcome, reason)"
        ' (rate(orchestrator_runs_completed_total{outcome=~"completed|partial"}[1h]))\n/\n'
        "sum without (instance, outcome, reason) (rate(orchestrator_runs_completed_total[1h]))",
    ),
    RecordingRule(
        "machine_agent:orchestrator_run_duration_seconds:mean_rate1h",
        "sum without (instance) (rate(orchestrator_run_duration_seconds_sum[1h]))\n/\n"
        "sum without (instance) (rate(orchestrator_run_duration_seconds_count[1h]))",
    ),
)


def of_graph(graph: Graph) -> tuple[RecordingRule, ...]:
    """Return the repetitions of states and the waits for people of one graph's runs, per finished run.

    The graph defines which edges return, so a graph without such edges has no such series.
    """
    found = []
    finished = (
        "sum without (instance, outcome, reason)"
        f' (rate(orchestrator_runs_completed_total{{machine="{graph.name}"}}[1h]))'
    )
    if edges := returns(graph):
        rates = (
            f'rate(orchestrator_transitions_total{{machine="{graph.name}", from_state="{edge.source}", '
            f'event="{edge.event}"}}[1h])'
            for edge in edges
        )
        went = "\n  or ".join(rates)
        found.append(
            RecordingRule(
                "machine_agent:orchestrator_returns_per_runs:ratio_rate1h",
                f"sum without (instance, from_state, event, to_state) (\n  {went}\n)\n/\n{finished}",
            )
        )
    if states := waits(graph):
        selector = f'machine="{graph.name}", state=~"{"|".join(states)}"'
        found.append(
            RecordingRule(
                "machine_agent:orchestrator_waits_per_runs:ratio_rate1h",
                f"sum without (instance, state) (rate(orchestrator_state_entries_total{{{selector}}}[1h]))\n/\n"
                f"{finished}",
            )
        )
    return (*found, *_OWN.get(graph.name, ()))


_OWN: Mapping[str, tuple[RecordingRule, ...]] = {RALPH.name: RALPH_RECORDINGS}
"""Graph -> its additional expressions."""


def of_graphs(graphs: Iterable[Graph]) -> tuple[RecordingRule, ...]:
    """Return the recorded expressions of all these graphs, each name once."""
    found: dict[str, list[str]] = {}
    for graph in graphs:
        for rule in of_graph(graph):
            found.setdefault(rule.name, []).append(rule.expr)
    return tuple(RecordingRule(name, "\nor\n".join(parts)) for name, parts in found.items())


# ---- rule files ----

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


# ---- the whole folder ----

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
            data={name: minified(text) for name, text in sorted(dashboards.items())},
        ),
    }
    return {name: yaml(data, note=NOTE) for name, data in found.items()}


def minified(text: str) -> str:
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


def dashboard_files(graphs: Sequence[Graph], console: str = "") -> dict[str, str]:
    """Return file name -> the JSON of a dashboard."""
    return {
        f"{page.uid.removeprefix('orchestrator-').replace('-', '_')}.json": grafana_json(page, console)
        for page in dashboards(graphs)
    }


def pack(
    graphs: Sequence[Graph], *, profile: Profile | None = None, kubernetes: bool = False
) -> dict[str, str]:
    """Return path -> text of every file. `kubernetes` adds manifests with the same content."""
    profile = profile or Profile()
    drawn = dashboard_files(graphs, profile.console)
    found = {f"grafana/{name}": text for name, text in drawn.items()}
    found["prometheus/rules.yml"] = rules_yaml(graphs, profile)
    found["prometheus/alerts.yml"] = alerts_yaml(profile)
    found |= {f"prometheus/{name}": text for name, text in trial_files(graphs, profile).items()}
    found |= {path: shipped(path) for path in WRITTEN_BY_HAND}
    if kubernetes:
        made = manifests(graphs, drawn, profile)
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
