"""The commands of the group `metrics`. Their bodies are in the module of that name, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.spread import spread

_BATCH = """Run a command, then tell when it last went well and how long it took. The exit code is the command's.

\b
orchestrator metrics batch nightly --textfile /var/lib/node_exporter/nightly.prom \\
    -- orchestrator run "Summarise the open incidents."
"""

group = typer.Typer(help="Metrics of runs whose own processes cannot be scraped.", rich_markup_mode=None)

_Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where to listen. The default is this machine only.")
]
_Port = Annotated[int, typer.Option(metavar="N", help="Which port; 0 picks a free one.")]
_TokenEnv = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Environment variable with the bearer token that a scraper must show."),
]
_Every = Annotated[float, typer.Option(metavar="SECONDS", help="How often to look at the journal.")]
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the job; its series carry it as the label `batch`.")
]
_Command = Annotated[list[str], typer.Argument(metavar="COMMAND…", help="What to run, after --.")]
_Textfile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write here, in the folder of node_exporter's textfile collector; *.prom."
    ),
]
_Gateway = Annotated[str | None, typer.Option(metavar="URL", help="Push to this Pushgateway.")]


@group.callback()
def metrics_group() -> None:
    """Metrics of runs whose own processes cannot be scraped: what a journal tells, and how a batch job went."""


@group.command()
@spread
def serve(
    *,
    host: _Host = "127.0.0.1",
    port: _Port = 9464,
    token_env: _TokenEnv = None,
    every: _Every = 15.0,
    journal: given.Journal = None,
) -> None:
    """Serve what a journal tells until SIGINT or SIGTERM: /metrics, /healthz, /readyz.

    Runs under way, orphaned (nobody alive holds them), parked and ended, since when, the size of the journal, and the
    figures of this process. Nothing is written to the journal. For runs that are processes of their own, such as
    `orchestrator run`; a process that serves its metrics itself needs no second one.
    """
    from orchestrator.cli.metrics import MetricsServeOptions, serve_journal

    raise typer.Exit(serve_journal(MetricsServeOptions(host, port, token_env, every, journal)))


@group.command(context_settings={"ignore_unknown_options": True}, help=_BATCH)
def batch(name: _Name, command: _Command, *, textfile: _Textfile = None, gateway: _Gateway = None) -> None:
    """Run a command and tell how it went."""
    from orchestrator.cli.metrics import run_batch

    raise typer.Exit(run_batch(name, command, textfile=textfile, gateway=gateway))
