"""`orchestrator metrics serve|batch`: a journal's figures over HTTP, and the result of a batch job.

What the commands need is imported when they run, so that `--help` stays quick.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError, RunError

if TYPE_CHECKING:
    from orchestrator.journal.address import Address

SHORTEST, LONGEST = 1, 3600
"""Least and most seconds between two reads of a journal."""

_BEAT = 0.5
_OUT_OF_DATE = 3
"""Intervals after which figures are too old for the state ready."""
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128
"""Exit codes of shells: command not found, not executable, ended by a signal."""

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
    import asyncio

    from orchestrator.cli.runs.store import existing

    if not SHORTEST <= options.every <= LONGEST:
        raise ConfigError(f"every is {options.every:g}; it must be from {SHORTEST} to {LONGEST} seconds")
    token = None
    if options.token_env is not None and not (token := os.environ.get(options.token_env, "").strip()):
        raise ConfigError(
            f"the environment variable {options.token_env} is empty; put the bearer token into it"
        )
    asyncio.run(_serve(options, existing(options.journal), token))
    return Exit.COMPLETED


class _Clockwork:
    """Times of the loop's last heartbeat and of the journal's last successful read (monotonic seconds)."""

    def __init__(self, every: float) -> None:
        self._every = every
        self.beat = time.monotonic()
        self.read: float | None = None

    def age(self) -> float:
        return time.monotonic() - self.beat

    def is_current(self) -> bool:
        return self.read is not None and time.monotonic() - self.read < _OUT_OF_DATE * self._every

    def due(self) -> bool:
        return self.read is None or time.monotonic() - self.read >= self._every


async def _serve(options: MetricsServeOptions, address: Address, token: str | None) -> None:
    import asyncio

    from orchestrator.cli.look import JournalWatch
    from orchestrator.cli.loop import on_signal
    from orchestrator.journal.opening import journal_at
    from orchestrator.telemetry.exposition.server import serve_metrics
    from orchestrator.telemetry.exposition.stored import JournalCollector, registry_of

    counted = journal_at(address, only_reads=True, create=False)
    collector = JournalCollector(counted, _limits(), alone=options.alone)
    clockwork, watch = _Clockwork(options.every), JournalWatch(address)
    stopped = asyncio.Event()
    registry = registry_of(collector)
    server = serve_metrics(
        registry,
        options.host,
        options.port,
        token,
        heartbeat=clockwork.age,
        ready={"journal": clockwork.is_current},
    )
    try:
        with server, on_signal(stopped.set):
            say(f"serving {server.url} from {shown(str(address))}")
            while not stopped.is_set():
                clockwork.beat = time.monotonic()
                if clockwork.due():
                    try:
                        collector.show(await watch.look())
                    except (RunError, OSError) as error:
                        collector.failed()
                        complain(shown(str(error), 500))
                    else:
                        clockwork.read = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), _BEAT)
    finally:
        await watch.close()


def _limits() -> dict[tuple[str, str], float]:
    """Return (machine, state) -> maximum seconds in it, for the graphs that come with the library."""
    from orchestrator.cli.shipped import SHIPPED

    return {
        (name, state.value): limit[0]
        for name, graph in SHIPPED.items()
        for state in graph.states
        if (limit := graph.dwell_of(state)) is not None
    }


@group.command(context_settings={"ignore_unknown_options": True}, help=_BATCH)
def batch(name: _Name, command: _Command, *, textfile: _Textfile = None, gateway: _Gateway = None) -> None:
    """Run a command and publish how it ended."""
    from orchestrator.telemetry.exposition.batch import Batch

    if textfile is None and gateway is None:
        raise ConfigError("there is no place to publish to: give --textfile, --gateway, or both")
    with Batch(name, textfile=textfile, gateway=gateway) as job:
        code = _run(command)
        job.failed = code != 0
    for problem in job.problems:
        complain(shown(problem, 500))
    raise typer.Exit(code)


def _run(command: list[str]) -> int:
    import subprocess

    try:
        code = subprocess.call(command)  # noqa: S603 - the purpose of this command is to run the user's command
    except FileNotFoundError:
        complain(f"no program {shown(command[0], 200)}")
        return _NOT_FOUND
    except OSError as error:
        complain(f"{shown(command[0], 200)} cannot be run: {error.strerror}")
        return _NOT_EXECUTABLE
    return code if code >= 0 else _SIGNALLED - code
