"""The dashboards against Grafana's published schema, as the classes of grafana-foundation-sdk have it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from orchestrator.ops.pack import dashboards
from orchestrator.ops.panel import dashboard_data
from tests.dashboards.lint import GRAPHS

BESIDE_THE_SCHEMA = {
    "annotations.list.step": "of the Prometheus data source, which reads it from the annotation",
    "annotations.list.titleFormat": "of the Prometheus data source",
    "templating.list.definition": "of the editor of a query variable, which shows it in its list",
}
"""Members that Grafana's own exports have and the schema of the dashboard does not name."""
PAGES = {page.uid: dashboard_data(page) for page in dashboards(GRAPHS)}
CONSOLE = "https://console.example"
LINKED = {page.uid: dashboard_data(page, CONSOLE) for page in dashboards(GRAPHS)}


@pytest.fixture(scope="module", autouse=True)
def plugins() -> None:
    """Make the SDK read the options of each kind of panel and the queries of Prometheus with their own schemas."""
    register_default_plugins()


def problems(data: dict[str, Any]) -> list[str]:
    """Return what a dashboard has that the schema does not allow."""
    page = Dashboard.from_json(data)
    kept = json.loads(json.dumps(page, cls=JSONEncoder))
    return [*unknown(data, kept), *wrong_types(page)]


def unknown(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Yield the members that the classes of the schema dropped."""
    if isinstance(given, dict):
        for name, value in given.items():
            inner = f"{place}.{name}".lstrip(".")
            if name not in kept:
                yield from () if inner in BESIDE_THE_SCHEMA else (f"{inner} is unknown",)
            else:
                yield from unknown(value, kept[name], inner)
    elif isinstance(given, list):
        for mine, theirs in zip(given, kept, strict=True):
            yield from unknown(mine, theirs, place)


def wrong_types(value: Any, place: str = "") -> Iterator[str]:
    """Yield the members whose values are not of the type that the schema declares."""
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from wrong_types(inner, place)
    elif type(value).__module__.startswith("grafana_foundation_sdk.") and not isinstance(value, Enum):
        for name, declared in get_type_hints(type(value)).items():
            member = getattr(value, name)
            if not fits(member, declared):
                yield f"{place}.{name} is {member!r}; allowed: {declared}".lstrip(".")
            yield from wrong_types(member, f"{place}.{name}")


def fits(value: Any, declared: Any) -> bool:
    """Return whether a value is of a declared type, without a look into the classes of the schema."""
    kind, inner = get_origin(declared), get_args(declared)
    if kind in (Union, UnionType):
        found = any(fits(value, one) for one in inner)
    elif kind is Literal:
        found = value in inner
    elif kind is list:
        found = isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    elif kind is dict:
        found = isinstance(value, dict) and all(fits(one, inner[1]) for one in value.values())
    elif declared is Any or declared is object:
        found = True
    elif isinstance(declared, type) and issubclass(declared, Enum):
        found = value in [one.value for one in declared]
    else:
        allowed: tuple[type, ...] = (int, float) if declared is float else (declared,)
        found = isinstance(value, allowed) and not (isinstance(value, bool) and declared is not bool)
    return found


@pytest.mark.parametrize("pages", [PAGES, LINKED], ids=["plain", "with links"])
@pytest.mark.parametrize("uid", PAGES)
def test_a_dashboard_is_valid_in_the_schema_of_grafana(uid: str, pages: dict[str, dict[str, Any]]) -> None:
    assert problems(pages[uid]) == []


@pytest.mark.parametrize("uid", PAGES)
def test_the_series_of_an_agent_link_to_its_runs_if_the_console_has_an_address(uid: str) -> None:
    assert CONSOLE not in json.dumps(PAGES[uid])
    linked = 0
    for panel in LINKED[uid]["panels"]:
        links = panel.get("fieldConfig", {}).get("defaults", {}).get("links", [])
        legends = [target["legendFormat"] for target in panel.get("targets", [])]
        of_agents = bool(legends) and all("{{agent}}" in one for one in legends)
        agent = "${__data.fields.agent}" if panel["type"] == "table" else "${__field.labels.agent}"
        assert [link["url"] for link in links] == [f"{CONSOLE}/?agent={agent}"] * of_agents
        linked += of_agents
    assert linked


def test_the_members_beside_the_schema_are_all_in_use() -> None:
    (data,) = (PAGES[uid] for uid in PAGES if uid == "orchestrator-operations")
    for place in BESIDE_THE_SCHEMA:
        top, inner, name = place.split(".")
        assert any(name in one for one in data[top][inner]), place


def first(data: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(panel for panel in data["panels"] if panel["type"] == kind)


PLANTED: dict[str, Callable[[dict[str, Any]], object]] = {
    "colour is unknown": lambda data: data.update(colour="red"),
    "tags is 'orchestrator'": lambda data: data.update(tags="orchestrator"),
    "graph_tooltip is 7": lambda data: data.update(graphTooltip=7),
    "grid_pos.w is '8'": lambda data: first(data, "stat")["gridPos"].update(w="8"),
    "panels.options.legend.calc is unknown": lambda data: first(data, "timeseries")["options"][
        "legend"
    ].update(calc=[]),
    "orientation is 'sideways'": lambda data: first(data, "bargauge")["options"].update(
        orientation="sideways"
    ),
    "format_val is 'tables'": lambda data: first(data, "table")["targets"][0].update(format="tables"),
    "show_points is 'sometimes'": lambda data: first(data, "timeseries")["fieldConfig"]["defaults"][
        "custom"
    ].update(showPoints="sometimes"),
}


@pytest.mark.parametrize("problem", PLANTED)
def test_a_planted_slip_is_found(problem: str) -> None:
    data = copy.deepcopy(PAGES["orchestrator-operations"])
    PLANTED[problem](data)
    (found,) = problems(data)
    assert problem in found
