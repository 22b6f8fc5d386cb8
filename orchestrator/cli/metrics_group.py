"""The commands of the group `metrics`. Their bodies are in the module of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.spread import spread

_BATCH = """Run a command and publish when it last succeeded, and its time.

The exit code is the command's.

\b
orchestrator metrics batch nightly --textfile /var/lib/node_exporter/nightly.prom \\
    -- orchestrator run "Summarise the open incidents."
"""

group = typer.Typer(help="Metrics of journals and batch jobs.", rich_markup_mode=None)

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
    """Metrics of runs whose processes cannot be scraped: those of a journal, and of a batch job."""


@dataclass(frozen=True, kw_only=True)
class MetricsServeOptions:
    """The command line of `metrics serve`."""

    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="The address to listen at. The default is this machine only."),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0 picks a free one.")] = 9464
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment variable with the bearer token that a scraper must show."
        ),
    ] = None
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to read the journal.")] = 15.0
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Also serve the metrics of processes, for runs of processes that are not scraped.",
        ),
    ] = False
    journal: given.Journal = None


@group.command()
@spread
def serve(options: MetricsServeOptions) -> int:
    """Serve the metrics of a journal at /metrics, /healthz, /readyz.

    The metrics are runs that are running, orphaned (their owner died), parked and ended, since when, the size of the
    journal, and the figures of this process. Nothing is written to the journal. SIGINT and SIGTERM stop the command.

    A process with the journal serves the same metrics of it, so this command is needed only while there may be no
    such process: it keeps parked and orphaned runs visible. It can run beside them, because the rules count each run
    once. Runs that are processes of their own, such as `orchestrator run`, are not scraped: with --alone the command
    also serves what their processes would.
    """
    from orchestrator.cli.metrics import serve_journal

    return serve_journal(options)


@group.command(context_settings={"ignore_unknown_options": True}, help=_BATCH)
def batch(name: _Name, command: _Command, *, textfile: _Textfile = None, gateway: _Gateway = None) -> None:
    """Run a command and publish how it ended."""
    from orchestrator.cli.metrics import run_batch

    raise typer.Exit(run_batch(name, command, textfile=textfile, gateway=gateway))
