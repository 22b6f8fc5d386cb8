"""`orchestrator ops`: dashboards, rules and runbooks as files, and the dashboards as a page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.shipped import SHIPPED, named
from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.ops.chart import chart
from orchestrator.ops.pack import dashboards, pack, write
from orchestrator.ops.render import Prometheus, TimeWindow, page
from orchestrator.ops.rule import Profile
from orchestrator.telemetry.catalogue import table

METRICS = """# Every metric

Written by `orchestrator ops export` from `orchestrator/telemetry/catalogue.py`. The column *made from* names the
source: facts of runs, a reading at each scrape, `orchestrator metrics serve`, or a batch job at its end.

"""

MOST_POINTS = 200
"""Most points of a line on the page."""

group = typer.Typer(help="Dashboards, alerts and runbooks for graphs.", rich_markup_mode=None)

_Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder to write to; its other files remain.")
]
_Graphs = Annotated[
    list[str] | None,
    typer.Option(
        "--graph",
        metavar="MODULE:ATTR",
        help="A graph of yours, or a shipped one; repeatable. Default: shipped ones.",
    ),
]
_Kubernetes = Annotated[
    bool,
    typer.Option("--kubernetes", help="Also as PodMonitor, PrometheusRule and ConfigMap of the dashboards."),
]
_Helm = Annotated[
    bool, typer.Option("--helm", help="Also as a chart for Helm: thresholds, labels, namespaces are values.")
]
_Runbooks = Annotated[
    str, typer.Option(metavar="URL", help="Address of the runbooks in alerts; /NAME.md is added.")
]
_Console = Annotated[
    str,
    typer.Option(metavar="URL", help="Address of the console: alerts and panels link to an agent's runs."),
]
_Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="NAME=VALUE", help="Label of every alert, for routing: team=agents; repeatable."
    ),
]
_Server = Annotated[str, typer.Argument(metavar="URL", help="Of a Prometheus, e.g. http://127.0.0.1:9090.")]
_Page = Annotated[Path, typer.Argument(metavar="FILE", help="The HTML page; a former one is replaced.")]
_Minutes = Annotated[float, typer.Option(metavar="N", help="How far back to look.")]
_Machine = Annotated[str, typer.Option(metavar="REGEX", help="Only these machines.")]
_Agent = Annotated[str, typer.Option(metavar="REGEX", help="Only these agents.")]
_Rate = Annotated[
    str, typer.Option(metavar="DURATION", help="Over how long rates are taken: 4 scrapes at least.")
]


@group.callback()
def ops_group() -> None:
    """Write dashboards, rules, alerts with tests and runbooks for graphs; draw the dashboards without Grafana."""


@group.command()
def export(
    folder: _Folder,
    *,
    graph: _Graphs = None,
    kubernetes: _Kubernetes = False,
    helm: _Helm = False,
    runbooks: _Runbooks = "runbooks",
    console: _Console = "",
    label: _Labels = None,
) -> None:
    """Write dashboards, Prometheus rules and tests, and runbooks.

    An Alertmanager example and a console page are included.
    """
    if console and not console.startswith(("http://", "https://")):
        raise ConfigError(f"--console is {console!r}; it is an address such as https://console.example")
    profile = Profile(
        runbooks=runbooks.rstrip("/"), console=console.rstrip("/"), labels=routing_labels(tuple(label or ()))
    )
    raise typer.Exit(export_pack(folder, tuple(graph or ()), profile, kubernetes=kubernetes, helm=helm))


@group.command()
def render(
    server: _Server,
    file: _Page,
    *,
    graph: _Graphs = None,
    minutes: _Minutes = 60,
    machine: _Machine = ".*",
    agent: _Agent = ".*",
    rate: _Rate = "5m",
) -> None:
    """Draw every panel from a live Prometheus on one HTML page."""
    if minutes <= 0:
        raise ConfigError(f"--minutes is {minutes:g}; it says how far back to look and is more than 0")
    seconds = minutes * 60
    window = TimeWindow(
        end=time.time(),
        seconds=seconds,
        step=max(1, seconds / MOST_POINTS),
        variables={"job": ".*", "instance": ".*", "machine": machine, "agent": agent},
        rate=rate,
    )
    file.write_text(page(dashboards(_graphs(graph or ())), Prometheus(server), window), encoding="utf-8")
    say(f"{file}")
    raise typer.Exit(Exit.COMPLETED)


def export_pack(
    folder: Path, graphs: Sequence[str], profile: Profile, *, kubernetes: bool = False, helm: bool = False
) -> int:
    """Write the pack for these graphs and print the changed files."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder, it is made where there is none")
    texts = whole(_graphs(graphs), profile, kubernetes=kubernetes, helm=helm)
    changed = write(folder, texts)
    for file in changed:
        say(f"{file}")
    unchanged = f", {len(texts) - len(changed)} unchanged" if len(changed) < len(texts) else ""
    say(f"{len(changed)} written{unchanged}: {many(len(texts), 'file')} in {folder}")
    return Exit.COMPLETED


def whole(
    graphs: Sequence[Graph], profile: Profile, *, kubernetes: bool = False, helm: bool = False
) -> dict[str, str]:
    """Return path -> text of every file: the pack, the chart, and the table of the metrics."""
    found = {**pack(graphs, profile=profile, kubernetes=kubernetes), "metrics.md": METRICS + table()}
    return found | chart(graphs, profile) if helm else found


def _graphs(names: Sequence[str]) -> list[Graph]:
    graphs = [named(name) for name in names] if names else list(SHIPPED.values())
    doubles = {graph.name for graph in graphs if sum(other.name == graph.name for other in graphs) > 1}
    if doubles:
        raise ConfigError(
            f"two graphs are called {', '.join(sorted(doubles))}; metrics tell graphs apart by name"
        )
    return graphs


_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_OF_RULES = frozenset(
    ("alertname", "severity", "component", "long", "short", "job", "instance", "machine", "agent")
)


def routing_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return the labels that `--label NAME=VALUE` gives to every alert. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value or not _LABEL_NAME.match(name):
            raise ConfigError(
                f"--label {text!r} is not NAME=VALUE with letters, digits and _; write for example team=agents"
            )
        if name in _OF_RULES or name in found:
            raise ConfigError(
                f"--label {name} is set already; choose another name than {', '.join(sorted({*_OF_RULES, *found}))}"
            )
        found[name] = value
    return found
