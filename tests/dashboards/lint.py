"""What our expressions name, held against the catalogue: metrics, labels, label values, and some rules of good use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import promql_parser
import yaml

from orchestrator.cli.shipped import SHIPPED
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.pack import SHARED, SLO, dashboards, of_graphs, shipped
from orchestrator.ops.panel import Dashboard, dashboard_data
from orchestrator.ops.rule import Profile
from orchestrator.ops.trial import CASES
from orchestrator.telemetry.catalogue import CATALOGUE, PREFIX, MetricKind

GRAPHS = list(SHIPPED.values())
TARGET = frozenset(("job", "instance"))
"""Labels that Prometheus adds."""
FOREIGN: dict[str, frozenset[str]] = {
    "up": TARGET,
    "ALERTS": frozenset(("alertname", "alertstate", "severity", "component")),
    "scrape_duration_seconds": TARGET,
    "scrape_samples_scraped": TARGET,
    "process_start_time_seconds": TARGET,
    "process_cpu_seconds_total": TARGET,
    "process_resident_memory_bytes": TARGET,
}
"""Metrics of others: Prometheus's own, and those of the Python client."""
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""That of libyaml, which is fast, where PyYAML has a wheel with it."""
NAMES_OF_OURS = (
    "machine",
    "agent",
    "state",
    "from_state",
    "to_state",
    "event",
    "guard",
    "tool",
    "provider",
    "model",
)
REASONED = frozenset(
    (
        *NAMES_OF_OURS,
        "le",
        "version",
        "python",
        "identity",
        "currency",
        "definition",
        "name",
        "metric",
        "label",
        "journal",
        "path",
    )
)
"""Labels whose values are names of graphs, tools, models, versions and journals, or bounds."""


class Matcher(NamedTuple):
    label: str
    op: str
    value: str


class Named(NamedTuple):
    """One selector in one expression."""

    where: str
    metric: str
    matchers: tuple[Matcher, ...]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where and what, of every expression that we ship."""
    profile = Profile()
    for rule in (*SLO, *SHARED, *of_graphs(GRAPHS)):
        yield f"rule {rule.name}", profile.expression(rule.expr)
    for alert in ALERTS:
        yield f"alert {alert.name}", profile.expression(alert.expr)
    for dashboard in dashboards(GRAPHS):
        yield from drawn(dashboard)
    for name in NAMES:
        yield from ((f"runbook {name}", query) for query in runbook_queries(name))
    yield from (("console", query) for query in console_queries())


def drawn(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    for panel in dashboard.panels:
        yield from ((f"panel {panel.title}", filled(query.whole)) for query in panel.queries)
    for note in dashboard_data(dashboard)["annotations"]["list"]:
        yield f"annotation {note['name']}", filled(note["expr"])


def filled(expression: str) -> str:
    """Return a panel's expression with Grafana's variables replaced by something."""
    return re.sub(r"\$(job|instance|machine|agent)", ".*", expression.replace("$__rate_interval", "5m"))


def runbook(name: str) -> str:
    return shipped(f"runbooks/{name}.md")


def runbook_queries(name: str) -> list[str]:
    (block,) = re.findall(r"```promql\n(.*?)```", runbook(name), re.DOTALL)
    return [query.strip() for query in block.split("\n\n")]


def console_queries() -> list[str]:
    """Return the queries of the console, with something in place of what it fills in."""
    found = re.findall(r'query (?:\(printf )?"((?:[^"\\]|\\.)*)"', shipped("consoles/orchestrator.html"))
    plain = (query.replace('\\"', '"') for query in found)
    return [query.replace("{%s}", "").replace("%s", "x") for query in plain]


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str):
            yield from nodes(child)
    for child in getattr(node, "args", ()) or ():
        yield from nodes(child)


def selectors(where: str, expression: str) -> Iterator[Named]:
    for node in nodes(promql_parser.parse(expression)):
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple(
                Matcher(one.name, str(one.op).rpartition(".")[2], one.value) for one in node.matchers.matchers
            )
            yield Named(where, node.name or "", matchers)


def recorded() -> dict[str, frozenset[str]]:
    """Return recorded names with their labels: their first part says which are left."""
    level = {
        "machine_agent": {"job", "machine", "agent"},
        "machine_agent_currency": {"job", "machine", "agent", "currency"},
        "machine_agent_version": {"job", "machine", "agent", "version"},
        "machine_agent_state": {"job", "machine", "agent", "state"},
    }
    return {
        rule.name: frozenset(level[rule.name.partition(":")[0]])
        for rule in (*SLO, *SHARED, *of_graphs(GRAPHS))
    }


@cache
def known() -> dict[str, frozenset[str]]:
    """Return every series name that may be named, with its labels."""
    found = {**FOREIGN, **recorded()}
    for row in CATALOGUE:
        labels = TARGET | set(row.labels)
        full = PREFIX + row.name
        if row.kind is MetricKind.HISTOGRAM:
            found |= {f"{full}_count": labels, f"{full}_sum": labels, f"{full}_bucket": labels | {"le"}}
        else:
            found[full] = labels
    return found


@cache
def row_of(series: str) -> Any:
    """Return the row of the catalogue that a series belongs to, or None."""
    name = series.removeprefix(PREFIX)
    for row in CATALOGUE:
        endings = ("_bucket", "_count", "_sum") if row.kind is MetricKind.HISTOGRAM else ("",)
        if name in {row.name + ending for ending in endings}:
            return row
    return None


def values_of(matcher: Matcher) -> list[str]:
    return matcher.value.split("|") if "Re" in matcher.op or "~" in matcher.op else [matcher.value]


def case_series() -> Iterator[tuple[str, str]]:
    for case in CASES:
        for series, _ in case.series:
            yield f"test {case.alert}: {case.title}", series


def fields_of() -> dict[str, set[str]]:
    """Return each metric of ours that something names, with the labels that matchers put on it."""
    found: dict[str, set[str]] = {}
    for where, expression in expressions():
        for named in selectors(where, expression):
            if row_of(named.metric) is not None:
                ours = {one.label for one in named.matchers if one.label not in TARGET}
                found.setdefault(named.metric, set()).update(ours or {""})
    return found


def scraped_names(text: str) -> dict[str, set[str]]:
    """Return each series name of an exposition with its labels; "" stands for being there at all."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)
            assert name is not None, line
            found.setdefault(name[0], {""}).update(re.findall(r'[{,]([a-zA-Z_]+)="', line))
    return found
