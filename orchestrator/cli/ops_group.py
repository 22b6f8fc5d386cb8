"""The commands of the group `ops`. Their body is in `ops`, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
_Runbooks = Annotated[
    str, typer.Option(metavar="URL", help="Address of the runbooks in alerts; /NAME.md is added.")
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
    runbooks: _Runbooks = "runbooks",
    label: _Labels = None,
) -> None:
    """Write dashboards, Prometheus rules and tests, and runbooks.

    An Alertmanager example and a console page are included.
    """
    from orchestrator.cli.ops import export_pack

    raise typer.Exit(
        export_pack(
            folder, tuple(graph or ()), kubernetes=kubernetes, runbooks=runbooks, labels=tuple(label or ())
        )
    )


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
    from orchestrator.cli.ops import render_page

    raise typer.Exit(
        render_page(
            server, file, tuple(graph or ()), minutes=minutes, machine=machine, agent=agent, rate=rate
        )
    )
